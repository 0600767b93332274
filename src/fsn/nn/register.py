"""The explicit register of the dissolved variant."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Register(nn.Module):
    """m numbers per token that accumulate a learned projection of every bounded update.

        r ← r + P Δθ

    The paper leaves the projection open. Here each layer has one P (m × k), applied to the attention update
    before the feed-forward block reads the register and to the feed-forward update after it, so that already
    the first layer's block has something to read. P starts as ``nn.Linear`` does.

    update (B, T, k) -> (B, T, m)
    """

    def __init__(self, k: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, k).uniform_(-(k**-0.5), k**-0.5))

    def forward(self, update: Tensor) -> Tensor:
        return (update @ self.weight.mT).to(update.dtype)
