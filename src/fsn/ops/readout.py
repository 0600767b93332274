"""From phases to symbols."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .harmonics import phase_features
from .precision import product


def coherences(theta: Tensor, prototypes: Tensor, round_output: bool = True) -> Tensor:
    """Phase coherence of every token with every symbol's prototype.

        Σ_c cos(θ_c − p_{v,c}) = [cos θ, sin θ] · [cos p_v, sin p_v]

    theta: (B, T, k), prototypes: (V, k) -> (B, T, V)
    """
    return product(phase_features(theta), phase_features(prototypes).mT, round_output).to(theta.dtype)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Per-token loss in nats; zero, and without gradient, where the target is −100.

    logits: (B, T, V), targets: (B, T) -> (B, T)
    """
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten().long(), reduction="none").view_as(targets)
