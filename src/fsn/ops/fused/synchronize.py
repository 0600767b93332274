"""Scores, softmax and coupling on anybody's tensors: the reference's signature, kernels inside, memory linear in T.

What needs T² work is a custom op, ``fsn::couple``, with a backward op of its own; a compiler sees one node with known
shapes and fuses what stands around it. The rest is the reference's own code.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import check_choice
from ..coupling import Pair, fields
from ..harmonics import harmonic_powers
from ..law import FRAMES
from ..scores import FLOOR
from . import WIDEST, available, compute_dtype

REST, COROTATING = 1, 2
"""How the kernels know the frame (0: no drift): what ``weight`` is, the diagonal's or the sum of all earlier ones."""


def serves(theta: Tensor) -> bool:
    """Whether :func:`synchronize` can run on these phases (B, T, k): a device with kernels, float32, k ≤ 2048."""
    there = theta.shape[-1] <= WIDEST and _available(theta.device.type, theta.device.index)
    return there and compute_dtype(theta) is not None


@torch.compiler.assume_constant_result
def _available(kind: str, index: int | None) -> bool:
    """:func:`available`, asked once while a compiler traces."""
    return available(torch.device(kind) if index is None else torch.device(kind, index))


def synchronize(
    theta: Tensor,
    query: Tensor,
    keys: Tensor,
    tau: Tensor,
    w0: Pair | None,
    w1: Pair | None,
    harmonics: int,
    frame: str = FRAMES[0],
    round_scores: bool = True,
) -> Tensor:
    """:func:`fsn.ops.synchronize` through kernels, wherever :func:`serves` holds.

    Products run in bfloat16 under that autocast, in float32 otherwise. Attention is never in memory as a whole once
    T exceeds 2,048, nor kept for the backward pass where it is large.

    theta (B, T, k) float32, query and keys (B, T, 2k), tau broadcastable to (B, T, T), w0 and w1 as in
    :func:`fsn.ops.fields` -> (B, T, k) float32
    """
    check_choice("frame", frame, FRAMES)
    dtype = compute_dtype(theta)
    if dtype is None:
        raise ValueError(f"theta is {theta.dtype}; kernels take float32, with or without bfloat16 autocast")
    with torch.autocast(theta.device.type, enabled=False):
        field = fields(theta, w0, w1, harmonics)
        drifting = (w0,) if frame == "rest" else (w0, w1)
        turning = [w.im.sum(dim=-2) for w in drifting if w is not None and w.im is not None]
        drift = 0 if not turning else REST if frame == "rest" else COROTATING
        pull, weight, *_ = couple(
            (query / tau.clamp(min=FLOOR)).to(dtype),
            keys.to(dtype),
            field.to(dtype),
            theta,
            drift,
            round_scores,
        )
        if not drift:
            return pull
        constant = sum(turning[1:], turning[0])
        return pull + (1 if frame == "rest" else -1) * weight[..., None] * constant


@torch.library.custom_op("fsn::couple", mutates_args=())
def couple(
    query: Tensor, keys: Tensor, field: Tensor, theta: Tensor, drift: int, rounded: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention of queries over keys, the fields it adds up over earlier positions, and their pull on each token.

    query, keys (B, T, 2k) and field (B, T, N, 2, k) in the compute type, theta (B, T, k) float32 -> pull (B, T, k) and
    the drift's weight (B, T), float32; for the backward pass the softmax's sums (4, B·T), the pull's slope in θ
    (B·T, KP), and attention (B, TP, TP) where it is small enough to keep (otherwise empty)
    """
    from .couple import Couple
    from .scores import attention_chunks

    batch, length, k = theta.shape
    q, key = wide_features(query), wide_features(keys)
    own = torch.empty(4, batch * length, dtype=torch.float32, device=theta.device)
    phases = wide_phases(theta)
    wide = wide_fields(field)
    made = Couple(wide, phases, own[0], own[0], length, field.shape[2], 0)
    kept = wide.new_empty(kept_shape(batch, wide.shape[1], wide.dtype.itemsize))
    for r0, attention in attention_chunks(q, key, one(theta), own, batch, length, rounded):
        made.add(attention, r0)
        if kept.numel():
            kept = attention
    a, slope = made.result()
    pull = a[:, :k].float().reshape(batch, length, k).contiguous()
    weight = own[0 if drift == REST else 1].view(batch, length).clone()
    return pull, weight, own, slope, kept


@torch.library.custom_op("fsn::couple_backward", mutates_args=())
def couple_backward(
    dpull: Tensor, dweight: Tensor, query: Tensor, keys: Tensor, field: Tensor, theta: Tensor,
    own: Tensor, slope: Tensor, kept: Tensor, drift: int, rounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """-> the gradients of query, keys, field and theta"""
    from .products import triangle
    from .score_gradient import softmax_backward
    from .scores import attention_chunks

    (batch, length, k), (n, width) = theta.shape, (field.shape[2], query.shape[2])
    q, key, wide = wide_features(query), wide_features(keys), wide_fields(field)
    (_, tp, _), dtype = wide.shape, wide.dtype
    cos, sin = harmonic_powers(theta, n)
    arriving = dpull[:, :, None]
    dg = wide_fields(torch.stack((-sin * arriving, cos * arriving), dim=-2).to(dtype))
    turn = (-dweight if drift == COROTATING else dweight).contiguous().view(-1)
    tau = one(theta)
    queries, keys_wide = q.view(batch, tp, -1), key.view(batch, tp, -1)
    if kept.numel():
        df = triangle(kept, dg, torch.empty_like(dg), transposed=True)
        ds = softmax_backward(kept, own, dg, wide, turn, tau, 0, length, drift)
        dq, dkey = ds @ keys_wide, ds.transpose(1, 2) @ queries
    else:
        from . import tiles

        sums = torch.float32 if tp > tiles.CHUNK else dtype  # chunks add to them
        dq, dkey = torch.empty_like(queries), torch.empty_like(queries, dtype=sums)
        df = torch.empty_like(dg, dtype=sums)
        for r0, attention in attention_chunks(q, key, tau, own, batch, length, rounded, True):
            ds = softmax_backward(attention, own, dg, wide, turn, tau, r0, length, drift)
            triangle(ds, keys_wide, dq, r0)
            triangle(attention, dg, df, r0, transposed=True)
            triangle(ds, queries, dkey, r0, transposed=True)
    dfield = df.view(batch, tp, n, -1, 2)[:, :length, :, :k].transpose(-1, -2)
    dtheta = -dpull * slope.view(batch, length, -1)[..., :k].float()
    return (
        dq[:, :length, :width].contiguous(),
        dkey[:, :length, :width].to(dtype).contiguous(),
        dfield.to(dtype).contiguous(),
        dtheta,
    )


@couple.register_fake
def _(
    query: Tensor, keys: Tensor, field: Tensor, theta: Tensor, drift: int, rounded: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, length, k = theta.shape
    tp = padded_length(length)
    return (
        theta.new_empty(batch, length, k),
        theta.new_empty(batch, length),
        theta.new_empty(4, batch * length),
        field.new_empty(batch * length, padded_width(k)),
        field.new_empty(kept_shape(batch, tp, field.dtype.itemsize)),
    )


@couple_backward.register_fake
def _(
    dpull: Tensor, dweight: Tensor, query: Tensor, keys: Tensor, field: Tensor, theta: Tensor,
    own: Tensor, slope: Tensor, kept: Tensor, drift: int, rounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        torch.empty_like(query, memory_format=torch.contiguous_format),
        torch.empty_like(keys, memory_format=torch.contiguous_format),
        torch.empty_like(field, memory_format=torch.contiguous_format),
        torch.empty_like(theta, memory_format=torch.contiguous_format),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, keys, field, theta, ctx.drift, ctx.rounded = inputs
    _, _, own, slope, kept = output
    ctx.save_for_backward(query, keys, field, theta, own, slope, kept)


def _backward(ctx: Any, dpull: Tensor, dweight: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    query, keys, field, theta, *saved = ctx.saved_tensors
    grads = couple_backward(dpull, dweight, query, keys, field, theta, *saved, ctx.drift, ctx.rounded)
    return *grads, None, None


couple.register_autograd(_backward, setup_context=_setup)


def padded_length(length: int) -> int:
    from .common import round_up
    from .tiles import BLOCK

    return round_up(length, BLOCK)


def padded_width(k: int) -> int:
    from .common import padded

    return padded(k)


def kept_shape(batch: int, tp: int, itemsize: int) -> tuple[int, ...]:
    """Of attention that is kept for the backward pass."""
    from . import tiles

    small = tp <= tiles.CHUNK and batch * tp * tp * itemsize <= tiles.KEPT_ATTENTION
    return (batch, tp, tp) if small else (0,)


def one(like: Tensor) -> Tensor:
    """τ, which the queries hold already."""
    return torch.ones((), dtype=torch.float32, device=like.device)


def wide_features(x: Tensor) -> Tensor:
    """(B, T, 2k) -> (B·TP, 2KP), zeros behind"""
    batch, length, width = x.shape
    tp, d = padded_length(length), 2 * padded_width(width // 2)
    return F.pad(x, (0, d - width, 0, tp - length)).reshape(batch * tp, d).contiguous()


def wide_phases(theta: Tensor) -> Tensor:
    """(B, T, k) -> (B·T, KP)"""
    return F.pad(theta, (0, padded_width(theta.shape[2]) - theta.shape[2])).flatten(0, 1).contiguous()


def wide_fields(field: Tensor) -> Tensor:
    """(B, T, N, 2, k) -> (B, TP, 2N·KP), real parts beside imaginary ones"""
    _, length, _, _, k = field.shape
    pairs = field.transpose(-1, -2)
    wide = F.pad(pairs, (0, 0, 0, padded_width(k) - k, 0, 0, 0, padded_length(length) - length))
    return wide.flatten(2).contiguous()
