"""Gradients of parameters: sums over all tokens, and where they go.

A pass over the sums takes the padding away and writes each gradient where it belongs: straight into the trainer's flat
vector if there is one (``ledger.py``), else into a tensor for autograd. Nothing downstream in the backward pass waits
for any of this, so it runs on a stream of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import ledger
from .common import COUNTS, Aside, sum_of


@triton.jit(do_not_specialize=COUNTS)
def settle_kernel(
    sum_ptr, matrix_ptr, bias_ptr,
    R, C, blocks, biased, again, bias_again,
    ROWS: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr, WIDTH: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """(ROWS, WIDTH), blocks of RP x CP and perhaps a bias column behind -> matrix of blocks of R x C, bias"""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = (rows < ROWS)[:, None] & (cols < WIDTH)[None, :]
    total = tl.load(sum_ptr + rows[:, None] * WIDTH + cols[None, :], mask=mask, other=0.0)
    i, r = rows // RP, rows % RP
    j, c = cols // CP, cols % CP
    row = i * R + r
    row_ok = (rows < ROWS) & (r < R)
    inside = row_ok[:, None] & ((j < blocks) & (c < C))[None, :]
    place = matrix_ptr + row[:, None] * (blocks * C) + (j * C + c)[None, :]
    column = cols == blocks * CP
    bias = tl.sum(tl.where(column[None, :], total, 0.0), axis=1)
    if again:
        total += tl.load(place, mask=inside, other=0.0)
    tl.store(place, total, mask=inside)
    holds = row_ok & (row < biased) & (tl.sum(column.to(tl.int32), axis=0) > 0)
    if bias_again:
        bias += tl.load(bias_ptr + row, mask=holds, other=0.0)
    tl.store(bias_ptr + row, bias, mask=holds)


def spot(parameter: Tensor) -> tuple[Tensor, int, bool]:
    """Where a parameter's gradient goes: the tensor, 1 to add to it, whether autograd must not see it."""
    book = ledger.current()
    if book is not None:
        again = int(parameter.data_ptr() in book.written)
        place = book.place(parameter)
        if place is not None:
            return place, again, True
    return torch.empty_like(parameter, dtype=torch.float32, memory_format=torch.contiguous_format), 0, False


def settle(
    grad: Tensor, weight: Tensor, bias: Tensor | None, sizes: tuple[int, int], padded_sizes: tuple[int, int]
) -> tuple[Tensor | None, Tensor | None]:
    """(i·RP, j·CP) -> the gradient of a weight (i·R, j·C), and of a bias (≤ i·R,) from the column behind.

    None for what is in its place already.
    """
    matrix, again, direct = spot(weight)
    offset, bias_again, bias_direct = (matrix, 0, True) if bias is None else spot(bias)
    rows, width = grad.shape
    settle_kernel[(triton.cdiv(rows, 8), triton.cdiv(width, 128))](
        grad, matrix, offset, *sizes, weight.shape[1] // sizes[1],
        0 if bias is None else bias.shape[0], again, bias_again, rows, *padded_sizes, width, 8, 128,
    )  # fmt: skip
    return None if direct else matrix, None if bias_direct else offset


@triton.jit(do_not_specialize=COUNTS)
def total_kernel(part_ptr, out_ptr, n, again, BLOCK: tl.constexpr):
    """The sum of n numbers -> one number"""
    total = sum_of(part_ptr, n, BLOCK)
    if again:
        total += tl.load(out_ptr)
    tl.store(out_ptr, total)


def total(parts: Tensor, parameter: Tensor) -> Tensor | None:
    """The gradient of a scalar parameter from one number per program."""
    out, again, direct = spot(parameter)
    total_kernel[(1,)](parts, out, parts.shape[0], again, 4096, num_warps=16)
    return None if direct else out


@triton.jit(do_not_specialize=COUNTS)
def coefficients_kernel(
    part_ptr, w0_ptr, w0i_ptr, w1_ptr, w1i_ptr,
    dtau_ptr, tau_ptr, tau_out_ptr, dalpha_ptr, alpha_out_ptr,
    blocks, k, stride, taus, again, alphas, bias_again,
    N: tl.constexpr, KP: tl.constexpr, DRIFT: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Partial sums (blocks, 4N + 1, KP) -> the four gradients (N, k), rows ``stride`` apart.

    The drift's share goes to the imaginary parts.
    Two programs more add up what makes the gradients of τ, −Σ/τ and nothing where τ rests on its floor, and of α.
    """
    which = tl.program_id(1)
    if which == 4 * N:
        if tl.program_id(0) == 0:
            tau = tl.load(tau_ptr)
            total = tl.where(tau > 1e-6, -sum_of(dtau_ptr, taus, BLOCK) / tau, 0.0)
            if again:
                total += tl.load(tau_out_ptr)
            tl.store(tau_out_ptr, total)
        if (tl.program_id(0) == tl.num_programs(0) - 1) & (alphas > 0):
            total = sum_of(dalpha_ptr, alphas, BLOCK)
            if bias_again:
                total += tl.load(alpha_out_ptr)
            tl.store(alpha_out_ptr, total)
    else:
        part = which // N
        cols = tl.program_id(0) * BC + tl.arange(0, BC)
        acc = tl.zeros((BR, BC), tl.float32)
        drifts = (part % 2 == 1) & ((DRIFT == 2) | ((DRIFT == 1) & (part == 1)))
        for r0 in range(0, blocks, BR):
            rows = r0 + tl.arange(0, BR)
            mask = (rows < blocks)[:, None] & (cols < KP)[None, :]
            at = part_ptr + rows[:, None].to(tl.int64) * ((4 * N + 1) * KP) + cols[None, :]
            acc += tl.load(at + which * KP, mask=mask, other=0.0)
            acc += tl.load(at + 4 * N * KP, mask=mask & drifts, other=0.0)
        out = tl.sum(acc, axis=0)
        at = (which % N) * stride + cols
        ok = cols < k
        if HAS0:
            tl.store(w0_ptr + at, out, mask=ok & (part == 0))
        if HAS0I:
            tl.store(w0i_ptr + at, out, mask=ok & (part == 1))
        if HAS1:
            tl.store(w1_ptr + at, out, mask=ok & (part == 2))
        if HAS1I:
            tl.store(w1i_ptr + at, out, mask=ok & (part == 3))


def coefficients(
    parts: Tensor,
    w: Tensor,
    phases: int,
    parameters: tuple[Tensor | None, ...],
    there: tuple[bool, ...],
    drift: int,
    dtau: Tensor,
    tau: Tensor,
    dalpha: Tensor,
    alpha: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of w (4, N, KP), zeros for what does not exist, of τ and of α, from partial sums; None where in place.

    ``parameters`` are the tensors of which w is made: where each is (N, k) and has its place, they get their shares.
    parts (blocks, 4N + 1, KP), dtau and dalpha (programs,)
    """
    n, k = w.shape[1], phases
    book = ledger.current()
    grad = None
    places: list[Tensor] = []
    if book is not None:
        own = [p for p in parameters if p is not None]
        if all(p.shape == (n, k) and book.knows(p) and p.data_ptr() not in book.written for p in own):
            places = [parts if p is None else spot(p)[0] for p in parameters]
    if not places:
        grad = torch.zeros_like(w)
        places = list(grad.unbind())
    tau_out, again, tau_direct = spot(tau)
    alpha_out, alpha_again, alpha_direct = (tau_out, 0, True) if alpha is None else spot(alpha)
    coefficients_kernel[(triton.cdiv(k, 16), 4 * n + 1)](
        parts, *places, dtau, tau, tau_out, dalpha, alpha_out,
        parts.shape[0], k, k if grad is None else grad.shape[2],
        dtau.shape[0], again, 0 if alpha is None else dalpha.shape[0], alpha_again,
        n, parts.shape[2], drift, *there, 256, 16, 4096, num_warps=8,
    )  # fmt: skip
    return grad, None if tau_direct else tau_out, None if alpha_direct else alpha_out


@triton.jit(do_not_specialize=COUNTS)
def column_sums_kernel(
    part_ptr, out_ptr, blocks, k, again, KP: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Partial sums (blocks, 2, KP) -> out (2, k), or added to it"""
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    acc = tl.zeros((BR, BC), tl.float32)
    for r0 in range(0, blocks, BR):
        rows = r0 + tl.arange(0, BR)
        at = part_ptr + (rows[:, None].to(tl.int64) * 2 + tl.program_id(1)) * KP + cols[None, :]
        acc += tl.load(at, mask=(rows < blocks)[:, None] & (cols < KP)[None, :], other=0.0)
    total = tl.sum(acc, axis=0)
    out = out_ptr + tl.program_id(1) * k + cols
    if again:
        total += tl.load(out, mask=cols < k, other=0.0)
    tl.store(out, total, mask=cols < k)


def column_sums(parts: Tensor, parameter: Tensor) -> Tensor | None:
    """The gradient of a parameter (2, k) from partial sums (blocks, 2, KP); None if it is in its place already."""
    out, again, direct = spot(parameter)
    k = parameter.shape[1]
    column_sums_kernel[(triton.cdiv(k, 16), 2)](
        parts, out, parts.shape[0], k, again, parts.shape[2], 1024, 16, num_warps=16
    )
    return None if direct else out


def release(aside: Aside, reads: tuple[Tensor, ...], results: tuple[Tensor | None, ...]) -> None:
    """End a block of parameter gradients: join it, or let it run on while the backward pass goes its way.

    It runs on if all its results are in the ledger (None here), which is not read before the pass is over; what
    it ``reads`` stays alive until it is known to have finished, a few blocks later. A result that goes to autograd is
    read as soon as this function returns.
    """
    book = ledger.current()
    if book is None or any(result is not None for result in results):
        aside.join()
    else:
        book.defer(aside, list(reads))
