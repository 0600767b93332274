"""Collective modes (equation 4): cuBLAS products, with passes over the geometry between them.

Complex matrices become real ones: a token's features are [cos θ, sin θ, 1], and

    W1 = [ Cg_re  −Cg_im  b ]      gate          W2 = [ D_re  −D_im ]      Re(D q)
         [ Cv_re  −Cv_im  0 ]      Re m^v             [ D_im   D_re ]      Im(D q)
         [ Cv_im   Cv_re  0 ]      Im m^v
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import (
    COUNTS,
    ONES,
    Aside,
    math_mode,
    mm,
    padded,
    sigmoid,
    sincos,
    tile_of,
    transposed_mm,
)
from .gradients import release, spot
from .rows import load_row, store_features
from .tiles import PASS, pass_grid, row_shape


@triton.jit
def pack_modes_kernel(
    gate_ptr, value_ptr, projection_ptr, bias_ptr, first_ptr, second_ptr, k, H,
    KP: tl.constexpr, HP: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """gate, value (2, H, k), projection (2, k, H), bias (H,) -> W1 (3HP, 2KP + 16) and W2 (2KP, 2HP), zeros between"""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    # W1
    width: tl.constexpr = 2 * KP + 16
    part, h = rows // HP, rows % HP
    side, c = cols // KP, cols % KP
    real = (h < H)[:, None] & ((c < k) & (side < 2))[None, :] & (part < 3)[:, None]
    at = h[:, None] * k + c[None, :]
    imaginary = tl.where(part[:, None] == 2, side[None, :] == 0, side[None, :] == 1)
    minus = imaginary & (part[:, None] < 2)
    at += tl.where(imaginary, H * k, 0)
    gate = tl.load(gate_ptr + at, mask=real & (part == 0)[:, None], other=0.0)
    value = tl.load(value_ptr + at, mask=real & (part > 0)[:, None], other=0.0)
    both = tl.where(minus, -(gate + value), gate + value)
    bias = tl.load(bias_ptr + h, mask=(h < H) & (part == 0), other=0.0)
    both = tl.where((cols == 2 * KP)[None, :], bias[:, None], both)
    inside = (rows < 3 * HP)[:, None] & (cols < width)[None, :]
    tl.store(
        first_ptr + rows[:, None] * width + cols[None, :], both.to(first_ptr.dtype.element_ty), mask=inside
    )
    # W2
    side, c = rows // KP, rows % KP
    part, h = cols // HP, cols % HP
    real = ((c < k) & (side < 2))[:, None] & ((h < H) & (part < 2))[None, :]
    imaginary = side[:, None] != part[None, :]
    at = c[:, None] * H + h[None, :] + tl.where(imaginary, H * k, 0)
    entry = tl.load(projection_ptr + at, mask=real, other=0.0)
    entry = tl.where(imaginary & (side == 0)[:, None], -entry, entry)
    inside = (rows < 2 * KP)[:, None] & (cols < 2 * HP)[None, :]
    tl.store(
        second_ptr + rows[:, None] * (2 * HP) + cols[None, :],
        entry.to(second_ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit(do_not_specialize=COUNTS)
def settle_modes_kernel(
    first_ptr, second_ptr, gate_ptr, value_ptr, projection_ptr, bias_ptr, k, H, again, bias_again,
    KP: tl.constexpr, HP: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The reverse, for gradients: what a coefficient gets from each place where it stands, in float32.

    ``again``: a bit for each of gate, value and projection, set where it is added to what is there; ``bias_again``
    """
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    width: tl.constexpr = 2 * KP + 16
    ok = (rows < H)[:, None] & (cols < k)[None, :]
    at = rows[:, None] * k + cols[None, :]
    src = first_ptr + rows[:, None] * width + cols[None, :]
    gate_re = tl.load(src, mask=ok, other=0.0)
    gate_im = -tl.load(src + KP, mask=ok, other=0.0)
    src += HP * width
    re_cos = tl.load(src, mask=ok, other=0.0)
    re_sin = tl.load(src + KP, mask=ok, other=0.0)
    src += HP * width
    value_re = re_cos + tl.load(src + KP, mask=ok, other=0.0)
    value_im = tl.load(src, mask=ok, other=0.0) - re_sin
    size = H * k
    if again & 1:
        gate_re += tl.load(gate_ptr + at, mask=ok, other=0.0)
        gate_im += tl.load(gate_ptr + size + at, mask=ok, other=0.0)
    if again & 2:
        value_re += tl.load(value_ptr + at, mask=ok, other=0.0)
        value_im += tl.load(value_ptr + size + at, mask=ok, other=0.0)
    tl.store(gate_ptr + at, gate_re, mask=ok)
    tl.store(gate_ptr + size + at, gate_im, mask=ok)
    tl.store(value_ptr + at, value_re, mask=ok)
    tl.store(value_ptr + size + at, value_im, mask=ok)
    if tl.program_id(1) == 0:
        bias = tl.load(first_ptr + rows * width + 2 * KP, mask=rows < H, other=0.0)
        if bias_again:
            bias += tl.load(bias_ptr + rows, mask=rows < H, other=0.0)
        tl.store(bias_ptr + rows, bias, mask=rows < H)
    # rows are phases here, columns modes
    ok = (rows < k)[:, None] & (cols < H)[None, :]
    at = rows[:, None] * H + cols[None, :]
    src = second_ptr + rows[:, None] * (2 * HP) + cols[None, :]
    below = src + KP * 2 * HP
    re = tl.load(src, mask=ok, other=0.0) + tl.load(below + HP, mask=ok, other=0.0)
    im = tl.load(below, mask=ok, other=0.0) - tl.load(src + HP, mask=ok, other=0.0)
    if again & 4:
        re += tl.load(projection_ptr + at, mask=ok, other=0.0)
        im += tl.load(projection_ptr + size + at, mask=ok, other=0.0)
    tl.store(projection_ptr + at, re, mask=ok)
    tl.store(projection_ptr + size + at, im, mask=ok)


@triton.jit(do_not_specialize=COUNTS)
def phase_features_kernel(
    theta_ptr, feat_ptr, M, k, KP: tl.constexpr, W: tl.constexpr, R: tl.constexpr, MATH: tl.constexpr
):
    """theta (M, KP) -> [cos θ, sin θ, 1] (M, 2KP + 16)"""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    ok = rows < M
    theta = load_row(theta_ptr, rows * KP, ok, KP, W)
    store_features(feat_ptr, theta, rows, ok, k, KP, W, MATH)


@triton.jit
def gated(pre_ptr, rows, cols, mask, HP: tl.constexpr, MATH: tl.constexpr):
    """Gate, its sigmoid, and both parts of the modes, from pre (M, 3HP)."""
    src = pre_ptr + rows[:, None] * (3 * HP) + cols[None, :]
    gate = tl.load(src, mask=mask, other=0.0).to(tl.float32)
    re = tl.load(src + HP, mask=mask, other=0.0).to(tl.float32)
    im = tl.load(src + 2 * HP, mask=mask, other=0.0).to(tl.float32)
    return gate, sigmoid(gate, MATH), re, im


@triton.jit(do_not_specialize=COUNTS)
def open_modes_kernel(
    pre_ptr, q_ptr, M, HP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, MATH: tl.constexpr
):
    """pre (M, 3HP) -> q = SiLU(gate) ⊙ m, real part then imaginary, (M, 2HP)"""
    rows, cols, mask = tile_of(M, HP, BR, BH)
    gate, open_, re, im = gated(pre_ptr, rows, cols, mask, HP, MATH)
    out = q_ptr + rows[:, None] * (2 * HP) + cols[None, :]
    tl.store(out, (gate * open_ * re).to(q_ptr.dtype.element_ty), mask=mask)
    tl.store(out + HP, (gate * open_ * im).to(q_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def open_modes_backward_kernel(
    pre_ptr, dq_ptr, dpre_ptr, q_ptr, M, HP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, MATH: tl.constexpr
):  # fmt: skip
    """dq (M, 2HP) -> dpre (M, 3HP), and q, computed again"""
    rows, cols, mask = tile_of(M, HP, BR, BH)
    gate, open_, re, im = gated(pre_ptr, rows, cols, mask, HP, MATH)
    at = rows[:, None] * (2 * HP) + cols[None, :]
    dre = tl.load(dq_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dim = tl.load(dq_ptr + HP + at, mask=mask, other=0.0).to(tl.float32)
    silu = gate * open_
    kind = dpre_ptr.dtype.element_ty
    dgate = (dre * re + dim * im) * open_ * (1.0 + gate * (1.0 - open_))
    out = dpre_ptr + rows[:, None] * (3 * HP) + cols[None, :]
    tl.store(out, dgate.to(kind), mask=mask)
    tl.store(out + HP, (dre * silu).to(kind), mask=mask)
    tl.store(out + 2 * HP, (dim * silu).to(kind), mask=mask)
    tl.store(q_ptr + at, (silu * re).to(kind), mask=mask)
    tl.store(q_ptr + HP + at, (silu * im).to(kind), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def pull_kernel(
    theta_ptr, back_ptr, out_ptr, M, KP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, MATH: tl.constexpr
):
    """a = Im( z̄ ⊙ D q ): theta (M, KP), back (M, 2KP) -> (M, KP)"""
    rows, cols, mask = tile_of(M, KP, BR, BH)
    at = rows[:, None] * KP + cols[None, :]
    s, c = sincos(tl.load(theta_ptr + at, mask=mask, other=0.0), MATH)
    src = back_ptr + rows[:, None] * (2 * KP) + cols[None, :]
    re = tl.load(src, mask=mask, other=0.0).to(tl.float32)
    im = tl.load(src + KP, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (c * im - s * re).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def push_kernel(
    theta_ptr, da_ptr, dback_ptr, M, KP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, MATH: tl.constexpr
):
    """The gradient of D q: −sin θ da and cos θ da, (M, 2KP)"""
    rows, cols, mask = tile_of(M, KP, BR, BH)
    at = rows[:, None] * KP + cols[None, :]
    s, c = sincos(tl.load(theta_ptr + at, mask=mask, other=0.0), MATH)
    da = tl.load(da_ptr + at, mask=mask, other=0.0).to(tl.float32)
    out = dback_ptr + rows[:, None] * (2 * KP) + cols[None, :]
    tl.store(out, (-s * da).to(dback_ptr.dtype.element_ty), mask=mask)
    tl.store(out + KP, (c * da).to(dback_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def turn_kernel(
    theta_ptr, da_ptr, back_ptr, dfeat_ptr, out_ptr, M,
    KP: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """All that flows back into θ, through the features and through z̄: (M, KP + 16), zeros in the last sixteen"""
    rows, cols, mask = tile_of(M, KP, BR, BH)
    at = rows[:, None] * KP + cols[None, :]
    s, c = sincos(tl.load(theta_ptr + at, mask=mask, other=0.0), MATH)
    da = tl.load(da_ptr + at, mask=mask, other=0.0).to(tl.float32)
    src = back_ptr + rows[:, None] * (2 * KP) + cols[None, :]
    re = tl.load(src, mask=mask, other=0.0).to(tl.float32)
    im = tl.load(src + KP, mask=mask, other=0.0).to(tl.float32)
    src = dfeat_ptr + rows[:, None] * (2 * KP + 16) + cols[None, :]
    dc = tl.load(src, mask=mask, other=0.0).to(tl.float32)
    ds = tl.load(src + KP, mask=mask, other=0.0).to(tl.float32)
    grad = c * ds - s * dc - da * (s * im + c * re)
    out = out_ptr + rows[:, None] * (KP + 16) + cols[None, :]
    inside = (rows < M)[:, None] & (cols < KP + 16)[None, :]
    tl.store(out, tl.where(mask, grad, 0.0).to(out_ptr.dtype.element_ty), mask=inside)


def pack_modes(
    gate: Tensor, value: Tensor, projection: Tensor, bias: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """gate, value (2, H, k), projection (2, k, H), bias (H,) -> W1 (3HP, 2KP + 16), W2 (2KP, 2HP)"""
    _, modes, k = gate.shape
    hp, kp = padded(modes), padded(k)
    first = torch.empty(3 * hp, 2 * kp + ONES, dtype=dtype, device=gate.device)
    second = torch.empty(2 * kp, 2 * hp, dtype=dtype, device=gate.device)
    grid = triton.cdiv(max(3 * hp, 2 * kp), 16), triton.cdiv(max(2 * kp + ONES, 2 * hp), 128)
    pack_modes_kernel[grid](gate, value, projection, bias, first, second, k, modes, kp, hp, 16, 128)
    return first, second


def settle_modes(
    dfirst: Tensor, dsecond: Tensor, parameters: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor | None, ...]:
    """Gradients of gate, value, projection and bias from those of W1 and W2; None for what is in its place already."""
    _, modes, k = parameters[0].shape
    spots = [spot(p) for p in parameters]
    again = sum(bit * s[1] for bit, s in zip((1, 2, 4), spots, strict=False))
    grid = triton.cdiv(max(modes, k), 8), triton.cdiv(max(modes, k), 128)
    settle_modes_kernel[grid](
        dfirst,
        dsecond,
        *(s[0] for s in spots),
        k,
        modes,
        again,
        spots[3][1],
        padded(k),
        padded(modes),
        8,
        128,
    )
    return tuple(None if direct else out for out, _, direct in spots)


class MeanFieldFunction(torch.autograd.Function):
    """theta (M, KP) float32 -> the raw update (M, KP) in the compute type.

    ``cast`` is θ's copy for products, [θ, 1] (M, KP + 16): too coarse to take a sine of, but its gradient is θ's, and
    whoever made both sums them.
    """

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, cast: Tensor, gate: Tensor, value: Tensor, projection: Tensor, bias: Tensor,
        packed: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        dtype, (rows, kp), k = cast.dtype, theta.shape, gate.shape[2]
        w1, w2 = pack_modes(gate, value, projection, bias, dtype) if packed is None else packed
        mode = math_mode(dtype)
        feat = torch.empty(rows, 2 * kp + ONES, dtype=dtype, device=theta.device)
        width, r, warps = row_shape("residual", kp)
        phase_features_kernel[(triton.cdiv(rows, r),)](
            theta, feat, rows, k, kp, width, r, mode, num_warps=warps
        )
        pre = mm(feat, w1.t())
        hp = w1.shape[0] // 3
        q = torch.empty(rows, 2 * hp, dtype=dtype, device=theta.device)
        open_modes_kernel[pass_grid(rows, hp)](pre, q, rows, hp, *PASS, mode)
        back = mm(q, w2.t())
        out = torch.empty(rows, kp, dtype=dtype, device=theta.device)
        pull_kernel[pass_grid(rows, kp)](theta, back, out, rows, kp, *PASS, mode)
        ctx.save_for_backward(theta, feat, pre, back, w1, w2, gate, value, projection, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        da = grads[0].contiguous()
        theta, feat, pre, back, w1, w2, *parameters = ctx.saved_tensors
        (rows, kp), hp, mode = theta.shape, w1.shape[0] // 3, math_mode(feat.dtype)
        dback = torch.empty_like(back)
        push_kernel[pass_grid(rows, kp)](theta, da, dback, rows, kp, *PASS, mode)
        dq = mm(dback, w2)
        dpre, q = torch.empty_like(pre), torch.empty_like(dq)
        open_modes_backward_kernel[pass_grid(rows, hp)](pre, dq, dpre, q, rows, hp, *PASS, mode)
        weights = Aside(theta.device, "weights")
        with weights:
            results = settle_modes(transposed_mm(dpre, feat), transposed_mm(dback, q), tuple(parameters))
        dfeat = mm(dpre, w1)
        dcast = torch.empty(rows, kp + ONES, dtype=feat.dtype, device=theta.device)
        turn_kernel[pass_grid(rows, kp + ONES)](theta, da, back, dfeat, dcast, rows, kp, *PASS, mode)
        release(weights, (dpre, feat, dback, q), results)
        return None, dcast, *results, None
