"""How far a token may move in one step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .. import ops


class BoundedUpdate(nn.Module):
    """The norm-matched tanh bound with its learned scale α."""

    def __init__(self, start: float = 2 * math.pi) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(float(start)))

    def forward(self, update: Tensor) -> Tensor:
        if ops.cpu.applies(update):
            return ops.cpu.norm_matched_tanh(update, self.alpha)
        return ops.norm_matched_tanh(update, self.alpha)


class Unbounded(nn.Module):
    """No bound and no scale: the update as it comes. The paper's model diverged without a bound, ours trained."""

    alpha = None

    def forward(self, update: Tensor) -> Tensor:
        return update
