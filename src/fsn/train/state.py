"""Where a run stands, and the two ways in which it ends early."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds a number that is none."""
    return next((name for name, tensor in tensors if not torch.isfinite(tensor).all()), None)


class NonFinite(UserError):
    """A loss, gradient or weight was not finite; the weights before it are kept."""


class Stopped(Exception):
    """The run was stopped on purpose, with a checkpoint. ``signal`` is 0 where the time budget ended it."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass
class State:
    """Where a run stands. Goes into each checkpoint as JSON, which keeps floats to the last bit."""

    step: int = 0
    epoch: int = 1
    position: int = 0
    """Steps done of this epoch."""
    evaluated_step: int = -1
    """The step of the last validation."""
    best_epoch: int | None = None
    best_bits: float | None = None
    cumulative_s: float = 0.0
    """Seconds of training and validation so far, in all parts of the run."""
    epoch_nats: float = 0.0
    epoch_predictions: int = 0
    epoch_train_s: float = 0.0
    log_nats: float = 0.0
    log_predictions: int = 0
    log_train_s: float = 0.0

    def next_epoch(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0
        self.epoch_nats, self.epoch_predictions, self.epoch_train_s = 0.0, 0, 0.0
