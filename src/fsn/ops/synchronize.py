"""Where a token looks and what it does with what it finds, in one function."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .coupling import Pair, coupling, fields
from .scores import causal_softmax, coherence_scores, fold_successors

Point = Callable[[str, Tensor], Tensor]


def _as_it_is(name: str, value: Tensor) -> Tensor:
    return value


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
    *,
    field: Tensor | None = None,
    first: int = 0,
    padding: Tensor | None = None,
    point: Point = _as_it_is,
) -> Tensor:
    """Scores, attention and coupling: the attention half between its gates, before its bound.

    query and keys are :func:`fsn.ops.rotary_features`; ``score`` is λ of :func:`fsn.ops.fold_successors`, for keys that
    carry their successor's. Where a cache continues a sequence, θ and the queries begin at position ``first`` of what
    keys and ``field`` cover. ``padding`` is that of :func:`fsn.ops.causal_softmax`. ``point`` is called with the name
    and the value of "scores", "attention", "fields" and "coupling"; what it returns takes their place.

    Fused forms: ``fsn.ops.fused.synchronize`` has the arguments before the star, and ``fsn.ops.cpu.attention_half``
    takes in the gates.

    theta: (B, T, k), query: (B, T, 2k), keys: (B, U, 2k), field: (B, U, N, 2, k), tau: broadcastable to (B, T, U)
    -> (B, T, k)
    """
    own = None if score is None else keys[:, first:]
    keys = keys if score is None else fold_successors(keys, score)
    scores = point("scores", coherence_scores(query, keys, tau, round_scores, own, first))
    attention = point("attention", causal_softmax(scores, first, padding))
    field = point("fields", fields(theta, w0, w1, harmonics) if field is None else field)
    return point("coupling", coupling(theta, attention, w0, w1, harmonics, frame, field, first))
