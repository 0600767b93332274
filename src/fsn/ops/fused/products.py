"""Products with a lower triangular matrix, or some of its rows, that do not multiply its zeros.

cuBLAS's batched product does the whole square. For sequences of up to ``tiles.FULL`` tokens it is faster all the
same, and used.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .common import COUNTS, mm
from .tiles import Tile


@triton.jit(do_not_specialize=COUNTS)
def triangle_kernel(
    a_ptr, x_ptr, out_ptr,
    TP, WIDTH, C, r0, nr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Rows r0 .. r0 + nr of a triangle: a (B, nr, WIDTH), zero above the diagonal; x, out (B, TP, C).

    out[r0 : r0 + nr] = a x; or, TRANSPOSED, out[: r0 + nr] = aᵀ x[r0 : r0 + nr], added to what the rows before r0 left.
    All sizes but C are multiples of the blocks.
    """
    first = tl.program_id(1) * BM
    batch = tl.program_id(2).to(tl.int64)
    rows = first + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    inside = (cols < C)[None, :]
    a = a_ptr + batch * nr * WIDTH
    x = x_ptr + batch * TP * C + cols[None, :]
    out = out_ptr + batch * TP * C + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    if TRANSPOSED:
        for t in range(tl.maximum(first - r0, 0), nr, BK):
            left = tl.load(a + (t + inner)[:, None] * WIDTH + rows[None, :])
            right = tl.load(x + (r0 + t + inner)[:, None] * C, mask=inside, other=0.0)
            acc = tl.dot(tl.trans(left), right, acc)
        out += rows[:, None] * C
        if first < r0:
            acc += tl.load(out, mask=inside, other=0.0).to(tl.float32)
    else:
        for u in range(0, r0 + first + BM, BK):
            left = tl.load(a + rows[:, None] * WIDTH + (u + inner)[None, :])
            right = tl.load(x + (u + inner)[:, None] * C, mask=inside, other=0.0)
            acc = tl.dot(left, right, acc)
        out += (r0 + rows)[:, None] * C
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside)


def triangle(a: Tensor, x: Tensor, out: Tensor, kp: int, r0: int = 0, transposed: bool = False) -> Tensor:
    """The rows r0 .. r0 + n of a triangle, a (B, n, ≥ r0 + n), times x (B, T, C), into ``out`` (B, T, C); returns it.

    Plain: rows r0 .. r0 + n of out. Transposed: all rows before r0 + n; those before r0 are added to. ``kp`` is how
    many phases, padded, this is about.
    """
    (batch, length, columns), rows = x.shape, a.shape[1]
    last = r0 + rows
    if x.dtype == torch.float32:
        if transposed:
            part = mm(a[:, :, :last].transpose(1, 2), x[:, r0:last])
            out[:, :r0] += part[:, :r0]
            out[:, r0:last] = part[:, r0:]
        else:
            out[:, r0:last] = mm(a[:, :, :last], x[:, :last])
        return out
    if rows == length <= tiles.FULL:
        return torch.bmm(a.transpose(1, 2) if transposed else a, x, out=out)
    tile: Tile = tiles.shape("TRIANGLE", kp)
    block = tile.rows_of(rows)
    grid = (triton.cdiv(columns, tile.columns), (last if transposed else rows) // block, batch)
    triangle_kernel[grid](
        a, x, out, length, a.shape[2], columns, r0, rows, block, tile.columns, tile.inner, transposed,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out
