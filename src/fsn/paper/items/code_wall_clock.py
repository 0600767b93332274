"""Wall-clock on code: each FSN seed against the transformer of the same seed, at both window lengths."""

from __future__ import annotations

from collections.abc import Callable

from fsn.measure import TargetLoss, pace_notes, time_to_target
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.needs import Need
from fsn.paper.rows import compare
from fsn.paper.values import cite
from fsn.train import Run


def paired(bench: Bench, fsn: Need, transformer: Need) -> TargetLoss:
    """One FSN run against one transformer run."""

    def measure() -> TargetLoss:
        ours, theirs = bench.run(fsn), bench.run(transformer)
        bench.same_setting([ours], [theirs])
        return time_to_target([ours], [theirs], bench.epoch(30), steady=True)

    return bench.memo(("paired", fsn, transformer), measure)


PAIRS = tuple((needs.CODE_FSN.seed(seed), needs.CODE_TRANSFORMER.seed(seed)) for seed in (0, 2))
LONG = (needs.LONG_FSN, needs.LONG_TRANSFORMER)


def compute_item(bench: Bench) -> Result:
    def ratio(pair: tuple[Need, Need]) -> Callable[..., float]:
        return lambda ours, theirs: paired(bench, *pair).against_mean[0].ratio

    def slowdown(ours: list[Run], theirs: list[Run]) -> float:
        return paired(bench, *LONG).slowdown

    rows = [
        compare(
            bench,
            f"length {bench.scale.length(256)}, seed {pair[0].seeds[0]}: FSN time over transformer time",
            cite("wall_clock", "code/seq256", str(i)),
            pair,
            ratio(pair),
            ".2f",
            timed=True,
        )
        for i, pair in enumerate(PAIRS)
    ]
    long = bench.scale.length(512)
    rows += [
        compare(
            bench,
            f"length {long}, seed 0: FSN time over transformer time",
            cite("wall_clock", "code/seq512"),
            LONG,
            ratio(LONG),
            ".2f",
            timed=True,
        ),
        compare(
            bench,
            f"length {long}: per-epoch slowdown",
            cite("wall_clock", "code/seq512 per_epoch_slowdown"),
            LONG,
            slowdown,
            ".2f",
            timed=True,
        ),
    ]
    return Result(rows=rows, notes=pace_notes(bench.library.used(ITEM.needs)))


ITEM = Item(
    "code-wall-clock",
    "Wall-clock on code",
    "Section 4.6",
    "Time to the transformer's thirty-epoch loss on code, seed by seed, at both window lengths.",
    compute_item,
    (*(need for pair in PAIRS for need in pair), *LONG),
)
