"""The scale ladder: one, two, four and eight million parameters, epoch by epoch against the transformer."""

from __future__ import annotations

from fsn.measure import loss_at
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.needs import Need
from fsn.paper.rows import Row, compare, grouped
from fsn.paper.values import cite
from fsn.train import Run

RUNGS = ("2M", "4M", "8M")
EPOCH = {"1M": 30, "2M": 30, "4M": 30, "8M": 14}
"""Where the two are compared: the eight-million FSN of the paper has fourteen epochs."""


def pair(rung: str, seed: int = 0) -> tuple[Need, Need]:
    """The seed-0 runs of a rung, for the epochs they are compared at."""
    fsn, transformer = needs.RUNGS[rung]
    return fsn.seed(seed).after(EPOCH[rung]), transformer.seed(seed).after(EPOCH[rung])


def rung_rows(bench: Bench, rung: str) -> list[Row]:
    def at(runs: list[Run], epochs: int) -> float:
        return loss_at(runs, bench.epoch(epochs)).mean

    epochs = EPOCH[rung]
    fsn, transformer = pair(rung)
    mine, theirs = cite("ladder", rung, f"fsn@{epochs}"), cite("ladder", rung, f"transformer@{epochs}")
    when = f"epoch {bench.epoch(epochs)}"
    rows = [
        compare(bench, f"FSN, {when}", mine, [fsn], lambda r: at(r, epochs)),
        compare(bench, f"transformer, {when}", theirs, [transformer], lambda r: at(r, epochs)),
        compare(
            bench,
            "FSN minus transformer",
            mine.minus(theirs),
            [fsn, transformer],
            lambda a, b: at(a, epochs) - at(b, epochs),
            "+.4f",
        ),
    ]
    if epochs != 30:
        final = cite("ladder", rung, "transformer@30")
        rows.append(
            compare(
                bench,
                f"transformer, epoch {bench.epoch(30)}",
                final,
                [transformer.after(30)],
                lambda r: at(r, 30),
            )
        )
    return grouped(rung, rows)


def compute_item(bench: Bench) -> Result:
    fsn, transformer = pair("1M")
    end = bench.epoch(30)
    first = compare(
        bench,
        "FSN minus transformer, seed 0",
        None,
        [fsn, transformer],
        lambda a, b: loss_at(a, end).mean - loss_at(b, end).mean,
        "+.4f",
        "the paper gives seed means at this rung (see main)",
    )
    rows = grouped("1M", [first])
    for rung in RUNGS:
        rows += rung_rows(bench, rung)
    return Result(rows=rows)


ITEM = Item(
    "ladder",
    "The scale ladder",
    "Section 4.5",
    "The epoch-matched comparison at two, four and eight million parameters, seed 0.",
    compute_item,
    (*(need for rung in EPOCH for need in pair(rung)), pair("8M")[1].after(30)),
)
