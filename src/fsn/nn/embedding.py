"""Symbols to phases."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PhaseEmbedding(nn.Module):
    """A point on the torus for every symbol, near the origin at the start: N(0, 0.02²).

    tokens (B, T) -> phases (B, T, k)
    """

    def __init__(self, vocab_size: int, k: int, std: float = 0.02) -> None:
        super().__init__()
        self.phases = nn.Parameter(torch.randn(vocab_size, k) * std)

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.phases)
