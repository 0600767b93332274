"""Beyond the paper: which field of which layer copies. Each is taken out of the trained model in turn."""

from __future__ import annotations

import math

import numpy as np

from fsn.measure import Table
from fsn.measure.kernel import FIELDS
from fsn.measure.lesions import lesion_table, sample
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result, picture
from fsn.paper.rows import Row, compare
from fsn.train import Run
from fsn.train.world import choose_device

NEED = needs.FSN.seed(0)
SHALLOW, DEEP = ("0–1",), ("16–23", "24–32")


def measure(bench: Bench, run: Run) -> Table:
    """The lesion table of a run's best weights, on a sample of the copy-depth battery."""
    return bench.memo(
        ("lesions", run.folder),
        lambda: lesion_table(
            run.load_model("best"),  # its own copy: it may move to another device
            bench.corpus("text").valid,
            sample(bench.battery("text")),
            device=choose_device(bench.device),
        ),
    )


def rise(table: Table, field: str, layer: int, depths: tuple[str, ...]) -> float:
    """Bits by which targets of these depths cost more without a field, over all of them."""
    rows = [
        row for row in table.where(field=field, layer=layer).rows if row["depth"] in depths and row["targets"]
    ]
    if not rows:
        return math.nan
    return float(np.average([row["rise"] for row in rows], weights=[row["targets"] for row in rows]))


def compute_item(bench: Bench) -> Result:
    run = bench.library.reached(NEED, NEED.seeds[0])
    layers = range(1, run.model_config.layers + 1) if run is not None else range(1, 2)
    rows: list[Row] = []
    for field in FIELDS:
        for layer in layers:
            for words, depths in (
                ("new text (depth 0–1)", SHALLOW),
                ("long copies (depth 16 and more)", DEEP),
            ):

                def found(
                    runs: list[Run], field: str = field, layer: int = layer, depths: tuple[str, ...] = depths
                ) -> float:
                    return rise(measure(bench, runs[0]), field, layer, depths)

                title = f"without the {field} field of layer {layer}, {words}: rise in bits"
                rows.append(compare(bench, title, None, [NEED], found, "+.3f"))
    result = Result(rows=rows)
    if run is not None and any(row.ours is not None for row in rows):
        table = measure(bench, run)
        result.notes.append(
            "Nothing is trained again after a field is taken out, so a rise says what the rest relies on; what a model "
            "that never had it would lose is for the ablations to say."
        )
        result.pictures.append(
            picture(
                "lesions",
                f"Rise of the loss, in bits per target, when one field of one layer of {run.name} is taken out, by "
                "copy depth.",
                lambda plots, surface: plots.lesions(table, surface),
                table,
            )
        )
    return result


ITEM = Item(
    "lesions",
    "Which field copies",
    "beyond the paper",
    "The present and the successor field of every layer, taken out in turn: what new text and long copies cost then.",
    compute_item,
    (NEED,),
    ("text",),
)
