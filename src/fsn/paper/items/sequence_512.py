"""The long-context arm on code: the same pair of seeds at twice the window length."""

from __future__ import annotations

import numpy as np

from fsn.measure import epoch_margins, loss_at
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.rows import Row, compare, levels
from fsn.paper.values import cite, macro
from fsn.train import Run

SHORT = (needs.CODE_FSN.seed(0), needs.CODE_TRANSFORMER.seed(0))
LONG = (needs.LONG_FSN, needs.LONG_TRANSFORMER)
MARGINS = ("main_table", "code margins fsn minus transformer")


def final_margin(bench: Bench, ours: list[Run], theirs: list[Run]) -> float:
    end = bench.epoch(30)
    return loss_at(ours, end).mean - loss_at(theirs, end).mean


def mean_margin(bench: Bench, ours: list[Run], theirs: list[Run]) -> float:
    """Mean over the epochs of the margin between the two runs of a seed."""
    return float(np.mean(epoch_margins(ours[0], theirs[0], bench.epoch(30))))


def drop(bench: Bench, short: list[Run], long: list[Run]) -> float:
    """Bits gained by doubling the context."""
    end = bench.epoch(30)
    return loss_at(short, end).mean - loss_at(long, end).mean


def compute_item(bench: Bench) -> Result:
    end = bench.epoch(30)
    short, long = bench.scale.length(256), bench.scale.length(512)
    place = ("main_table", "code@30/seq512")
    rows: list[Row] = [
        compare(bench, f"FSN, length {long}", cite(*place, "fsn"), [LONG[0]], lambda r: loss_at(r, end)),
        compare(
            bench,
            f"transformer, length {long}",
            cite(*place, "transformer"),
            [LONG[1]],
            lambda r: loss_at(r, end),
        ),
    ]
    rows = levels(bench, "code", rows)
    for length, pair, key in ((short, SHORT, "seq256"), (long, LONG, "seq512")):
        rows += [
            compare(
                bench,
                f"final margin, length {length}",
                cite(*MARGINS, f"{key} final"),
                pair,
                lambda a, b: final_margin(bench, a, b),
                "+.4f",
            ),
            compare(
                bench,
                f"mean margin over the epochs, length {length}",
                cite(*MARGINS, f"{key} epoch mean"),
                pair,
                lambda a, b: mean_margin(bench, a, b),
                "+.4f",
            ),
        ]
    rows += [
        compare(
            bench,
            f"{name}: gain from doubling the context",
            macro(source),
            [SHORT[i], LONG[i]],
            lambda a, b: drop(bench, a, b),
        )
        for i, (name, source) in enumerate(
            (("FSN", "codeContextDropFSN"), ("transformer", "codeContextDropXF"))
        )
    ]
    return Result(rows=rows)


ITEM = Item(
    "sequence-512",
    "Code at sequence length 512",
    "Section 4.2",
    "Final and epoch-mean margins of the seed-0 pair at both window lengths, and the gain from more context.",
    compute_item,
    (*SHORT, *LONG),
)
