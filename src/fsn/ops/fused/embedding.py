"""Embedding whose gradient is one matrix product: fast, and the same bits every time."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS, mm, round_up


@triton.jit(do_not_specialize=COUNTS)
def one_hot_kernel(token_ptr, out_ptr, M, VP: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    """tokens (M,) -> one-hot rows (M, VP)"""
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BV + tl.arange(0, BV)
    token = tl.load(token_ptr + rows, mask=rows < M, other=-1)
    hot = tl.where(cols[None, :] == token[:, None], 1.0, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(
        out_ptr + rows[:, None] * VP + cols[None, :], hot, mask=(rows < M)[:, None] & (cols < VP)[None, :]
    )


class EmbeddingFunction(torch.autograd.Function):
    """tokens (M,), table (V, k) -> (M, k).

    The gradient is Eᵀ dθ with one-hot E: exact ones and zeros, so only dθ is rounded, and the sums are in float32.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape, ctx.dtype = table.shape, dtype
        return table.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (tokens,) = ctx.saved_tensors
        symbols, _ = ctx.shape
        grad = grads[0]
        vp, rows = round_up(symbols, 16), tokens.shape[0]
        hot = torch.empty(rows, vp, dtype=ctx.dtype, device=grad.device)
        grid = (triton.cdiv(rows, 32), triton.cdiv(vp, 64))
        one_hot_kernel[grid](tokens, hot, rows, vp, 32, 64)
        total = mm(hot.t(), grad.to(ctx.dtype), torch.float32)
        return total[:symbols], None, None
