"""What becomes of an update: how far it may move a token, and the register that remembers it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .. import ops


class BoundedUpdate(nn.Module):
    """The norm-matched tanh bound with its learned scale α."""

    def __init__(self, start: float = 2 * math.pi) -> None:
        super().__init__()
        self.start = float(start)
        self.alpha = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.alpha.fill_(self.start)

    def forward(self, update: Tensor) -> Tensor:
        if ops.cpu.applies(update):
            return ops.cpu.norm_matched_tanh(update, self.alpha)
        return ops.norm_matched_tanh(update, self.alpha)


class Unbounded(nn.Module):
    """No bound and no scale: the update as it comes. The paper's model diverged without a bound, ours trained."""

    alpha = None

    def forward(self, update: Tensor) -> Tensor:
        return update


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
        self.weight = nn.Parameter(torch.empty(size, k))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        bound = self.weight.shape[1] ** -0.5
        self.weight.uniform_(-bound, bound)

    def forward(self, update: Tensor) -> Tensor:
        return (update @ self.weight.mT).to(update.dtype)
