"""Readout and cross-entropy: one product, one pass forward, one pass backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS, ONES, mm, pack, power_of_two, round_up, unpack

R = 4
ROWS = 32


@triton.jit(do_not_specialize=COUNTS)
def cross_entropy_kernel(
    z_ptr, target_ptr, scale_ptr, bias_ptr, loss_ptr, lse_ptr, M, V, VP: tl.constexpr,
    BV: tl.constexpr, R: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """z (M, VP), targets (M,) -> loss and log-sum-exp (M,), for logits = scale · z + bias"""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    cols = tl.arange(0, BV)
    ok = rows < M
    mask = ok[:, None] & (cols < V)[None, :]
    z = tl.load(z_ptr + rows[:, None] * VP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_SCALE:
        z = z * tl.load(scale_ptr)
    if HAS_BIAS:
        z += tl.load(bias_ptr + cols, mask=cols < V, other=0.0)[None, :]
    target = tl.load(target_ptr + rows, mask=ok, other=0)
    hit = tl.sum(tl.where(cols[None, :] == target[:, None], z, 0.0), axis=1)
    z = tl.where((cols < V)[None, :], z, float("-inf"))
    top = tl.max(z, axis=1)
    lse = top + tl.log(tl.sum(tl.exp(z - top[:, None]), axis=1))
    tl.store(loss_ptr + rows, lse - hit, mask=ok)
    tl.store(lse_ptr + rows, lse, mask=ok)


@triton.jit(do_not_specialize=COUNTS)
def cross_entropy_backward_kernel(
    z_ptr, target_ptr, scale_ptr, bias_ptr, lse_ptr, dloss_ptr, dz_ptr, dscale_ptr, dbias_ptr, M, V,
    VP: tl.constexpr, BV: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """dz (M, VP), and per program the sums dscale and dbias (VP)"""
    pid = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BV)
    scale = 1.0
    if HAS_SCALE:
        scale = tl.load(scale_ptr)
    dscale = tl.zeros((R,), tl.float32)
    dbias = tl.zeros((BV,), tl.float32)
    for i in range(0, ROWS, R):
        rows = pid * ROWS + i + tl.arange(0, R)
        ok = rows < M
        mask = ok[:, None] & (cols < V)[None, :]
        z = tl.load(z_ptr + rows[:, None] * VP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        logits = z * scale
        if HAS_BIAS:
            logits += tl.load(bias_ptr + cols, mask=cols < V, other=0.0)[None, :]
        target = tl.load(target_ptr + rows, mask=ok, other=0)
        lse = tl.load(lse_ptr + rows, mask=ok, other=0.0)
        dloss = tl.load(dloss_ptr + rows, mask=ok, other=0.0)
        g = tl.exp(logits - lse[:, None]) - tl.where(cols[None, :] == target[:, None], 1.0, 0.0)
        g = tl.where(mask, g * dloss[:, None], 0.0)
        if HAS_SCALE:
            dscale += tl.sum(g * z, axis=1)
        if HAS_BIAS:
            dbias += tl.sum(g, axis=0)
        store = ok[:, None] & (cols < VP)[None, :]
        out = (g * scale).to(dz_ptr.dtype.element_ty)
        tl.store(dz_ptr + rows[:, None] * VP + cols[None, :], out, mask=store)
    if HAS_SCALE:
        tl.store(dscale_ptr + pid, tl.sum(dscale, axis=0))
    if HAS_BIAS:
        tl.store(dbias_ptr + pid * VP + cols, dbias, mask=cols < VP)


class ReadoutFunction(torch.autograd.Function):
    """Per-token cross-entropy of logits = scale · x Wᵀ + bias.

    x (M, NP + 16) compute type, weight (V, blocks·n) float32 made of ``blocks`` blocks padded from n to NP / blocks.
    A bias is added in float32 afterwards, not through the column of ones, so that it is not rounded.
    ``keep`` keeps the product in float32 instead of rounding it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        targets: Tensor,
        blocks: int,
        keep: bool,
    ) -> Tensor:
        rows, symbols = x.shape[0], weight.shape[0]
        vp = round_up(symbols, 16)
        sizes, wide = (symbols, weight.shape[1] // blocks), (vp, (x.shape[1] - ONES) // blocks)
        w = pack(weight, None, sizes, wide, x.dtype)
        z = mm(x, w.t(), torch.float32 if keep else None)
        loss = torch.empty(rows, dtype=torch.float32, device=x.device)
        lse = torch.empty_like(loss)
        bv = power_of_two(vp)
        cross_entropy_kernel[(triton.cdiv(rows, R),)](
            z, targets, scale if scale is not None else loss, bias if bias is not None else loss, loss, lse,
            rows, symbols, vp, bv, R, scale is not None, bias is not None,
        )  # fmt: skip
        ctx.save_for_backward(x, w, z, targets, scale, bias, lse)
        ctx.shape = (sizes, wide, vp, bv)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w, z, targets, scale, bias, lse = ctx.saved_tensors
        sizes, wide, vp, bv = ctx.shape
        rows = x.shape[0]
        dloss = grads[0].contiguous()
        programs = triton.cdiv(rows, ROWS)
        dz = torch.empty(rows, vp, dtype=x.dtype, device=x.device)
        dscale = torch.empty(programs, dtype=torch.float32, device=x.device)
        dbias = (
            torch.empty(programs, vp, dtype=torch.float32, device=x.device) if bias is not None else dscale
        )
        cross_entropy_backward_kernel[(programs,)](
            z, targets, scale if scale is not None else lse, bias if bias is not None else lse, lse, dloss,
            dz, dscale, dbias, rows, sizes[0], vp, bv, R, ROWS, scale is not None, bias is not None,
        )  # fmt: skip
        dw, _ = unpack(mm(dz.t(), x, torch.float32), sizes, wide, 0)
        return (
            mm(dz, w),
            dw,
            dscale.sum() if scale is not None else None,
            dbias.sum(0)[: sizes[0]] if bias is not None else None,
            None,
            None,
            None,
        )
