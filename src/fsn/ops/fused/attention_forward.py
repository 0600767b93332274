"""Forward kernels of the attention half: gates and fields, scores and softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from .common import COUNTS, beside, sincos, softplus
from .rows import (
    load_row,
    map_row,
    multiply_rows,
    only_phases,
    scale_row,
    sincos_row,
    store_row,
    sum_row,
    wide_row,
)


@triton.jit
def rotated_row(
    theta_ptr, cos_ptr, sin_ptr, rows, t, ok, KP: tl.constexpr, W: tl.constexpr, MATH: tl.constexpr
):
    """cos(θ + ωt) and sin(θ + ωt); zeros in rows that do not exist"""
    sines, cosines = sincos_row(load_row(theta_ptr, rows * KP, ok, KP, W), MATH)
    ct = load_row(cos_ptr, t * KP, ok, KP, W)
    st = load_row(sin_ptr, t * KP, ok, KP, W)
    cphi: tl.tuple = ()
    sphi: tl.tuple = ()
    for p in tl.static_range(len(ct)):
        cphi += (cosines[p] * ct[p] - sines[p] * st[p],)
        sphi += (sines[p] * ct[p] + cosines[p] * st[p],)
    return cphi, sphi


@triton.jit
def gate_row(raw, k, KP: tl.constexpr, W: tl.constexpr, MATH: tl.constexpr):
    """softplus(raw) / max(mean, 1e-6)"""
    positive = only_phases(map_row(softplus, wide_row(raw), MATH), k, KP, W)
    return scale_row(positive, 1.0 / tl.maximum(sum_row(positive) / k, 1e-6))


@triton.jit(do_not_specialize=COUNTS)
def query_key_kernel(
    theta_ptr, pre_ptr, cos_ptr, sin_ptr, q_ptr, key_ptr,
    B, T, TP, k,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """θ and the raw gates -> gated rotary features, both sides of the score's product.

    theta (B·T, KP) float32, pre (B·T, 3KP), cos/sin of ωt (T, KP) -> q, key (B·TP, 2KP), zero rows behind each sequence
    """
    padded = tl.program_id(0) * R + tl.arange(0, R)
    t = padded % TP
    batch = padded // TP
    rows = batch.to(tl.int64) * T + t
    ok = (batch < B) & (t < T)
    cphi, sphi = rotated_row(theta_ptr, cos_ptr, sin_ptr, rows, t, ok, KP, W, MATH)
    raw_q = load_row(pre_ptr, rows * (3 * KP), ok, KP, W)
    raw_key = load_row(pre_ptr + KP, rows * (3 * KP), ok, KP, W)
    out = padded.to(tl.int64) * (2 * KP)
    gate = gate_row(raw_q, k, KP, W, MATH)
    store_row(q_ptr, out, batch < B, multiply_rows(gate, cphi), KP, W)
    store_row(q_ptr + KP, out, batch < B, multiply_rows(gate, sphi), KP, W)
    gate = gate_row(raw_key, k, KP, W, MATH)
    store_row(key_ptr, out, batch < B, multiply_rows(gate, cphi), KP, W)
    store_row(key_ptr + KP, out, batch < B, multiply_rows(gate, sphi), KP, W)


@triton.jit
def stack_kernel(
    w0_ptr, w0i_ptr, w1_ptr, w1i_ptr, out_ptr,
    w0_n, w0_k, w0i_n, w0i_k, w1_n, w1_k, w1i_n, w1i_k, k,
    N: tl.constexpr, KP: tl.constexpr, DRIFT: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Four matrices (N, k) of any strides -> (4N + 1, KP): one after the other, zeros for what does not exist; then the
    constant of the drift, the sum of the imaginary parts that have one."""
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    ok = cols < k
    inside = cols < KP
    constant = tl.zeros((BC,), tl.float32)
    for n in tl.static_range(N):
        zero = tl.zeros((BC,), tl.float32)
        a, b, c, d = zero, zero, zero, zero
        if HAS0:
            a = tl.load(w0_ptr + n * w0_n + cols * w0_k, mask=ok, other=0.0)
        if HAS0I:
            b = tl.load(w0i_ptr + n * w0i_n + cols * w0i_k, mask=ok, other=0.0)
        if HAS1:
            c = tl.load(w1_ptr + n * w1_n + cols * w1_k, mask=ok, other=0.0)
        if HAS1I:
            d = tl.load(w1i_ptr + n * w1i_n + cols * w1i_k, mask=ok, other=0.0)
        constant += b
        if DRIFT == 2:
            constant += d
        tl.store(out_ptr + n * KP + cols, a, mask=inside)
        tl.store(out_ptr + (N + n) * KP + cols, b, mask=inside)
        tl.store(out_ptr + (2 * N + n) * KP + cols, c, mask=inside)
        tl.store(out_ptr + (3 * N + n) * KP + cols, d, mask=inside)
    tl.store(out_ptr + 4 * N * KP + cols, constant, mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def fields_kernel(
    theta_ptr, w_ptr, field_ptr,
    B, T, TP,
    KP: tl.constexpr, N: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr,
    MATH: tl.constexpr,
):  # fmt: skip
    """θ -> the fields F_u⁽ⁿ⁾ = w0⁽ⁿ⁾ z_uⁿ + w1⁽ⁿ⁾ z_{u+1}ⁿ, powers by recurrence in registers.

    theta (B·T, KP) float32, w (4, N, KP): w0 re, im, w1 re, im -> field (B·TP, N, KP, 2), real parts beside imaginary
    ones, finite rows behind each sequence
    """
    padded = tl.program_id(0) * R + tl.arange(0, R)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = cols < KP
    t = padded % TP
    batch = padded // TP
    rows = batch.to(tl.int64) * T + t
    mask = ((batch < B) & (t < T))[:, None] & inside[None, :]
    pairs = tl.program_id(1) * (2 * BC) + tl.arange(0, 2 * BC)
    wide = (batch < B)[:, None] & (pairs < 2 * KP)[None, :]
    here = theta_ptr + rows[:, None] * KP + cols[None, :]
    s1, c1 = sincos(tl.load(here, mask=mask, other=0.0), MATH)
    if HAS1:
        has_next = ((t + 1) < T)[:, None] & mask
        ns1, nc1 = sincos(tl.load(here + KP, mask=has_next, other=0.0), MATH)
    else:
        ns1, nc1 = s1, c1
    c, s, nc, ns = c1, s1, nc1, ns1
    kind = field_ptr.dtype.element_ty
    for n in tl.static_range(N):
        re = tl.zeros((R, BC), tl.float32)
        im = tl.zeros((R, BC), tl.float32)
        if HAS0:
            wr = tl.load(w_ptr + n * KP + cols, mask=inside, other=0.0)[None, :]
            re += wr * c
            im += wr * s
        if HAS0I:
            wi = tl.load(w_ptr + (N + n) * KP + cols, mask=inside, other=0.0)[None, :]
            re -= wi * s
            im += wi * c
        if HAS1:
            wr = tl.load(w_ptr + (2 * N + n) * KP + cols, mask=inside, other=0.0)[None, :]
            re += wr * nc
            im += wr * ns
        if HAS1I:
            wi = tl.load(w_ptr + (3 * N + n) * KP + cols, mask=inside, other=0.0)[None, :]
            re -= wi * ns
            im += wi * nc
        out = field_ptr + padded[:, None].to(tl.int64) * (2 * N * KP) + 2 * n * KP + pairs[None, :]
        tl.store(out, beside(re.to(kind), im.to(kind)), mask=wide)
        c, s = c * c1 - s * s1, s * c1 + c * s1
        nc, ns = nc * nc1 - ns * ns1, ns * nc1 + nc * ns1


@triton.jit
def score_tile(
    q_ptr, key_ptr, q_rows, k_rows, inv_tau,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    ROUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One (BM, BN) tile of scores: q · key, optionally rounded to bfloat16, over τ.

    In float32 a sum of pieces: a single running sum of a thousand terms would lose a digit.
    """
    acc = tl.zeros((BM, BN), tl.float32)
    d = tl.arange(0, BD)
    for d0 in range(0, D, BD):
        qt = tl.load(q_ptr + q_rows[:, None] * D + (d0 + d)[None, :])
        kt = tl.load(key_ptr + k_rows[None, :] * D + (d0 + d)[:, None])
        if PRECISION == "ieee":
            acc += tl.dot(qt, kt, input_precision=PRECISION) * inv_tau
        else:
            acc = tl.dot(qt, kt, acc, input_precision=PRECISION)
    if ROUND:
        acc = acc.to(tl.bfloat16).to(tl.float32)
    if PRECISION != "ieee":
        acc = acc * inv_tau
    return acc


@triton.jit(do_not_specialize=COUNTS)
def attention_kernel(
    q_ptr, key_ptr, tau_ptr, a_ptr, own_ptr,
    T, TP, r0, nr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    SINGLE: tl.constexpr, AGAIN: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Causal softmax of the scores for the rows r0 .. r0+nr of every sequence (nr, TP: multiples of the blocks).

    q, key (B·TP, D) -> a (B, nr, TP): weights of strictly earlier positions, zeros elsewhere up to column r0+nr, so
    that whoever reads it needs no mask; own (4, B·T): the weight of the diagonal, the sum of the weights written to a,
    and of rows longer than a block the maximum and the sum of their softmax, which AGAIN takes from there.
    """
    inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr), 1e-6)
    batch = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BM
    local = first + tl.arange(0, BM)
    rows = r0 + local
    ok = rows < T
    base = batch * TP
    u = tl.arange(0, BN)
    out = a_ptr + batch * nr * TP + local[:, None].to(tl.int64) * TP
    kind = a_ptr.dtype.element_ty
    tokens = tl.num_programs(1).to(tl.int64) * T
    noted = own_ptr + batch * T + rows
    if SINGLE:
        cols = tl.where(u < TP, u, 0)
        s = score_tile(q_ptr, key_ptr, base + rows, base + cols, inv_tau, D, BM, BN, BD, ROUND, PRECISION)
        s = tl.where(u[None, :] <= rows[:, None], s, float("-inf"))
        p = tl.exp(s - tl.max(s, axis=1)[:, None])
        p = p * (1.0 / tl.sum(p, axis=1))[:, None]
        own = tl.sum(tl.where(u[None, :] == rows[:, None], p, 0.0), axis=1)
        p = tl.where((u[None, :] < rows[:, None]) & ok[:, None], p, 0.0).to(kind)
        tl.store(out + u[None, :], p, mask=(u < TP)[None, :])
        tl.store(noted, own, mask=ok)
        tl.store(noted + tokens, tl.sum(p.to(tl.float32), axis=1), mask=ok)
    else:
        last = r0 + first + BM
        if AGAIN:
            top = tl.load(noted + 2 * tokens, mask=ok, other=0.0)
            total = tl.load(noted + 3 * tokens, mask=ok, other=1.0)
        else:
            top = tl.full((BM,), float("-inf"), tl.float32)
            total = tl.zeros((BM,), tl.float32)
            for u0 in range(0, last, BN):
                cols = u0 + u
                s = score_tile(
                    q_ptr, key_ptr, base + rows, base + tl.minimum(cols, TP - 1), inv_tau,
                    D, BM, BN, BD, ROUND, PRECISION,
                )  # fmt: skip
                s = tl.where(cols[None, :] <= rows[:, None], s, float("-inf"))
                new = tl.maximum(top, tl.max(s, axis=1))
                total = total * tl.exp(top - new) + tl.sum(tl.exp(s - new[:, None]), axis=1)
                top = new
            tl.store(noted + 2 * tokens, top, mask=ok)
            tl.store(noted + 3 * tokens, total, mask=ok)
        own = tl.zeros((BM,), tl.float32)
        earlier = tl.zeros((BM,), tl.float32)
        for u0 in range(0, last, BN):
            cols = u0 + u
            s = score_tile(
                q_ptr, key_ptr, base + rows, base + tl.minimum(cols, TP - 1), inv_tau,
                D, BM, BN, BD, ROUND, PRECISION,
            )  # fmt: skip
            p = tl.exp(s - top[:, None]) * (1.0 / total)[:, None]
            own += tl.sum(tl.where(cols[None, :] == rows[:, None], p, 0.0), axis=1)
            p = tl.where((cols[None, :] < rows[:, None]) & ok[:, None], p, 0.0).to(kind)
            earlier += tl.sum(p.to(tl.float32), axis=1)
            tl.store(out + cols[None, :], p, mask=(cols < TP)[None, :])
        for u0 in range((last + BN - 1) // BN * BN, r0 + nr, BN):
            cols = u0 + u
            tl.store(out + cols[None, :], tl.zeros((BM, BN), kind), mask=(cols < TP)[None, :])
        if not AGAIN:
            tl.store(noted, own, mask=ok)
            tl.store(noted + tokens, earlier, mask=ok)
