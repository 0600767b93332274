"""The query, key and value gates, one set shared by all layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .probe import NO_PROBE, Probe


class Gates(nn.Module):
    """Three linear maps of [cos θ, sin θ] with weights zero and biases one at the start.

    Query and key gates pass through softplus and are divided by their mean over coordinates, so they are
    nonnegative and average to one. The value gate is the linear map itself, signed: a coordinate may be
    attracted or repelled. ``positive_value`` gives it a softplus instead.

    The three maps are stored as one matrix, query then key then value, so that one product serves all.

    features (B, T, 2k) -> three gates (B, T, k)
    """

    def __init__(self, k: int, positive_value: bool = False) -> None:
        super().__init__()
        self.k, self.positive_value = k, positive_value
        self.weight = nn.Parameter(torch.zeros(3 * k, 2 * k))
        self.bias = nn.Parameter(torch.ones(3 * k))

    def forward(self, features: Tensor, probe: Probe = NO_PROBE) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = self.weight.to(features.dtype), self.bias.to(features.dtype)
        raw = F.linear(features, weight, bias).to(features.dtype)
        query, key, value = raw.split(self.k, dim=-1)
        query = probe("gates.query", ops.normalise_gate(query))
        key = probe("gates.key", ops.normalise_gate(key))
        value = probe("gates.value", F.softplus(value) if self.positive_value else value)
        return query, key, value
