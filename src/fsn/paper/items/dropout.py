"""Beyond the paper: what dropout on the feed-forward output does to new text and to copies.

The paper trains FSN and transformer with it. Our FSN has none by default, because its loss is lower so; this is what
that changes.
"""

from __future__ import annotations

from fsn.measure import Table, family_table, seed_summary
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.depth import BIN_NAMES, against, cell, interval, plain
from fsn.paper.item import Item, Result, picture
from fsn.paper.needs import Need
from fsn.paper.rows import Measurement, compare, grouped
from fsn.paper.values import cite
from fsn.train import Run

REFERENCE = needs.TRANSFORMER.seed(0)
MODELS: dict[str, Need] = {"FSN": needs.FSN.seed(0), "FSN, dropout 0.1": needs.DROPOUT}
IN_THE_PAPER = "FSN in the paper"
SEEDS = ("FSN, s0", "FSN, s1", "FSN, s2")


def margins(bench: Bench) -> Table:
    """One row per model that is there and bin, against the transformer."""

    def measure() -> Table:
        runs = {name: run for name, need in MODELS.items() for run in bench.by_seed(need).values()}
        return against(bench, "text", runs, bench.losses(bench.run(REFERENCE), "text"))

    return bench.memo(("dropout margins",), measure)


def beside_the_paper(ours: Table) -> Table:
    """The seed means of :func:`~fsn.measure.family_table` with the paper's three seeds as one more family."""
    table = family_table(ours, {name: [name] for name in dict.fromkeys(ours.column("run"))})
    rows = list(table.rows)
    for name in BIN_NAMES:
        values = [cite("copy_depth", "margins", seed, plain(name), "margin").value for seed in SEEDS]
        summary = seed_summary(values)
        rows.append(
            {"family": IN_THE_PAPER, "bin": name, "seeds": summary.count, "mean": summary.mean}
            | {"std": summary.std, "min": summary.low, "max": summary.high, "range": summary.range}
        )
    return Table(table.columns, rows, table.formats)


def compute_item(bench: Bench) -> Result:
    rows = []
    for model, need in MODELS.items():
        found = []
        for name in BIN_NAMES:

            def measure(
                runs: list[Run], reference: list[Run], model: str = model, name: str = name
            ) -> Measurement:
                one = cell(margins(bench), model, name)
                ends = f"95 % {interval(one['low'], one['high'])}"
                return one["margin"], f"{ends}, {one['loss']:.4f} bits per target"

            paper = cite("copy_depth", "margins", "FSN, mean", plain(name), "margin")
            pair = [need, REFERENCE]
            found.append(compare(bench, f"{model}, depth {name}", paper, pair, measure, "+.4f"))
        rows += grouped(f"{model}, best of {bench.epoch(need.epochs)} epochs", found)
    result = Result(rows=rows)
    if all(row.ours is not None for row in rows):
        result.notes.append(
            "Margins against the transformer, which has dropout 0.1 here and in the paper; best weights of each, the "
            "paper's after 50 epochs. Dropout makes new text dearer and copies cheaper."
        )
        result.pictures.append(
            picture(
                "dropout",
                "Margins against the transformer by copy depth, without dropout and with dropout 0.1, and the paper's. "
                "Below zero the model is ahead.",
                lambda plots, surface: plots.depth_bars(beside_the_paper(margins(bench)), surface),
                margins(bench),
            )
        )
    return result


ITEM = Item(
    "dropout",
    "What dropout does to copying",
    "beyond the paper",
    "Copy-depth margins of the FSN with and without dropout on the feed-forward output, beside the paper's.",
    compute_item,
    (*MODELS.values(), REFERENCE),
    ("text",),
)
