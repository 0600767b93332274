"""The ablation screens: no delay, no phases, periodic feed-forward input, no bound, no feed-forward block."""

from __future__ import annotations

import math

from fsn.measure import loss_at
from fsn.measure.runs import diverged_at
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.items.main_table import at_epoch, gap
from fsn.paper.library import epochs_of
from fsn.paper.rows import Measurement, Row, compare, grouped
from fsn.paper.values import cite, macro
from fsn.train import Run

FSN_EARLY = needs.FSN.seed(0, 1, 2).after(2)
NO_PHASES_EARLY = needs.NO_PHASES.after(2)
MEAN_FIELD_EARLY = needs.MEAN_FIELD.seed(0).after(2)


def first_epoch(runs: list[Run]) -> Measurement:
    """Loss after epoch one; infinite where training stopped on a loss that was not finite."""
    run = runs[0]
    if epochs_of(run) == 0:
        return math.inf, f"not finite in epoch {diverged_at(run)}, at step {run.step:,}"
    return loss_at([run], 1).mean if diverged_at(run) != 1 else math.inf


def phase_rows(bench: Bench) -> list[Row]:
    two, end = bench.epoch(2), bench.epoch(30)
    early = "early"
    return [
        compare(
            bench,
            f"FSN, epoch {two}, three seeds",
            cite(early, "fsn@2").also(*macro("sfnEpTwoMean").sources),
            [FSN_EARLY],
            at_epoch(two),
        ),
        compare(
            bench,
            f"no phases, epoch {two}, three seeds",
            cite(early, "fsn-nophase@2").also(*macro("nophaseEpTwoMean").sources),
            [NO_PHASES_EARLY],
            at_epoch(two),
        ),
        compare(
            bench,
            f"no phases minus FSN, epoch {two}",
            cite(early, "fsn-nophase@2").minus(cite(early, "fsn@2")),
            [NO_PHASES_EARLY, FSN_EARLY],
            gap(two),
            "+.4f",
        ),
        compare(
            bench,
            f"no phases minus FSN, epoch {end}",
            macro("nophaseThirty").minus(macro("sfnThirty")),
            [needs.NO_PHASES, needs.FSN],
            gap(end),
            "+.4f",
        ),
    ]


def screen_rows(bench: Bench) -> list[Row]:
    two = bench.epoch(2)
    no_phases = NO_PHASES_EARLY.seed(0)
    return [
        compare(
            bench,
            f"no delay minus FSN, epoch {two}, seed 0",
            cite("early", "no-delay minus full @2 (screen)"),
            [needs.NO_DELAY, FSN_EARLY.seed(0)],
            gap(two),
            "+.4f",
        ),
        compare(
            bench,
            f"periodic feed-forward input, epoch {two}, seed 0",
            cite("early", "fsn-torus-swiglu@2"),
            [needs.TORUS],
            at_epoch(two),
        ),
        compare(
            bench,
            f"no phases, epoch {two}, seed 0",
            cite("early", "fsn-nophase@2/s0"),
            [no_phases],
            at_epoch(two),
            remark="what the periodic input is compared with",
        ),
        compare(
            bench,
            "periodic feed-forward input minus no phases",
            macro("torusSwigluPenalty"),
            [needs.TORUS, no_phases],
            gap(two),
            "+.4f",
        ),
        compare(
            bench,
            f"FSN-MF minus FSN, epoch {two}, seed 0",
            None,
            [MEAN_FIELD_EARLY, FSN_EARLY.seed(0)],
            gap(two),
            "+.4f",
            "paper: the penalty above is more than a third of this",
        ),
        compare(
            bench,
            "no bound, epoch 1",
            cite("early", "no-bound@1"),
            [needs.NO_BOUND],
            first_epoch,
            ".2f",
            "diverges: that is the result",
        ),
    ]


def compute_item(bench: Bench) -> Result:
    return Result(
        rows=grouped("Static phases", phase_rows(bench)) + grouped("Screens", screen_rows(bench)),
        notes=["Removing the feed-forward block (FSN-MF) at thirty epochs is in the main table."],
    )


ITEM = Item(
    "ablations",
    "Ablation screens",
    "Section 5, Section 2.4, Appendix A",
    "What the loss costs without the delay, the static phases, the lifted feed-forward input, or the bound.",
    compute_item,
    (
        FSN_EARLY,
        NO_PHASES_EARLY,
        needs.NO_PHASES,
        needs.FSN,
        needs.NO_DELAY,
        needs.TORUS,
        MEAN_FIELD_EARLY,
        needs.NO_BOUND,
    ),
)
