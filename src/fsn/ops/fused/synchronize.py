"""Scores, softmax and coupling on anybody's tensors: the reference's signature, kernels inside, memory linear in T.

What needs T² work is a custom op, ``fsn::attend``, with a backward op of its own: attention, and the sum of fields
it gives. A compiler sees one node with known shapes and fuses what stands around it, which is the reference's own code.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import check_choice
from ..coupling import Pair, contract_fields, fields
from ..law import FRAMES
from ..scores import FLOOR, fold_successors
from . import DRIFT, WIDEST, available, compute_dtype

FEATURES = 32
"""The score kernel takes so many features at a time."""


def applies(theta: Tensor) -> bool:
    """Whether :func:`synchronize` can run on these phases (B, T, k): a device with kernels, float32, k ≤ 2048."""
    there = theta.shape[-1] <= WIDEST and _available(theta.device.type, theta.device.index)
    return there and compute_dtype(theta) is not None


def _available(kind: str, index: int | None) -> bool:
    """:func:`available`, asked once while a compiler traces."""
    return available(torch.device(kind) if index is None else torch.device(kind, index))


# What torch.compiler.assume_constant_result sets. That decorator imports the whole compiler, which takes a second and
# fails where Triton is broken.
_available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def synchronize(
    theta: Tensor,
    query: Tensor,
    keys: Tensor,
    tau: Tensor,
    w0: Pair | None,
    w1: Pair | None,
    harmonics: int,
    frame: str = "co-rotating",
    round_scores: bool = True,
    score: Tensor | None = None,
) -> Tensor:
    """:func:`fsn.ops.synchronize` through kernels, wherever :func:`applies` holds.

    Products run in bfloat16 under that autocast, in float32 otherwise. Attention is never in memory as a whole once
    T exceeds 2,048, nor kept for the backward pass where it is large.

    theta (B, T, k) float32, query and keys (B, T, 2k), tau broadcastable to (B, T, T) along T, w0 and w1 as in
    :func:`fsn.ops.fields` -> (B, T, k) float32
    """
    check_choice("frame", frame, FRAMES)
    dtype = compute_dtype(theta)
    if dtype is None or not applies(theta):
        raise ValueError(
            f"there are no kernels for theta, {theta.dtype} on {theta.device} with k = {theta.shape[-1]}; "
            "fsn.ops.synchronize takes it"
        )
    with torch.autocast(theta.device.type, enabled=False):
        drifting = (w0,) if frame == "rest" else (w0, w1)
        turning = [w.im.sum(dim=-2) for w in drifting if w is not None and w.im is not None]
        drift = DRIFT[frame if turning else None]
        offered = fields(theta, w0, w1, harmonics)
        query = query / tau.clamp(min=FLOOR)
        diagonal = None
        if score is not None:  # a token must not see its own successor: its own score is of the plain key
            diagonal = (query * keys).sum(dim=-1)
            keys = fold_successors(keys, score)
        operands = (x.to(dtype) for x in (query, keys, offered.flatten(2)))
        total, weight, _, _ = attend(*operands, diagonal, drift, round_scores)
        pull = contract_fields(theta, total.float().unflatten(2, offered.shape[2:]))
        if not drift:
            return pull
        constant = weight[..., None] * sum(turning[1:], turning[0])
        return pull + constant if drift == DRIFT["rest"] else pull - constant


@torch.library.custom_op("fsn::attend", mutates_args=())
def attend(
    query: Tensor, keys: Tensor, field: Tensor, diagonal: Tensor | None, drift: int, rounded: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal attention of queries over keys, and the sum of fields over strictly earlier positions that it gives.

    query, keys (B, T, 2k) and field (B, T, C), all bfloat16 or all float32; diagonal (B, T) float32, each token's
    score of itself, where keys carry their successor's -> total (B, T, C) in their type, the drift's weight (B, T) in
    float32; for the backward pass the sums of the softmax (5, B·T), and attention (B, TP, TP) where it is small
    enough to keep (otherwise empty)
    """
    from .products import triangle
    from .scores import attention_chunks

    batch, length, _ = field.shape
    q, key, values = wide_features(query), wide_features(keys), longer(field)
    own = torch.empty(5, batch * length, dtype=torch.float32, device=field.device)
    scored = diagonal is not None
    if diagonal is not None:
        own[4] = diagonal.flatten()
    total = torch.empty_like(values)
    kept = field.new_empty(kept_shape(batch, values.shape[1], field.dtype.itemsize))
    for r0, attention in attention_chunks(q, key, one(field), own, batch, length, rounded, False, scored):
        triangle(attention, values, total, q.shape[1] // 2, r0)
        if kept.numel():
            kept = attention
    weight = own[0 if drift == DRIFT["rest"] else 1].view(batch, length).clone()
    return total[:, :length].contiguous(), weight, own, kept


@torch.library.custom_op("fsn::attend_backward", mutates_args=())
def attend_backward(
    dtotal: Tensor, dweight: Tensor, query: Tensor, keys: Tensor, field: Tensor, own: Tensor, kept: Tensor,
    scored: bool, drift: int, rounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """-> the gradients of query, keys, field and diagonal; the last is empty where there is none"""
    from . import tiles
    from .products import triangle
    from .score_gradient import softmax_backward
    from .scores import attention_chunks

    (batch, length, _), width, dtype = field.shape, query.shape[2], field.dtype
    q, key, values, dg = wide_features(query), wide_features(keys), longer(field), longer(dtotal)
    tp, tau, kp = values.shape[1], one(field), q.shape[1] // 2
    queries, keys = q.view(batch, tp, -1), key.view(batch, tp, -1)
    turn = (-dweight if drift == DRIFT["co-rotating"] else dweight).flatten().contiguous()
    down = torch.empty_like(own[0]) if scored else None
    if kept.numel():
        df = triangle(kept, dg, torch.empty_like(dg), kp, transposed=True)
        ds = softmax_backward(kept, own, dg, values, turn, tau, 0, length, drift, kp, down)
        dq, dkey = ds @ keys, ds.transpose(1, 2) @ queries
    else:
        sums = torch.float32 if tp > tiles.CHUNK else dtype  # chunks add to them
        dq, dkey = torch.empty_like(queries), torch.empty_like(queries, dtype=sums)
        df = torch.empty_like(dg, dtype=sums)
        for r0, attention in attention_chunks(q, key, tau, own, batch, length, rounded, True, scored):
            ds = softmax_backward(attention, own, dg, values, turn, tau, r0, length, drift, kp, down)
            triangle(ds, keys, dq, kp, r0)
            triangle(attention, dg, df, kp, r0, transposed=True)
            triangle(ds, queries, dkey, kp, r0, transposed=True)
    dq, dkey = (x[:, :length, :width].to(dtype).contiguous() for x in (dq, dkey))
    ddiagonal = own.new_empty(0) if down is None else down.view(batch, length)
    return dq, dkey, df[:, :length].to(dtype).contiguous(), ddiagonal


@attend.register_fake
def _(
    query: Tensor, keys: Tensor, field: Tensor, diagonal: Tensor | None, drift: int, rounded: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from .common import round_up
    from .tiles import BLOCK

    batch, length, columns = field.shape
    return (
        field.new_empty(batch, length, columns),
        field.new_empty((batch, length), dtype=torch.float32),
        field.new_empty((5, batch * length), dtype=torch.float32),
        field.new_empty(kept_shape(batch, round_up(length, BLOCK), field.dtype.itemsize)),
    )


@attend_backward.register_fake
def _(
    dtotal: Tensor, dweight: Tensor, query: Tensor, keys: Tensor, field: Tensor, own: Tensor, kept: Tensor,
    scored: bool, drift: int, rounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dkeys, dfield = (x.new_empty(x.shape) for x in (query, keys, field))
    return dq, dkeys, dfield, own.new_empty(field.shape[:2] if scored else (0,))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, keys, field, diagonal, ctx.drift, ctx.rounded = inputs
    ctx.scored = diagonal is not None
    ctx.save_for_backward(query, keys, field, *output[2:])


def _backward(ctx: Any, dtotal: Tensor, dweight: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    *grads, ddiagonal = attend_backward(
        dtotal, dweight, *ctx.saved_tensors, ctx.scored, ctx.drift, ctx.rounded
    )
    return *grads, ddiagonal if ctx.scored else None, None, None


def no_second_derivatives(ctx: Any, *_: Tensor) -> None:
    raise RuntimeError(
        "the kernels have no second derivatives; the reference has (FSN_FUSED=0 in the environment)"
    )


attend.register_autograd(_backward, setup_context=_setup)
attend_backward.register_autograd(no_second_derivatives)


def kept_shape(batch: int, tp: int, itemsize: int) -> tuple[int, ...]:
    """Of attention that is kept for the backward pass."""
    from . import tiles

    small = tp <= tiles.CHUNK and batch * tp * tp * itemsize <= tiles.KEPT_ATTENTION
    return (batch, tp, tp) if small else (0,)


def one(like: Tensor) -> Tensor:
    """τ, which the queries hold already."""
    return torch.ones((), dtype=torch.float32, device=like.device)


def longer(x: Tensor) -> Tensor:
    """(B, T, C) -> (B, TP, C), zeros behind each sequence"""
    from .common import round_up
    from .tiles import BLOCK

    behind = round_up(x.shape[1], BLOCK) - x.shape[1]
    return F.pad(x, (0, 0, 0, behind)) if behind else x.contiguous()


def wide_features(x: Tensor) -> Tensor:
    """(B, T, 2k) -> (B·TP, D), zeros behind"""
    from .common import round_up

    more = round_up(x.shape[2], FEATURES) - x.shape[2]
    return longer(F.pad(x, (0, more)) if more else x).flatten(0, 1)
