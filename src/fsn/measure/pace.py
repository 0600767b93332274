"""Epochs that had the device to themselves, and those that shared it.

A run that goes on over several sittings shares its device now and then, and the seconds of such an epoch say nothing
about the model. An epoch that took clearly longer than the run's median epoch is taken for one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from fsn.measure.runs import RunLike, epoch_values, finished_epochs, run_name

SLOW = 0.9
"""Below this share of the median epoch's speed an epoch counts as held up."""


def epoch_seconds(run: RunLike) -> list[float]:
    """Seconds of training and validation of every finished epoch."""
    ends = epoch_values(finished_epochs(run), "cumulative_s")
    return [end - start for start, end in zip([0.0, *ends[:-1]], ends, strict=True)]


def median_epoch(run: RunLike) -> float:
    """Seconds of the median epoch; ``nan`` where none were logged."""
    known = [s for s in epoch_seconds(run) if math.isfinite(s)]
    return float(np.median(known)) if known else math.nan


def held_up(run: RunLike) -> list[int]:
    """The epochs (from 1) that were held up."""
    usual = median_epoch(run)
    return [i + 1 for i, s in enumerate(epoch_seconds(run)) if s * SLOW > usual]


def steady_seconds(run: RunLike) -> list[float]:
    """Cumulative seconds at the end of every epoch, as if held-up epochs had taken the median."""
    slow, usual = set(held_up(run)), median_epoch(run)
    seconds = [usual if i in slow else s for i, s in enumerate(epoch_seconds(run), 1)]
    return [float(end) for end in np.cumsum(seconds)]


def pace_note(run: RunLike) -> str | None:
    """One sentence on a run's held-up epochs, if it has any."""
    slow = held_up(run)
    if not slow:
        return None
    which = f"epoch {slow[0]}" if len(slow) == 1 else f"epochs {_ranges(slow)}"
    return (
        f"{run_name(run)}: {which} took over {1 / SLOW:.2f} times its median epoch ({median_epoch(run):,.1f} s), "
        "as when something else uses the device; in times and speeds here the median stands for "
        f"{'it' if len(slow) == 1 else 'them'}."
    )


def pace_notes(runs: Iterable[RunLike]) -> list[str]:
    """Those sentences, for the runs that need one."""
    return [note for note in map(pace_note, runs) if note]


def _ranges(numbers: list[int]) -> str:
    """``1 to 3, 7``."""
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][-1] + 1:
            spans[-1].append(n)
        else:
            spans.append([n])
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]} to {s[-1]}" for s in spans)
