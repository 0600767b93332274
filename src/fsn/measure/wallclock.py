"""Time to a target loss: what a slower epoch costs when fewer epochs are needed.

For a transformer seed the target is its validation loss at the end of the budget (thirty epochs) and its
time the seconds of training and validation up to there. For an FSN seed the time is the end of the first
epoch whose validation loss is at or below that target. The ratio of the two is the wall-clock cost of
matching that transformer. Epoch ends are where a validation loss is known, and the paper's ratios sit on
them; ``interpolate=True`` reads the crossing off the straight line between two epoch ends instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsn.errors import UserError
from fsn.measure.pace import steady_seconds
from fsn.measure.runs import (
    RunLike,
    check_comparable,
    epoch_values,
    finished_epochs,
    require_epochs,
    run_name,
)
from fsn.measure.tables import Table

BUDGET = 30
FINAL_EPOCHS = 5
"""The stretch of the reference's last epochs over which its rate of improvement is taken."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Validation loss in bits against cumulative seconds; entry i is the end of epoch i + 1."""

    name: str
    seconds: Array
    loss: Array

    def crossing(self, target: float) -> int | None:
        """The first epoch (from 1) that ends at or below ``target``, or ``None``."""
        below = np.flatnonzero(self.loss <= target)
        return int(below[0]) + 1 if below.size else None

    def time_to(self, target: float, interpolate: bool = False) -> float:
        """Seconds until ``target`` is reached; infinite if it never is."""
        epoch = self.crossing(target)
        if epoch is None:
            return math.inf
        i = epoch - 1
        if not interpolate or i == 0 or not self.loss[i - 1] > self.loss[i]:
            return float(self.seconds[i])
        part = (self.loss[i - 1] - target) / (self.loss[i - 1] - self.loss[i])
        return float(self.seconds[i - 1] + part * (self.seconds[i] - self.seconds[i - 1]))

    def rate(self, epoch: int, reach: int = 2) -> float:
        """Bits gained per epoch around ``epoch``: minus the least-squares slope over epoch ± ``reach``."""
        low, high = max(0, epoch - 1 - reach), min(len(self.loss), epoch + reach)
        near = self.loss[low:high]
        if len(near) < 2 or not np.isfinite(near).all():
            return math.nan
        return float(-np.polyfit(np.arange(low, high), near, 1)[0])


def curve_of(run: RunLike, budget: int | None = None, steady: bool = False) -> Curve:
    """The loss curve of a run up to ``budget`` epochs, from ``valid_bits`` and ``cumulative_s``.

    With ``steady`` an epoch during which something else used the device counts as the run's median epoch.
    """
    require_epochs([run], 1)
    epochs = finished_epochs(run)[:budget]
    ends = steady_seconds(run)[:budget] if steady else epoch_values(epochs, "cumulative_s")
    seconds, loss = np.array(ends), np.array(epoch_values(epochs, "valid_bits"))
    if np.isnan(seconds).any():
        raise UserError(
            f"{run_name(run)} has epochs without cumulative_s, so its wall-clock is unknown; train it again."
        )
    return Curve(run_name(run), seconds, loss)


def mean_curve(curves: Sequence[Curve], name: str = "mean") -> Curve:
    """Mean loss and mean seconds at each epoch all curves have reached."""
    n = min(len(curve.loss) for curve in curves)
    return Curve(
        name,
        np.mean([curve.seconds[:n] for curve in curves], axis=0),
        np.mean([curve.loss[:n] for curve in curves], axis=0),
    )


@dataclass(frozen=True)
class Crossing:
    """One run against one target; rates are in bits per epoch, ``gain_after`` in bits."""

    run: str
    reference: str
    target: float
    epoch: int | None
    seconds: float
    ratio: float
    rate: float
    reference_rate: float
    gain_after: float


@dataclass(frozen=True)
class TargetLoss:
    """One scale: its curves, all seed pairs, and the crossings against mean and lowest reference."""

    label: str
    budget: int
    curves: list[Curve]
    references: list[Curve]
    pairs: list[Crossing]
    against_mean: list[Crossing]
    against_lowest: list[Crossing]
    slowdown: float

    @property
    def targets(self) -> Array:
        """The references' losses at the end of the budget."""
        return np.array([curve.loss[self.budget - 1] for curve in self.references])


def _cross(curve: Curve, reference: Curve, budget: int, interpolate: bool) -> Crossing:
    target, epoch = float(reference.loss[budget - 1]), curve.crossing(float(reference.loss[budget - 1]))
    seconds = curve.time_to(target, interpolate)
    back = max(0, budget - 1 - FINAL_EPOCHS)
    steps = budget - 1 - back
    return Crossing(
        curve.name,
        reference.name,
        target,
        epoch,
        seconds,
        seconds / float(reference.seconds[budget - 1]),
        math.nan if epoch is None else curve.rate(epoch),
        float(reference.loss[back] - target) / steps if steps else math.nan,
        target - float(curve.loss[-1]) if epoch is not None else math.nan,
    )


def time_to_target(
    runs: Sequence[RunLike],
    references: Sequence[RunLike],
    budget: int = BUDGET,
    label: str = "",
    interpolate: bool = False,
    steady: bool = False,
) -> TargetLoss:
    """Measure ``runs`` (FSN seeds) against ``references`` (transformer seeds) of ``budget`` epochs.

    The mean reference has the mean loss and the mean wall-clock of the seeds, the lowest is the seed with
    the lowest loss at the budget. A run may have fewer epochs than the budget: it counts up to where it
    got. The per-epoch slowdown is the mean seconds per epoch of the runs over that of the references.
    ``steady``: see :func:`curve_of`.
    """
    if not runs or not references:
        raise UserError("Time to a target loss needs at least one run and one reference run.")
    check_comparable([*runs, *references])
    require_epochs(references, budget)
    curves = [curve_of(run, budget, steady) for run in runs]
    base = [curve_of(run, budget, steady) for run in references]
    for curve in base:
        if not math.isfinite(curve.loss[budget - 1]):
            raise UserError(
                f"{curve.name} diverged, so it sets no target loss; leave it out of the references."
            )
    lowest = base[int(np.argmin([curve.loss[budget - 1] for curve in base]))]
    mean = mean_curve(base, "mean of references")
    per_epoch = [float(np.mean([c.seconds[-1] / len(c.seconds) for c in group])) for group in (curves, base)]
    return TargetLoss(
        label,
        budget,
        curves,
        base,
        [_cross(curve, reference, budget, interpolate) for curve in curves for reference in base],
        [_cross(curve, mean, budget, interpolate) for curve in curves],
        [_cross(curve, lowest, budget, interpolate) for curve in curves],
        per_epoch[0] / per_epoch[1],
    )


def _median(crossings: Sequence[Crossing]) -> tuple[float, float, float]:
    ratios = sorted(crossing.ratio for crossing in crossings)
    middle = len(ratios) // 2
    median = ratios[middle] if len(ratios) % 2 else (ratios[middle - 1] + ratios[middle]) / 2
    return median, ratios[0], ratios[-1]


def wallclock_table(scales: Sequence[TargetLoss]) -> Table:
    """One row per scale: slowdown per epoch, median and range of the ratio against mean and lowest reference.

    A seed that never reaches the target counts as infinite.
    """
    rows = []
    for scale in scales:
        mean, mean_low, mean_high = _median(scale.against_mean)
        best, best_low, best_high = _median(scale.against_lowest)
        rows.append(
            {
                "scale": scale.label,
                "seeds": f"{len(scale.curves)} × {len(scale.references)}",
                "slowdown": scale.slowdown,
                "vs_mean": mean,
                "vs_mean_min": mean_low,
                "vs_mean_max": mean_high,
                "vs_lowest": best,
                "vs_lowest_min": best_low,
                "vs_lowest_max": best_high,
            }
        )
    ratios = [f"vs_{against}{end}" for against in ("mean", "lowest") for end in ("", "_min", "_max")]
    columns = ("scale", "seeds", "slowdown", *ratios)
    return Table(
        columns, rows, {name: ".2f" for name in columns[2:]}, "Wall-clock to the reference's final loss."
    )


def crossing_table(crossings: Sequence[Crossing]) -> Table:
    """One row per run and target: epoch of the crossing, ratio, rates in millibits per epoch, later gain."""
    columns = (
        "run",
        "reference",
        "target",
        "epoch",
        "ratio",
        "rate_mbit",
        "reference_rate_mbit",
        "gain_after",
    )
    rows = [
        dict(
            zip(
                columns,
                (
                    c.run,
                    c.reference,
                    c.target,
                    c.epoch,
                    c.ratio,
                    1000 * c.rate,
                    1000 * c.reference_rate,
                    c.gain_after,
                ),
                strict=True,
            )
        )
        for c in crossings
    ]
    forms = {
        "target": ".4f",
        "ratio": ".2f",
        "rate_mbit": ".2f",
        "reference_rate_mbit": ".2f",
        "gain_after": "+.4f",
    }
    return Table(columns, rows, forms, "Crossings of the reference's final loss.")
