"""Where a token looks: gated phase coherences with a rotary drift (equation 1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .coupling import successor_advance
from .precision import product

FLOOR = 1e-6
"""Smallest denominator: for the mean of a gate (the paper's value) and, by the same token, for τ."""


def rotary_rates(k: int) -> Tensor:
    """Angular rate of every coordinate, ω_c = 10000^(−c/k), c = 0..k−1.

    -> (k,) float64; cast it to the state's type where it is used.
    """
    return 10000.0 ** (-torch.arange(k, dtype=torch.float64) / k)


def normalise_gate(raw: Tensor) -> Tensor:
    """Nonnegative gates that average to one.

        g = softplus(raw) / max(mean_c softplus(raw), 1e-6)

    raw: (B, T, k) -> (B, T, k)
    """
    positive = F.softplus(raw)
    return positive / positive.mean(dim=-1, keepdim=True).clamp(min=FLOOR)


def rotary_features(theta: Tensor, gate: Tensor, rates: Tensor, first: int | Tensor = 0) -> Tensor:
    """One side of the score's dot product.

        g ⊙ [cos(θ_t + ω t), sin(θ_t + ω t)]

    ``first`` is the position of the first row (for a cache that continues a sequence), or that of every row (B, T).
    Positions and angles are never bfloat16, which knows no odd number above 256.

    theta, gate: (B, T, k), rates: (k,) -> (B, T, 2k)
    """
    exact, rates = torch.promote_types(theta.dtype, torch.float32), _exact(rates)
    if isinstance(first, Tensor):
        positions = first.to(rates.dtype)
    else:
        positions = torch.arange(first, first + theta.shape[-2], device=theta.device, dtype=rates.dtype)
    angle = theta.to(exact) + (positions[..., None] * rates).to(exact)
    cos, sin = angle.cos().to(theta.dtype), angle.sin().to(theta.dtype)
    return torch.cat((gate * cos, gate * sin), dim=-1)


def _exact(rates: Tensor) -> Tensor:
    """A model in bfloat16 has rates in bfloat16 too; what they are multiplied with must not be."""
    return rates.to(torch.promote_types(rates.dtype, torch.float32))


def fold_successors(keys: Tensor, weight: Tensor) -> Tensor:
    """Keys that carry their successor's, so that one product scores with both.

        k̃_u = k_u + λ k_{u+1}        complex in every coordinate

    Re(q̄_t k̃_u) is the score of u plus Re λ̄ e^{i(θ_t − θ_{u+1} + ω(t−u−1))}, gated. The last position has no successor.

    keys: (B, U, 2k), real parts first, weight: (2, k), (2, 1), or (2, B, 1, k) where sequences have their own (heads)
    -> (B, U, 2k)
    """
    re, im = keys.chunk(2, dim=-1)
    next_re, next_im = successor_advance(re), successor_advance(im)
    re, im = re + weight[0] * next_re - weight[1] * next_im, im + weight[0] * next_im + weight[1] * next_re
    return torch.cat((re, im), dim=-1)


def coherence_scores(
    query: Tensor,
    keys: Tensor,
    tau: Tensor,
    round_scores: bool = True,
    own: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """Gated phase coherences (equation 1), from the :func:`rotary_features` of both sides.

        s_tu = (1/τ) Σ_c g^q_c(t) g^k_c(u) cos(θ_{t,c} − θ_{u,c} + ω_c (t − u))

    The cosine of a difference is a dot product of two rotated phasors, so this is one matrix product. There may be more
    keys than queries (a cache): the first query is at position ``first``. τ is kept at or above 1e-6. Scores above the
    diagonal are computed too; :func:`causal_softmax` hides them.

    ``own`` are the queries' own keys where ``keys`` come from :func:`fold_successors`: a token must not see its own
    successor, so the diagonal is q_t · k_t.

    query, own: (B, T, 2k), keys: (B, U, 2k), tau: () -> (B, T, U)
    """
    raw = product(query, keys.transpose(-1, -2), round_scores)
    if own is not None:
        positions = torch.arange(keys.shape[-2], device=keys.device)
        diagonal = positions == positions[first : first + query.shape[-2], None]
        raw = torch.where(
            diagonal, product(query.unsqueeze(-2), own.unsqueeze(-1), round_scores).squeeze(-1), raw
        )
    return raw.to(query.dtype) / tau.clamp(min=FLOOR)


def causal_softmax(scores: Tensor, first: int = 0, padding: Tensor | None = None) -> Tensor:
    """Attention over u ≤ t, the diagonal included.

    ``first`` is the position of the first row (for a cache that continues a sequence): then there are first + T
    columns. ``padding`` is true in columns that no row but that of the same position looks at.

    scores: (B, T, U), padding: broadcastable to it -> (B, T, U), rows sum to one, zeros above the diagonal.
    """
    if padding is None and scores.shape[-2] == 1 and scores.shape[-1] == first + 1:
        return scores.softmax(dim=-1)  # a single row, the last: nothing comes after it
    masked = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + first)
    if padding is not None:
        earlier = torch.ones_like(masked).tril(first - 1)
        masked = masked | (padding & earlier)
    return scores.masked_fill(masked, float("-inf")).softmax(dim=-1)


def rotary_turns(rates: Tensor, dtype: torch.dtype, first: int, last: int) -> tuple[Tensor, Tensor]:
    """cos ωt and sin ωt of the positions from ``first`` to before ``last``: two (last − first, k), never bfloat16"""
    exact, rates = torch.promote_types(dtype, torch.float32), _exact(rates)
    angle = torch.arange(first, last, device=rates.device, dtype=rates.dtype)[:, None] * rates
    return angle.cos().to(exact), angle.sin().to(exact)


def turn_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The transformer's RoPE: coordinate pairs (c, c + d/2) turn by ω_c t.

    x: (..., T, d), cos and sin of ωt: (T, d/2) -> (..., T, d)
    """
    a, b = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
