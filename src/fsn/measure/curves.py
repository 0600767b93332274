"""Loss curves at matched epochs: seed means, who leads and for how long, when a bar is crossed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsn.measure.bootstrap import SeedSummary, seed_summary
from fsn.measure.runs import (
    RunLike,
    check_comparable,
    diverged_at,
    epoch_value,
    epoch_values,
    finished_epochs,
    require_epochs,
    run_name,
)
from fsn.measure.tables import Table


@dataclass(frozen=True)
class Best:
    """The epoch (from 1) with the lowest validation loss, and that loss in bits."""

    epoch: int
    bits: float


def best_epoch(run: RunLike) -> Best:
    """Lowest finite validation loss of a run."""
    require_epochs([run], 1)
    losses = epoch_values(finished_epochs(run), "valid_bits")
    index = min(range(len(losses)), key=lambda i: losses[i] if math.isfinite(losses[i]) else math.inf)
    return Best(index + 1, losses[index])


def loss_at(runs: Sequence[RunLike], epoch: int, key: str = "valid_bits") -> SeedSummary:
    """Mean, sample deviation and extremes over seeds at the end of ``epoch``.

    ``key`` may be ``"valid_bits_second_half"``. Seeds that diverged before are left out, so ``count`` tells
    how many are in; a seed that is merely unfinished is an error.
    """
    going = [run for run in runs if diverged_at(run) is None]
    require_epochs(going, epoch)
    whole = [run for run in runs if len(finished_epochs(run)) >= epoch]
    values = [epoch_value(finished_epochs(run)[epoch - 1], key) for run in whole]
    finite = [value for value in values if math.isfinite(value)]
    return seed_summary(finite) if finite else SeedSummary(math.nan, math.nan, math.nan, math.nan, 0)


def epoch_margins(run: RunLike, reference: RunLike, epochs: int | None = None) -> NDArray[np.float64]:
    """Run minus reference in bits at every epoch both have (or the first ``epochs``)."""
    check_comparable([run, reference])
    pair = [finished_epochs(one) for one in (run, reference)]
    count = min(map(len, pair)) if epochs is None else epochs
    require_epochs([run, reference], max(count, 1))
    ours, theirs = (np.array(epoch_values(rows[:count], "valid_bits")) for rows in pair)
    return ours - theirs


def epochs_ahead(run: RunLike, reference: RunLike) -> int:
    """For how many epochs from the first on, without a break, the run's loss is below the reference's."""
    ahead = epoch_margins(run, reference) < 0
    return len(ahead) if ahead.all() else int(np.argmin(ahead))


def always_ahead(runs: Sequence[RunLike], references: Sequence[RunLike]) -> bool:
    """Whether every run is below every reference at every epoch both have."""
    return all(bool((epoch_margins(run, reference) < 0).all()) for run in runs for reference in references)


def crossing_epochs(runs: Sequence[RunLike], bar: float) -> list[int | None]:
    """The first epoch at which each run is at or below ``bar`` bits, ``None`` where it never is."""
    found: list[int | None] = []
    for run in runs:
        below = np.flatnonzero(np.array(epoch_values(finished_epochs(run), "valid_bits")) <= bar)
        found.append(int(below[0]) + 1 if below.size else None)
    return found


def loss_table(families: Mapping[str, Sequence[RunLike]], epoch: int) -> Table:
    """One row per family at the end of ``epoch``: seeds, mean, sample deviation, extremes, and its runs."""
    rows = []
    for name, runs in families.items():
        if not runs:
            continue
        summary, second = loss_at(runs, epoch), loss_at(runs, epoch, "valid_bits_second_half")
        rows.append(
            {
                "family": name,
                "epoch": epoch,
                "seeds": summary.count,
                "mean": summary.mean,
                "std": summary.std,
                "min": summary.low,
                "max": summary.high,
                "second_half": second.mean,
                "runs": ", ".join(run_name(run) for run in runs),
            }
        )
    columns = ("family", "epoch", "seeds", "mean", "std", "min", "max", "second_half", "runs")
    forms = {name: ".4f" for name in ("mean", "std", "min", "max", "second_half")}
    return Table(columns, rows, forms, f"Validation bits per character at epoch {epoch}.")
