"""Training failures: how early a plateau shows, and a divergence that gave no warning."""

from __future__ import annotations

import math
from collections.abc import Callable

from fsn.measure import health_table
from fsn.measure.runs import diverged_at, epoch_value, epoch_values, finished_epochs
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.needs import Need
from fsn.paper.rows import Measurement, Row, compare, grouped, levels
from fsn.paper.values import Cited, cite, macro
from fsn.train import Run

CODE_FIRST = needs.CODE_FSN.after(1)
PLACES = ("lowest seed", "middle seed", "highest seed")


def first_losses(runs: list[Run]) -> list[float]:
    """Validation loss after epoch one, rising."""
    return sorted(epoch_value(finished_epochs(run)[0], "valid_bits") for run in runs if finished_epochs(run))


def rank(place: int) -> Callable[[list[Run]], Measurement]:
    """The lowest (0), middle (1) or highest (2) of the seeds' first losses."""

    def measure(runs: list[Run]) -> Measurement:
        losses = first_losses(runs)
        index = {0: 0, 1: len(losses) // 2, 2: len(losses) - 1}[place]
        return losses[index]

    return measure


def first_epoch_rows(bench: Bench, need: Need, key: str) -> list[Row]:
    healthy = sorted(
        (cite("early", f"{key} healthy seeds @1", end) for end in "01"), key=lambda one: one.value
    )
    papers: list[Cited] = [*healthy, cite("early", f"{key} plateau seed @1")]
    rows = [
        compare(bench, f"epoch 1, {place}", paper, [need], rank(i), whole=True)
        for i, (place, paper) in enumerate(zip(PLACES, papers, strict=True))
    ]
    return [
        *levels(bench, "code", rows),
        compare(
            bench,
            "epoch 1, highest minus lowest",
            papers[2].minus(papers[0]),
            [need],
            lambda runs: first_losses(runs)[-1] - first_losses(runs)[0],
            "+.4f",
            f"more than {macro('codeSeedSepMin').value:g} marks a plateau failure",
            whole=True,
        ),
    ]


def last_finite(run: Run) -> tuple[int, float]:
    """The last epoch whose loss was finite, and that loss; epoch 0 where there is none."""
    losses = epoch_values(finished_epochs(run), "valid_bits")
    known = [(i, loss) for i, loss in enumerate(losses, 1) if math.isfinite(loss)]
    return known[-1] if known else (0, math.nan)


def last_before(runs: list[Run]) -> Measurement:
    """The last loss of a seed that diverged."""
    for run in runs:
        epoch = diverged_at(run)
        if epoch is not None:
            return last_finite(run)[1], f"{run.name}, not finite in epoch {epoch}"
    return math.nan, f"none of the {len(runs)} seeds diverged"


def compute_item(bench: Bench) -> Result:
    diverging = compare(
        bench,
        "FSN-MF: last loss of a seed that diverged",
        cite("early", "fsn-mf diverging seed @16 (non-finite at 17)"),
        [needs.MEAN_FIELD],
        last_before,
        remark="paper: epoch 16 of 30",
    )
    rows = (
        grouped("Code, first epoch", first_epoch_rows(bench, CODE_FIRST, "code"))
        + grouped("Code, length 512, first epoch", first_epoch_rows(bench, needs.LONG_SEEDS, "code/seq512"))
        + grouped("Divergence", [diverging])
    )
    result = Result(rows=rows)
    if bench.library.runs:
        result.tables.append(("Health of every run found", health_table(bench.library.runs)))
    return result


ITEM = Item(
    "failures",
    "Training failures",
    "Section 4.2",
    "First-epoch losses of the code seeds, where plateau failures separate, and the FSN-MF divergence.",
    compute_item,
    (CODE_FIRST, CODE_FIRST.seed(2), needs.LONG_SEEDS, needs.MEAN_FIELD),
)
