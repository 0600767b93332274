"""Beyond the paper: where each model looks when a text says something again."""

from __future__ import annotations

from fsn.measure import Looks, look, said_again, stacked
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result, picture
from fsn.paper.needs import Need
from fsn.paper.rows import compare
from fsn.train import Run

MODELS: dict[str, Need] = {
    "FSN": needs.FSN.seed(0),
    "No phases": needs.NO_PHASES.seed(0),
    "Kuramoto": needs.KURAMOTO.seed(0).after(30),
    "transformer": needs.TRANSFORMER.seed(0),
}


def seen(bench: Bench, name: str) -> Looks:
    """What one model's best weights do with passages of the validation split."""
    run = bench.run(MODELS[name])

    def measure() -> Looks:
        windows, period = said_again(bench.corpus("text").valid, bench.scale.length(256))
        return look(bench.model(run), windows, period, name)

    return bench.memo(("looks", name), measure)


def compute_item(bench: Bench) -> Result:
    rows = []
    for name, need in MODELS.items():
        for offset, words in ((0, "the same place"), (1, "what came next")):

            def measure(runs: list[Run], name: str = name, offset: int = offset) -> tuple[float, str]:
                layer, weight = seen(bench, name).most(offset)
                return weight, f"layer {layer}"

            title = f"{name}: attention of the layer that looks most at {words}"
            rows.append(compare(bench, title, None, [need], measure, ".3f"))

        def saved(runs: list[Run], name: str = name) -> tuple[float, str]:
            found = seen(bench, name)
            return found.second - found.first, f"from {found.first:.3f} to {found.second:.3f}"

        rows.append(
            compare(bench, f"{name}: bits a symbol, second saying minus first", None, [need], saved, "+.3f")
        )
    result = Result(rows=rows)
    found = [seen(bench, name) for name, row in zip(MODELS, rows[::3], strict=True) if row.ours is not None]
    if found:
        result.notes.append(
            "Passages of two fifths of a window, one fifth of other text, the passage again. Attention passes on what "
            "lies where it looks, so a transformer that copies looks one place further, at what came next. Coupling to "
            "successors passes that on from the place itself."
        )
        result.pictures.append(
            picture(
                "looks",
                "Mean attention from a passage said a second time to its first saying, by layer: at 0 the same place, "
                "at +1 what came next.",
                lambda plots, surface: plots.looks(found, surface),
                stacked([one.table() for one in found]),
            )
        )
    return result


ITEM = Item(
    "looks",
    "Where it looks",
    "beyond the paper",
    "Attention when a text says something again: at the place itself, or at what came next.",
    compute_item,
    tuple(MODELS.values()),
    ("text",),
)
