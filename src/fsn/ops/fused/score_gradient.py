"""The gradient of the scores: dA = dG·Fᵀ and its way back through the softmax."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .common import COUNTS, mm, power_of_two
from .dropout import Drop, drop_arguments, dropped
from .scores import row_sums, tile_sums_kernel
from .tiles import PASS, Tile


@triton.jit
def below(grad, turn, token, cols, T, drop, DROPOUT: tl.constexpr, DRIFT: tl.constexpr):
    """dA below the diagonal: dG·F, and in the co-rotating frame (DRIFT 2) the drift's share; back through dropout."""
    if DRIFT == 2:
        grad = grad - turn[:, None]
    return dropped(grad, token[:, None], cols[None, :], T, T, drop, DROPOUT)


@triton.jit
def load_turn(place, token, rows, T, drop, DROPOUT: tl.constexpr, DRIFT: tl.constexpr):
    """The gradient of the drift's weight. In the rest frame (DRIFT 1) that is the diagonal's, back through dropout."""
    turn = tl.load(place, mask=rows < T, other=0.0)
    if DRIFT == 1:
        turn = dropped(turn, token, rows, T, T, drop, DROPOUT)
    return turn


@triton.jit
def correction(total, weight, own, turn, DRIFT: tl.constexpr):
    """δ = Σ_u A_tu dA_tu / Σ_u A_tu from both sums below the diagonal. On it dA is the drift's share in the rest frame
    (DRIFT 1), and zero otherwise.

    Scores may be shifted by a constant per row without any effect, so rows of dS have to sum to zero. A δ from other
    than the very numbers that are multiplied would push them along that direction, step after step, and nothing would
    push back.
    """
    if DRIFT == 1:
        total += own * turn
    return total / tl.maximum(weight + own, 1e-30)


@triton.jit
def diagonal_gradient(delta, own, turn, inv_tau, DRIFT: tl.constexpr):
    """dS on the diagonal."""
    if DRIFT == 1:
        return own * (turn - delta) * inv_tau
    else:
        return -own * delta * inv_tau


@triton.jit
def score_gradient(a, grad, delta, own, turn, cols, rows, inv_tau, SCORE: tl.constexpr, DRIFT: tl.constexpr):
    """dS = A ⊙ (dA − δ) / τ; a is A below the diagonal, zeros elsewhere. SCORE: the diagonal is another product's."""
    ds = a * (grad - delta[:, None]) * inv_tau
    if SCORE:
        return ds
    else:
        rest = diagonal_gradient(delta, own, turn, inv_tau, DRIFT)
        return tl.where(cols[None, :] == rows[:, None], rest[:, None], ds)


@triton.jit
def load_attention(a_ptr, line, cols, TP, AGAIN: tl.constexpr):
    """Whole rows of A below the diagonal, some columns.

    AGAIN: from memory once more. A compiler that sees the same load twice would keep what it found in registers.
    """
    policy: tl.constexpr = "evict_first" if AGAIN else "evict_last"
    inside = (cols < TP)[None, :]
    return tl.load(a_ptr + line + cols[None, :], mask=inside, other=0.0, eviction_policy=policy).to(
        tl.float32
    )


@triton.jit
def score_gradient_rows(
    dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, ds_ptr, down_ptr, batch, rows, inv_tau, T, TP,
    drop, DROPOUT: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr,
    HALVES: tl.constexpr, SCORE: tl.constexpr, DRIFT: tl.constexpr,
):  # fmt: skip
    """dS of rows that see no column from BH · HALVES on; with one half, also zeros in the BH columns behind."""
    u = tl.arange(0, BH)
    c = tl.arange(0, BC)
    dg = dg_ptr + (batch * TP + rows[:, None]) * C
    field = field_ptr + (batch * TP + tl.where(u < TP, u, 0)[None, :]) * C
    other = field_ptr + (batch * TP + tl.where(BH + u < TP, BH + u, 0)[None, :]) * C
    low = tl.zeros((BM, BH), tl.float32)
    high = tl.zeros((BM, BH), tl.float32)
    for c0 in range(0, C, BC):
        here = c0 + c
        if C % BC == 0:
            left = tl.load(dg + here[None, :])
            low = tl.dot(left, tl.load(field + here[:, None]), low)
            if HALVES == 2:
                high = tl.dot(left, tl.load(other + here[:, None]), high)
        else:
            left = tl.load(dg + here[None, :], mask=(here < C)[None, :], other=0.0)
            some = (here < C)[:, None]
            low = tl.dot(left, tl.load(field + here[:, None], mask=some, other=0.0), low)
            if HALVES == 2:
                high = tl.dot(left, tl.load(other + here[:, None], mask=some, other=0.0), high)
    ok = rows < T
    token = batch * T + rows
    noted = own_ptr + batch * T + rows
    own = tl.load(noted, mask=ok, other=0.0)
    weight = tl.load(noted + tl.num_programs(1).to(tl.int64) * T, mask=ok, other=0.0)
    turn = load_turn(turn_ptr + batch * T + rows, token, rows, T, drop, DROPOUT, DRIFT)
    line = (batch * TP + rows[:, None]) * TP
    low = below(low, turn, token, u, T, drop, DROPOUT, DRIFT)
    a = load_attention(a_ptr, line, u, TP, False)
    total = tl.sum(a * low, axis=1)
    if HALVES == 2:
        high = below(high, turn, token, BH + u, T, drop, DROPOUT, DRIFT)
        a = load_attention(a_ptr, line, BH + u, TP, False)
        total += tl.sum(a * high, axis=1)
    delta = correction(total, weight, own, turn, DRIFT)
    if SCORE:
        tl.store(down_ptr + batch * T + rows, diagonal_gradient(delta, own, turn, inv_tau, DRIFT), mask=ok)
    kind = ds_ptr.dtype.element_ty
    place = ds_ptr + line + u[None, :]
    behind = (BH + u < TP)[None, :]
    if HALVES == 2:
        ds = score_gradient(a, high, delta, own, turn, BH + u, rows, inv_tau, SCORE, DRIFT)
        tl.store(place + BH, ds.to(kind), mask=behind)
        a = load_attention(a_ptr, line, u, TP, True)
    else:
        tl.store(place + BH, tl.zeros((BM, BH), kind), mask=behind)
    ds = score_gradient(a, low, delta, own, turn, u, rows, inv_tau, SCORE, DRIFT)
    tl.store(place, ds.to(kind), mask=(u < TP)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def score_gradient_kernel(
    dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, tau_ptr, ds_ptr, down_ptr,
    T, TP, each,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, HALVES: tl.constexpr,
    SCORE: tl.constexpr, DRIFT: tl.constexpr,
):  # fmt: skip
    """dA = dG·Fᵀ and its way through the softmax, for sequences of up to BN tokens: dA never leaves the chip.

    Rows of the first half see half the columns at most, and do half the work. The longest come first. HALVES 2: whole
    rows are two tiles, because a tile of 512 columns would not leave registers for what follows the product.

    dg, field (B·TP, C), a (B, TP, TP) -> ds (B, TP, TP), zeros above the diagonal; SCORE: on it too, and its own
    gradient in down (B·T)
    """
    batch = tl.program_id(1).to(tl.int64)
    inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr + batch // each), 1e-6)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    rows = first + tl.arange(0, BM)
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    if first + BM <= BN // 2:
        score_gradient_rows(
            dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, ds_ptr, down_ptr, batch, rows, inv_tau, T, TP,
            drop, DROPOUT, C, BM, BN // 2, BC, 1, SCORE, DRIFT,
        )  # fmt: skip
    else:
        score_gradient_rows(
            dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, ds_ptr, down_ptr, batch, rows, inv_tau, T, TP,
            drop, DROPOUT, C, BM, BN // HALVES, BC, HALVES, SCORE, DRIFT,
        )  # fmt: skip


@triton.jit(do_not_specialize=COUNTS)
def score_gradient_tile_kernel(
    dg_ptr, field_ptr, a_ptr, turn_ptr, grad_ptr, part_ptr,
    T, TP, r0, nr, LAST, blocks,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, MULTIPLY: tl.constexpr, DRIFT: tl.constexpr,
):  # fmt: skip
    """dG·Fᵀ of the rows r0 .. r0 + nr of longer sequences, a tile below the diagonal, and its share of Σ_u A_tu dA_tu.

    dg, field (B·TP, C), a (B, nr, TP) -> grad (B, nr, LAST), which must not be rounded; part (B, nr, blocks). Without
    MULTIPLY a product has left grad there.
    """
    first = r0 + tl.program_id(1) * BM
    u0 = tl.program_id(0) * BN
    if u0 < first + BM:
        batch = tl.program_id(2).to(tl.int64)
        rows = first + tl.arange(0, BM)
        u = u0 + tl.arange(0, BN)
        local = rows - r0
        seen = (u < LAST)[None, :]
        place = grad_ptr + batch * nr * LAST + local[:, None] * LAST + u[None, :]
        if MULTIPLY:
            c = tl.arange(0, BC)
            dg = dg_ptr + batch * TP * C + rows[:, None] * C
            field = field_ptr + batch * TP * C + tl.where(u < TP, u, 0)[None, :] * C
            grad = tl.zeros((BM, BN), tl.float32)
            for c0 in range(0, C, BC):
                here = c0 + c
                if C % BC == 0:
                    grad = tl.dot(tl.load(dg + here[None, :]), tl.load(field + here[:, None]), grad)
                else:
                    left = tl.load(dg + here[None, :], mask=(here < C)[None, :], other=0.0)
                    right = tl.load(field + here[:, None], mask=(here < C)[:, None], other=0.0)
                    grad = tl.dot(left, right, grad)
            tl.store(place, grad, mask=seen)
        else:
            grad = tl.load(place, mask=seen, other=0.0)
        token = batch * T + rows
        drop = (counter_ptr, first_row, site, threshold, keep_scale)
        turn = load_turn(turn_ptr + token, token, rows, T, drop, DROPOUT, DRIFT)
        a = a_ptr + batch * nr * TP + local[:, None] * TP + u[None, :]
        a = tl.load(a, mask=seen, other=0.0).to(tl.float32)
        share = tl.sum(a * below(grad, turn, token, u, T, drop, DROPOUT, DRIFT), axis=1)
        tl.store(part_ptr + (batch * nr + local) * blocks + tl.program_id(0), share)


@triton.jit(do_not_specialize=COUNTS)
def score_gradient_pass_kernel(
    a_ptr, own_ptr, grad_ptr, turn_ptr, total_ptr, tau_ptr, ds_ptr, down_ptr,
    T, TP, r0, nr, LAST, each,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SCORE: tl.constexpr, DRIFT: tl.constexpr,
):  # fmt: skip
    """:func:`score_gradient` from what :func:`score_gradient_tile_kernel` left: ds (B, nr, LAST), zeros above the
    diagonal."""
    batch = tl.program_id(2).to(tl.int64)
    local = tl.program_id(1) * BM + tl.arange(0, BM)
    u0 = tl.program_id(0) * BN
    rows, u = r0 + local, u0 + tl.arange(0, BN)
    seen = (u < LAST)[None, :]
    place = batch * nr * LAST + local[:, None] * LAST + u[None, :]
    kind = ds_ptr.dtype.element_ty
    if u0 >= r0 + tl.program_id(1) * BM + BM:
        tl.store(ds_ptr + place, tl.zeros((BM, BN), kind), mask=seen)
    else:
        ok = rows < T
        token = batch * T + rows
        own = tl.load(own_ptr + token, mask=ok, other=0.0)
        weight = tl.load(own_ptr + tl.num_programs(2).to(tl.int64) * T + token, mask=ok, other=0.0)
        drop = (counter_ptr, first_row, site, threshold, keep_scale)
        turn = load_turn(turn_ptr + token, token, rows, T, drop, DROPOUT, DRIFT)
        total = tl.load(total_ptr + token, mask=ok, other=0.0)
        a = a_ptr + batch * nr * TP + local[:, None] * TP + u[None, :]
        a = tl.load(a, mask=seen, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + place, mask=seen, other=0.0)
        grad = below(grad, turn, token, u, T, drop, DROPOUT, DRIFT)
        delta = correction(total, weight, own, turn, DRIFT)
        inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr + batch // each), 1e-6)
        if SCORE:
            here = ok & (rows >= u0) & (rows < u0 + BN)
            tl.store(down_ptr + token, diagonal_gradient(delta, own, turn, inv_tau, DRIFT), mask=here)
        ds = score_gradient(a, grad, delta, own, turn, u, rows, inv_tau, SCORE, DRIFT)
        tl.store(ds_ptr + place, ds.to(kind), mask=seen)


@functools.cache
def roomy(device: torch.device, tile: tiles.Tile) -> bool:
    """Does a multiprocessor's shared memory hold the tiles of :func:`score_gradient_kernel`?"""
    if device.type != "cuda":
        return True
    index = torch.cuda.current_device() if device.index is None else device.index
    most = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return bool(2 * (tile.rows + tile.columns) * tile.inner * tile.stages < most)


def softmax_backward(
    attention: Tensor, own: Tensor, dg: Tensor, field: Tensor, turn: Tensor, tau: Tensor,
    r0: int, length: int, drift: int, kp: int, down: Tensor | None = None, drop: Drop | None = None,
) -> Tensor:  # fmt: skip
    """dA = dG Fᵀ, then through the softmax: (B, rows, r0 + rows), the columns that these rows can see. own: (4, M)

    ``down`` (M,) takes the gradients of the diagonal, where it is another product's; then it is zero in the result.
    ``drop``: dropout between ``attention`` and the product with the fields.
    """
    batch, nr, tp = attention.shape
    tile: Tile = tiles.shape("SCORE_GRADIENT", kp)
    halves = 1 if tp <= tile.columns else 2
    if halves == 2:
        tile = tiles.shape("WIDE_SCORE_GRADIENT", kp)
    if attention.dtype == torch.bfloat16 and tp == nr <= tiles.ON_CHIP and roomy(attention.device, tile):
        ds = torch.empty_like(attention)
        score_gradient_kernel[(tp // tile.rows, batch)](
            dg, field, attention, own, turn, tau, ds, own if down is None else down, length, tp,
            batch // tau.numel(), *drop_arguments(drop, own), dg.shape[2], tile.rows,
            max(2 * tile.rows, power_of_two(tp)), tile.inner, halves, down is not None, drift,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return ds
    return long_score_gradient(attention, own, dg, field, turn, tau, r0, length, drift, kp, down, drop)


def long_score_gradient(
    attention: Tensor, own: Tensor, dg: Tensor, field: Tensor, turn: Tensor, tau: Tensor,
    r0: int, length: int, drift: int, kp: int, down: Tensor | None, drop: Drop | None,
) -> Tensor:  # fmt: skip
    """The same through memory: the product tile by tile with the sums over its rows, then a pass over both."""
    (batch, nr, tp), last = attention.shape, r0 + attention.shape[1]
    multiply = attention.dtype == torch.bfloat16

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=attention.device)

    grad = new(batch, nr, last) if multiply else mm(dg[:, r0:last], field[:, :last].transpose(1, 2))
    tile: Tile = tiles.shape("LONG_SCORE_GRADIENT" if multiply else "EXACT_LONG_SCORE_GRADIENT", kp)
    rows = tile.rows_of(nr)
    blocks = triton.cdiv(last, tile.columns)
    part, total = new(batch, nr, blocks), torch.empty_like(own[0])
    score_gradient_tile_kernel[(blocks, nr // rows, batch)](
        dg, field, attention, turn, grad, part, length, tp, r0, nr, last, blocks,
        *drop_arguments(drop, own), dg.shape[2], rows, tile.columns, tile.inner, multiply, drift,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    row_sums(tile_sums_kernel, part, total, batch, length, r0, nr, tile.columns)
    ds = new(batch, nr, last, dtype=attention.dtype)
    r, columns = PASS
    score_gradient_pass_kernel[(triton.cdiv(last, columns), nr // r, batch)](
        attention, own, grad, turn, total, tau, ds, own if down is None else down,
        length, tp, r0, nr, last, batch // tau.numel(), *drop_arguments(drop, own), r, columns, down is not None, drift,
    )  # fmt: skip
    return ds
