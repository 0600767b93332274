"""The early checkpoint: eleven epochs of the lean FSN against the converged transformer, by slice."""

from __future__ import annotations

from fsn.measure import EARLY_BINS, Table, loss_at, margin_table
from fsn.measure.copy_depth import bin_name
from fsn.paper import depth, needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.rows import Measurement, Row, compare
from fsn.paper.values import Cited, cite, macro
from fsn.train import Run

SLICES = {"paper": "pooled as in the paper", "standard": "standard slice", "enriched": "enriched slice"}
POOLED = "early checkpoint (lean, epoch 11)"
BY_SLICE = "early checkpoint, by slice"


def margins(bench: Bench, slices: str) -> Table:
    """Margins of the lean checkpoint in the earlier binning (0 and 1–3 in place of 0–1 and 2–3)."""

    def measure() -> Table:
        losses = bench.losses(bench.run(needs.LEAN), "text")
        return margin_table(
            {"lean": losses},
            depth.reference(bench, "text"),
            bench.battery("text"),
            EARLY_BINS,
            slices,
            bench.scale.cluster_resamples,
        )

    return bench.memo(("early", slices), measure)


def row(bench: Bench, name: str, slices: str, paper: Cited | None) -> Row:
    def measure(lean: list[Run], ref: list[Run]) -> Measurement:
        found = margins(bench, slices).where(bin=name).rows[0]
        ends = depth.interval(found["low"], found["high"])
        return found["margin"], f"95 % {ends}, {found['tokens']:,} targets"

    title = f"depth {name}, {SLICES[slices]}"
    return compare(bench, title, paper, [needs.LEAN, needs.REFERENCE], measure, "+.4f")


def compute_item(bench: Bench) -> Result:
    rows = [
        compare(
            bench,
            f"validation loss of the checkpoint, epoch {bench.epoch(11)}",
            cite("early", "fsn-lean@11").also(*macro("leanEpEleven").sources),
            [needs.LEAN],
            lambda runs: loss_at(runs, bench.epoch(11)).mean,
        )
    ]
    for edges in EARLY_BINS:
        name = bin_name(edges)
        pooled = cite("copy_depth", POOLED, depth.plain(name)) if name in depth.DEEP_BINS else None
        rows.append(row(bench, name, "paper", pooled))
        if edges[0] >= 16:
            for slices in ("standard", "enriched"):
                paper = cite("copy_depth", BY_SLICE, depth.plain(name), slices)
                rows.append(row(bench, name, slices, paper))
    return Result(
        rows=rows,
        notes=[
            "On the two shallow bins the paper gives no number: the checkpoint remains behind the converged "
            "transformer there."
        ],
    )


ITEM = Item(
    "early-transfer",
    "Early checkpoint transfer",
    "Section 4.3 and Appendix C",
    "Copy-depth margins of an eleven-epoch checkpoint without noise on the angles, by slice.",
    compute_item,
    (needs.LEAN, needs.REFERENCE),
    ("text",),
)
