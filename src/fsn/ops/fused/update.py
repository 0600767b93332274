"""The bounded residual update, with or without the value gate, and its backward passes.

One program handles R tokens; the sum over tokens that makes the gradient of α leaves as one number per program. Kernels
here load all they need before they store anything: no compiler moves a load across a store that might be to the same
place, and a row that is read in two goes waits for memory twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .common import COUNTS, beside, sigmoid, softplus, tanh
from .dropout import dropped
from .rows import (
    add_rows,
    dot_row,
    largest_in_row,
    load_row,
    map_row,
    multiply_rows,
    only_phases,
    scale_row,
    sincos_row,
    store_features,
    store_row,
    store_row_and_one,
    sum_row,
    wide_row,
)


@triton.jit
def bound_parts(xs, MATH: tl.constexpr):
    """What the bound needs of a row: tanh x, ‖x‖ and ‖tanh x‖ over a scale for x and one for tanh x, and their ratio.

    The scales are the largest entries, so that no square is lost. In fast mode they are one: a row whose squares
    underflow, far below what bfloat16 tells from a zero, counts as an all-zero row. That has ratio one and norms one.
    """
    ts = map_row(tanh, xs, MATH)
    if MATH == 2:
        square = dot_row(xs, xs)
        zero = square < 1e-30
        scale_x = tl.where(zero, 1.0, 1.0)
        scale_t = scale_x
        norm_x = tl.where(zero, 1.0, tl.sqrt(square))
        norm_t = tl.where(zero, 1.0, tl.sqrt(dot_row(ts, ts)))
    else:
        largest = largest_in_row(xs)
        zero = largest == 0.0
        scale_x = tl.where(zero, 1.0, largest)
        scale_t = tl.where(zero, 1.0, tanh(scale_x, MATH))
        small = scale_row(xs, 1.0 / scale_x)
        norm_x = tl.where(zero, 1.0, tl.sqrt(dot_row(small, small)))
        small = scale_row(ts, 1.0 / scale_t)
        norm_t = tl.where(zero, 1.0, tl.sqrt(dot_row(small, small)))
    ratio = (norm_t * scale_t) / (norm_x * scale_x)
    return ts, scale_x, scale_t, norm_x, norm_t, ratio


@triton.jit
def bounded(xs, alpha_ptr, BOUND: tl.constexpr, MATH: tl.constexpr):
    """x · |α| · ratio(x), or x."""
    if BOUND:
        alpha = tl.abs(tl.load(alpha_ptr))
        _, _, _, _, _, ratio = bound_parts(xs, MATH)
        return scale_row(xs, alpha * ratio)
    else:
        return xs


@triton.jit
def bound_backward(xs, grads, alpha, BOUND: tl.constexpr, MATH: tl.constexpr):
    """dx and the per-token gradient of |α|, for out = x · |α| · ratio(x)."""
    if BOUND:
        ts, scale_x, scale_t, norm_x, norm_t, ratio = bound_parts(xs, MATH)
        along = dot_row(scale_row(xs, 1.0 / scale_x), grads)
        by_t = along / (scale_t * norm_t * norm_x)
        by_x = along * ratio / (scale_x * norm_x * norm_x)
        dxs: tl.tuple = ()
        for p in tl.static_range(len(xs)):
            t = ts[p]
            slope = t * (1.0 - t * t) * by_t[:, None] - xs[p] * by_x[:, None]
            dxs += (alpha * (ratio[:, None] * grads[p] + slope),)
        return dxs, along * norm_t * scale_t / norm_x
    else:
        return grads, sum_row(grads) * 0.0


@triton.jit
def load_gate(pre_ptr, rows, ok, KP: tl.constexpr, W: tl.constexpr, GATE: tl.constexpr, MATH: tl.constexpr):
    """The value gate (third block of the raw gates): GATE 1 signed, 2 softplus. Also its argument."""
    raw = wide_row(load_row(pre_ptr + 2 * KP, rows * (3 * KP), ok, KP, W))
    if GATE == 2:
        return map_row(softplus, raw, MATH), raw
    else:
        return raw, raw


@triton.jit
def dropped_row(xs, rows, T, k, W: tl.constexpr, drop, DROPOUT: tl.constexpr):
    """A row with dropout's mask and scale, or as it is."""
    kept: tl.tuple = ()
    for p in tl.static_range(len(xs)):
        cols = p * W + tl.arange(0, W)
        kept += (dropped(xs[p], rows[:, None], cols[None, :], T, k, drop, DROPOUT),)
    return kept


@triton.jit(do_not_specialize=COUNTS)
def residual_kernel(
    theta_ptr, x_ptr, alpha_ptr, out_ptr, feat_ptr,
    M, T, k,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    BOUND: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """θ + bound(dropout(x)), and the features that gates and readout read.

    theta (M, KP) float32, x (M, KP) -> out (M, KP) float32, feat (M, 2KP + 16)
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    ok = rows < M
    th = load_row(theta_ptr, rows * KP, ok, KP, W)
    x = wide_row(load_row(x_ptr, rows * KP, ok, KP, W))
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    x = dropped_row(x, rows, T, k, W, drop, DROPOUT)
    new = add_rows(th, bounded(x, alpha_ptr, BOUND, MATH))
    store_row(out_ptr, rows * KP, ok, new, KP, W)
    store_features(feat_ptr, new, rows, ok, k, KP, W, MATH)


@triton.jit(do_not_specialize=COUNTS)
def coupling_update_kernel(
    theta_ptr, x_ptr, pre_ptr, alpha_ptr, out_ptr, cast_ptr,
    M, T, k,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    GATE: tl.constexpr, BOUND: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Gate the coupling, drop some of it, bound it, and move θ: equation 2 from the sum over harmonics on.

    theta (M, KP), x (M, KP), pre (M, 3KP) -> out (M, KP), cast (M, KP + 16)
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    ok = rows < M
    th = load_row(theta_ptr, rows * KP, ok, KP, W)
    x = wide_row(load_row(x_ptr, rows * KP, ok, KP, W))
    gate, _ = load_gate(pre_ptr, rows, ok, KP, W, GATE, MATH)
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    x = dropped_row(multiply_rows(x, gate), rows, T, k, W, drop, DROPOUT)
    new = add_rows(th, bounded(x, alpha_ptr, BOUND, MATH))
    store_row(out_ptr, rows * KP, ok, new, KP, W)
    store_row_and_one(cast_ptr, rows * (KP + 16), ok, new, KP, W)


@triton.jit(do_not_specialize=COUNTS)
def gated_update_kernel(
    x_ptr, pre_ptr, alpha_ptr, out_ptr,
    B, T, TP, each,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BOUND: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """The coupling times the value gate, bounded: the update alone, for a layer with heads.

    x (B·T, KP), pre (B·T, 3KP), alpha (heads,), ``each`` so many sequences -> out (B·T, KP). R divides TP.
    """
    padded = tl.program_id(0) * R + tl.arange(0, R)
    t = padded % TP
    batch = padded // TP
    rows = batch.to(tl.int64) * T + t
    ok = (batch < B) & (t < T)
    x = wide_row(load_row(x_ptr, rows * KP, ok, KP, W))
    gate, _ = load_gate(pre_ptr, rows, ok, KP, W, 1, MATH)
    head = tl.program_id(0) * R // TP // each
    store_row(out_ptr, rows * KP, ok, bounded(multiply_rows(x, gate), alpha_ptr + head, BOUND, MATH), KP, W)


@triton.jit
def incoming(
    dtheta_ptr, dfeat_ptr, feat_ptr, dcast_ptr, rows, ok, KP: tl.constexpr, W: tl.constexpr,
    HAS_DTHETA: tl.constexpr, HAS_DFEAT: tl.constexpr, HAS_DCAST: tl.constexpr,
):  # fmt: skip
    """All that flows back into θ: directly, through [cos, sin], through the cast copy."""
    grad: tl.tuple = ()
    if HAS_DTHETA:
        grad = wide_row(load_row(dtheta_ptr, rows * KP, ok, KP, W))
    else:
        for _ in tl.static_range((KP + W - 1) // W):
            grad += (tl.zeros((rows.shape[0], W), tl.float32),)
    if HAS_DFEAT:
        start = rows * (2 * KP + 16)
        c = wide_row(load_row(feat_ptr, start, ok, KP, W))
        s = wide_row(load_row(feat_ptr + KP, start, ok, KP, W))
        dc = wide_row(load_row(dfeat_ptr, start, ok, KP, W))
        ds = wide_row(load_row(dfeat_ptr + KP, start, ok, KP, W))
        total: tl.tuple = ()
        for p in tl.static_range((KP + W - 1) // W):
            total += (grad[p] + c[p] * ds[p] - s[p] * dc[p],)
        grad = total
    if HAS_DCAST:
        grad = add_rows(grad, wide_row(load_row(dcast_ptr, rows * (KP + 16), ok, KP, W)))
    return grad


@triton.jit
def load_alpha(alpha_ptr, BOUND: tl.constexpr):
    """|α| and its sign; one and zero without a bound."""
    if BOUND:
        raw = tl.load(alpha_ptr)
        return tl.abs(raw), tl.where(raw > 0, 1.0, tl.where(raw < 0, -1.0, 0.0))
    else:
        return 1.0, 0.0


@triton.jit(do_not_specialize=COUNTS)
def residual_backward_kernel(
    dtheta_ptr, dfeat_ptr, feat_ptr, x_ptr, alpha_ptr,
    dout_ptr, dx_ptr, dalpha_ptr,
    M, T, k,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BOUND: tl.constexpr,
    HAS_DTHETA: tl.constexpr, HAS_DFEAT: tl.constexpr, WRITE: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Backward of θ + bound(dropout(x)): the total gradient of θ (dout), dx (M, KP), and partial sums for α."""
    pid = tl.program_id(0).to(tl.int64)
    rows = pid * R + tl.arange(0, R)
    ok = rows < M
    grad = incoming(
        dtheta_ptr, dfeat_ptr, feat_ptr, dtheta_ptr, rows, ok, KP, W, HAS_DTHETA, HAS_DFEAT, False
    )
    alpha, sign = load_alpha(alpha_ptr, BOUND)
    x = wide_row(load_row(x_ptr, rows * KP, ok, KP, W))
    if WRITE:
        store_row(dout_ptr, rows * KP, ok, grad, KP, W)
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    x = dropped_row(x, rows, T, k, W, drop, DROPOUT)
    dx, da = bound_backward(x, grad, alpha, BOUND, MATH)
    dx = dropped_row(dx, rows, T, k, W, drop, DROPOUT)
    store_row(dx_ptr, rows * KP, ok, only_phases(dx, k, KP, W), KP, W)
    if BOUND:
        tl.store(dalpha_ptr + pid, sign * tl.sum(tl.where(ok, da, 0.0), axis=0))


@triton.jit(do_not_specialize=COUNTS)
def coupling_update_backward_kernel(
    dtheta_ptr, dcast_ptr, theta_ptr, x_ptr, pre_ptr, alpha_ptr, constant_ptr,
    dx_ptr, dpre_ptr, dg_ptr, turn_ptr, dalpha_ptr,
    B, T, TP, each, k,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    KP: tl.constexpr, W: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    GATE: tl.constexpr, BOUND: tl.constexpr, DRIFT: tl.constexpr,
    HAS_DTHETA: tl.constexpr, HAS_DCAST: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Backward of θ + bound(dropout(gate ⊙ a)), and all that the coupling's backward reads.

    -> dx (M, KP): gradient of the coupling a; dpre third block: gradient of the raw value gate; dg (B·TP, N, KP, 2):
    gradient of the aggregated fields, dG_re = −sin nθ · da, dG_im = cos nθ · da, zero rows behind each sequence;
    turn (M,): the gradient of the drift's weight. alpha (heads,), constant (heads, KP), ``each`` so many sequences; R
    divides TP.
    """
    pid = tl.program_id(0)
    head = pid * R // TP // each
    padded = pid * R + tl.arange(0, R)
    t = padded % TP
    batch = padded // TP
    rows = batch.to(tl.int64) * T + t
    ok = (batch < B) & (t < T)
    alpha, sign = load_alpha(alpha_ptr + head, BOUND)
    grad = incoming(
        dtheta_ptr, dtheta_ptr, dtheta_ptr, dcast_ptr, rows, ok, KP, W, HAS_DTHETA, False, HAS_DCAST
    )
    a = wide_row(load_row(x_ptr, rows * KP, ok, KP, W))
    gate, raw = load_gate(pre_ptr, rows, ok, KP, W, GATE, MATH)
    th = load_row(theta_ptr, rows * KP, ok, KP, W)
    if DRIFT:
        constant = load_row(
            constant_ptr + head * KP, tl.zeros((1,), tl.int32), tl.full((1,), 1, tl.int1), KP, W
        )
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    x = dropped_row(multiply_rows(a, gate), rows, T, k, W, drop, DROPOUT)
    dx, da_row = bound_backward(x, grad, alpha, BOUND, MATH)
    dx = dropped_row(dx, rows, T, k, W, drop, DROPOUT)
    if BOUND:
        tl.store(dalpha_ptr + pid, sign * tl.sum(tl.where(ok, da_row, 0.0), axis=0))
    dgate = multiply_rows(dx, a)
    if GATE == 2:
        dgate = multiply_rows(dgate, map_row(sigmoid, raw, MATH))
    store_row(dpre_ptr + 2 * KP, rows * (3 * KP), ok, dgate, KP, W)
    da: tl.tuple = ()
    for p in tl.static_range(len(dx)):
        da += ((dx[p] * gate[p]).to(dx_ptr.dtype.element_ty),)
    store_row(dx_ptr, rows * KP, ok, da, KP, W)
    da = wide_row(da)
    if DRIFT:
        tl.store(turn_ptr + rows, dot_row(da, constant), mask=ok)
    s1, c1 = sincos_row(th, MATH)
    start = dg_ptr + padded[:, None].to(tl.int64) * (2 * N * KP)
    kind = dg_ptr.dtype.element_ty
    for p in tl.static_range(len(da)):
        pairs = 2 * p * W + tl.arange(0, 2 * W)
        wide = (batch < B)[:, None] & (pairs < 2 * KP)[None, :]
        c, s = c1[p], s1[p]
        for n in tl.static_range(N):
            value = beside((-s * da[p]).to(kind), (c * da[p]).to(kind))
            tl.store(start + 2 * n * KP + pairs[None, :], value, mask=wide)
            c, s = c * c1[p] - s * s1[p], s * c1[p] + c * s1[p]
