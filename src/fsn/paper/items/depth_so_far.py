"""Copy depth at matched epochs: where the advantage lies in runs that have not reached the paper's budget."""

from __future__ import annotations

from fsn.measure import best_epoch, depth_losses, family_table
from fsn.paper.bench import Bench, NotRun
from fsn.paper.depth import against, interval
from fsn.paper.item import Item, Result, picture
from fsn.paper.library import epochs_of
from fsn.paper.needs import Need
from fsn.paper.rows import MEASURED, MISSING, Row
from fsn.train import Run

SEED = 0
REFERENCE = Need("transformer")
MODELS = {"Kuramoto": Need("kuramoto"), "FSN": Need("fsn"), "No phases": Need("fsn-nophase")}


def by_epoch(bench: Bench, need: Need) -> dict[int, Run]:
    """The seed-0 runs of a model, by the epoch of the weights they kept: their best."""
    found: dict[int, Run] = {}
    for run in bench.library.matching(need, SEED):
        if epochs_of(run) and (run.folder / "best.safetensors").is_file():
            found.setdefault(best_epoch(run).epoch, run)
    return found


def matched(bench: Bench) -> tuple[int, Run, dict[str, Run]] | None:
    """The last epoch of which a transformer and another model both have weights, and the runs that do.

    Beside them any model whose weights are earlier by a tenth at most: that can only be to its disadvantage.
    """
    references = by_epoch(bench, REFERENCE)
    others = {name: by_epoch(bench, need) for name, need in MODELS.items()}
    common = [e for e in references if any(e in runs for runs in others.values())]
    if not common:
        return None
    epoch = max(common)
    models: dict[str, Run] = {}
    for name, runs in others.items():
        near = [e for e in runs if 0.9 * epoch <= e <= epoch]
        if near:
            title = name if max(near) == epoch else f"{name} (epoch {max(near)})"
            models[title] = runs[max(near)]
    return epoch, references[epoch], models


def compute_item(bench: Bench) -> Result:
    found = matched(bench)
    if found is None:
        remark = "no transformer and FSN of seed 0 with weights of the same epoch"
        return Result(rows=[Row("margins at matched epochs", None, None, state=MISSING, remark=remark)])
    epoch, reference, models = found
    try:
        table = against(bench, "text", models, bench.losses(reference, "text"))
    except NotRun as reason:
        return Result(rows=[Row("margins at matched epochs", None, None, state=MISSING, remark=str(reason))])
    rows = []
    for line in table.rows:
        ends = f"95 % {interval(line['low'], line['high'])}, {line['tokens']:,} targets"
        title = f"{line['run']}, depth {line['bin']}"
        group = f"Epoch {epoch}, against {reference.name}"
        rows.append(Row(title, None, line["margin"], None, "1", MEASURED, "+.4f", ends, group))
    every = {"transformer": reference, **models}
    levels = depth_losses(
        {name: bench.losses(run, "text") for name, run in every.items()}, bench.battery("text")
    )
    families = family_table(table, {name: [name] for name in models})
    shown = picture(
        "copy-depth-so-far",
        f"Margins against the transformer by copy depth, weights of epoch {epoch}, seed 0. Below zero the model "
        "is ahead.",
        lambda plots, surface: plots.depth_bars(families, surface),
        table,
    )
    return Result(rows=rows, tables=[("Bits per target by copy depth", levels)], pictures=[shown])


ITEM = Item(
    "copy-depth-so-far",
    "Copy depth at matched epochs",
    "beyond the paper",
    "The copy-depth margins of seed 0 against the transformer's weights of the same epoch, whatever that is.",
    compute_item,
    roles=("text",),
)
