"""Backward kernels of the attention half: softmax, fields and kernel coefficients, gates and rotation."""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_forward import gate_row
from .common import COUNTS, power, sigmoid, sincos


@triton.jit(do_not_specialize=COUNTS)
def softmax_backward_kernel(
    a_ptr, own_ptr, dg_ptr, field_ptr, delta_ptr, diag_ptr, tau_ptr, ds_ptr,
    T, TP, r0, nr,
    W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dA = dG Fᵀ below the diagonal (plus the drift's share on it), then dS = A ⊙ (dA − δ) / τ.

    a (B, nr, TP), dg and field (B·T, W) with W = 2N·KP -> ds (B, nr, TP), zeros above the diagonal
    """
    inv_tau = 1.0 / tl.maximum(tl.load(tau_ptr), 1e-6)
    batch = tl.program_id(2).to(tl.int64)
    first = tl.program_id(0) * BM
    local = first + tl.arange(0, BM)
    rows = r0 + local
    ok = rows < T
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    base = batch * T
    where = batch * nr * TP + local[:, None].to(tl.int64) * TP + cols[None, :]
    if tl.program_id(1) * BN < tl.minimum(r0 + first + BM, T):
        acc = tl.zeros((BM, BN), tl.float32)
        w = tl.arange(0, BW)
        for w0 in range(0, W, BW):
            g = tl.load(dg_ptr + (base + rows)[:, None] * W + (w0 + w)[None, :], mask=ok[:, None], other=0.0)
            f = tl.load(
                field_ptr + (base + cols)[None, :] * W + (w0 + w)[:, None],
                mask=(cols < T)[None, :],
                other=0.0,
            )
            acc = tl.dot(g, f, acc, input_precision=PRECISION)
        delta = tl.load(delta_ptr + base + rows, mask=ok, other=0.0)
        diag = tl.load(diag_ptr + base + rows, mask=ok, other=0.0)
        own = tl.load(own_ptr + base + rows, mask=ok, other=0.0)
        ds = tl.load(a_ptr + where).to(tl.float32) * (acc - delta[:, None])
        ds = tl.where(cols[None, :] == rows[:, None], (own * (diag - delta))[:, None], ds) * inv_tau
        tl.store(ds_ptr + where, ds.to(ds_ptr.dtype.element_ty))
    else:
        tl.store(ds_ptr + where, tl.zeros((BM, BN), ds_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=COUNTS)
def field_backward_kernel(
    a_ptr, own_ptr, dg_ptr, da_ptr, theta_ptr, w_ptr,
    down_ptr, dnext_ptr, partial_ptr,
    T, TP, k, r0, nr,
    KP: tl.constexpr, N: tl.constexpr, BU: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr,
    DRIFT: tl.constexpr, ACCUMULATE: tl.constexpr, MATH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dF = Aᵀ dG, turned at once into gradients of θ_u, of θ_{u+1} and of the kernel's coefficients.

    -> down (B·T, KP): gradient of θ_u through w0; dnext (B·T, KP): of θ_{u+1} through w1, stored at row u;
    partial (programs, 4N + 1, KP): sums over this block's positions for w0 re, im, w1 re, im, and the drift.
    With ACCUMULATE the results are added to what is there (rows handled in several chunks).
    """
    batch = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(2) * BC + tl.arange(0, BC)
    first = tl.program_id(0) * BU
    rows = first + tl.arange(0, BU)
    ok = rows < T
    valid = cols < k
    inside = cols < KP
    base = batch * T
    width = 2 * N * KP
    a_base = a_ptr + batch * nr * TP

    here = theta_ptr + (base + rows)[:, None] * k + cols[None, :]
    has_next = ((rows + 1) < T)[:, None] & valid[None, :]
    own = tl.zeros((BU, BC), tl.float32)
    nxt = tl.zeros((BU, BC), tl.float32)
    where = (base + rows)[:, None] * KP + cols[None, :]
    store = ok[:, None] & inside[None, :]
    pid = batch * tl.num_programs(0) + tl.program_id(0)
    part = partial_ptr + pid * ((4 * N + 1) * KP) + cols
    begin = tl.maximum(first, r0) // BT * BT
    end = tl.minimum(r0 + nr, T)
    tt = tl.arange(0, BT)
    for n in range(N):
        d_re = tl.zeros((BU, BC), tl.float32)
        d_im = tl.zeros((BU, BC), tl.float32)
        for t0 in range(begin, end, BT):
            t = t0 + tt
            t_ok = t < end
            at = tl.load(a_base + (t - r0)[None, :].to(tl.int64) * TP + rows[:, None])
            src = dg_ptr + (base + t)[:, None] * width + 2 * n * KP + cols[None, :]
            gm = t_ok[:, None] & inside[None, :]
            g_re = tl.load(src, mask=gm, other=0.0)
            g_im = tl.load(src + KP, mask=gm, other=0.0)
            d_re = tl.dot(at, g_re, d_re, input_precision=PRECISION)
            d_im = tl.dot(at, g_im, d_im, input_precision=PRECISION)
        if HAS0:
            c, s = power(here, ok[:, None] & valid[None, :], n, MATH)
            wr = tl.load(w_ptr + n * k + cols, mask=valid, other=0.0)[None, :]
            v_re = wr * c
            v_im = wr * s
            if HAS0I:
                wi = tl.load(w_ptr + (N + n) * k + cols, mask=valid, other=0.0)[None, :]
                v_re -= wi * s
                v_im += wi * c
                g = tl.sum(d_im * c - d_re * s, axis=0)
                if ACCUMULATE:
                    g += tl.load(part + (N + n) * KP, mask=inside, other=0.0)
                tl.store(part + (N + n) * KP, g, mask=inside)
            own += (n + 1) * (d_im * v_re - d_re * v_im)
            g = tl.sum(d_re * c + d_im * s, axis=0)
            if ACCUMULATE:
                g += tl.load(part + n * KP, mask=inside, other=0.0)
            tl.store(part + n * KP, g, mask=inside)
        if HAS1:
            c, s = power(here + k, has_next, n, MATH)
            wr = tl.load(w_ptr + (2 * N + n) * k + cols, mask=valid, other=0.0)[None, :]
            v_re = wr * c
            v_im = wr * s
            if HAS1I:
                wi = tl.load(w_ptr + (3 * N + n) * k + cols, mask=valid, other=0.0)[None, :]
                v_re -= wi * s
                v_im += wi * c
                g = tl.sum(d_im * c - d_re * s, axis=0)
                if ACCUMULATE:
                    g += tl.load(part + (3 * N + n) * KP, mask=inside, other=0.0)
                tl.store(part + (3 * N + n) * KP, g, mask=inside)
            nxt += (n + 1) * (d_im * v_re - d_re * v_im)
            g = tl.sum(d_re * c + d_im * s, axis=0)
            if ACCUMULATE:
                g += tl.load(part + (2 * N + n) * KP, mask=inside, other=0.0)
            tl.store(part + (2 * N + n) * KP, g, mask=inside)
    if DRIFT:
        mine = ok & (rows >= r0) & (rows < end)
        weight = tl.load(own_ptr + base + rows, mask=mine, other=0.0)
        if DRIFT == 2:
            weight = tl.where(mine, weight - 1.0, 0.0)
        da = tl.load(da_ptr + where, mask=store, other=0.0).to(tl.float32)
        g = tl.sum(da * weight[:, None], axis=0)
        if ACCUMULATE:
            g += tl.load(part + 4 * N * KP, mask=inside, other=0.0)
        tl.store(part + 4 * N * KP, g, mask=inside)
    if HAS0:
        if ACCUMULATE:
            own += tl.load(down_ptr + where, mask=store, other=0.0).to(tl.float32)
        tl.store(down_ptr + where, own.to(down_ptr.dtype.element_ty), mask=store)
    if HAS1:
        if ACCUMULATE:
            nxt += tl.load(dnext_ptr + where, mask=store, other=0.0).to(tl.float32)
        tl.store(dnext_ptr + where, nxt.to(dnext_ptr.dtype.element_ty), mask=store)


@triton.jit(do_not_specialize=COUNTS)
def prepare_backward_kernel(
    theta_ptr, pre_ptr, cos_ptr, sin_ptr,
    dq_ptr, dkey_ptr, down_ptr, dnext_ptr, da_ptr, slope_ptr, dres_ptr,
    dpre_ptr, dtheta_ptr, dtau_ptr,
    M, T, TP, k,
    KP: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    HAS0: tl.constexpr, HAS1: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Gradients of the rotary features back to the raw query and key gates and to θ, all of θ's shares summed.

    dq, dkey (B·TP, 2KP); down, dnext, da, slope (M, KP); dres (M, k) -> dpre blocks 1 and 2, dtheta (M, k), and
    Σ dq·q per program, which is −τ dτ.
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
    wide = rows[:, None] * KP + cols[None, :]
    src = (rows // T * TP + t)[:, None] * (2 * KP) + cols[None, :]
    th = tl.load(theta_ptr + at, mask=mask, other=0.0)
    s1, c1 = sincos(th, MATH)
    ct = tl.load(cos_ptr + t[:, None] * k + cols[None, :], mask=mask, other=0.0)
    st = tl.load(sin_ptr + t[:, None] * k + cols[None, :], mask=mask, other=0.0)
    cphi = c1 * ct - s1 * st
    sphi = s1 * ct + c1 * st
    grad = tl.load(dres_ptr + at, mask=mask, other=0.0)
    da = tl.load(da_ptr + wide, mask=mask, other=0.0).to(tl.float32)
    grad -= da * tl.load(slope_ptr + wide, mask=mask, other=0.0).to(tl.float32)
    if HAS0:
        grad += tl.load(down_ptr + wide, mask=mask, other=0.0).to(tl.float32)
    if HAS1:
        before = mask & (t > 0)[:, None]
        grad += tl.load(dnext_ptr + wide - KP, mask=before, other=0.0).to(tl.float32)
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
