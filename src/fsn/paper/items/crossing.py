"""At the crossing: how fast both models still improve, and how far the FSN goes on below the target."""

from __future__ import annotations

import math
from collections.abc import Callable

from fsn.measure import crossing_table, pace_notes
from fsn.measure.wallclock import Crossing
from fsn.paper import needs
from fsn.paper.bench import Bench, NotRun
from fsn.paper.item import Item, Result
from fsn.paper.items.wall_clock import NEEDS, rung
from fsn.paper.rows import Measurement, compare
from fsn.paper.values import cite, stated

COMPLETED = ("1M", "2M", "4M")
"""The rungs whose FSN runs finish their thirty epochs in the paper."""


def crossings(bench: Bench, names: tuple[str, ...]) -> list[Crossing]:
    """Every FSN seed against its rung's mean transformer."""
    return [crossing for name in names for crossing in rung(bench, name).against_mean]


def extreme(pick: Callable[[list[float]], float], values: list[float]) -> Measurement:
    """The least or the largest of the values of seeds that crossed."""
    kept = [value for value in values if math.isfinite(value)]
    return pick(kept) if kept else (math.nan, "no FSN seed reaches the transformer's final loss")


def _needs(names: tuple[str, ...]) -> list[needs.Need]:
    return [need for name in names for need in needs.RUNGS[name]]


def compute_item(bench: Bench) -> Result:
    every = tuple(needs.RUNGS)

    def rates() -> list[float]:
        return [1000 * c.rate for c in crossings(bench, every)]

    def stalled() -> list[float]:
        return [1000 * c.reference_rate for c in crossings(bench, every)]

    def gains() -> list[float]:
        return [c.gain_after for c in crossings(bench, COMPLETED)]

    low, high = (cite("wall_clock", "final loss below target after crossing", end) for end in "01")
    rows = [
        compare(
            bench,
            "transformer, last five epochs, fastest rung: millibits per epoch",
            stated(1),
            _needs(every),
            lambda *runs: extreme(max, stalled()),
            ".2f",
            "paper: at most about one",
            timed=True,
        ),
        compare(
            bench,
            "FSN at the crossing, slowest seed: millibits per epoch",
            stated(1),
            _needs(every),
            lambda *runs: extreme(min, rates()),
            ".2f",
            "paper: between roughly one and nine",
            timed=True,
        ),
        compare(
            bench,
            "FSN at the crossing, fastest seed: millibits per epoch",
            stated(9),
            _needs(every),
            lambda *runs: extreme(max, rates()),
            ".2f",
            timed=True,
        ),
        compare(
            bench,
            "final loss below the target after the crossing, least",
            low,
            _needs(COMPLETED),
            lambda *runs: extreme(min, gains()),
            timed=True,
        ),
        compare(
            bench,
            "final loss below the target after the crossing, most",
            high,
            _needs(COMPLETED),
            lambda *runs: extreme(max, gains()),
            timed=True,
        ),
    ]
    result = Result(rows=rows, notes=pace_notes(bench.library.used(NEEDS)))
    there = [name for name, pair in needs.RUNGS.items() if all(bench.by_seed(need) for need in pair)]
    for name in there:
        try:
            result.tables.append((f"{name}, every seed", crossing_table(rung(bench, name).against_mean)))
        except NotRun as reason:
            result.notes.append(f"{name}: {reason}")
    return result


ITEM = Item(
    "crossing",
    "Rates at the crossing and gain after it",
    "Section 4.6",
    "How fast each model still improves when the FSN reaches the transformer's final loss, and what follows.",
    compute_item,
    NEEDS,
)
