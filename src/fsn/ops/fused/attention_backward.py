"""Backward kernels of the attention half: fields and kernel coefficients, gates and rotation."""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_forward import add_product, load_score, rotated_row
from .common import COUNTS, sincos, softplus_and_slope
from .rows import dot_row, load_row, only_phases, scale_row, store_row, sum_row, wide_row
from .update import incoming


@triton.jit
def load_fields(place, mask):
    """One harmonic's gradient in one row, in pairs (2C,) -> real and imaginary parts (C,)"""
    return tl.split(tl.reshape(tl.load(place, mask=mask, other=0.0), (mask.shape[0] // 2, 2)))


@triton.jit
def load_pair(w_ptr, part, n, cols, inside, N: tl.constexpr, KP: tl.constexpr, HAS: tl.constexpr):
    """One coefficient per column: row n of part 0..3 of w (4, N, KP), zeros where HAS is off."""
    if HAS:
        return tl.load(w_ptr + (part * N + n) * KP + cols, mask=inside, other=0.0)
    else:
        return tl.zeros(cols.shape, tl.float32)


@triton.jit
def share(re, im, c, s, w_re, w_im, sum_re, sum_im):
    """P = dF z̄ⁿ: what it adds to the sums over tokens, and Im P Re w − Re P Im w, what it gives to θ."""
    re = re.to(tl.float32)
    im = im.to(tl.float32)
    p_re = re * c + im * s
    p_im = im * c - re * s
    return w_re * p_im - w_im * p_re, sum_re + p_re, sum_im + p_im


@triton.jit(do_not_specialize=COUNTS)
def field_backward_kernel(
    df_ptr, weight_ptr, da_ptr, theta_ptr, w_ptr, dtheta_ptr, partial_ptr,
    T, TP, each,
    KP: tl.constexpr, BC: tl.constexpr, N: tl.constexpr, N0: tl.constexpr, HN: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr,
    DRIFT: tl.constexpr, ADD: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """From the gradient of the fields to those of the coefficients and of θ, for HN ≤ 3 harmonics from N0 on.

    θ_u meets the fields twice, in F_u through w0 and in F_{u−1} through w1. With P0 = dF_u z̄_uⁿ and P1 = dF_{u−1} z̄_uⁿ,
    dw0⁽ⁿ⁾ = Σ_u P0, dw1⁽ⁿ⁾ = Σ_u P1 and dθ_u = Σ_n n (Im P0 Re w0 − Re P0 Im w0 + the same with P1 and w1).

    A program walks down ROWS tokens of a sequence, one after the other, in a strip of BC columns. Each thread owns its
    columns, so sums over tokens stay in its registers, and so does the row before; rows to come are on their way.

    df (B·TP, N, KP, 2), theta (B·T, KP), da (B·T, KP), weight (B·T,) of the drift, w (heads, 4, N, KP), ``each`` so
    many sequences -> dtheta (B·T, KP); partial (programs, 4N + 1, KP): sums for w0 re, im, w1 re,
    im, and for the drift's constant. ADD: dtheta is added to (later harmonics). ROWS divides TP.
    """
    pid = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = cols < KP
    wide: tl.constexpr = 2 * N * KP
    batch = pid * ROWS // TP
    t0 = (pid * ROWS % TP).to(tl.int32)
    row = batch * T + t0
    w_ptr += batch // each * (4 * N * KP)
    zero = tl.zeros((BC,), tl.float32)
    pairs = tl.program_id(1) * (2 * BC) + tl.arange(0, 2 * BC)
    paired = pairs < 2 * KP
    df = df_ptr + (batch * TP + t0) * wide + 2 * N0 * KP + pairs
    w0_re: tl.tuple = ()
    w0_im: tl.tuple = ()
    w1_re: tl.tuple = ()
    w1_im: tl.tuple = ()
    s0_re: tl.tuple = ()
    p_re: tl.tuple = ()
    p_im: tl.tuple = ()
    for n in tl.static_range(HN):
        w0_re += (load_pair(w_ptr, 0, N0 + n, cols, inside, N, KP, HAS0),)
        w0_im += (load_pair(w_ptr, 1, N0 + n, cols, inside, N, KP, HAS0I),)
        w1_re += (load_pair(w_ptr, 2, N0 + n, cols, inside, N, KP, HAS1),)
        w1_im += (load_pair(w_ptr, 3, N0 + n, cols, inside, N, KP, HAS1I),)
        s0_re += (zero,)
        before_re, before_im = load_fields(df - wide + 2 * n * KP, paired & (t0 > 0))
        p_re += (before_re,)
        p_im += (before_im,)
    s0_im, s1_re, s1_im = s0_re, s0_re, s0_re
    turn = zero
    theta = theta_ptr + row * KP + cols
    dtheta = dtheta_ptr + row * KP + cols
    for i in tl.range(0, ROWS, num_stages=STAGES):
        there = t0 + i < T
        some = inside & there
        th = tl.load(theta + i * KP, mask=some, other=0.0)
        d_re: tl.tuple = ()
        d_im: tl.tuple = ()
        for n in tl.static_range(HN):
            re, im = load_fields(df + i * wide + 2 * n * KP, paired & there)
            d_re += (re,)
            d_im += (im,)
        s1, c1 = sincos(th, MATH)
        c, s = c1, s1
        for _ in tl.static_range(N0):
            c, s = c * c1 - s * s1, s * c1 + c * s1
        grad = zero
        if ADD:
            grad += tl.load(dtheta + i * KP, mask=some, other=0.0).to(tl.float32)
        own_re: tl.tuple = ()
        own_im: tl.tuple = ()
        next_re: tl.tuple = ()
        next_im: tl.tuple = ()
        for n in tl.static_range(HN):
            if n > 0:
                c, s = c * c1 - s * s1, s * c1 + c * s1
            g, sum_re, sum_im = share(d_re[n], d_im[n], c, s, w0_re[n], w0_im[n], s0_re[n], s0_im[n])
            own_re += (sum_re,)
            own_im += (sum_im,)
            if HAS1:
                h, sum_re, sum_im = share(p_re[n], p_im[n], c, s, w1_re[n], w1_im[n], s1_re[n], s1_im[n])
                g += h
                next_re += (sum_re,)
                next_im += (sum_im,)
            grad += (N0 + n + 1) * g
        s0_re, s0_im = own_re, own_im
        if HAS1:
            s1_re, s1_im = next_re, next_im
        tl.store(dtheta + i * KP, grad.to(dtheta_ptr.dtype.element_ty), mask=some)
        if DRIFT:
            weight = tl.load(weight_ptr + row + i, mask=there, other=0.0)
            if DRIFT == 2:
                weight = -weight
            da = tl.load(da_ptr + (row + i) * KP + cols, mask=some, other=0.0)
            turn += da.to(tl.float32) * weight
        p_re, p_im = d_re, d_im
    sums = partial_ptr + pid * ((4 * N + 1) * KP) + cols
    for n in tl.static_range(HN):
        out = sums + (N0 + n) * KP
        tl.store(out, s0_re[n], mask=inside)
        tl.store(out + N * KP, s0_im[n], mask=inside)
        tl.store(out + 2 * N * KP, s1_re[n], mask=inside)
        tl.store(out + 3 * N * KP, s1_im[n], mask=inside)
    if not ADD:
        tl.store(sums + 4 * N * KP, turn, mask=inside)


@triton.jit
def gate_and_slope(raw, k, KP: tl.constexpr, W: tl.constexpr, MATH: tl.constexpr):
    """softplus(raw) / max(mean, 1e-6), its slope at a given mean, and what the mean's own gradient counts per column.

    raw: pieces (R, W) -> gate, slope: pieces; share (R,): 1/k, or 0 where the mean rests on its floor
    """
    positive: tl.tuple = ()
    rise: tl.tuple = ()
    for p in tl.static_range(len(raw)):
        value, slope = softplus_and_slope(raw[p].to(tl.float32), MATH)
        positive += (value,)
        rise += (slope,)
    positive = only_phases(positive, k, KP, W)
    mean = sum_row(positive) / k
    scale = 1.0 / tl.maximum(mean, 1e-6)
    return scale_row(positive, scale), scale_row(rise, scale), tl.where(mean > 1e-6, 1.0 / k, 0.0)


@triton.jit
def gate_backward(
    gate, slope, share, dcos, dsin, cphi, sphi, grad, other, down,
    k, KP: tl.constexpr, W: tl.constexpr, SCORE: tl.constexpr,
):  # fmt: skip
    """One side's features back: the gradient of its raw gates, θ's with this share, and Σ dgate · gate over columns.

    SCORE: the diagonal's score is gate · other, and down (R,) its gradient.
    """
    dgate: tl.tuple = ()
    total: tl.tuple = ()
    for p in tl.static_range(len(gate)):
        dc = dcos[p].to(tl.float32)
        ds = dsin[p].to(tl.float32)
        steep = dc * cphi[p] + ds * sphi[p]
        if SCORE:
            steep += down[:, None] * other[p]
        dgate += (steep,)
        total += (grad[p] + gate[p] * (ds * cphi[p] - dc * sphi[p]),)
    along = dot_row(dgate, gate)
    through_mean = along * share
    draw: tl.tuple = ()
    for p in tl.static_range(len(gate)):
        draw += ((dgate[p] - through_mean[:, None]) * slope[p],)
    return only_phases(draw, k, KP, W), total, along


@triton.jit
def unfolded(dcos, dsin, before_cos, before_sin, score_ptr, k, KP: tl.constexpr, W: tl.constexpr):
    """dk_u = dk̃_u + λ̄ dk̃_{u−1}"""
    re, im = load_score(score_ptr, k, KP, W)
    dcos = add_product(wide_row(dcos), re, before_cos, im, before_sin, 1)
    return dcos, add_product(wide_row(dsin), re, before_sin, im, before_cos, -1)


@triton.jit(do_not_specialize=COUNTS)
def prepare_backward_kernel(
    theta_ptr, pre_ptr, cos_ptr, sin_ptr,
    dq_ptr, dkey_ptr, dfield_ptr, da_ptr, slope_ptr, dout_ptr, dcast_ptr, score_ptr, down_ptr,
    dpre_ptr, dtheta_ptr, dtau_ptr, dscore_ptr,
    B, T, TP, k, each,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr, SCORE: tl.constexpr,
    HAS_DOUT: tl.constexpr, HAS_DCAST: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Gradients of the rotary features back to the raw query and key gates and to θ, all of θ's shares summed.

    dq, dkey (B·TP, 2KP); dfield, da, slope (M, KP); dout (M, KP) and dcast (M, KP + 16), what arrives at the layer's
    new θ and its copy -> dpre blocks 1 and 2, dtheta (M, KP), and Σ dq·q per program, which is −τ dτ.

    SCORE: dkey is that of k̃_u = k_u + λ k_{u+1}, so that dk_u = dk̃_u + λ̄ dk̃_{u−1} and dλ = Σ_u dk̃_{u−1} k̄_u, the latter
    summed over a program's rows: dscore (programs, 2, KP). down (M,) is the gradient of the diagonal's scores, λ in
    score (heads, 2, k), ``each`` so many sequences.

    A program has R times STEPS rows, STEPS of them one after the other from the first to the last: the row before is
    at hand, and sums stay in registers. R times STEPS divides TP.
    """
    pid = tl.program_id(0)
    first = (pid * R + tl.arange(0, R)) * STEPS
    batch = first // TP
    t0 = first % TP
    there = batch < B
    start = batch.to(tl.int64) * T + t0
    source = first.to(tl.int64) * (2 * KP)
    score_ptr += (pid * (R * STEPS) // TP // each) * (2 * k)
    turned = tl.zeros((R,), tl.float32)
    before_cos: tl.tuple = ()
    before_sin: tl.tuple = ()
    sum_re: tl.tuple = ()
    sum_im: tl.tuple = ()
    if SCORE:
        before = there & (t0 > 0)
        before_cos = load_row(dkey_ptr, source - 2 * KP, before, KP, W)
        before_sin = load_row(dkey_ptr + KP, source - 2 * KP, before, KP, W)
        for _ in tl.static_range(len(before_cos)):
            sum_re += (tl.zeros((R, W), tl.float32),)
        sum_im = sum_re
    for i in range(STEPS):
        t = t0 + i
        rows = start + i
        ok = there & (t < T)
        cphi, sphi = rotated_row(theta_ptr, cos_ptr, sin_ptr, rows, t, ok, KP, W, MATH)
        grad = incoming(dout_ptr, dq_ptr, dq_ptr, dcast_ptr, rows, ok, KP, W, HAS_DOUT, False, HAS_DCAST)
        da = wide_row(load_row(da_ptr, rows * KP, ok, KP, W))
        slope = wide_row(load_row(slope_ptr, rows * KP, ok, KP, W))
        dfield = wide_row(load_row(dfield_ptr, rows * KP, ok, KP, W))
        sums: tl.tuple = ()
        for p in tl.static_range(len(da)):
            sums += (grad[p] - da[p] * slope[p] + dfield[p],)
        gates = rows * (3 * KP)
        src = source + i * (2 * KP)
        raw_q = load_row(pre_ptr, gates, ok, KP, W)
        dcos_q = load_row(dq_ptr, src, ok, KP, W)
        dsin_q = load_row(dq_ptr + KP, src, ok, KP, W)
        raw_key = load_row(pre_ptr + KP, gates, ok, KP, W)  # all before anything is stored
        dcos_key = load_row(dkey_ptr, src, ok, KP, W)
        dsin_key = load_row(dkey_ptr + KP, src, ok, KP, W)
        down = turned
        if SCORE:
            down = tl.load(down_ptr + rows, mask=ok, other=0.0)
        gate_q, slope_q, share_q = gate_and_slope(raw_q, k, KP, W, MATH)
        other = gate_q
        if SCORE:
            gate_key, slope_key, share_key = gate_and_slope(raw_key, k, KP, W, MATH)
            other = gate_key
        draw, sums, along = gate_backward(
            gate_q, slope_q, share_q, dcos_q, dsin_q, cphi, sphi, sums, other, down, k, KP, W, SCORE
        )
        turned += tl.where(ok, along, 0.0)
        store_row(dpre_ptr, gates, ok, draw, KP, W)
        if SCORE:
            wide_cos = wide_row(before_cos)
            wide_sin = wide_row(before_sin)
            more_re: tl.tuple = ()
            more_im: tl.tuple = ()
            for p in tl.static_range(len(gate_key)):
                key_cos = gate_key[p] * cphi[p]
                key_sin = gate_key[p] * sphi[p]
                more_re += (sum_re[p] + wide_cos[p] * key_cos + wide_sin[p] * key_sin,)
                more_im += (sum_im[p] + wide_sin[p] * key_cos - wide_cos[p] * key_sin,)
            sum_re, sum_im = more_re, more_im
            before_cos, before_sin = dcos_key, dsin_key
            full_cos, full_sin = unfolded(dcos_key, dsin_key, wide_cos, wide_sin, score_ptr, k, KP, W)
        else:
            gate_key, slope_key, share_key = gate_and_slope(raw_key, k, KP, W, MATH)
            full_cos, full_sin = dcos_key, dsin_key
        draw, sums, along = gate_backward(
            gate_key,
            slope_key,
            share_key,
            full_cos,
            full_sin,
            cphi,
            sphi,
            sums,
            gate_q,
            down,
            k,
            KP,
            W,
            SCORE,
        )
        store_row(dpre_ptr + KP, gates, ok, draw, KP, W)
        store_row(dtheta_ptr, rows * KP, ok, sums, KP, W)
    tl.store(dtau_ptr + pid, tl.sum(turned, axis=0))
    if SCORE:
        for p in tl.static_range(len(sum_re)):
            cols = p * W + tl.arange(0, W)
            out = dscore_ptr + pid.to(tl.int64) * (2 * KP) + cols
            tl.store(out, tl.sum(sum_re[p], axis=0), mask=cols < KP)
            tl.store(out + KP, tl.sum(sum_im[p], axis=0), mask=cols < KP)
