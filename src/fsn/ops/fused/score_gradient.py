"""The gradient of the scores: dA = dG·Fᵀ and its way back through the softmax."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .common import COUNTS, mm, power_of_two
from .tiles import SCORE_GRADIENT, WIDE_SCORE_GRADIENT


@triton.jit
def below(grad, turn, DRIFT: tl.constexpr):
    """dA below the diagonal: dG·F, and in the co-rotating frame (DRIFT 2) the drift's share."""
    if DRIFT == 2:
        return grad - turn[:, None]
    else:
        return grad


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
def score_gradient(a, grad, delta, own, turn, cols, rows, inv_tau, DRIFT: tl.constexpr):
    """dS = A ⊙ (dA − δ) / τ; a is A below the diagonal, zeros elsewhere."""
    rest = -own * delta
    if DRIFT == 1:
        rest = own * (turn - delta)
    ds = a * (grad - delta[:, None])
    return tl.where(cols[None, :] == rows[:, None], rest[:, None], ds) * inv_tau


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
    dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, ds_ptr, batch, rows, inv_tau, T, TP,
    C: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BC: tl.constexpr, HALVES: tl.constexpr, DRIFT: tl.constexpr,
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
    noted = own_ptr + batch * T + rows
    own = tl.load(noted, mask=ok, other=0.0)
    weight = tl.load(noted + tl.num_programs(1).to(tl.int64) * T, mask=ok, other=0.0)
    turn = tl.load(turn_ptr + batch * T + rows, mask=ok, other=0.0)
    line = (batch * TP + rows[:, None]) * TP
    low = below(low, turn, DRIFT)
    a = load_attention(a_ptr, line, u, TP, False)
    total = tl.sum(a * low, axis=1)
    if HALVES == 2:
        high = below(high, turn, DRIFT)
        a = load_attention(a_ptr, line, BH + u, TP, False)
        total += tl.sum(a * high, axis=1)
    delta = correction(total, weight, own, turn, DRIFT)
    kind = ds_ptr.dtype.element_ty
    place = ds_ptr + line + u[None, :]
    behind = (BH + u < TP)[None, :]
    if HALVES == 2:
        ds = score_gradient(a, high, delta, own, turn, BH + u, rows, inv_tau, DRIFT)
        tl.store(place + BH, ds.to(kind), mask=behind)
        a = load_attention(a_ptr, line, u, TP, True)
    else:
        tl.store(place + BH, tl.zeros((BM, BH), kind), mask=behind)
    ds = score_gradient(a, low, delta, own, turn, u, rows, inv_tau, DRIFT)
    tl.store(place, ds.to(kind), mask=(u < TP)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def score_gradient_kernel(
    dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, tau_ptr, ds_ptr,
    T, TP,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, HALVES: tl.constexpr, DRIFT: tl.constexpr,
):  # fmt: skip
    """dA = dG·Fᵀ and its way through the softmax, for sequences of up to BN tokens: dA never leaves the chip.

    Rows of the first half see half the columns at most, and do half the work. The longest come first. HALVES 2: whole
    rows are two tiles, because a tile of 512 columns would not leave registers for what follows the product.

    dg, field (B·TP, C), a (B, TP, TP) -> ds (B, TP, TP), zeros above the diagonal
    """
    inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr), 1e-6)
    batch = tl.program_id(1).to(tl.int64)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    rows = first + tl.arange(0, BM)
    if first + BM <= BN // 2:
        score_gradient_rows(
            dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, ds_ptr, batch, rows, inv_tau, T, TP,
            C, BM, BN // 2, BC, 1, DRIFT,
        )  # fmt: skip
    else:
        score_gradient_rows(
            dg_ptr, field_ptr, a_ptr, own_ptr, turn_ptr, ds_ptr, batch, rows, inv_tau, T, TP,
            C, BM, BN // HALVES, BC, HALVES, DRIFT,
        )  # fmt: skip


@triton.jit
def attention_tile(a_ptr, grad_ptr, line, cols, written, turn, TP, LAST, DRIFT: tl.constexpr):
    """One tile of A and of dA below the diagonal, and where it lies inside the columns these rows can see."""
    inside = written & (cols < LAST)[None, :]
    a = tl.load(a_ptr + line * TP + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + line * LAST + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    return a, below(grad, turn, DRIFT), inside


@triton.jit(do_not_specialize=COUNTS)
def softmax_backward_kernel(
    a_ptr, own_ptr, grad_ptr, turn_ptr, tau_ptr, ds_ptr,
    T, TP, r0, nr, LAST, R: tl.constexpr, BN: tl.constexpr, SINGLE: tl.constexpr, DRIFT: tl.constexpr,
):  # fmt: skip
    """:func:`score_gradient` of rows whose dA a product has left in memory.

    a (B, nr, TP) and grad = dG·Fᵀ (B, nr, LAST) -> ds (B, nr, LAST), zeros above the diagonal
    """
    inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr), 1e-6)
    batch = tl.program_id(1).to(tl.int64)
    local = tl.program_id(0) * R + tl.arange(0, R)
    rows = r0 + local
    ok = (local < nr) & (rows < T)
    line = (batch * nr + local)[:, None]
    written = (local < nr)[:, None]
    noted = own_ptr + batch * T + rows
    own = tl.load(noted, mask=ok, other=0.0)
    weight = tl.load(noted + tl.num_programs(1).to(tl.int64) * T, mask=ok, other=0.0)
    turn = tl.load(turn_ptr + batch * T + rows, mask=ok, other=0.0)
    u = tl.arange(0, BN)
    kind = ds_ptr.dtype.element_ty
    if SINGLE:
        a, grad, inside = attention_tile(a_ptr, grad_ptr, line, u, written, turn, TP, LAST, DRIFT)
        delta = correction(tl.sum(a * grad, axis=1), weight, own, turn, DRIFT)
        ds = score_gradient(a, grad, delta, own, turn, u, rows, inv_tau, DRIFT)
        tl.store(ds_ptr + line * LAST + u[None, :], ds.to(kind), mask=inside)
    else:
        total = tl.zeros((R,), tl.float32)
        for u0 in range(0, LAST, BN):
            a, grad, _ = attention_tile(a_ptr, grad_ptr, line, u0 + u, written, turn, TP, LAST, DRIFT)
            total += tl.sum(a * grad, axis=1)
        delta = correction(total, weight, own, turn, DRIFT)
        for u0 in range(0, LAST, BN):
            cols = u0 + u
            a, grad, inside = attention_tile(a_ptr, grad_ptr, line, cols, written, turn, TP, LAST, DRIFT)
            ds = score_gradient(a, grad, delta, own, turn, cols, rows, inv_tau, DRIFT)
            tl.store(ds_ptr + line * LAST + cols[None, :], ds.to(kind), mask=inside)


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
    r0: int, length: int, drift: int,
) -> Tensor:  # fmt: skip
    """dA = dG Fᵀ, then through the softmax: (B, rows, r0 + rows), the columns that these rows can see. own: (4, M)"""
    batch, nr, tp = attention.shape
    last = r0 + nr
    tile = SCORE_GRADIENT if tp <= SCORE_GRADIENT.columns else WIDE_SCORE_GRADIENT
    if attention.dtype == torch.bfloat16 and tp == nr <= tiles.ON_CHIP and roomy(attention.device, tile):
        ds = torch.empty_like(attention)
        score_gradient_kernel[(tp // tile.rows, batch)](
            dg, field, attention, own, turn, tau, ds, length, tp, dg.shape[2],
            tile.rows, max(2 * tile.rows, power_of_two(tp)), tile.inner, 1 if tile is SCORE_GRADIENT else 2, drift,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return ds
    grad = mm(dg[:, r0:last], field[:, :last].transpose(1, 2), torch.float32)
    ds = torch.empty(batch, nr, last, dtype=attention.dtype, device=attention.device)
    single = last <= tiles.ROW
    columns = power_of_two(last) if single else tiles.PIECE
    r = max(1, 1024 // columns)
    softmax_backward_kernel[(triton.cdiv(nr, r), batch)](
        attention, own, grad, turn, tau, ds, length, tp, r0, nr, last, r, columns, single, drift
    )
    return ds
