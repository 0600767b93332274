"""Phases to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops
from .probe import NO_PROBE, Probe


class CoherenceReadout(nn.Module):
    """logits = s · Σ_c cos(θ_c − p_{v,c}), with learned prototypes p and a learned scale s, 1/√k at the start.

    s itself is the parameter: learning log s is far slower, and s has to grow several-fold.

    theta (B, T, k) -> logits (B, T, V)
    """

    def __init__(
        self,
        vocab_size: int,
        k: int,
        start: float | None = None,
        round_output: bool = True,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(vocab_size, k) * std)
        self.scale = nn.Parameter(torch.tensor(k**-0.5 if start is None else start))
        self.round_output = round_output

    def forward(self, theta: Tensor, probe: Probe = NO_PROBE) -> Tensor:
        return self.scale * probe("coherences", ops.coherences(theta, self.prototypes, self.round_output))
