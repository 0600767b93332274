"""Table 1: validation loss at matched parameters, on text and on code, and the converged values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from fsn.measure import SeedSummary, best_epoch, curve_of, loss_at, loss_table, seed_summary
from fsn.measure.runs import diverged_at, epoch_values, finished_epochs
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result, picture
from fsn.paper.rows import Row, compare, grouped, levels
from fsn.paper.values import cite, macro
from fsn.train import Run

TEXT = {
    "Transformer": ("transformer", needs.TRANSFORMER),
    "FSN": ("fsn", needs.FSN),
    "FSN, no phases": ("fsn-nophase", needs.NO_PHASES),
    "FSN-MF": ("fsn-mf", needs.MEAN_FIELD),
    "FSN-MF, winding register": ("fsn-mf-winding", needs.WINDING),
}
CURVES = {
    "transformer": needs.TRANSFORMER_CONVERGED,
    "FSN": needs.FSN,
    "no phases": needs.NO_PHASES,
    "Kuramoto": needs.KURAMOTO,
    "FSN-MF": needs.MEAN_FIELD,
    "FSN-MF-winding": needs.WINDING,
}


def at_epoch(epoch: int) -> Callable[[Sequence[Run]], tuple[SeedSummary, str]]:
    """Seed mean at an epoch; seeds that diverged before it are named, not averaged."""

    def measure(runs: Sequence[Run]) -> tuple[SeedSummary, str]:
        lost = [f"{run.name} diverged in epoch {diverged_at(run)}" for run in runs if diverged_at(run)]
        return loss_at(runs, epoch), "; ".join(lost)

    return measure


def gap(epoch: int) -> Callable[[Sequence[Run], Sequence[Run]], float]:
    """Seed mean of the first group minus seed mean of the second, at an epoch."""
    return lambda ours, theirs: loss_at(ours, epoch).mean - loss_at(theirs, epoch).mean


def lowest(runs: Sequence[Run], epochs: int) -> float:
    """The lowest validation loss of any of the runs in their first ``epochs``."""
    losses = [x for run in runs for x in epoch_values(finished_epochs(run)[:epochs], "valid_bits")]
    return min((x for x in losses if math.isfinite(x)), default=math.nan)


def converged(runs: Sequence[Run]) -> SeedSummary:
    """Each seed at its best epoch."""
    return seed_summary([best_epoch(run).bits for run in runs])


def text_rows(bench: Bench) -> list[Row]:
    end, paper = bench.epoch(30), "enwik8@30"
    rows = [
        compare(
            bench,
            title,
            cite("main_table", paper, key, "mean").plus_minus(cite("main_table", paper, key, "std")),
            [need],
            at_epoch(end),
        )
        for title, (key, need) in TEXT.items()
    ]
    pairs = (
        ("FSN-MF minus transformer", "mfGapThirty", needs.MEAN_FIELD, needs.TRANSFORMER),
        ("FSN-MF, winding register, minus transformer", "mfwGapThirty", needs.WINDING, needs.TRANSFORMER),
        ("FSN-MF minus FSN", "sfnMfGap", needs.MEAN_FIELD, needs.FSN),
        ("FSN-MF, winding register, minus FSN", "sfnMfwGap", needs.WINDING, needs.FSN),
    )
    rows += [compare(bench, t, macro(name), [a, b], gap(end), "+.4f") for t, name, a, b in pairs]
    return grouped(f"Text, epoch {end}", rows)


def code_rows(bench: Bench) -> list[Row]:
    end, place = bench.epoch(30), ("main_table", "code@30")
    fsn, transformer = needs.CODE_FSN, needs.CODE_TRANSFORMER
    rows = [
        compare(
            bench,
            "Transformer",
            cite(*place, "transformer", "mean").plus_minus(cite(*place, "transformer", "std")),
            [transformer],
            at_epoch(end),
        )
    ]
    for seed, key in ((0, "seed0"), (1, "seed1_plateau"), (2, "seed2")):
        note = "the paper's plateau failure" if seed == 1 else ""
        one = fsn.seed(seed)
        rows.append(
            compare(bench, f"FSN, seed {seed}", cite(*place, "fsn", key), [one], at_epoch(end), remark=note)
        )
    best = cite(*place, "fsn", "best")
    rows += [
        compare(bench, "FSN, seed 0, best epoch", best, [fsn.seed(0)], lambda r: lowest(r, end)),
        compare(
            bench,
            "FSN, no phases, seed 0",
            cite(*place, "fsn-nophase", "seed0"),
            [needs.CODE_NO_PHASES],
            at_epoch(end),
        ),
    ]
    return grouped(f"Code ({bench.library.corpus_said('code')}), epoch {end}", levels(bench, "code", rows))


def converged_rows(bench: Bench) -> list[Row]:
    end, place = bench.epoch(50), ("main_table", "enwik8@50")
    fsn = cite(*place, "fsn", "mean").plus_minus(cite(*place, "fsn", "std"))
    rows = [
        compare(
            bench,
            "Transformer, lowest of five seeds",
            cite(*place, "transformer", "best"),
            [needs.TRANSFORMER_CONVERGED],
            lambda runs: lowest(runs, end),
        ),
        compare(bench, "FSN, each seed at its best epoch", fsn, [needs.FSN_CONVERGED], converged),
        compare(
            bench,
            "Kuramoto attention, lowest of its seeds",
            cite(*place, "kuramoto", "converged"),
            [needs.KURAMOTO],
            lambda runs: lowest(runs, end),
        ),
    ]
    return grouped(f"Text, converged ({end} epochs)", rows)


def published(bench: Bench, families: Iterable[str]) -> dict[str, tuple[int, float, float]]:
    """The paper's epoch, mean and deviation for each family that has one; none where the text is not its own."""
    if bench.scale.shared_text or bench.library.stands_in("text"):
        return {}
    found = {}
    for name in families:
        key = next((key for key, need in TEXT.values() if need.family == CURVES[name].family), None)
        if key is not None:
            place = ("main_table", "enwik8@30", key)
            found[name] = (30, cite(*place, "mean").value, cite(*place, "std").value)
    return found


def compute(bench: Bench) -> Result:
    result = Result(rows=text_rows(bench) + code_rows(bench) + converged_rows(bench))
    there = {title: list(bench.by_seed(need).values()) for title, (_, need) in TEXT.items()}
    if any(there.values()):
        result.tables.append(
            ("Text, with the second half of each window", loss_table(there, bench.epoch(30)))
        )
    begun = {name: [curve_of(run) for run in bench.begun(need)] for name, need in CURVES.items()}
    begun = {name: curves for name, curves in begun.items() if curves}
    if begun:
        marks = published(bench, begun)
        caption = "Validation loss by epoch on text: seeds faint, their mean bold."
        result.pictures.append(
            picture(
                "main-curves",
                caption + (" Diamonds are the paper's values after thirty epochs." if marks else ""),
                lambda plots, surface: plots.loss_curves(begun, surface, published=marks),
            )
        )
    return result


ITEM = Item(
    "main",
    "Main comparison at one million parameters",
    "Table 1",
    "Validation bits per character after thirty epochs of identical training, on text and code, and the "
    "converged values of the fifty-epoch runs.",
    compute,
    (
        *(need for _, need in TEXT.values()),
        needs.CODE_TRANSFORMER,
        needs.CODE_FSN,
        needs.CODE_FSN.seed(2),
        needs.CODE_NO_PHASES,
        needs.TRANSFORMER_CONVERGED,
        needs.FSN_CONVERGED,
        needs.KURAMOTO,
    ),
)
