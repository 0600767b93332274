"""Beyond the paper: what dropout on the feed-forward output does to new text and to copies.

The paper trains all its models with it. Our FSN and Kuramoto attention have none by default, because the FSN's loss is
lower so; this is what that changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from fsn.measure import Table, family_table, seed_summary
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.depth import BIN_NAMES, against, cell, interval, plain
from fsn.paper.item import Item, Picture, Result, picture
from fsn.paper.needs import Need
from fsn.paper.rows import Measurement, Row, compare, grouped
from fsn.paper.values import cite
from fsn.train import Run

REFERENCE = needs.TRANSFORMER.seed(0)


@dataclass(frozen=True)
class Pair:
    """A model without and with dropout, and what the paper's copy-depth table calls it."""

    name: str
    without: Need
    dropped: Need
    paper: str
    figure: str

    @property
    def models(self) -> dict[str, Need]:
        return {self.name: self.without, f"{self.name}, dropout 0.1": self.dropped}

    @property
    def in_the_paper(self) -> str:
        return f"{self.name} in the paper"


FSN = Pair("FSN", needs.FSN.seed(0), needs.DROPOUT, "FSN", "dropout")
KURAMOTO = Pair(
    "Kuramoto attention",
    needs.KURAMOTO.seed(0).after(30),
    needs.KURAMOTO_DROPOUT,
    "Base layer",
    "dropout-kuramoto",
)
PAIRS = (FSN, KURAMOTO)


def margins(bench: Bench, pair: Pair) -> Table:
    """One row per model that is there and bin, against the transformer."""

    def measure() -> Table:
        runs = {name: run for name, need in pair.models.items() for run in bench.by_seed(need).values()}
        return against(bench, "text", runs, bench.losses(bench.run(REFERENCE), "text"))

    return bench.memo(("dropout margins", pair.name), measure)


def beside_the_paper(ours: Table, pair: Pair) -> Table:
    """The seed means of :func:`~fsn.measure.family_table` with the paper's three seeds as one more family."""
    table = family_table(ours, {name: [name] for name in dict.fromkeys(ours.column("run"))})
    rows = list(table.rows)
    for name in BIN_NAMES:
        seeds = [f"{pair.paper}, s{seed}" for seed in needs.THREE]
        values = [cite("copy_depth", "margins", seed, plain(name), "margin").value for seed in seeds]
        summary = seed_summary(values)
        rows.append(
            {"family": pair.in_the_paper, "bin": name, "seeds": summary.count, "mean": summary.mean}
            | {"std": summary.std, "min": summary.low, "max": summary.high, "range": summary.range}
        )
    return Table(table.columns, rows, table.formats)


def pair_rows(bench: Bench, pair: Pair) -> list[Row]:
    rows = []
    for model, need in pair.models.items():
        found = []
        for name in BIN_NAMES:

            def measure(
                runs: list[Run], reference: list[Run], model: str = model, name: str = name
            ) -> Measurement:
                one = cell(margins(bench, pair), model, name)
                ends = f"95 % {interval(one['low'], one['high'])}"
                return one["margin"], f"{ends}, {one['loss']:.4f} bits per target"

            paper = cite("copy_depth", "margins", f"{pair.paper}, mean", plain(name), "margin")
            both = [need, REFERENCE]
            found.append(compare(bench, f"{model}, depth {name}", paper, both, measure, "+.4f"))
        rows += grouped(f"{model}, best of {bench.epoch(need.epochs)} epochs", found)
    return rows


def pair_picture(bench: Bench, pair: Pair) -> Picture:
    ours = margins(bench, pair)
    return picture(
        pair.figure,
        f"{pair.name}: margins against the transformer by copy depth, without dropout and with dropout 0.1, and the "
        "paper's. Below zero the model is ahead.",
        lambda plots, surface: plots.depth_bars(beside_the_paper(ours, pair), surface),
        ours,
    )


def compute_item(bench: Bench) -> Result:
    result = Result(rows=[])
    for pair in PAIRS:
        rows = pair_rows(bench, pair)
        result.rows += rows
        if all(row.ours is not None for row in rows):
            result.pictures.append(pair_picture(bench, pair))
    if result.pictures:
        result.notes.append(
            "Margins against the transformer, which has dropout 0.1 here and in the paper; best weights of each, the "
            "paper's after 50 epochs. Ours with dropout have fewer epochs behind them than those without: where they "
            "are dearer, that may be why."
        )
    return result


ITEM = Item(
    "dropout",
    "What dropout does to copying",
    "beyond the paper",
    "Copy-depth margins of the FSN and of Kuramoto attention with and without dropout on the feed-forward output, "
    "beside the paper's.",
    compute_item,
    (*FSN.models.values(), *KURAMOTO.models.values(), REFERENCE),
    ("text",),
)
