"""Scores and their causal softmax: rows in one piece, or, longer ones, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .common import COUNTS, power_of_two, round_up
from .tiles import BLOCK, Tile, precision


@triton.jit
def score_tile(
    q_ptr, key_ptr, own_ptr, batch, B, T, TP, rows, cols, inv_tau,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    SCORE: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One (BM, BN) tile of a sequence's scores: q · key, optionally rounded to bfloat16, over τ.

    In float32 a sum of pieces: a single running sum of a thousand terms would lose a digit. SCORE: keys carry their
    successor's, and the diagonal is in row 4 of own (5, B·T).
    """
    acc = tl.zeros((BM, BN), tl.float32)
    d = tl.arange(0, BD)
    q = q_ptr + batch * TP * D + rows[:, None] * D
    key = key_ptr + batch * TP * D + cols[None, :] * D
    for d0 in range(0, D, BD):
        qt = tl.load(q + (d0 + d)[None, :])
        kt = tl.load(key + (d0 + d)[:, None])
        if PRECISION == "ieee":
            acc += tl.dot(qt, kt, input_precision=PRECISION) * inv_tau
        else:
            acc = tl.dot(qt, kt, acc, input_precision=PRECISION)
    if SCORE:
        diagonal = tl.load(own_ptr + (4 * B + batch) * T + rows, mask=rows < T, other=0.0)
        if PRECISION == "ieee":
            diagonal = diagonal * inv_tau
        acc = tl.where(cols[None, :] == rows[:, None], diagonal[:, None], acc)
    if ROUND:
        acc = acc.to(tl.bfloat16).to(tl.float32)
    if PRECISION != "ieee":
        acc = acc * inv_tau
    return acc


@triton.jit(do_not_specialize=COUNTS)
def attention_kernel(
    q_ptr, key_ptr, tau_ptr, a_ptr, own_ptr,
    T, TP, r0, nr, each,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    SCORE: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Causal softmax of the scores for the rows r0 .. r0+nr of every sequence, TP ≤ BN (nr, TP: multiples of BLOCK).

    q, key (B·TP, D), tau (heads,), ``each`` so many sequences -> a (B, nr, TP): weights of strictly earlier positions,
    zeros elsewhere, so that whoever reads it needs no mask; own (4, B·T): in its first
    two rows the weight of the diagonal, and the sum of the weights written
    """
    batch = tl.program_id(1).to(tl.int64)
    inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr + batch // each), 1e-6)
    local = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = r0 + local
    ok = rows < T
    u = tl.arange(0, BN)
    cols = tl.where(u < TP, u, 0)
    B = tl.num_programs(1).to(tl.int64)
    s = score_tile(
        q_ptr, key_ptr, own_ptr, batch, B, T, TP, rows, cols, inv_tau, D, BM, BN, BD, SCORE, ROUND, PRECISION
    )  # fmt: skip
    s = tl.where(u[None, :] <= rows[:, None], s, float("-inf"))
    p = tl.exp(s - tl.max(s, axis=1)[:, None])
    p = p * (1.0 / tl.sum(p, axis=1))[:, None]
    own = tl.sum(tl.where(u[None, :] == rows[:, None], p, 0.0), axis=1)
    p = tl.where((u[None, :] < rows[:, None]) & ok[:, None], p, 0.0).to(a_ptr.dtype.element_ty)
    out = a_ptr + batch * nr * TP + local[:, None] * TP + u[None, :]
    tl.store(out, p, mask=(u < TP)[None, :])
    noted = own_ptr + batch * T + rows
    tl.store(noted, own, mask=ok)
    tl.store(noted + B * T, tl.sum(p.to(tl.float32), axis=1), mask=ok)


@triton.jit(do_not_specialize=COUNTS)
def score_sums_kernel(
    q_ptr, key_ptr, tau_ptr, own_ptr, part_ptr,
    T, TP, r0, nr, blocks, each,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    SCORE: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of every row of every tile below the diagonal: its maximum, and the sum of exponentials from there.

    -> part (2, B, nr, blocks)
    """
    first = r0 + tl.program_id(1) * BM
    u0 = tl.program_id(0) * BN
    if u0 < first + BM:
        batch = tl.program_id(2).to(tl.int64)
        rows = first + tl.arange(0, BM)
        u = u0 + tl.arange(0, BN)
        inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr + batch // each), 1e-6)
        B = tl.num_programs(2).to(tl.int64)
        cols = tl.minimum(u, TP - 1)
        s = score_tile(
            q_ptr, key_ptr, own_ptr, batch, B, T, TP, rows, cols, inv_tau, D, BM, BN, BD, SCORE, ROUND, PRECISION
        )  # fmt: skip
        s = tl.where(u[None, :] <= rows[:, None], s, float("-inf"))
        top = tl.max(s, axis=1)  # of a row above the diagonal −∞ and NaN, which are never read
        part = part_ptr + (batch * nr + rows - r0) * blocks + tl.program_id(0)
        tl.store(part, top)
        part += B * nr * blocks
        tl.store(part, tl.sum(tl.exp(s - top[:, None]), axis=1))


@triton.jit
def tiles_of_rows(B, T, r0, nr, blocks, BN: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr):
    """For R rows at a time: where their tiles' numbers lie in (B, nr, blocks), which of them exist; row, does it."""
    line = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    row = r0 + line % nr
    tile = tl.arange(0, WIDE)[None, :]
    real = line < B * nr
    return (
        line[:, None] * blocks + tile,
        real[:, None] & (tile * BN <= row[:, None]),
        line // nr * T + row,
        real & (row < T),
    )


@triton.jit(do_not_specialize=COUNTS)
def softmax_sums_kernel(
    part_ptr, own_ptr, B, T, r0, nr, blocks, BN: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr
):
    """Maxima and sums of whole rows from those of their tiles: the last two rows of own (4, B·T)."""
    place, seen, token, ok = tiles_of_rows(B, T, r0, nr, blocks, BN, R, WIDE)
    tops = tl.load(part_ptr + place, mask=seen, other=float("-inf"))
    sums = tl.load(part_ptr + B.to(tl.int64) * nr * blocks + place, mask=seen, other=0.0)
    top = tl.max(tops, axis=1)
    tokens = B.to(tl.int64) * T
    tl.store(own_ptr + 2 * tokens + token, top, mask=ok)
    tl.store(own_ptr + 3 * tokens + token, tl.sum(sums * tl.exp(tops - top[:, None]), axis=1), mask=ok)


@triton.jit(do_not_specialize=COUNTS)
def tile_sums_kernel(
    part_ptr, total_ptr, B, T, r0, nr, blocks, BN: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr
):
    """Add up what the tiles of a row have left, part (B, nr, blocks) -> total (B·T)."""
    place, seen, token, ok = tiles_of_rows(B, T, r0, nr, blocks, BN, R, WIDE)
    tl.store(total_ptr + token, tl.sum(tl.load(part_ptr + place, mask=seen, other=0.0), axis=1), mask=ok)


@triton.jit(do_not_specialize=COUNTS)
def attention_tile_kernel(
    q_ptr, key_ptr, tau_ptr, own_ptr, a_ptr, part_ptr,
    T, TP, r0, nr, blocks, each,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    AGAIN: tl.constexpr, SCORE: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What :func:`attention_kernel` writes, a tile of it, once maxima and sums of whole rows are in ``own``.

    Zeros above the diagonal up to column r0 + nr; the weights' sums tile by tile, part (B, nr, blocks). AGAIN: what is
    noted in own and part is known from the first time.
    """
    batch = tl.program_id(2).to(tl.int64)
    local = tl.program_id(1) * BM + tl.arange(0, BM)
    u0 = tl.program_id(0) * BN
    rows, u = r0 + local, u0 + tl.arange(0, BN)
    out = a_ptr + batch * nr * TP + local[:, None] * TP + u[None, :]
    kind = a_ptr.dtype.element_ty
    if u0 >= r0 + tl.program_id(1) * BM + BM:
        tl.store(out, tl.zeros((BM, BN), kind), mask=(u < TP)[None, :])
    else:
        inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr + batch // each), 1e-6)
        B = tl.num_programs(2).to(tl.int64)
        cols = tl.minimum(u, TP - 1)
        s = score_tile(
            q_ptr, key_ptr, own_ptr, batch, B, T, TP, rows, cols, inv_tau, D, BM, BN, BD, SCORE, ROUND, PRECISION
        )  # fmt: skip
        ok = rows < T
        tokens = B * T
        noted = own_ptr + batch * T + rows
        top = tl.load(noted + 2 * tokens, mask=ok, other=0.0)
        total = tl.load(noted + 3 * tokens, mask=ok, other=1.0)
        p = tl.exp(s - top[:, None]) * (1.0 / total)[:, None]
        if not AGAIN:
            own = tl.sum(tl.where(u[None, :] == rows[:, None], p, 0.0), axis=1)
            tl.store(noted, own, mask=ok & (rows >= u0) & (rows < u0 + BN))
        p = tl.where((u[None, :] < rows[:, None]) & ok[:, None], p, 0.0).to(kind)
        tl.store(out, p, mask=(u < TP)[None, :])
        if not AGAIN:
            part = part_ptr + (batch * nr + local) * blocks + tl.program_id(0)
            tl.store(part, tl.sum(p.to(tl.float32), axis=1))


def row_sums(
    kernel: triton.JITFunction,
    part: Tensor,
    out: Tensor,
    batch: int,
    length: int,
    r0: int,
    nr: int,
    columns: int,
) -> None:
    """Launch a kernel that takes the tiles of a row together."""
    blocks = part.shape[-1]
    wide = power_of_two(blocks)
    r = max(1, 1024 // wide)
    kernel[(triton.cdiv(batch * nr, r),)](part, out, batch, length, r0, nr, blocks, columns, r, wide)


def long_attention(
    q: Tensor, key: Tensor, tau: Tensor, own: Tensor, attention: Tensor,
    r0: int, length: int, tile: Tile, score: bool, rounded: bool, again: bool,
) -> None:  # fmt: skip
    """Rows r0 .. r0 + n of ``attention`` (B, n, TP), tile by tile. Scores are multiplied twice: to write them down in
    between, in float32, would take longer."""
    (batch, nr, tp), d, dtype = attention.shape, q.shape[1], q.dtype
    rows = tile.rows_of(nr)
    blocks = triton.cdiv(r0 + nr, tile.columns)
    grid = blocks, nr // rows, batch
    part = torch.empty(2, batch, nr, blocks, dtype=torch.float32, device=q.device)
    shape, each = (d, rows, tile.columns, tile.inner_of(d)), batch // tau.numel()
    if not again:
        score_sums_kernel[grid](
            q, key, tau, own, part, length, tp, r0, nr, blocks, each, *shape, score, rounded, precision(dtype),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        row_sums(softmax_sums_kernel, part, own, batch, length, r0, nr, tile.columns)
    attention_tile_kernel[grid](
        q, key, tau, own, attention, part, length, tp, r0, nr, blocks, each, *shape, again, score, rounded,
        precision(dtype), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if not again:
        row_sums(tile_sums_kernel, part[0], own[1], batch, length, r0, nr, tile.columns)


def attention_chunks(
    q: Tensor,
    key: Tensor,
    tau: Tensor,
    own: Tensor,
    batch: int,
    length: int,
    rounded: bool,
    again: bool = False,
    score: bool = False,
) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, attention (B, rows, TP)) until all rows are done; one chunk for T ≤ 2048.

    tau: a number, or one for each head, whose sequences follow each other (as many for each).
    own (4, M): the diagonal, the sum of all weights before it, and of longer rows the softmax's maximum and sum. With
    ``again`` they are known from the first time. ``score``: keys carry their successor's, and own[4]
    is the diagonal's score.
    """
    tp, dtype = round_up(length, BLOCK), q.dtype
    rounded = rounded and dtype == torch.bfloat16
    kp, exact = q.shape[1] // 2, dtype == torch.float32
    names = ("EXACT_SCORES",) if exact else ("SCORES", "WIDE_SCORES")
    fitting = (tile for tile in (tiles.shape(name, kp) for name in names) if tp <= tile.columns)
    tile: Tile | None = next(fitting, None)
    long: Tile = tiles.shape("EXACT_LONG_SCORES" if exact else "LONG_SCORES", kp)
    for r0 in range(0, tp, tiles.CHUNK):
        nr = min(tiles.CHUNK, tp - r0)
        attention = torch.empty(batch, nr, tp, dtype=dtype, device=q.device)
        if tile is None:
            long_attention(q, key, tau, own, attention, r0, length, long, score, rounded, again)
        else:
            rows = tile.rows_of(nr)
            attention_kernel[(nr // rows, batch)](
                q, key, tau, attention, own, length, tp, r0, nr, batch // tau.numel(), q.shape[1], rows,
                power_of_two(tp), tile.inner_of(q.shape[1]), score, rounded, precision(dtype),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
        yield r0, attention
