"""SwiGLU: its middle, forward and backward, in one kernel with the product that feeds it; the rest is cuBLAS's."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS, ONES, Aside, math_mode, mm, pack, padded, sigmoid, tile_of, transposed_mm
from .dropout import Drop, drop_arguments, dropped
from .gradients import release, settle
from .tiles import FEEDFORWARD, FEEDFORWARD_BACKWARD, FEEDFORWARD_WIDEST, PASS, pass_grid


@triton.jit
def swiglu(gate, up, MATH: tl.constexpr):
    """SiLU(gate) ⊙ up"""
    return gate * sigmoid(gate, MATH) * up


@triton.jit
def swiglu_backward(gate, up, dout, MATH: tl.constexpr):
    """Gradients of gate and up."""
    sg = sigmoid(gate, MATH)
    return dout * up * sg * (1.0 + gate * (1.0 - sg)), dout * gate * sg


@triton.jit
def product_tile(M, HP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr):
    """A program's rows and hidden units, and which of them exist. Neighbours have the same rows, and share them."""
    rows = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BH + tl.arange(0, BH)
    return rows, cols, (rows < M)[:, None], (cols < HP)[None, :]


@triton.jit(do_not_specialize=COUNTS)
def gate_and_up_kernel(
    x_ptr, w_ptr, gu_ptr, out_ptr, M, T, hidden,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    D: tl.constexpr, HP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """x (M, D) and w (2HP, D) -> gu = x wᵀ (M, 2HP), and SiLU(gate) ⊙ up (M, HP), rounded gates and ups in it,
    with dropout"""
    rows, cols, ok, inside = product_tile(M, HP, BM, BH)
    d = tl.arange(0, BD)
    gate = tl.zeros((BM, BH), tl.float32)
    up = tl.zeros((BM, BH), tl.float32)
    for d0 in range(0, D, BD):
        within = d0 + d < D
        x = tl.load(x_ptr + rows[:, None] * D + (d0 + d)[None, :], mask=ok & within[None, :], other=0.0)
        w = w_ptr + cols[None, :] * D + (d0 + d)[:, None]
        there = inside & within[:, None]
        gate = tl.dot(x, tl.load(w, mask=there, other=0.0), gate)
        up = tl.dot(x, tl.load(w + HP * D, mask=there, other=0.0), up)
    kind = gu_ptr.dtype.element_ty
    mask = ok & inside
    gate = gate.to(kind)
    up = up.to(kind)
    gu = gu_ptr + rows[:, None] * (2 * HP) + cols[None, :]
    tl.store(gu, gate, mask=mask)
    tl.store(gu + HP, up, mask=mask)
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    out = swiglu(gate.to(tl.float32), up.to(tl.float32), MATH)
    out = dropped(out, rows[:, None], cols[None, :], T, hidden, drop, DROPOUT)
    tl.store(out_ptr + rows[:, None] * HP + cols[None, :], out.to(kind), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def middle_kernel(
    gu_ptr, out_ptr, M, T, hidden,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    HP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """gu (M, 2HP): gate, bias included, then up -> SiLU(gate) ⊙ up with dropout, (M, HP)"""
    rows, cols, mask = tile_of(M, HP, BR, BH)
    src = gu_ptr + rows[:, None] * (2 * HP) + cols[None, :]
    gate = tl.load(src, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(src + HP, mask=mask, other=0.0).to(tl.float32)
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    out = dropped(swiglu(gate, up, MATH), rows[:, None], cols[None, :], T, hidden, drop, DROPOUT)
    out = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows[:, None] * HP + cols[None, :], out, mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def middle_backward_kernel(
    gu_ptr, dout_ptr, dgu_ptr, out_ptr, M, T, hidden,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    HP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, AGAIN: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """dout (M, HP) -> dgu (M, 2HP), and AGAIN what the forward pass had in the middle, (M, HP)"""
    rows, cols, mask = tile_of(M, HP, BR, BH)
    src = rows[:, None] * (2 * HP) + cols[None, :]
    gate = tl.load(gu_ptr + src, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gu_ptr + src + HP, mask=mask, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + rows[:, None] * HP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    dout = dropped(dout, rows[:, None], cols[None, :], T, hidden, drop, DROPOUT)
    dgate, dup = swiglu_backward(gate, up, dout, MATH)
    if AGAIN:
        out = dropped(swiglu(gate, up, MATH), rows[:, None], cols[None, :], T, hidden, drop, DROPOUT)
        out = out.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + rows[:, None] * HP + cols[None, :], out, mask=mask)
    tl.store(dgu_ptr + src, dgate.to(dgu_ptr.dtype.element_ty), mask=mask)
    tl.store(dgu_ptr + src + HP, dup.to(dgu_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def into_middle_kernel(
    dy_ptr, w_ptr, gu_ptr, dgu_ptr, out_ptr, M, T, hidden,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    D: tl.constexpr, HP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
    AGAIN: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """The same with the product that feeds it: dy (M, D), w (D, HP + 16) and gu -> dgu, with dout = dy w"""
    rows, cols, ok, inside = product_tile(M, HP, BM, BH)
    d = tl.arange(0, BD)
    mask = ok & inside
    src = rows[:, None] * (2 * HP) + cols[None, :]
    dout = tl.zeros((BM, BH), tl.float32)
    for d0 in range(0, D, BD):
        within = d0 + d < D
        dy = tl.load(dy_ptr + rows[:, None] * D + (d0 + d)[None, :], mask=ok & within[None, :], other=0.0)
        w = tl.load(
            w_ptr + (d0 + d)[:, None] * (HP + 16) + cols[None, :], mask=within[:, None] & inside, other=0.0
        )
        dout = tl.dot(dy, w, dout)
    gate = tl.load(gu_ptr + src, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gu_ptr + src + HP, mask=mask, other=0.0).to(tl.float32)
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    dout = dout.to(gu_ptr.dtype.element_ty).to(tl.float32)
    dout = dropped(dout, rows[:, None], cols[None, :], T, hidden, drop, DROPOUT)
    dgate, dup = swiglu_backward(gate, up, dout, MATH)
    kind = dgu_ptr.dtype.element_ty
    if AGAIN:
        out = dropped(swiglu(gate, up, MATH), rows[:, None], cols[None, :], T, hidden, drop, DROPOUT)
        tl.store(out_ptr + rows[:, None] * HP + cols[None, :], out.to(kind), mask=mask)
    tl.store(dgu_ptr + src, dgate.to(kind), mask=mask)
    tl.store(dgu_ptr + src + HP, dup.to(kind), mask=mask)


def gate_and_up(
    x: Tensor, w: Tensor, hidden: int, length: int = 1, drop: Drop | None = None
) -> tuple[Tensor, Tensor]:
    """x (M, NP + 16), w (2HP, NP + 16) -> gu (M, 2HP), and SiLU(gate) ⊙ up with dropout (M, HP).

    In bfloat16 one kernel, unless it is wide; in float32, where products are cuBLAS's, a product and a pass.
    """
    rows, hp, mode = x.shape[0], w.shape[0] // 2, math_mode(x.dtype)
    out = torch.empty(rows, hp, dtype=x.dtype, device=x.device)
    dropout = length, hidden, *drop_arguments(drop, x)
    if x.dtype == torch.float32 or hp > FEEDFORWARD_WIDEST:
        gu = mm(x, w.t())
        middle_kernel[pass_grid(rows, hp)](gu, out, rows, *dropout, hp, *PASS, mode)
        return gu, out
    tile = FEEDFORWARD
    gu = torch.empty(rows, 2 * hp, dtype=x.dtype, device=x.device)
    gate_and_up_kernel[(triton.cdiv(hp, tile.columns), triton.cdiv(rows, tile.rows))](
        x, w, gu, out, rows, *dropout, x.shape[1], hp, tile.rows, tile.columns, tile.inner, mode,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return gu, out


def through_middle(
    dy: Tensor,
    w: Tensor,
    gu: Tensor,
    kept: Tensor | None,
    hidden: int,
    length: int = 1,
    drop: Drop | None = None,
) -> tuple[Tensor, Tensor]:
    """dy (M, OP), w (OP, HP + 16), gu (M, 2HP) -> dgu (M, 2HP), and the middle (M, HP), computed again unless kept"""
    rows, hp, mode = gu.shape[0], gu.shape[1] // 2, math_mode(gu.dtype)
    dgu, dropout = torch.empty_like(gu), (length, hidden, *drop_arguments(drop, gu))
    middle = torch.empty(rows, hp, dtype=gu.dtype, device=gu.device) if kept is None else kept
    if gu.dtype == torch.float32 or hp > FEEDFORWARD_WIDEST:
        dmiddle = mm(dy, w[:, :hp])
        middle_backward_kernel[pass_grid(rows, hp)](
            gu, dmiddle, dgu, middle, rows, *dropout, hp, *PASS, kept is None, mode
        )
        return dgu, middle
    tile = FEEDFORWARD_BACKWARD
    into_middle_kernel[(triton.cdiv(hp, tile.columns), triton.cdiv(rows, tile.rows))](
        dy, w, gu, dgu, middle, rows, *dropout, dy.shape[1], hp, tile.rows, tile.columns, tile.inner,
        kept is None, mode, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dgu, middle


def pack_swiglu(gate_up: Tensor, bias: Tensor, down: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """gate_up (2h, n), bias (h,), down (o, h) -> (2HP, NP + 16) with the bias in it, and (OP, HP + 16)"""
    hidden, inputs = gate_up.shape[0] // 2, gate_up.shape[1]
    outputs = down.shape[0]
    hp, np_, op = padded(hidden), padded(inputs), padded(outputs)
    w1 = pack(gate_up, bias, (hidden, inputs), (hp, np_), dtype)
    return w1, pack(down, None, (outputs, hidden), (op, hp), dtype)


class SwiGLUFunction(torch.autograd.Function):
    """x (M, NP + 16) in the compute type, with its column of ones -> (M, OP) in the compute type.

    ``keep``: what is in the middle is kept for the backward pass, not computed again. ``drop``: dropout on the hidden
    layer, of sequences of ``length`` tokens.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate_up: Tensor,
        bias: Tensor,
        down: Tensor,
        packed: tuple[Tensor, Tensor] | None = None,
        keep: bool = False,
        length: int = 1,
        drop: Drop | None = None,
    ) -> Tensor:
        w1, w2 = pack_swiglu(gate_up, bias, down, x.dtype) if packed is None else packed
        gu, middle = gate_and_up(x, w1, bias.shape[0], length, drop)
        ctx.length, ctx.drop = length, drop
        ctx.save_for_backward(x, w1, w2, gu, middle if keep else None, gate_up, bias, down)
        return mm(middle, w2[:, : middle.shape[1]].t())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy = grads[0].contiguous()
        x, w1, w2, gu, kept, gate_up, bias, down = ctx.saved_tensors
        hidden, hp, wide = gate_up.shape[0] // 2, gu.shape[1] // 2, x.shape[1] - ONES
        dgu, middle = through_middle(dy, w2, gu, kept, hidden, ctx.length, ctx.drop)
        weights = Aside(x.device, "weights")
        with weights:
            ddown, _ = settle(
                transposed_mm(dy, middle), down, None, (down.shape[0], hidden), (dy.shape[1], hp)
            )
            dgate_up, dbias = settle(
                transposed_mm(dgu, x), gate_up, bias, (hidden, gate_up.shape[1]), (hp, wide)
            )
        dx = mm(dgu, w1)
        release(weights, (dy, middle, dgu, x), (dgate_up, dbias, ddown))
        return dx, dgate_up, dbias, ddown, None, None, None, None
