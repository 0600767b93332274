"""Speed and memory, read from run logs.

Throughput is the mean of the per-epoch values, as the paper reports it; memory is the largest peak of any
epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsn.measure.bootstrap import SeedSummary, seed_summary
from fsn.measure.pace import held_up
from fsn.measure.runs import RunLike, epoch_values, finished_epochs, require_epochs
from fsn.measure.tables import Table


@dataclass(frozen=True)
class Efficiency:
    """One run: tokens/s, seconds of training plus validation per epoch, peak memory; ``nan``: not logged."""

    train_tokens_per_s: float
    eval_tokens_per_s: float
    epoch_s: float
    peak_memory_gb: float
    epochs: int


def _mean(values: Sequence[float]) -> float:
    found = [value for value in values if math.isfinite(value)]
    return sum(found) / len(found) if found else math.nan


def measure_efficiency(run: RunLike, skip: int = 0, steady: bool = False) -> Efficiency:
    """Efficiency of one run; ``skip`` leaves out first epochs, for runs whose first epoch compiled.

    With ``steady`` speeds are those of epochs that had the device to themselves (:mod:`fsn.measure.pace`).
    """
    require_epochs([run], skip + 1)
    slow = set(held_up(run)) if steady else set()
    every = finished_epochs(run)[skip:]
    epochs = [row for i, row in enumerate(every, skip + 1) if i not in slow] or every
    training, validation = epoch_values(epochs, "train_s"), epoch_values(epochs, "valid_s")
    memory = [value for value in epoch_values(every, "peak_memory_gb") if math.isfinite(value)]
    return Efficiency(
        _mean(epoch_values(epochs, "tokens_per_s")),
        _mean(epoch_values(epochs, "eval_tokens_per_s")),
        _mean([a + b for a, b in zip(training, validation, strict=True)]),
        max(memory, default=math.nan),
        len(epochs),
    )


def efficiency_table(
    families: Mapping[str, Sequence[RunLike]], reference: str | None = None, skip: int = 0
) -> Table:
    """One row per family: seed means, and how many times slower than the family ``reference`` it trains."""
    measured = {
        name: [measure_efficiency(run, skip) for run in runs] for name, runs in families.items() if runs
    }

    def over_seeds(name: str, quantity: str) -> SeedSummary:
        return seed_summary([getattr(one, quantity) for one in measured[name]])

    rows = []
    for name in measured:
        train, evaluation = over_seeds(name, "train_tokens_per_s"), over_seeds(name, "eval_tokens_per_s")
        slower = (
            over_seeds(reference, "train_tokens_per_s").mean / train.mean
            if reference in measured
            else math.nan
        )
        rows.append(
            {
                "family": name,
                "seeds": train.count,
                "train_tokens_per_s": train.mean,
                "train_min": train.low,
                "train_max": train.high,
                "eval_tokens_per_s": evaluation.mean,
                "epoch_s": over_seeds(name, "epoch_s").mean,
                "peak_memory_gb": over_seeds(name, "peak_memory_gb").high,
                "slower": slower,
            }
        )
    thousands = ("train_tokens_per_s", "train_min", "train_max", "eval_tokens_per_s")
    return Table(
        ("family", "seeds", *thousands[:3], "eval_tokens_per_s", "epoch_s", "peak_memory_gb", "slower"),
        rows,
        {name: ",.0f" for name in thousands} | {"epoch_s": ".1f", "peak_memory_gb": ".2f", "slower": ".2f"},
        "Throughput as the mean of per-epoch values, averaged over seeds.",
    )


def kernel_share(full_tokens_per_s: float, without_tokens_per_s: float) -> float:
    """The kernel's share of a training step, 1 − time without it / time with it."""
    return 1.0 - full_tokens_per_s / without_tokens_per_s
