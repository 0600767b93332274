"""Copy depth at matched epochs: where the advantage lies in runs that have not reached the paper's budget."""

from __future__ import annotations

from fsn.measure import Table, family_table, margin_table
from fsn.paper.bench import Bench, NotRun
from fsn.paper.item import Item, Result, picture
from fsn.paper.library import epochs_of
from fsn.paper.needs import Need
from fsn.paper.rows import MEASURED, MISSING, Row
from fsn.train import Run

SEED = 0
REFERENCE = Need("transformer")
MODELS = {"Base layer": Need("kuramoto"), "FSN": Need("fsn"), "No phases": Need("fsn-nophase")}


def by_epochs(bench: Bench, need: Need) -> dict[int, Run]:
    """The seed-0 runs of a model that have weights, by the number of their epochs."""
    found: dict[int, Run] = {}
    for run in bench.library.matching(need, SEED):
        if (run.folder / "best.safetensors").is_file():
            found.setdefault(epochs_of(run), run)
    return found


def matched(bench: Bench) -> tuple[int, Run, dict[str, Run]] | None:
    """The most epochs at which a transformer and another model both stand, and the runs that do."""
    references = by_epochs(bench, REFERENCE)
    others = {name: by_epochs(bench, need) for name, need in MODELS.items()}
    common = [e for e in references if e and any(e in runs for runs in others.values())]
    if not common:
        return None
    epochs = max(common)
    return epochs, references[epochs], {name: runs[epochs] for name, runs in others.items() if epochs in runs}


def measure(bench: Bench, reference: Run, models: dict[str, Run]) -> Table:
    losses = {name: bench.losses(run, "text") for name, run in models.items()}
    base = bench.losses(reference, "text")
    return margin_table(losses, base, bench.battery("text"), resamples=bench.scale.cluster_resamples)


def compute_item(bench: Bench) -> Result:
    found = matched(bench)
    if found is None:
        remark = "no transformer and FSN of seed 0 with weights at the same number of epochs"
        return Result(rows=[Row("margins at matched epochs", None, None, state=MISSING, remark=remark)])
    epochs, reference, models = found
    try:
        table = measure(bench, reference, models)
    except NotRun as reason:
        return Result(rows=[Row("margins at matched epochs", None, None, state=MISSING, remark=str(reason))])
    rows = []
    for line in table.rows:
        ends = f"95 % [{line['low']:+.4f}, {line['high']:+.4f}], {line['tokens']:,} targets".replace("-", "−")
        title = f"{line['run']}, depth {line['bin']}"
        group = f"Epoch {epochs}, against {reference.name}"
        rows.append(Row(title, None, line["margin"], None, "1", MEASURED, "+.4f", ends, group))
    families = family_table(table, {name: [name] for name in models})
    shown = picture(
        "copy-depth-so-far",
        f"Margins against the transformer by copy depth, both after {epochs} epochs, seed 0. Below zero the model "
        "is ahead.",
        lambda plots, surface: plots.depth_bars(families, surface),
        table,
    )
    return Result(rows=rows, pictures=[shown])


ITEM = Item(
    "copy-depth-so-far",
    "Copy depth at matched epochs",
    "beyond the paper",
    "The copy-depth margins of seed 0 against the transformer of the same number of epochs, whatever that is.",
    compute_item,
    roles=("text",),
)
