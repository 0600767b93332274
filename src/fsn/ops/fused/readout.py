"""Readout and cross-entropy: one product, one pass forward, one pass backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS, ONES, Aside, math_mode, mm, padded, power_of_two, round_up, sincos, transposed_mm
from .gradients import release, spot, total

R = 4
ROWS = 32


@triton.jit
def prototypes_kernel(
    phase_ptr, out_ptr, V, k, KP: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, MATH: tl.constexpr
):
    """prototypes (V, k) -> [cos, sin, 0] (VP, 2KP + 16), zeros in the padding"""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    block, c = cols // KP, cols % KP
    mask = (rows < V)[:, None] & ((c < k) & (block < 2))[None, :]
    phase = tl.load(phase_ptr + rows[:, None] * k + c[None, :], mask=mask, other=0.0)
    sine, cosine = sincos(phase, MATH)
    value = tl.where(mask, tl.where((block == 0)[None, :], cosine, sine), 0.0)
    out = out_ptr + rows[:, None] * (2 * KP + 16) + cols[None, :]
    tl.store(out, value.to(out_ptr.dtype.element_ty), mask=(cols < 2 * KP + 16)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def prototypes_backward_kernel(
    grad_ptr, phase_ptr, out_ptr, V, k, again,
    KP: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """The gradient of [cos, sin, 0] (VP, 2KP + 16) -> that of the phases (V, k)"""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = (rows < V)[:, None] & (cols < k)[None, :]
    along = grad_ptr + rows[:, None] * (2 * KP + 16) + cols[None, :]
    along_cos = tl.load(along, mask=mask, other=0.0)
    along_sin = tl.load(along + KP, mask=mask, other=0.0)
    place = rows[:, None] * k + cols[None, :]
    sine, cosine = sincos(tl.load(phase_ptr + place, mask=mask, other=0.0), MATH)
    grad = cosine * along_sin - sine * along_cos
    if again:
        grad += tl.load(out_ptr + place, mask=mask, other=0.0)
    tl.store(out_ptr + place, grad, mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def cross_entropy_kernel(
    z_ptr, target_ptr, scale_ptr, loss_ptr, lse_ptr, M, V, VP: tl.constexpr, BV: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """z (M, VP), targets (M,) -> loss and log-sum-exp (M,), for logits = scale · z; no loss where a target is −100"""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    cols = tl.arange(0, BV)
    ok = rows < M
    mask = ok[:, None] & (cols < VP)[None, :]
    z = tl.load(z_ptr + rows[:, None] * VP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    z = z * tl.load(scale_ptr)
    target = tl.load(target_ptr + rows, mask=ok, other=0)
    hit = tl.sum(tl.where(cols[None, :] == target[:, None], z, 0.0), axis=1)
    z = tl.where((cols < V)[None, :], z, float("-inf"))
    top = tl.max(z, axis=1)
    lse = top + tl.log(tl.sum(tl.exp(z - top[:, None]), axis=1))
    tl.store(loss_ptr + rows, tl.where(target >= 0, lse - hit, 0.0), mask=ok)
    tl.store(lse_ptr + rows, lse, mask=ok)


@triton.jit(do_not_specialize=COUNTS)
def cross_entropy_backward_kernel(
    z_ptr, target_ptr, scale_ptr, lse_ptr, dloss_ptr, dz_ptr, dscale_ptr, M, V,
    VP: tl.constexpr, BV: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dz (M, VP), and per program the sum that makes the gradient of the scale.

    A row of g sums to zero but for rounding. Coherences go up to k, all of them alike: they count from that of the
    target, or the gradient of the scale would be k times that rounding.
    """
    pid = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BV)
    scale = tl.load(scale_ptr)
    dscale = tl.zeros((R,), tl.float32)
    for i in range(0, ROWS, R):
        rows = pid * ROWS + i + tl.arange(0, R)
        ok = rows < M
        mask = ok[:, None] & (cols < VP)[None, :]
        z = tl.load(z_ptr + rows[:, None] * VP + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        target = tl.load(target_ptr + rows, mask=ok, other=0)
        lse = tl.load(lse_ptr + rows, mask=ok, other=0.0)
        dloss = tl.load(dloss_ptr + rows, mask=ok & (target >= 0), other=0.0)
        hit = cols[None, :] == target[:, None]
        g = tl.exp(z * scale - lse[:, None]) - tl.where(hit, 1.0, 0.0)
        g = tl.where(ok[:, None] & (cols < V)[None, :], g * dloss[:, None], 0.0)
        dscale += tl.sum(g * (z - tl.sum(tl.where(hit, z, 0.0), axis=1)[:, None]), axis=1)
        out = (g * scale).to(dz_ptr.dtype.element_ty)
        tl.store(dz_ptr + rows[:, None] * VP + cols[None, :], out, mask=mask)
    tl.store(dscale_ptr + pid, tl.sum(dscale, axis=0))


def pack_prototypes(prototypes: Tensor, dtype: torch.dtype) -> Tensor:
    """prototypes (V, k) -> [cos, sin, 0] (VP, 2KP + 16) in the compute type"""
    symbols, k = prototypes.shape
    kp, vp = padded(k), round_up(symbols, 16)
    out = torch.empty(vp, 2 * kp + ONES, dtype=dtype, device=prototypes.device)
    prototypes_kernel[(vp // 16, triton.cdiv(2 * kp + ONES, 64))](
        prototypes, out, symbols, k, kp, 16, 64, math_mode(dtype)
    )
    return out


def prototypes_gradient(grad: Tensor, prototypes: Tensor, dtype: torch.dtype) -> Tensor | None:
    """(VP, 2KP + 16) -> the gradient of the prototypes, or None where it is in its place"""
    out, again, direct = spot(prototypes)
    symbols, k = prototypes.shape
    prototypes_backward_kernel[(triton.cdiv(symbols, 4), triton.cdiv(k, 64))](
        grad,
        prototypes,
        out,
        symbols,
        k,
        again,
        padded(k),
        4,
        64,
        math_mode(dtype),
    )
    return None if direct else out


class ReadoutFunction(torch.autograd.Function):
    """Per-token cross-entropy of logits = scale · [cos θ, sin θ] · [cos φ, sin φ].

    x (M, 2KP + 16) compute type, prototypes φ (V, k) float32, scale (). ``keep`` keeps the product in float32 instead
    of rounding it; ``packed`` are the prototypes' features where they are packed already.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        prototypes: Tensor,
        scale: Tensor,
        targets: Tensor,
        keep: bool,
        packed: Tensor | None = None,
    ) -> Tensor:
        rows, symbols = x.shape[0], prototypes.shape[0]
        w = pack_prototypes(prototypes, x.dtype) if packed is None else packed
        z = mm(x, w.t(), torch.float32 if keep else None)
        loss = torch.empty(rows, dtype=torch.float32, device=x.device)
        lse = torch.empty_like(loss)
        vp = w.shape[0]
        cross_entropy_kernel[(triton.cdiv(rows, R),)](
            z, targets, scale, loss, lse, rows, symbols, vp, power_of_two(vp), R
        )
        ctx.save_for_backward(x, w, z, targets, prototypes, scale, lse)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w, z, targets, prototypes, scale, lse = ctx.saved_tensors
        rows, symbols, vp = x.shape[0], prototypes.shape[0], w.shape[0]
        programs = triton.cdiv(rows, ROWS)
        dz = torch.empty(rows, vp, dtype=x.dtype, device=x.device)
        dscale = torch.empty(programs, dtype=torch.float32, device=x.device)
        cross_entropy_backward_kernel[(programs,)](
            z,
            targets,
            scale,
            lse,
            grads[0].contiguous(),
            dz,
            dscale,
            rows,
            symbols,
            vp,
            power_of_two(vp),
            R,
            ROWS,
        )
        weights = Aside(x.device, "weights")
        with weights:
            dprototypes = prototypes_gradient(transposed_mm(dz, x), prototypes, x.dtype)
            dscale_sum = total(dscale, scale)
        dx = mm(dz, w)
        release(weights, (dz, x, dscale), (dprototypes, dscale_sum))
        return dx, dprototypes, dscale_sum, None, None, None
