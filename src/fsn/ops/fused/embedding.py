"""Embedding: a token's phases and their features in one pass.

Its gradient is one matrix product, the same bits every time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import ledger
from .common import COUNTS, ONES, Aside, math_mode, padded, round_up, transposed_mm
from .gradients import settle
from .rows import store_features, store_row
from .tiles import row_shape
from .update import incoming


@triton.jit(do_not_specialize=COUNTS)
def embedding_kernel(
    table_ptr, token_ptr, theta_ptr, feat_ptr, M, k,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """tokens (M,), table (V, k) -> θ (M, KP) and [cos θ, sin θ, 1] (M, 2KP + 16)"""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    ok = rows < M
    token = tl.load(token_ptr + rows, mask=ok, other=0)
    theta: tl.tuple = ()
    for p in tl.static_range((KP + W - 1) // W):
        cols = p * W + tl.arange(0, W)
        mask = ok[:, None] & (cols < k)[None, :]
        theta += (tl.load(table_ptr + token[:, None] * k + cols[None, :], mask=mask, other=0.0),)
    store_row(theta_ptr, rows * KP, ok, theta, KP, W)
    store_features(feat_ptr, theta, rows, ok, k, KP, W, MATH)


@triton.jit(do_not_specialize=COUNTS)
def embedding_backward_kernel(
    dtheta_ptr, dfeat_ptr, feat_ptr, out_ptr, M,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, HAS_DTHETA: tl.constexpr, HAS_DFEAT: tl.constexpr,
):  # fmt: skip
    """Gradients of θ and of its features -> all that flows back into θ, (M, KP) in the compute type"""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    ok = rows < M
    grad = incoming(
        dtheta_ptr, dfeat_ptr, feat_ptr, dtheta_ptr, rows, ok, KP, W, HAS_DTHETA, HAS_DFEAT, False
    )
    store_row(out_ptr, rows * KP, ok, grad, KP, W)


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
    """tokens (M,), table (V, k) -> θ (M, KP) and [cos θ, sin θ, 1] (M, 2KP + 16) in the compute type.

    The gradient is Eᵀ dθ with one-hot E: exact ones and zeros, so only dθ is rounded, and the sums are in float32.
    ``learns``: whether there will be one.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, tokens: Tensor, dtype: torch.dtype, learns: bool = True
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        (symbols, k), rows = table.shape, tokens.shape[0]
        kp, device = padded(k), table.device
        theta = torch.empty(rows, kp, dtype=torch.float32, device=device)
        feat = torch.empty(rows, 2 * kp + ONES, dtype=dtype, device=device)
        hot, aside = None, Aside(device, "weights")
        if learns:
            vp = round_up(symbols, 16)
            hot = torch.empty(rows, vp, dtype=dtype, device=device)
            with aside:
                one_hot_kernel[(triton.cdiv(rows, 32), triton.cdiv(vp, 64))](tokens, hot, rows, vp, 32, 64)
        width, r, warps = row_shape("residual", kp)
        embedding_kernel[(triton.cdiv(rows, r),)](
            table, tokens, theta, feat, rows, k, kp, width, r, math_mode(dtype), num_warps=warps
        )
        if hot is not None:
            aside.join()
        ctx.save_for_backward(table, tokens, feat, hot)
        return theta, feat

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        table, tokens, feat, hot = ctx.saved_tensors
        dtheta, dfeat = grads
        rows, k = tokens.shape[0], table.shape[1]
        kp = padded(k)
        grad = torch.empty(rows, kp, dtype=feat.dtype, device=feat.device)
        width, r, warps = row_shape("residual_backward", kp)
        embedding_backward_kernel[(triton.cdiv(rows, r),)](
            grad if dtheta is None else dtheta.contiguous(), feat if dfeat is None else dfeat.contiguous(), feat,
            grad, rows, kp, width, r, dtheta is not None, dfeat is not None, num_warps=warps,
        )  # fmt: skip
        # The backward pass ends here: beside what is left on the side, not behind it. Unless that writes here too.
        book = ledger.current()
        if book is not None and table.data_ptr() in book.written:
            Aside(feat.device, "weights").join()
        dtable, _ = settle(transposed_mm(hot, grad), table, None, tuple(table.shape), (hot.shape[1], kp))
        return dtable, None, None, None
