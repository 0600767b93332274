"""Products with a strictly lower triangular matrix that do not multiply its zeros.

The library's batched product does the whole square, and for shapes like these starts with a memset that stalls the
stream for longer than the zeros cost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS
from .tiles import TRIANGLE


@triton.jit(do_not_specialize=COUNTS)
def triangle_kernel(
    a_ptr, x_ptr, out_ptr,
    TP, C,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """a (B, TP, TP), zero on and above the diagonal, x (B, TP, C) -> a x, or aᵀ x; TP: a multiple of the blocks."""
    first = tl.program_id(1) * BM
    batch = tl.program_id(2).to(tl.int64)
    rows = first + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    inside = (cols < C)[None, :]
    a = a_ptr + batch * TP * TP
    x = x_ptr + batch * TP * C + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    if TRANSPOSED:
        for u in range(first, TP, BK):
            left = tl.load(a + (u + inner)[:, None] * TP + rows[None, :])
            right = tl.load(x + (u + inner)[:, None] * C, mask=inside, other=0.0)
            acc = tl.dot(tl.trans(left), right, acc)
    else:
        for u in range(0, first + BM, BK):
            left = tl.load(a + rows[:, None] * TP + (u + inner)[None, :])
            right = tl.load(x + (u + inner)[:, None] * C, mask=inside, other=0.0)
            acc = tl.dot(left, right, acc)
    out = out_ptr + (batch * TP + rows[:, None]) * C + cols[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside)


def triangle(a: Tensor, x: Tensor, transposed: bool = False) -> Tensor:
    """a (B, T, T), zero on and above the diagonal, x (B, T, C) -> a x or aᵀ x"""
    if x.dtype == torch.float32:
        return (a.transpose(1, 2) if transposed else a) @ x
    batch, length, columns = x.shape
    tile = TRIANGLE
    rows = tile.rows if length % tile.rows == 0 else 64
    out = torch.empty_like(x)
    triangle_kernel[(triton.cdiv(columns, tile.columns), length // rows, batch)](
        a, x, out, length, columns, rows, tile.columns, tile.inner, transposed,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
