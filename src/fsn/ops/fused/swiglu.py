"""SwiGLU around two library products: its middle forward and backward in one pass each."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS, ONES, Aside, mm, pack, padded, sigmoid, unpack

ROWS = 32
COLUMNS = 64


@triton.jit(do_not_specialize=COUNTS)
def middle_kernel(gu_ptr, out_ptr, M, HP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr):
    """gu (M, 2HP): gate, bias included, then up -> SiLU(gate) ⊙ up, (M, HP)"""
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BH + tl.arange(0, BH)
    mask = (rows < M)[:, None] & (cols < HP)[None, :]
    src = gu_ptr + rows[:, None] * (2 * HP) + cols[None, :]
    gate = tl.load(src, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(src + HP, mask=mask, other=0.0).to(tl.float32)
    out = gate * sigmoid(gate) * up
    tl.store(out_ptr + rows[:, None] * HP + cols[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def middle_backward_kernel(
    gu_ptr, dout_ptr, dgu_ptr, M, HP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr
):
    """dout (M, HP) -> dgu (M, 2HP)"""
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BH + tl.arange(0, BH)
    mask = (rows < M)[:, None] & (cols < HP)[None, :]
    src = rows[:, None] * (2 * HP) + cols[None, :]
    gate = tl.load(gu_ptr + src, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gu_ptr + src + HP, mask=mask, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + rows[:, None] * HP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    sg = sigmoid(gate)
    dgate = dout * up * sg * (1.0 + gate * (1.0 - sg))
    tl.store(dgu_ptr + src, dgate.to(dgu_ptr.dtype.element_ty), mask=mask)
    tl.store(dgu_ptr + src + HP, (dout * gate * sg).to(dgu_ptr.dtype.element_ty), mask=mask)


def pack_swiglu(gate_up: Tensor, bias: Tensor, down: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """gate_up (2h, n), bias (h,), down (o, h) -> (2HP, NP + 16) with the bias in it, and (OP, HP)"""
    hidden, inputs = gate_up.shape[0] // 2, gate_up.shape[1]
    outputs = down.shape[0]
    hp, np_, op = padded(hidden), padded(inputs), padded(outputs)
    w1 = pack(gate_up, bias, (hidden, inputs), (hp, np_), dtype)
    return w1, pack(down, None, (outputs, hidden), (op, hp), dtype)[:, :hp]


class SwiGLUFunction(torch.autograd.Function):
    """x (M, NP + 16) in the compute type, with its column of ones -> (M, OP) in the compute type."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate_up: Tensor,
        bias: Tensor,
        down: Tensor,
        packed: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        hidden, inputs = gate_up.shape[0] // 2, gate_up.shape[1]
        outputs = down.shape[0]
        hp, np_ = padded(hidden), x.shape[1] - ONES
        w1, w2 = pack_swiglu(gate_up, bias, down, x.dtype) if packed is None else packed
        gu = mm(x, w1.t())
        rows = x.shape[0]
        middle = torch.empty(rows, hp, dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(rows, ROWS), triton.cdiv(hp, COLUMNS))
        middle_kernel[grid](gu, middle, rows, hp, ROWS, COLUMNS)
        ctx.save_for_backward(x, w1, w2, gu, middle)
        ctx.sizes = (hidden, inputs, outputs, hp, np_)
        return mm(middle, w2.t())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy = grads[0].contiguous()
        x, w1, w2, gu, middle = ctx.saved_tensors
        hidden, inputs, outputs, hp, np_ = ctx.sizes
        rows = x.shape[0]
        aside = Aside(x.device)
        with aside:
            dw2 = mm(dy.t(), middle, torch.float32)
        dmiddle = mm(dy, w2)
        dgu = torch.empty_like(gu)
        grid = (triton.cdiv(rows, ROWS), triton.cdiv(hp, COLUMNS))
        middle_backward_kernel[grid](gu, dmiddle, dgu, rows, hp, ROWS, COLUMNS)
        with aside:
            dw1, dbias = unpack(mm(dgu.t(), x, torch.float32), (hidden, inputs), (hp, np_), hidden)
        dx = mm(dgu, w1)
        aside.join()
        return dx, dw1, dbias, dw2[:outputs, :hidden], None
