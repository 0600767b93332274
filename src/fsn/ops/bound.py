"""The norm-matched tanh bound."""

from __future__ import annotations

import torch
from torch import Tensor


def norm_matched_tanh(x: Tensor, alpha: Tensor) -> Tensor:
    """Keep the direction of an update, take its norm from α tanh(x).

        x · ‖α tanh(x)‖ / ‖x‖        norms per token, over the last axis

    Zero goes to zero. The derivative there is α (the limit of the ratio of the norms is one), so the gradient
    is finite everywhere. Each norm is taken relative to its own largest entry, so neither tiny nor huge
    updates lose their squares to under- or overflow.

    x: (..., k), alpha: () -> (..., k)
    """
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    zero = largest == 0
    largest = torch.where(zero, 1, largest)
    tallest = torch.where(zero, 1, largest.tanh())
    direction = torch.where(zero, 1, x / largest)
    reference = torch.where(zero, 1, x.tanh() / tallest)
    ratio = (reference.square().sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True)).sqrt()
    return x * (alpha.abs() * ratio * (tallest / largest))
