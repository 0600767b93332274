"""Wall-clock at the thirty-epoch target: what a slower epoch costs when fewer of them are needed."""

from __future__ import annotations

import math

from fsn.errors import UserError
from fsn.measure import TargetLoss, pace_notes, time_to_target, wallclock_table
from fsn.measure.runs import diverged_at
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result, picture
from fsn.paper.rows import Measurement, Row, compare, grouped
from fsn.paper.values import Cited, cite
from fsn.train import Run

COLUMNS = (
    ("per-epoch slowdown", "slowdown", ("per_epoch_slowdown",)),
    ("against the mean transformer, median", "vs_mean", ("vs_mean", "median")),
    ("against the mean transformer, lowest", "vs_mean_min", ("vs_mean", "range", "0")),
    ("against the mean transformer, highest", "vs_mean_max", ("vs_mean", "range", "1")),
    ("against the lowest-loss transformer, median", "vs_lowest", ("vs_lowest", "median")),
    ("against the lowest-loss transformer, lowest", "vs_lowest_min", ("vs_lowest", "range", "0")),
    ("against the lowest-loss transformer, highest", "vs_lowest_max", ("vs_lowest", "range", "1")),
)


def rung(bench: Bench, name: str) -> TargetLoss:
    """One rung of the ladder, measured on the seeds that are there."""
    fsn, transformer = needs.RUNGS[name]

    def measure() -> TargetLoss:
        ours = bench.runs(fsn)
        theirs = [run for run in bench.runs(transformer) if diverged_at(run) is None]
        bench.same_setting(ours, theirs)
        return time_to_target(ours, theirs, bench.epoch(30), name, steady=True)

    return bench.memo(("rung", name), measure)


def _cited(name: str, path: tuple[str, ...]) -> Cited | None:
    try:
        return cite("wall_clock", name, *path)
    except UserError:  # the eight-million rung has one seed and no range
        return None


def rung_rows(bench: Bench, name: str) -> list[Row]:
    rows = []
    for title, column, path in COLUMNS:
        paper = _cited(name, path)
        if paper is None and path[-1] in "01":
            continue

        def measure(ours: list[Run], theirs: list[Run], column: str = column) -> Measurement:
            found = rung(bench, name)
            value = float(wallclock_table([found]).rows[0][column])
            side = found.against_lowest if "lowest" in column else found.against_mean
            never = sum(math.isinf(c.ratio) for c in side) if "vs" in column else 0
            return value, f"{never} of {len(side)} FSN seeds never reach it" if never else ""

        rows.append(compare(bench, title, paper, needs.RUNGS[name], measure, ".2f", timed=True))
    return grouped(name, rows)


def compute_table(bench: Bench) -> Result:
    rows = [row for name in needs.RUNGS for row in rung_rows(bench, name)]
    return Result(rows=rows, notes=_devices(bench))


def _devices(bench: Bench) -> list[str]:
    runs = bench.library.used([need for pair in needs.RUNGS.values() for need in pair])
    settings = sorted({f"{run.environment.get('device')}, {run.recipe.precision}" for run in runs})
    notes = ["The paper's times are those of an A100-class GPU in float32 without compilation."]
    return notes + ([f"Ours: {'; '.join(settings)}."] if settings else []) + pace_notes(runs)


def compute_figure(bench: Bench) -> Result:
    """The figure needs at least one rung; its rows say where each mean curve crosses."""
    rows, scales = [], []
    for name, pair in needs.RUNGS.items():
        fsn, transformer = pair

        def crossing(ours: list[Run], theirs: list[Run], name: str = name) -> Measurement:
            crossings = rung(bench, name).against_mean
            epochs = [c.epoch for c in crossings if c.epoch is not None]
            return float(sum(epochs) / len(epochs)) if epochs else math.inf

        title = f"{name}: epoch at which the FSN reaches the transformer's mean final loss, mean over seeds"
        rows.append(compare(bench, title, None, [fsn, transformer], crossing, ".1f", timed=True))
        if rows[-1].ours is not None:
            scales.append(rung(bench, name))
    result = Result(rows=rows, notes=pace_notes(bench.library.used(NEEDS)))
    if scales:
        result.pictures.append(
            picture(
                "wall-clock",
                "Validation loss against wall-clock. Faint lines are seeds, bold lines their means; the band "
                "spans the transformers' final losses, the circle marks where the mean FSN crosses their "
                "mean.",
                lambda plots, surface: plots.wallclock(scales, surface),
                wallclock_table(scales),
            )
        )
    return result


NEEDS = tuple(need for pair in needs.RUNGS.values() for need in pair)
TABLE = Item(
    "wall-clock",
    "Wall-clock at the thirty-epoch target",
    "Table 2",
    "Time of the FSN to reach the transformer's thirty-epoch loss, over the transformer's own time.",
    compute_table,
    NEEDS,
)
FIGURE = Item(
    "wall-clock-figure",
    "Validation loss against wall-clock",
    "Figure 3",
    "Loss against cumulative seconds of training and validation at each rung of the ladder.",
    compute_figure,
    NEEDS,
)
