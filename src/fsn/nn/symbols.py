"""Symbols to phases, and phases to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops
from . import decode
from .context import PLAIN, Context

SPREAD = 0.02
"""Standard deviation of phases and prototypes at the start."""


class PhaseEmbedding(nn.Module):
    """A point on the torus for every symbol, near the origin at the start: N(0, 0.02²).

    tokens (B, T) -> phases (B, T, k)
    """

    def __init__(self, vocab_size: int, k: int) -> None:
        super().__init__()
        self.phases = nn.Parameter(torch.empty(vocab_size, k))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.phases.normal_().mul_(SPREAD)

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.phases)


class CoherenceReadout(nn.Module):
    """logits = s · Σ_c cos(θ_c − p_{v,c}), with learned prototypes p and a learned scale s, 1/√k at the start.

    s itself is the parameter: learning log s is far slower, and s has to grow several-fold.

    theta (B, T, k) -> logits (B, T, V)
    """

    def __init__(
        self, vocab_size: int, k: int, start: float | None = None, round_output: bool = True
    ) -> None:
        super().__init__()
        self.start = float(k**-0.5 if start is None else start)
        self.prototypes = nn.Parameter(torch.empty(vocab_size, k))
        self.scale = nn.Parameter(torch.empty(()))
        self.round_output = round_output
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.prototypes.normal_().mul_(SPREAD)
        self.scale.fill_(self.start)

    def forward(self, theta: Tensor, context: Context = PLAIN) -> Tensor:
        cache = context.cache
        if cache is None or context.first == 0:
            found = ops.coherences(theta, self.prototypes, self.round_output)
        else:  # the prototypes' features are the same for every symbol
            state = decode.state_of(self.prototypes)
            if cache.prototypes is None or cache.prototypes[1] != state:
                cache.prototypes = ops.phase_features(self.prototypes).mT.contiguous(), state
            features = ops.phase_features(theta)
            found = ops.product(features, cache.prototypes[0], self.round_output).to(theta.dtype)
        return self.scale * context.probe("coherences", found)
