"""Where a token looks and what it does with what it finds, in one function."""

from __future__ import annotations

from torch import Tensor

from .coupling import Pair, coupling
from .scores import causal_softmax, coherence_scores, fold_successors


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
    """Scores, attention and coupling in one: the attention half before its value gate and its bound.

    query and keys are :func:`fsn.ops.rotary_features`; ``score`` is λ of :func:`fsn.ops.fold_successors`, for keys that
    carry their successor's. A fused form with the same signature is in ``fsn.ops.fused.synchronize``.

    theta: (B, T, k), query, keys: (B, T, 2k), tau: broadcastable to (B, T, T) -> (B, T, k)
    """
    own = None if score is None else keys
    keys = keys if score is None else fold_successors(keys, score)
    attention = causal_softmax(coherence_scores(query, keys, tau, round_scores, own))
    return coupling(theta, attention, w0, w1, harmonics, frame)
