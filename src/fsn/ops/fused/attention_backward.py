"""Backward kernels of the attention half: softmax, fields and kernel coefficients, gates and rotation."""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_forward import gate_row
from .common import COUNTS, sigmoid, sincos


@triton.jit(do_not_specialize=COUNTS)
def softmax_backward_kernel(
    a_ptr, own_ptr, grad_ptr, delta_ptr, diag_ptr, tau_ptr, ds_ptr,
    T, TP, r0, nr, LAST, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dS = A ⊙ (dA − δ) / τ below the diagonal, the same with the drift's share on it.

    a (B, nr, TP) and grad = dA (B, nr, LAST) -> ds (B, nr, LAST), zeros above the diagonal
    """
    inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr), 1e-6)
    batch = tl.program_id(2).to(tl.int64)
    local = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = r0 + local
    ok = rows < T
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    line = (batch * nr + local)[:, None]
    delta = tl.load(delta_ptr + batch * T + rows, mask=ok, other=0.0)
    diag = tl.load(diag_ptr + batch * T + rows, mask=ok, other=0.0)
    own = tl.load(own_ptr + batch * T + rows, mask=ok, other=0.0)
    a = tl.load(a_ptr + line * TP + cols[None, :]).to(tl.float32)
    ds = a * (tl.load(grad_ptr + line * LAST + cols[None, :]).to(tl.float32) - delta[:, None])
    ds = tl.where(cols[None, :] == rows[:, None], (own * (diag - delta))[:, None], ds) * inv_tau
    tl.store(ds_ptr + line * LAST + cols[None, :], ds.to(ds_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=COUNTS)
def field_backward_kernel(
    df_ptr, own_ptr, da_ptr, theta_ptr, w_ptr, dtheta_ptr, partial_ptr,
    M, T, TP, k,
    KP: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr,
    DRIFT: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """From the gradient of the fields to those of the coefficients and of θ.

    θ_u meets the fields twice, in F_u through w0 and in F_{u−1} through w1. With P0 = dF_u z̄_uⁿ and P1 = dF_{u−1} z̄_uⁿ
    summed over tokens, dw0⁽ⁿ⁾ = Σ P0 and dw1⁽ⁿ⁾ = Σ P1; and dθ_u = Σ_n n (Im P0 Re w0 − Re P0 Im w0 + the same for w1).

    df (B·TP, 2N, KP), theta (M, k), da (M, KP), own (M,) -> dtheta (M, KP); partial (programs, 4N + 1, KP): sums over
    BR tokens for w0 re, im, w1 re, im, and for the drift's constant.
    """
    pid = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    valid = cols < k
    inside = cols < KP
    rows = pid * BR + tl.arange(0, BR)
    t = rows % T
    mask = (rows < M)[:, None] & valid[None, :]
    before = mask & (t > 0)[:, None]
    s1, c1 = sincos(tl.load(theta_ptr + rows[:, None] * k + cols[None, :], mask=mask, other=0.0), MATH)
    c, s = c1, s1
    grad = tl.zeros((BR, BC), tl.float32)
    src = df_ptr + (rows // T * TP + t)[:, None] * (2 * N * KP) + cols[None, :]
    out = partial_ptr + pid * ((4 * N + 1) * KP) + cols
    for n in range(N):
        if HAS0:
            re = tl.load(src, mask=mask, other=0.0).to(tl.float32)
            im = tl.load(src + KP, mask=mask, other=0.0).to(tl.float32)
            p_re = re * c + im * s
            p_im = im * c - re * s
            turn = tl.load(w_ptr + n * k + cols, mask=valid, other=0.0)[None, :] * p_im
            if HAS0I:
                turn -= tl.load(w_ptr + (N + n) * k + cols, mask=valid, other=0.0)[None, :] * p_re
            grad += (n + 1) * turn
            tl.store(out + n * KP, tl.sum(p_re, axis=0), mask=inside)
            tl.store(out + (N + n) * KP, tl.sum(p_im, axis=0), mask=inside)
        if HAS1:
            re = tl.load(src - 2 * N * KP, mask=before, other=0.0).to(tl.float32)
            im = tl.load(src - 2 * N * KP + KP, mask=before, other=0.0).to(tl.float32)
            p_re = re * c + im * s
            p_im = im * c - re * s
            turn = tl.load(w_ptr + (2 * N + n) * k + cols, mask=valid, other=0.0)[None, :] * p_im
            if HAS1I:
                turn -= tl.load(w_ptr + (3 * N + n) * k + cols, mask=valid, other=0.0)[None, :] * p_re
            grad += (n + 1) * turn
            tl.store(out + (2 * N + n) * KP, tl.sum(p_re, axis=0), mask=inside)
            tl.store(out + (3 * N + n) * KP, tl.sum(p_im, axis=0), mask=inside)
        src += 2 * KP
        c, s = c * c1 - s * s1, s * c1 + c * s1
    store = (rows < M)[:, None] & inside[None, :]
    tl.store(
        dtheta_ptr + rows[:, None] * KP + cols[None, :], grad.to(dtheta_ptr.dtype.element_ty), mask=store
    )
    if DRIFT:
        weight = tl.load(own_ptr + rows, mask=rows < M, other=0.0)
        if DRIFT == 2:
            weight -= 1.0
        da = tl.load(da_ptr + rows[:, None] * KP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(out + 4 * N * KP, tl.sum(da * weight[:, None], axis=0), mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def prepare_backward_kernel(
    theta_ptr, pre_ptr, cos_ptr, sin_ptr,
    dq_ptr, dkey_ptr, dfield_ptr, da_ptr, slope_ptr, dres_ptr,
    dpre_ptr, dtheta_ptr, dtau_ptr,
    M, T, TP, k,
    KP: tl.constexpr, BK: tl.constexpr, R: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Gradients of the rotary features back to the raw query and key gates and to θ, all of θ's shares summed.

    dq, dkey (B·TP, 2KP); dfield, da, slope (M, KP); dres (M, k) -> dpre blocks 1 and 2, dtheta (M, k), and Σ dq·q per
    program, which is −τ dτ.
    """
    pid = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BK)
    valid = cols < k
    rows = pid * R + tl.arange(0, R)
    row_ok = rows < M
    t = (rows % T).to(tl.int32)
    mask = row_ok[:, None] & valid[None, :]
    store = row_ok[:, None] & (cols < KP)[None, :]
    at = rows[:, None] * k + cols[None, :]
    narrow = rows[:, None] * KP + cols[None, :]
    src = (rows // T * TP + t)[:, None] * (2 * KP) + cols[None, :]
    th = tl.load(theta_ptr + at, mask=mask, other=0.0)
    s1, c1 = sincos(th, MATH)
    ct = tl.load(cos_ptr + t[:, None] * k + cols[None, :], mask=mask, other=0.0)
    st = tl.load(sin_ptr + t[:, None] * k + cols[None, :], mask=mask, other=0.0)
    cphi = c1 * ct - s1 * st
    sphi = s1 * ct + c1 * st
    grad = tl.load(dres_ptr + at, mask=mask, other=0.0)
    da = tl.load(da_ptr + narrow, mask=mask, other=0.0).to(tl.float32)
    grad -= da * tl.load(slope_ptr + narrow, mask=mask, other=0.0).to(tl.float32)
    grad += tl.load(dfield_ptr + narrow, mask=mask, other=0.0).to(tl.float32)
    for side in tl.static_range(2):
        if side == 0:
            dc = tl.load(dq_ptr + src, mask=mask, other=0.0).to(tl.float32)
            ds = tl.load(dq_ptr + src + KP, mask=mask, other=0.0).to(tl.float32)
        else:
            dc = tl.load(dkey_ptr + src, mask=mask, other=0.0).to(tl.float32)
            ds = tl.load(dkey_ptr + src + KP, mask=mask, other=0.0).to(tl.float32)
        gates = rows[:, None] * (3 * KP) + side * KP + cols[None, :]
        raw = tl.load(pre_ptr + gates, mask=mask, other=0.0).to(tl.float32)
        gate, positive, mean = gate_row(raw, mask, k)
        dgate = dc * cphi + ds * sphi
        grad += gate * (ds * cphi - dc * sphi)
        along = tl.sum(dgate * positive, axis=1)
        floored = tl.maximum(mean, 1e-6)
        through_mean = tl.where(mean > 1e-6, along / (floored * floored * k), 0.0)
        draw = (dgate / floored[:, None] - through_mean[:, None]) * sigmoid(raw)
        draw = tl.where(mask, draw, 0.0)
        tl.store(dpre_ptr + gates, draw.to(dpre_ptr.dtype.element_ty), mask=store)
        if side == 0:
            tl.store(dtau_ptr + pid, tl.sum(tl.where(row_ok, along / floored, 0.0), axis=0))
    tl.store(dtheta_ptr + at, grad, mask=mask)
