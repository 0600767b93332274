"""The learning rate of every step: a function of the step alone, so that a resumed run needs no state of it.

   lr  |     ___________          constant  no decay
       |    /           \\         linear    linear decay from the end of the warm-up
       |   /             \\        cosine    half a cosine from there
floor  |  /               \\       wsd       no decay until the cool-down, then linear
       +---------------------> step
        warm-up       cool-down
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UserError
from .recipe import Recipe


@dataclass(frozen=True)
class Schedule:
    """Step i (the first is 0) of ``total`` has the rate

        lr (i + 1) / warmup                        for i < warmup
        lr                                         up to ``falls_at``
        floor + (lr - floor) fall((i - falls_at) / (total - falls_at))    from there

    with fall(x) = 1 - x, or (1 + cos πx) / 2 for the cosine. The floor itself would be the rate of the step after the
    last. These are PyTorch's ``LinearLR`` and ``CosineAnnealingLR``.
    """

    lr: float
    floor: float
    warmup: int
    falls_at: int
    total: int
    cosine: bool

    @classmethod
    def of(cls, recipe: Recipe, n_windows: int) -> Schedule:
        """The schedule of a run over ``n_windows`` windows; one that is longer than the run is an error."""
        r, total = recipe, recipe.total_steps(n_windows)
        falling = 0
        if r.schedule == "wsd":
            epoch = r.steps_per_epoch(n_windows)
            falling = round(total * r.cooldown if r.cooldown else epoch * (r.cooldown_epochs or 0))
        elif r.schedule != "constant":
            falling = total - r.warmup_steps
        if r.warmup_steps + falling > total or (r.schedule != "constant" and falling < 1):
            limit = "--max-steps" if total == r.max_steps else "--epochs"
            cooling, options = (
                f" and {falling:,} of cool-down",
                "--warmup-steps, --cooldown or --cooldown-epochs",
            )
            if r.schedule == "constant":
                cooling, options = "", "--warmup-steps"
            elif falling < 1:
                cooling = " and less than one of cool-down"
            raise UserError(
                f"the schedule does not fit the run: {r.warmup_steps:,} steps of warm-up{cooling} in the {total:,} "
                f"steps that {limit} gives; change {options}, or {limit}"
            )
        return cls(r.lr, r.lr_floor, r.warmup_steps, total - falling, total, r.schedule == "cosine")

    @property
    def constant(self) -> bool:
        return not self.warmup and self.falls_at == self.total

    def rate(self, step: int) -> float:
        """The learning rate of the step that follows ``step`` steps."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if step < self.falls_at or self.falls_at == self.total:
            return self.lr
        x = min((step - self.falls_at) / (self.total - self.falls_at), 1.0)
        left = (1.0 + math.cos(math.pi * x)) / 2.0 if self.cosine else 1.0 - x
        return self.floor + (self.lr - self.floor) * left

    def agrees(self, other: Schedule, steps: int) -> bool:
        """Whether the first ``steps`` steps have the same rates in both, so that a run may change between them."""
        if self == other or steps == 0:
            return True
        start = (self.lr, self.warmup) == (other.lr, other.warmup)
        return start and steps <= min(self.falls_at, other.falls_at)

    def __str__(self) -> str:
        parts = [f"{self.warmup:,} steps of warm-up"] if self.warmup else []
        if self.falls_at > self.warmup:
            parts.append(f"{self.falls_at - self.warmup:,} at {self.lr:g}")
        if self.falls_at < self.total:
            curve = "in half a cosine" if self.cosine else "in a line"
            parts.append(f"{self.total - self.falls_at:,} {curve} to {self.floor:g}")
        return ", ".join(parts)
