"""Forward kernels of the attention half: gates and fields."""

from __future__ import annotations

import triton
import triton.language as tl

from .common import COUNTS, beside, sincos, softplus
from .rows import (
    dot_row,
    load_row,
    map_row,
    multiply_rows,
    only_phases,
    rounded_row,
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


@triton.jit
def load_score(score_ptr, k, KP: tl.constexpr, W: tl.constexpr):
    """λ (2, k) -> real and imaginary parts, pieces (1, W) each, zeros in the padding"""
    re: tl.tuple = ()
    im: tl.tuple = ()
    for p in tl.static_range((KP + W - 1) // W):
        cols = p * W + tl.arange(0, W)
        re += (tl.load(score_ptr + cols, mask=cols < k, other=0.0)[None, :],)
        im += (tl.load(score_ptr + k + cols, mask=cols < k, other=0.0)[None, :],)
    return re, im


@triton.jit
def add_product(xs, a, ys, b, zs, SIGN: tl.constexpr):
    """x + a y ± b z, piece by piece"""
    total: tl.tuple = ()
    for p in tl.static_range(len(xs)):
        total += (xs[p] + a[p] * ys[p] + SIGN * b[p] * zs[p],)
    return total


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


@triton.jit(do_not_specialize=COUNTS)
def query_folded_key_kernel(
    theta_ptr, pre_ptr, cos_ptr, sin_ptr, score_ptr, q_ptr, key_ptr, own_ptr,
    B, T, TP, k, each,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """The same with keys that carry their successor's, k̃_u = k_u + λ k_{u+1}, λ in score (heads, 2, k).

    A program makes R times STEPS rows, STEPS of them one after the other from the last to the first, so that the
    successor is at hand. R times STEPS divides TP. The diagonal has no successor: q_t · k_t, from rounded
    numbers as any other score, goes to row 4 of own (5, B·T).
    """
    first = (tl.program_id(0) * R + tl.arange(0, R)) * STEPS
    batch = first // TP
    kind: tl.constexpr = q_ptr.dtype.element_ty
    head = tl.program_id(0) * (R * STEPS) // TP // each
    re, im = load_score(score_ptr + head * (2 * k), k, KP, W)
    t = first % TP + STEPS
    rows = batch.to(tl.int64) * T + t
    ok = (batch < B) & (t < T)
    next_cos, next_sin = rotated_row(theta_ptr, cos_ptr, sin_ptr, rows, t, ok, KP, W, MATH)
    gate_key = gate_row(load_row(pre_ptr + KP, rows * (3 * KP), ok, KP, W), k, KP, W, MATH)
    next_cos = multiply_rows(gate_key, next_cos)
    next_sin = multiply_rows(gate_key, next_sin)
    for step in tl.static_range(STEPS):
        t = first % TP + (STEPS - 1 - step)
        rows = batch.to(tl.int64) * T + t
        ok = (batch < B) & (t < T)
        cphi, sphi = rotated_row(theta_ptr, cos_ptr, sin_ptr, rows, t, ok, KP, W, MATH)
        gate = gate_row(load_row(pre_ptr, rows * (3 * KP), ok, KP, W), k, KP, W, MATH)
        gate_key = gate_row(load_row(pre_ptr + KP, rows * (3 * KP), ok, KP, W), k, KP, W, MATH)
        out = (first + (STEPS - 1 - step)).to(tl.int64) * (2 * KP)
        q_cos = multiply_rows(gate, cphi)
        q_sin = multiply_rows(gate, sphi)
        store_row(q_ptr, out, batch < B, q_cos, KP, W)
        store_row(q_ptr + KP, out, batch < B, q_sin, KP, W)
        key_cos = multiply_rows(gate_key, cphi)
        key_sin = multiply_rows(gate_key, sphi)
        store_row(key_ptr, out, batch < B, add_product(key_cos, re, next_cos, im, next_sin, -1), KP, W)
        store_row(key_ptr + KP, out, batch < B, add_product(key_sin, re, next_sin, im, next_cos, 1), KP, W)
        own = dot_row(rounded_row(q_cos, kind), rounded_row(key_cos, kind))
        own += dot_row(rounded_row(q_sin, kind), rounded_row(key_sin, kind))
        tl.store(own_ptr + 4 * B.to(tl.int64) * T + rows, own, mask=ok)
        next_cos = key_cos
        next_sin = key_sin


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
    B, T, TP, each,
    KP: tl.constexpr, N: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr,
    MATH: tl.constexpr,
):  # fmt: skip
    """θ -> the fields F_u⁽ⁿ⁾ = w0⁽ⁿ⁾ z_uⁿ + w1⁽ⁿ⁾ z_{u+1}ⁿ, powers by recurrence in registers.

    theta (B·T, KP) float32, w (heads, 4, N, KP): w0 re, im, w1 re, im -> field (B·TP, N, KP, 2), real parts beside
    imaginary ones, finite rows behind each sequence. ``each`` head has so many sequences; R divides TP.
    """
    w_ptr += (tl.program_id(0) * R // TP // each) * (4 * N * KP)
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
