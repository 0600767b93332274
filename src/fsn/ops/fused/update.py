"""The bounded residual update, with or without the value gate, and its backward passes.

One program handles R tokens; the sum over tokens that makes the gradient of α leaves as one number per program. Kernels
here load all they need before they store anything: no compiler moves a load across a store that might be to the same
place, and a row that is read in two goes waits for memory twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .common import COUNTS, beside, keep_mask, ones_columns, sigmoid, sincos, softplus, tanh


@triton.jit
def bound_parts(x, MATH: tl.constexpr):
    """What the bound needs of a row: tanh x, ‖x‖ and ‖tanh x‖ over a scale for x and one for tanh x, and their ratio.

    The scales are the largest entries, so that no square is lost. In fast mode they are one: a row whose squares
    underflow, far below what bfloat16 tells from a zero, counts as an all-zero row. That has ratio one and norms one.
    """
    t = tanh(x, MATH)
    if MATH == 2:
        square = tl.sum(x * x, axis=1)
        zero = square < 1e-30
        scale_x = tl.where(zero, 1.0, 1.0)
        scale_t = scale_x
        norm_x = tl.where(zero, 1.0, tl.sqrt(square))
        norm_t = tl.where(zero, 1.0, tl.sqrt(tl.sum(t * t, axis=1)))
    else:
        largest = tl.max(tl.abs(x), axis=1)
        zero = largest == 0.0
        scale_x = tl.where(zero, 1.0, largest)
        scale_t = tl.where(zero, 1.0, tanh(scale_x, MATH))
        xs = x * (1.0 / scale_x)[:, None]
        ts = t * (1.0 / scale_t)[:, None]
        norm_x = tl.where(zero, 1.0, tl.sqrt(tl.sum(xs * xs, axis=1)))
        norm_t = tl.where(zero, 1.0, tl.sqrt(tl.sum(ts * ts, axis=1)))
    ratio = (norm_t * scale_t) / (norm_x * scale_x)
    return t, scale_x, scale_t, norm_x, norm_t, ratio


@triton.jit
def bounded(x, alpha_ptr, BOUND: tl.constexpr, MATH: tl.constexpr):
    """x · |α| · ratio(x), or x."""
    if BOUND:
        alpha = tl.abs(tl.load(alpha_ptr))
        _, _, _, _, _, ratio = bound_parts(x, MATH)
        return x * (alpha * ratio)[:, None]
    else:
        return x


@triton.jit
def bound_backward(x, grad, alpha, BOUND: tl.constexpr, MATH: tl.constexpr):
    """dx and the per-token gradient of |α|, for out = x · |α| · ratio(x)."""
    if BOUND:
        t, scale_x, scale_t, norm_x, norm_t, ratio = bound_parts(x, MATH)
        along = tl.sum((x * (1.0 / scale_x)[:, None]) * grad, axis=1)
        by_t = along / (scale_t * norm_t * norm_x)
        by_x = along * ratio / (scale_x * norm_x * norm_x)
        slope = t * (1.0 - t * t) * by_t[:, None] - x * by_x[:, None]
        return alpha * (ratio[:, None] * grad + slope), along * norm_t * scale_t / norm_x
    else:
        return grad, tl.sum(grad, axis=1) * 0.0


@triton.jit
def load_gate(pre_ptr, rows, cols, mask, KP: tl.constexpr, GATE: tl.constexpr, MATH: tl.constexpr):
    """The value gate (third block of the raw gates): GATE 1 signed, 2 softplus. Also its argument."""
    raw = tl.load(pre_ptr + rows[:, None] * (3 * KP) + 2 * KP + cols[None, :], mask=mask, other=0.0)
    raw = raw.to(tl.float32)
    if GATE == 2:
        return softplus(raw, MATH), raw
    else:
        return raw, raw


@triton.jit
def dropped(x, rows, cols, T, k, counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr):
    """x with dropout's mask and scale, or x."""
    if DROPOUT:
        counter = tl.load(counter_ptr)
        sample = (rows // T + first_row)[:, None]
        column = ((rows % T)[:, None] * k + cols[None, :]).to(tl.int32)
        return tl.where(keep_mask(counter, sample, column, site, threshold), x * keep_scale, 0.0)
    else:
        return x


@triton.jit(do_not_specialize=COUNTS)
def residual_kernel(
    theta_ptr, x_ptr, alpha_ptr, out_ptr, feat_ptr,
    counter_ptr, first_row, site, threshold, keep_scale,
    M, T, k,
    KP: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    BOUND: tl.constexpr, DROPOUT: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """θ + bound(dropout(x)), and the features that gates and readout read.

    theta (M, KP) float32, x (M, KP) -> out (M, KP) float32, feat (M, 2KP + 16)
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    cols = tl.arange(0, BK)
    valid = cols < k
    row_ok = rows < M
    mask = row_ok[:, None] & (cols < KP)[None, :]
    th = tl.load(theta_ptr + rows[:, None] * KP + cols[None, :], mask=mask, other=0.0)
    x = tl.load(x_ptr + rows[:, None] * KP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    x = dropped(x, rows, cols, T, k, counter_ptr, first_row, site, threshold, keep_scale, DROPOUT)
    new = th + bounded(x, alpha_ptr, BOUND, MATH)
    tl.store(out_ptr + rows[:, None] * KP + cols[None, :], new, mask=mask)
    store_features(feat_ptr, new, rows, cols, row_ok, valid, KP, MATH)


@triton.jit
def store_features(feat_ptr, theta, rows, cols, row_ok, valid, KP: tl.constexpr, MATH: tl.constexpr):
    """[cos θ, sin θ, 1], zeros in the padding"""
    s, c = sincos(theta, MATH)
    dst = feat_ptr + rows[:, None] * (2 * KP + 16) + cols[None, :]
    store = row_ok[:, None] & (cols < KP)[None, :]
    tl.store(dst, tl.where(valid[None, :], c, 0.0).to(feat_ptr.dtype.element_ty), mask=store)
    tl.store(dst + KP, tl.where(valid[None, :], s, 0.0).to(feat_ptr.dtype.element_ty), mask=store)
    ones_columns(feat_ptr, rows, row_ok, 2 * KP + 16)


@triton.jit(do_not_specialize=COUNTS)
def coupling_update_kernel(
    theta_ptr, x_ptr, pre_ptr, alpha_ptr, out_ptr, cast_ptr,
    M,
    KP: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    GATE: tl.constexpr, BOUND: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Gate the coupling, bound it, and move θ: equation 2 from the sum over harmonics on.

    theta (M, KP), x (M, KP), pre (M, 3KP) -> out (M, KP), cast (M, KP + 16)
    """
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    cols = tl.arange(0, BK)
    row_ok = rows < M
    mask = row_ok[:, None] & (cols < KP)[None, :]
    narrow = rows[:, None] * KP + cols[None, :]
    th = tl.load(theta_ptr + narrow, mask=mask, other=0.0)
    x = tl.load(x_ptr + narrow, mask=mask, other=0.0).to(tl.float32)
    gate, _ = load_gate(pre_ptr, rows, cols, mask, KP, GATE, MATH)
    x = tl.where(mask, x * gate, 0.0)
    new = th + bounded(x, alpha_ptr, BOUND, MATH)
    tl.store(out_ptr + narrow, new, mask=mask)
    tl.store(
        cast_ptr + rows[:, None] * (KP + 16) + cols[None, :], new.to(cast_ptr.dtype.element_ty), mask=mask
    )
    ones_columns(cast_ptr, rows, row_ok, KP + 16)


@triton.jit
def incoming(
    dtheta_ptr, dfeat_ptr, feat_ptr, dcast_ptr, rows, cols, mask,
    KP: tl.constexpr, HAS_DTHETA: tl.constexpr, HAS_DFEAT: tl.constexpr, HAS_DCAST: tl.constexpr,
):  # fmt: skip
    """All that flows back into θ: directly, through [cos, sin], through the cast copy."""
    if HAS_DTHETA:
        grad = tl.load(dtheta_ptr + rows[:, None] * KP + cols[None, :], mask=mask, other=0.0)
    else:
        grad = tl.where(mask, 0.0, 0.0)
    if HAS_DFEAT:
        src = rows[:, None] * (2 * KP + 16) + cols[None, :]
        c = tl.load(feat_ptr + src, mask=mask, other=0.0).to(tl.float32)
        s = tl.load(feat_ptr + src + KP, mask=mask, other=0.0).to(tl.float32)
        dc = tl.load(dfeat_ptr + src, mask=mask, other=0.0).to(tl.float32)
        ds = tl.load(dfeat_ptr + src + KP, mask=mask, other=0.0).to(tl.float32)
        grad += c * ds - s * dc
    if HAS_DCAST:
        src = rows[:, None] * (KP + 16) + cols[None, :]
        grad += tl.load(dcast_ptr + src, mask=mask, other=0.0).to(tl.float32)
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
    counter_ptr, first_row, site, threshold, keep_scale,
    M, T, k,
    KP: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    BOUND: tl.constexpr, DROPOUT: tl.constexpr,
    HAS_DTHETA: tl.constexpr, HAS_DFEAT: tl.constexpr, WRITE: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Backward of θ + bound(dropout(x)): the total gradient of θ (dout), dx (M, KP), and partial sums for α."""
    pid = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BK)
    valid = cols < k
    rows = pid * R + tl.arange(0, R)
    row_ok = rows < M
    mask = row_ok[:, None] & (cols < KP)[None, :]
    grad = incoming(
        dtheta_ptr, dfeat_ptr, feat_ptr, dtheta_ptr, rows, cols, mask, KP, HAS_DTHETA, HAS_DFEAT, False
    )
    alpha, sign = load_alpha(alpha_ptr, BOUND)
    x = tl.load(x_ptr + rows[:, None] * KP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    if WRITE:
        tl.store(dout_ptr + rows[:, None] * KP + cols[None, :], grad, mask=mask)
    x = dropped(x, rows, cols, T, k, counter_ptr, first_row, site, threshold, keep_scale, DROPOUT)
    dx, da = bound_backward(x, grad, alpha, BOUND, MATH)
    dx = dropped(dx, rows, cols, T, k, counter_ptr, first_row, site, threshold, keep_scale, DROPOUT)
    dx = tl.where(valid[None, :], dx, 0.0)
    tl.store(dx_ptr + rows[:, None] * KP + cols[None, :], dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if BOUND:
        tl.store(dalpha_ptr + pid, sign * tl.sum(tl.where(row_ok, da, 0.0), axis=0))


@triton.jit(do_not_specialize=COUNTS)
def coupling_update_backward_kernel(
    dtheta_ptr, dcast_ptr, theta_ptr, x_ptr, pre_ptr, alpha_ptr, constant_ptr,
    dx_ptr, dpre_ptr, dg_ptr, turn_ptr, dalpha_ptr,
    B, T, TP,
    KP: tl.constexpr, BK: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    GATE: tl.constexpr, BOUND: tl.constexpr, DRIFT: tl.constexpr,
    HAS_DTHETA: tl.constexpr, HAS_DCAST: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Backward of θ + bound(gate ⊙ a), and all that the coupling's backward reads.

    -> dx (M, KP): gradient of the coupling a; dpre third block: gradient of the raw value gate; dg (B·TP, N, KP, 2):
    gradient of the aggregated fields, dG_re = −sin nθ · da, dG_im = cos nθ · da, zero rows behind each sequence;
    turn (M,): the gradient of the drift's weight.
    """
    pid = tl.program_id(0)
    cols = tl.arange(0, BK)
    padded = pid * R + tl.arange(0, R)
    t = padded % TP
    batch = padded // TP
    rows = batch.to(tl.int64) * T + t
    row_ok = (batch < B) & (t < T)
    inside = (cols < KP)[None, :]
    mask = row_ok[:, None] & inside
    alpha, sign = load_alpha(alpha_ptr, BOUND)
    grad = incoming(
        dtheta_ptr, dtheta_ptr, dtheta_ptr, dcast_ptr, rows, cols, mask, KP, HAS_DTHETA, False, HAS_DCAST
    )
    a = tl.load(x_ptr + rows[:, None] * KP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    gate, raw = load_gate(pre_ptr, rows, cols, mask, KP, GATE, MATH)
    th = tl.load(theta_ptr + rows[:, None] * KP + cols[None, :], mask=mask, other=0.0)
    if DRIFT:
        constant = tl.load(constant_ptr + cols, mask=cols < KP, other=0.0)
    gate = tl.where(mask, gate, 0.0)
    dx, da_row = bound_backward(a * gate, grad, alpha, BOUND, MATH)
    if BOUND:
        tl.store(dalpha_ptr + pid, sign * tl.sum(tl.where(row_ok, da_row, 0.0), axis=0))
    dgate = dx * a
    if GATE == 2:
        dgate = dgate * sigmoid(raw, MATH)
    dgate = tl.where(mask, dgate, 0.0)
    tl.store(
        dpre_ptr + rows[:, None] * (3 * KP) + 2 * KP + cols[None, :],
        dgate.to(dpre_ptr.dtype.element_ty),
        mask=mask,
    )
    da = tl.where(mask, dx * gate, 0.0).to(dx_ptr.dtype.element_ty)
    tl.store(dx_ptr + rows[:, None] * KP + cols[None, :], da, mask=mask)
    da = da.to(tl.float32)
    if DRIFT:
        tl.store(turn_ptr + rows, tl.sum(da * constant[None, :], axis=1), mask=row_ok)
    s1, c1 = sincos(th, MATH)
    c, s = c1, s1
    pairs = tl.arange(0, 2 * BK)
    wide = (batch < B)[:, None] & (pairs < 2 * KP)[None, :]
    kind = dg_ptr.dtype.element_ty
    for n in tl.static_range(N):
        dst = dg_ptr + padded[:, None].to(tl.int64) * (2 * N * KP) + 2 * n * KP + pairs[None, :]
        tl.store(dst, beside((-s * da).to(kind), (c * da).to(kind)), mask=wide)
        c, s = c * c1 - s * s1, s * c1 + c * s1
