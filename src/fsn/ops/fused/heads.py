"""The attention half with heads as a custom op: from phases and raw gates to the bounded update.

The kernels are the model's own (``attention.py``): fields, features, scores, coupling, gate and bound, each one pass.
Sequences of a head follow each other, (H, B, T, k), so that one batched product makes all gates and a kernel finds its
head's numbers by dividing. A compiler sees one node with known shapes; the products before and after are its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..coupling import Pair
from ..law import CouplingLaw
from . import DRIFT, WIDEST, compute_dtype
from .synchronize import _available, kept_shape, no_second_derivatives

MOST_SEQUENCES = 65_535
"""Of all heads together: a launch has one row of programs for each."""


def applies(theta: Tensor, heads: int = 1) -> bool:
    """Whether :func:`frustrated_update` can run on these phases (B, T, d), split over so many heads."""
    fits = theta.shape[-1] // heads <= WIDEST and theta.shape[0] * heads <= MOST_SEQUENCES
    return fits and _available(theta.device.type, theta.device.index) and compute_dtype(theta) is not None


def frustrated_update(
    theta: Tensor,
    raw: Tensor,
    rates: Tensor,
    tau: Tensor,
    w0: Pair | None,
    w1: Pair | None,
    alpha: Tensor | None,
    law: CouplingLaw,
    score: Tensor | None = None,
) -> Tensor:
    """Query and key gates, scores, softmax, coupling, value gate and bound of every head.

    Products run in bfloat16 under that autocast, in float32 otherwise. Attention is never in memory as a whole once
    T exceeds 2,048, nor kept for the backward pass where it is large.

    theta (H, B, T, k) float32; raw (H, B, T, 3k), the gates' linear maps: query, key, value; rates (k,); tau and alpha
    (H,), alpha None for no bound; w0 and w1 (N, H·k); score (2, H·k) -> (H, B, T, k) in the products' type
    """
    heads, batch, length, k = theta.shape
    dtype = compute_dtype(theta)
    if dtype is None:
        raise ValueError(f"theta is {theta.dtype}; kernels take float32, with or without bfloat16 autocast")
    more = -k % 16
    with torch.autocast(theta.device.type, enabled=False):
        w = _by_head(_stacked(w0, w1), heads, more)
        raw = raw.to(dtype)
        if more:
            theta = F.pad(theta, (0, more))
            raw = F.pad(raw.unflatten(-1, (3, k)), (0, more)).flatten(-2)
        made = attention_half(
            theta.flatten(0, 1), raw.flatten(0, 1), w, tau, alpha,
            None if score is None else _by_head(score, heads, 0), *_rotary(length, rates, more),
            k, list(law.parts), DRIFT[law.drift],
        )  # fmt: skip
    return made[0].unflatten(0, (heads, batch))[..., :k]


def _stacked(w0: Pair | None, w1: Pair | None) -> Tensor:
    """(4, N, d): w0 re, im, w1 re, im, zeros for what does not exist"""
    parts = [part for pair in (w0, w1) for part in ((None, None) if pair is None else pair)]
    some = next(part for part in parts if part is not None)
    return torch.stack([torch.zeros_like(some) if part is None else part for part in parts])


def _by_head(x: Tensor, heads: int, more: int) -> Tensor:
    """(..., H·k) -> (H, ..., k + more), zeros behind"""
    own = x.unflatten(-1, (heads, -1)).movedim(-2, 0)
    return F.pad(own, (0, more)).contiguous()


def _rotary(length: int, rates: Tensor, more: int) -> tuple[Tensor, Tensor]:
    """cos ωt and sin ωt in float32 from float64 angles, no rotation in the padding: two (T, KP)"""
    positions = torch.arange(length, device=rates.device, dtype=torch.float64)
    angle = positions[:, None] * F.pad(rates.double(), (0, more))
    return angle.cos().float(), angle.sin().float()


class Sizes(NamedTuple):
    """Of one call: sequences of all heads, tokens of each and padded, phases padded, heads."""

    batch: int
    length: int
    tp: int
    kp: int
    heads: int

    @classmethod
    def of(cls, theta: Tensor, w: Tensor) -> Sizes:
        from .common import round_up
        from .tiles import BLOCK

        batch, length, kp = theta.shape
        return cls(batch, length, round_up(length, BLOCK), kp, w.shape[0])

    @property
    def each(self) -> int:
        return self.batch // self.heads


def keeps_fields(size: Sizes, harmonics: int, dtype: torch.dtype) -> bool:
    """Whether the backward pass finds the fields: they may take as much memory as attention."""
    from . import tiles

    numbers = size.batch * size.tp * 2 * harmonics * size.kp
    return numbers * dtype.itemsize <= tiles.KEPT_ATTENTION


def _constant(w: Tensor, drift: int) -> Tensor:
    """What the drift's weight multiplies: w (H, 4, N, KP) -> (H, KP)"""
    return w[:, 1::2].sum((1, 2)) if drift == 2 else w[:, 1].sum(1)


@torch.library.custom_op("fsn::attention_half", mutates_args=())
def attention_half(
    theta: Tensor, raw: Tensor, w: Tensor, tau: Tensor, alpha: Tensor | None, score: Tensor | None,
    cos: Tensor, sin: Tensor, k: int, parts: list[bool], drift: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """theta (S, T, KP) float32, raw (S, T, 3KP) in the compute type, w (H, 4, N, KP), tau and alpha (H,), score
    (H, 2, k), cos and sin of ωt (T, KP); S = H times as many sequences -> the update (S, T, KP); for the backward
    pass queries and keys, the coupling and its slope, sums of the softmax; fields and attention where they are small
    enough to keep
    """
    import triton

    from . import tiles
    from .attention import coupling_fields, drift_weight
    from .attention_forward import query_folded_key_kernel, query_key_kernel
    from .common import math_mode
    from .couple import Couple
    from .scores import attention_chunks
    from .update import gated_update_kernel

    size, dtype, n = Sizes.of(theta, w), raw.dtype, w.shape[2]
    batch, length, tp, kp, _ = size
    theta, raw, mode = theta.contiguous().view(-1, kp), raw.contiguous(), math_mode(dtype)
    field = coupling_fields(theta, w, length, parts, dtype)
    q = torch.empty(batch * tp, 2 * kp, dtype=dtype, device=theta.device)
    key = torch.empty_like(q)
    own = torch.empty(4 if score is None else 5, batch * length, dtype=torch.float32, device=theta.device)
    width, r, warps = tiles.row_shape("query_key", kp)
    if score is None:
        query_key_kernel[(triton.cdiv(batch * tp, r),)](
            theta, raw, cos, sin, q, key, batch, length, tp, k, kp, width, r, mode, num_warps=warps
        )  # fmt: skip
    else:
        r = tiles.rows_of_steps(64 * tiles.FOLDED_ROWS // width, tiles.SCORE_STEPS)
        query_folded_key_kernel[(triton.cdiv(batch * tp, r * tiles.SCORE_STEPS),)](
            theta, raw, cos, sin, score.contiguous(), q, key, own, batch, length, tp, k, size.each,
            kp, width, r, tiles.SCORE_STEPS, mode, num_warps=max(1, width // 64),
        )  # fmt: skip
    coupling = Couple(field, theta, drift_weight(drift, own), _constant(w, drift), length, n, drift)
    kept, keep = raw.new_empty(0), kept_shape(batch, tp, dtype.itemsize) != (0,)
    for r0, attention in attention_chunks(q, key, tau, own, batch, length, True, False, score is not None):
        coupling.add(attention, r0)
        if keep:
            kept = attention
    a, slope = coupling.result()
    out = raw.new_empty(batch, length, kp)
    width, r, warps = tiles.row_shape("update", kp)
    gated_update_kernel[(triton.cdiv(batch * tp, r),)](
        a, raw, tau if alpha is None else alpha, out, batch, length, tp, size.each,
        kp, width, r, alpha is not None, mode, num_warps=warps,
    )  # fmt: skip
    if not keeps_fields(size, n, dtype):
        field = raw.new_empty(0)
    return out, q, key, a, slope, own, field, kept


@torch.library.custom_op("fsn::attention_half_backward", mutates_args=())
def attention_half_backward(
    dout: Tensor, theta: Tensor, raw: Tensor, w: Tensor, tau: Tensor, alpha: Tensor | None, score: Tensor | None,
    cos: Tensor, sin: Tensor, q: Tensor, key: Tensor, a: Tensor, slope: Tensor, own: Tensor, field: Tensor,
    kept: Tensor, k: int, parts: list[bool], drift: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """-> the gradients of theta, raw, w, tau, alpha and score; the last two are empty where there is none"""
    import triton

    from . import tiles
    from .attention import coupling_fields, drift_weight, field_backward
    from .attention_backward import prepare_backward_kernel
    from .common import math_mode
    from .dropout import drop_arguments
    from .products import triangle
    from .score_gradient import softmax_backward
    from .scores import attention_chunks
    from .update import coupling_update_backward_kernel

    size, dtype, shape = Sizes.of(theta, w), raw.dtype, theta.shape
    batch, length, tp, kp, heads = size
    n, mode, f32, scored = w.shape[2], math_mode(dtype), torch.float32, score is not None
    theta, raw, dout = theta.contiguous().view(-1, kp), raw.contiguous(), dout.contiguous()

    def new(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(*shape, dtype=kind, device=raw.device)

    width, r, warps = tiles.row_shape("update_backward", kp)
    programs = triton.cdiv(batch * tp, r)
    draw, da, dg = new(*raw.shape), new(batch * length, kp), new(batch, tp, 2 * n * kp)
    turn = raw.new_zeros(batch * length, dtype=f32) if drift == 0 else new(batch * length, kind=f32)
    dalpha = new(programs, kind=f32)
    coupling_update_backward_kernel[(programs,)](
        dout, dout, theta, a, raw, tau if alpha is None else alpha, _constant(w, drift), da, draw, dg, turn, dalpha,
        batch, length, tp, size.each, kp, *drop_arguments(None, tau), kp, width, n, r, 1, alpha is not None, drift,
        True, False, mode, num_warps=warps,
    )  # fmt: skip
    if not field.numel():
        field = coupling_fields(theta, w, length, parts, dtype)
    down = new(batch * length, kind=f32) if scored else None
    queries, keys = q.view(batch, tp, 2 * kp), key.view(batch, tp, 2 * kp)
    if kept.numel():
        df = triangle(kept, dg, torch.empty_like(dg), kp, transposed=True)
        ds = softmax_backward(kept, own, dg, field, turn, tau, 0, length, drift, kp, down)
        del dg, field
        dq, dkey = ds @ keys, ds.transpose(1, 2) @ queries
    else:
        sums = f32 if tp > tiles.CHUNK else dtype  # chunks add to them
        dq, dkey = new(batch, tp, 2 * kp), new(batch, tp, 2 * kp, kind=sums)
        df = new(batch, tp, 2 * n * kp, kind=sums)
        for r0, attention in attention_chunks(q, key, tau, own, batch, length, True, True, scored):
            ds = softmax_backward(attention, own, dg, field, turn, tau, r0, length, drift, kp, down)
            triangle(ds, keys, dq, kp, r0)
            triangle(attention, dg, df, kp, r0, transposed=True)
            triangle(ds, queries, dkey, kp, r0, transposed=True)
    dfield, partial = field_backward(df, drift_weight(drift, own), da, theta, w, length, parts, drift)
    width, r, warps = tiles.row_shape("prepare_backward", kp)
    steps = tiles.SCORE_ROWS if scored else 1
    r = tiles.rows_of_steps(r, steps)
    programs = triton.cdiv(batch * tp, r * steps)
    dtheta, dtau = new(*shape, kind=f32), new(programs, kind=f32)
    dscore = new(programs, 2, kp, kind=f32) if scored else dtau
    prepare_backward_kernel[(programs,)](
        theta, raw, cos, sin, dq, dkey, dfield, da, slope, dout, dout,
        theta if score is None else score.contiguous(), theta if down is None else down, draw, dtheta, dtau, dscore,
        batch, length, tp, k, size.each, kp, width, r, steps, scored, False, False, mode, num_warps=warps,
    )  # fmt: skip
    sums_w = partial.unflatten(0, (heads, -1)).sum(1)
    dw = sums_w[:, :-1].reshape(w.shape).contiguous()
    if drift:
        dw[:, 1 : 2 * drift : 2] += sums_w[:, -1:, None]
    dtau = torch.where(tau > 1e-6, dtau.view(heads, -1).sum(1) / -tau, 0.0)
    dalpha = tau.new_empty(0) if alpha is None else dalpha.view(heads, -1).sum(1)
    dscore = dscore.unflatten(0, (heads, -1)).sum(1)[..., :k].contiguous() if scored else tau.new_empty(0)
    return dtheta, draw, dw, dtau, dalpha, dscore


@attention_half.register_fake
def _(
    theta: Tensor, raw: Tensor, w: Tensor, tau: Tensor, alpha: Tensor | None, score: Tensor | None,
    cos: Tensor, sin: Tensor, k: int, parts: list[bool], drift: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    size = Sizes.of(theta, w)
    (batch, length, tp, kp, _), n = size, w.shape[2]
    keep = keeps_fields(size, n, raw.dtype)
    return (
        raw.new_empty(batch, length, kp),
        raw.new_empty(batch * tp, 2 * kp),
        raw.new_empty(batch * tp, 2 * kp),
        raw.new_empty(batch * length, kp),
        raw.new_empty(batch * length, kp),
        theta.new_empty(4 if score is None else 5, batch * length),
        raw.new_empty((batch, tp, 2 * n * kp) if keep else (0,)),
        raw.new_empty(kept_shape(batch, tp, raw.dtype.itemsize)),
    )


@attention_half_backward.register_fake
def _(
    dout: Tensor, theta: Tensor, raw: Tensor, w: Tensor, tau: Tensor, alpha: Tensor | None, score: Tensor | None,
    cos: Tensor, sin: Tensor, q: Tensor, key: Tensor, a: Tensor, slope: Tensor, own: Tensor, field: Tensor,
    kept: Tensor, k: int, parts: list[bool], drift: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        theta.new_empty(theta.shape),
        raw.new_empty(raw.shape),
        w.new_empty(w.shape),
        torch.empty_like(tau),
        tau.new_empty(tau.shape if alpha is not None else (0,)),
        score.new_empty(score.shape) if score is not None else tau.new_empty(0),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.k, ctx.parts, ctx.drift = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _backward(ctx: Any, dout: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: a checkpoint unpacks them no second time
    dtheta, draw, dw, dtau, dalpha, dscore = attention_half_backward(
        dout, *saved, ctx.k, ctx.parts, ctx.drift
    )
    alpha, score = saved[4:6]
    return (
        dtheta, draw, dw, dtau, None if alpha is None else dalpha, None if score is None else dscore, *[None] * 5
    )  # fmt: skip


attention_half.register_autograd(_backward, setup_context=_setup)
attention_half_backward.register_autograd(no_second_derivatives)
