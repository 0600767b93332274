"""Sections 1 and 4.2: language modelling at matched parameters, epoch by epoch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...measure import (
    SeedSummary,
    crossing_epochs,
    curve_of,
    diverged_at,
    draw_loss_curves,
    epoch_margins,
    epoch_value,
    epoch_values,
    epochs_ahead,
    finished_epochs,
    loss_at,
    loss_table,
    seed_summary,
)
from ...train import Run
from ..bench import Bench, NotRun
from ..rows import (
    Cited,
    Claim,
    Found,
    NoCase,
    Picture,
    Result,
    Row,
    below,
    bits,
    cite,
    cite_mean,
    compare,
    grouped,
    item,
    levels,
    listed,
    macro,
    signed,
)
from ..runs import (
    CODE_FSN,
    CODE_NO_PHASES,
    CODE_TRANSFORMER,
    FSN,
    FSN_CONVERGED,
    KURAMOTO,
    MEAN_FIELD,
    NO_PHASES,
    TRANSFORMER,
    TRANSFORMER_CONVERGED,
    TRANSFORMER_FIVE,
    WINDING,
    Need,
    epochs_of,
)

# -- losses ------------------------------------------------------------------------------------------------


def mean(b: Bench, need: Need, epochs: int = 30) -> float:
    """Seed mean at an epoch of the paper."""
    return loss_at(b.runs(need), b.epoch(epochs)).mean


def final(run: Run, b: Bench, epochs: int = 30) -> float:
    """A run's loss at an epoch of the paper; ``nan`` if it diverged before."""
    rows = finished_epochs(run)
    at = b.epoch(epochs)
    return epoch_value(rows[at - 1], "valid_bits") if len(rows) >= at else math.nan


def lowest(runs: Sequence[Run], epochs: int) -> float:
    """The lowest validation loss of any of the runs in their first ``epochs``."""
    losses = [x for run in runs for x in epoch_values(finished_epochs(run)[:epochs], "valid_bits")]
    return min((x for x in losses if math.isfinite(x)), default=math.nan)


def best_of(run: Run, epochs: int) -> tuple[int, float]:
    """The best of a run's first ``epochs``, and its loss; epoch 0 where none was finite."""
    losses = epoch_values(finished_epochs(run)[:epochs], "valid_bits")
    known = [(loss, i) for i, loss in enumerate(losses, 1) if math.isfinite(loss)]
    return (min(known)[1], min(known)[0]) if known else (0, math.nan)


def converged(runs: Sequence[Run], epochs: int) -> SeedSummary:
    """Each seed at the best of its first ``epochs``."""
    return seed_summary([best_of(run, epochs)[1] for run in runs])


def at_epoch(epoch: int) -> Callable[[Sequence[Run]], tuple[SeedSummary, str]]:
    """Seed mean at an epoch; seeds that diverged before it are named, not averaged."""

    def measure(runs: Sequence[Run]) -> tuple[SeedSummary, str]:
        lost = [f"{run.name} diverged in epoch {diverged_at(run)}" for run in runs if diverged_at(run)]
        return loss_at(runs, epoch), "; ".join(lost)

    return measure


def gap(epoch: int) -> Callable[[Sequence[Run], Sequence[Run]], float]:
    """Seed mean of the first group minus seed mean of the second, at an epoch."""
    return lambda ours, theirs: loss_at(ours, epoch).mean - loss_at(theirs, epoch).mean


BASE_PAPER = {"kuramoto": Cited(1.637, (), 0.010), "transformer": Cited(1.616, (), 0.004)}
"""enwik8 at one million parameters, from the abstract of the base layer's own paper, arXiv:2606.11585."""

# -- Table 1 -----------------------------------------------------------------------------------------------

TEXT = {
    "Transformer": ("transformer", TRANSFORMER),
    "FSN": ("fsn", FSN),
    "FSN, no phases": ("fsn-nophase", NO_PHASES),
    "FSN-MF": ("fsn-mf", MEAN_FIELD),
    "FSN-MF, winding register": ("fsn-mf-winding", WINDING),
}
GAPS = (
    ("FSN-MF minus transformer", "mfGapThirty", MEAN_FIELD, TRANSFORMER),
    ("FSN-MF, winding register, minus transformer", "mfwGapThirty", WINDING, TRANSFORMER),
    ("FSN-MF minus FSN", "sfnMfGap", MEAN_FIELD, FSN),
    ("FSN-MF, winding register, minus FSN", "sfnMfwGap", WINDING, FSN),
)
CURVES = {
    "transformer": TRANSFORMER_CONVERGED,
    "FSN": FSN,
    "no phases": NO_PHASES,
    "Kuramoto": KURAMOTO,
    "FSN-MF": MEAN_FIELD,
    "FSN-MF-winding": WINDING,
}


def text_rows(bench: Bench) -> list[Row]:
    end, place = bench.epoch(30), ("main_table", "enwik8@30")
    rows = [
        compare(bench, title, cite_mean(*place, key), [need], at_epoch(end))
        for title, (key, need) in TEXT.items()
    ]
    rows += [compare(bench, t, macro(name), [a, b], gap(end), "+.4f") for t, name, a, b in GAPS]
    return grouped(f"Text, epoch {end}", rows)


def code_rows(bench: Bench) -> list[Row]:
    end, place = bench.epoch(30), ("main_table", "code@30")

    def row(title: str, paper: Cited, need: Need, remark: str = "") -> Row:
        return compare(bench, title, paper, [need], at_epoch(end), remark=remark)

    first, best = CODE_FSN.seed(0), cite(*place, "fsn", "best")
    rows = [
        row("Transformer", cite_mean(*place, "transformer"), CODE_TRANSFORMER),
        row("FSN, seed 0", cite(*place, "fsn", "seed0"), first),
        row(
            "FSN, seed 1",
            cite(*place, "fsn", "seed1_plateau"),
            CODE_FSN.seed(1),
            "the paper's plateau failure",
        ),
        row("FSN, seed 2", cite(*place, "fsn", "seed2"), CODE_FSN.seed(2)),
        compare(bench, "FSN, seed 0, best epoch", best, [first], lambda runs: lowest(runs, end)),
        row("FSN, no phases, seed 0", cite(*place, "fsn-nophase", "seed0"), CODE_NO_PHASES),
    ]
    return grouped(f"Code ({bench.library.corpus_said('code')}), epoch {end}", levels(bench, "code", rows))


def converged_rows(bench: Bench) -> list[Row]:
    end, place = bench.epoch(50), ("main_table", "enwik8@50")

    def row(title: str, paper: Cited, need: Need, measure: Callable[[Sequence[Run], int], Any]) -> Row:
        return compare(bench, title, paper, [need], lambda runs: measure(runs, end))

    bar, kuramoto = cite(*place, "transformer", "best"), cite(*place, "kuramoto", "converged")
    rows = [
        row("Transformer, lowest of five seeds", bar, TRANSFORMER_CONVERGED, lowest),
        row("FSN, each seed at its best epoch", cite_mean(*place, "fsn"), FSN_CONVERGED, converged),
        row("Kuramoto attention, lowest of its seeds", kuramoto, KURAMOTO, lowest),
    ]
    base = [
        row("Kuramoto attention, mean of its seeds", BASE_PAPER["kuramoto"], KURAMOTO, converged),
        row("Transformer, mean of its seeds", BASE_PAPER["transformer"], TRANSFORMER_CONVERGED, converged),
    ]
    title = "The base layer's own paper (arXiv:2606.11585, abstract), beside our best of"
    return grouped(f"Text, converged ({end} epochs)", rows) + grouped(f"{title} {end} epochs", base)


def published(bench: Bench, families: Iterable[str]) -> dict[str, tuple[int, float, float]]:
    """The paper's epoch, mean and deviation for each family that has one; none where the text is not its own."""
    if bench.library.stands_in("text"):
        return {}
    keys = {need.family: key for key, need in TEXT.values()}
    found = {name: keys.get(CURVES[name].family) for name in families}
    cited = {name: cite_mean("main_table", "enwik8@30", key) for name, key in found.items() if key}
    return {name: (30, one.value, one.spread or 0.0) for name, one in cited.items()}


@item(
    "main",
    "Main comparison at one million parameters",
    "Table 1",
    *(need for _, need in TEXT.values()),
    *(CODE_TRANSFORMER, CODE_FSN, CODE_FSN.seed(2), CODE_NO_PHASES),
    *(TRANSFORMER_CONVERGED, FSN_CONVERGED, KURAMOTO),
)
def main_table(bench: Bench) -> Result:
    """Validation bits per character after thirty epochs of identical training, on text and code, and the
    converged values of the fifty-epoch runs."""
    result = Result(rows=text_rows(bench) + code_rows(bench) + converged_rows(bench))
    there = {title: list(bench.by_seed(need).values()) for title, (_, need) in TEXT.items()}
    if any(there.values()):
        halves = loss_table(there, bench.epoch(30))
        result.tables.append(("Text, with the second half of each window", halves))
    begun = {name: [curve_of(run) for run in bench.begun(need)] for name, need in CURVES.items()}
    begun = {name: curves for name, curves in begun.items() if curves}
    if begun:
        marks = published(bench, begun)
        caption = "Validation loss by epoch on text: seeds faint, their mean bold."
        caption += " Diamonds are the paper's values after thirty epochs." if marks else ""
        draw = functools.partial(draw_loss_curves, begun, published=marks)
        result.pictures.append(Picture("main-curves", caption, draw))
    return result


# -- claims ------------------------------------------------------------------------------------------------


def bar(b: Bench) -> float:
    """The converged transformer: the lowest loss of its seeds in fifty epochs."""
    return lowest(b.runs(TRANSFORMER_CONVERGED), b.epoch(50))


def kuramoto_does_not_reach(b: Bench) -> Found:
    theirs, ours = bar(b), lowest(b.runs(KURAMOTO), b.epoch(50))
    return theirs < ours < theirs + 0.05, f"{bits(ours)} against {bits(theirs)} (competitive: within 0.05)"


def mean_field_gap(b: Bench) -> float:
    """FSN-MF minus transformer at thirty epochs."""
    return mean(b, MEAN_FIELD) - mean(b, TRANSFORMER)


def within_19_millibits(b: Bench) -> Found:
    found, limit = mean_field_gap(b), macro("mfGapThirty").value
    return round(found, 3) <= limit, f"{signed(found)} against the transformer (range: {limit} bits)"


def mean_field_in_range(b: Bench) -> Found:
    near, evidence = within_19_millibits(b)
    short = mean(b, MEAN_FIELD) - mean(b, FSN)
    return near and short > 0, f"{evidence}, {signed(short)} against the FSN"


def indistinguishable(b: Bench) -> Found:
    end = b.epoch(30)
    one, other = loss_at(b.runs(FSN), end), loss_at(b.runs(NO_PHASES), end)
    if min(one.count, other.count) < 2:
        raise NotRun("needs at least two seeds of each")
    error = math.sqrt(one.std**2 / one.count + other.std**2 / other.count)
    difference = other.mean - one.mean
    evidence = f"difference {signed(difference)}, twice its standard error is {bits(2 * error)}"
    return abs(difference) <= 2 * error, evidence


def every_epoch(b: Bench, ours: Need, theirs: Need = TRANSFORMER_FIVE) -> Found:
    """Whether each run is below each reference at each epoch both have, and where it is closest.

    A run that diverges is behind from there on; a reference that diverges is.
    """
    pairs = [(a, c) for a in b.begun(ours) for c in b.begun(theirs)]
    if not pairs:
        raise NotRun(f"missing: {b.standing([ours, theirs]).absent()}")
    worst = (-math.inf, 0, "", "")
    for run, reference in pairs:
        lost = diverged_at(run)
        if lost is not None and lost <= b.epoch(30):
            return False, f"{run.name} is not finite in epoch {lost}"
        margins = np.nan_to_num(epoch_margins(run, reference)[: b.epoch(30)], nan=-math.inf)
        i = int(np.argmax(margins))
        worst = max(worst, (float(margins[i]), i + 1, run.name, reference.name))
    value, epoch, run_name, reference_name = worst
    return value < 0, (
        f"largest margin {signed(value)} at epoch {epoch} ({run_name} against {reference_name}), "
        f"{len(pairs)} pair{'s' if len(pairs) != 1 else ''} of runs"
    )


def below_bar(b: Bench, need: Need) -> Found:
    losses, reference = [final(run, b) for run in b.runs(need)], bar(b)
    return all(loss < reference for loss in losses), f"{listed(losses)} against {bits(reference)}"


def base_paper(b: Bench, key: str, need: Need) -> Found:
    paper, ours = BASE_PAPER[key], converged(b.runs(need), b.epoch(50)).mean
    fine = abs(ours - paper.value) <= 2 * (paper.spread or 0.0)
    return fine, f"{bits(ours)} against {paper.value} ± {paper.spread} (here: within two deviations)"


def epochs_words(epochs: Iterable[int | None]) -> str:
    return ", ".join("never" if epoch is None else str(epoch) for epoch in epochs)


def crosses(b: Bench) -> Found:
    epochs = crossing_epochs(b.runs(FSN), bar(b))
    fine = all(epoch is not None and b.epoch(16) <= epoch <= b.epoch(30) for epoch in epochs)
    return fine, f"epochs {epochs_words(epochs)}"


def no_phases_reach_kuramoto(b: Bench) -> Found:
    target = lowest(b.runs(KURAMOTO), b.epoch(50))
    epochs = crossing_epochs(b.runs(NO_PHASES), target)
    known = [epoch for epoch in epochs if epoch is not None]
    fine = len(known) == len(epochs) and min(known) <= 10 and max(known) <= 11
    return fine, f"{bits(target)} reached at epochs {epochs_words(epochs)}"


def leads(b: Bench, pair: tuple[Need, Need], epochs: int) -> Found:
    """Ahead of the transformer of the same seed for about this many epochs, then behind."""
    ours, theirs = (b.run(need) for need in pair)
    ahead, common = epochs_ahead(ours, theirs), min(epochs_of(ours), epochs_of(theirs))
    fine = 0 < ahead < common and abs(ahead - b.epoch(epochs)) <= 2
    return fine, f"leads for {ahead} of {common} epochs (within two of {epochs})"


def mean_field_gaps(b: Bench, reference: Need) -> list[float]:
    base = mean(b, reference)
    return [mean(b, need) - base for need in (MEAN_FIELD, WINDING)]


def mean_field_does_not_beat(b: Bench) -> Found:
    gaps = mean_field_gaps(b, TRANSFORMER)
    return min(gaps) > 0 and max(gaps) <= 0.03, f"{listed(gaps, signed)} behind (FSN-MF, winding register)"


def feed_forward_contributes(b: Bench) -> Found:
    gaps = mean_field_gaps(b, FSN)
    return min(gaps) > 0, f"{listed(gaps, signed)} (FSN-MF, winding register)"


def one_seed_diverges(b: Bench) -> Found:
    epochs = [diverged_at(run) for run in b.every(MEAN_FIELD)]
    lost = [epoch for epoch in epochs if epoch is not None]
    where = f" (epoch {', '.join(map(str, lost))})" if lost else ""
    return len(lost) == 1, f"{len(lost)} of {len(epochs)} seeds{where}"


def last_finite(run: Run) -> tuple[int, float]:
    """The last epoch whose loss was finite, and that loss; epoch 0 where there is none."""
    losses = epoch_values(finished_epochs(run), "valid_bits")
    known = [(i, loss) for i, loss in enumerate(losses, 1) if math.isfinite(loss)]
    return known[-1] if known else (0, math.nan)


def diverging_seed(b: Bench) -> tuple[int, list[float], list[list[float]]]:
    """Of the seed that diverged: its last finite epoch, its losses until then, and those of its siblings."""
    runs = b.runs(MEAN_FIELD)
    lost = [run for run in runs if diverged_at(run) is not None and last_finite(run)[0]]
    if not lost:
        raise NoCase(f"none of {len(runs)} seeds diverged after a finished epoch")
    epoch = last_finite(lost[0])[0]
    own, *others = (
        epoch_values(finished_epochs(run)[:epoch], "valid_bits")
        for run in (lost[0], *(run for run in runs if run is not lost[0]))
    )
    others = [losses for losses in others if len(losses) == epoch and all(map(math.isfinite, losses))]
    if len(others) < 2:
        raise NoCase(f"fewer than two siblings have the {epoch} epochs of the seed that diverged")
    return epoch, own, others


def divergence_without_warning(b: Bench) -> Found:
    epoch, own, others = diverging_seed(b)
    spread = [max(min(row) - loss, loss - max(row)) for loss, *row in zip(own, *others, strict=True)]
    evidence = (
        f"through epoch {epoch} at most {signed(max(spread))} outside the siblings' range (here: 0.015)"
    )
    return max(spread) <= 0.015, evidence


def between_its_siblings(b: Bench) -> Found:
    epoch, own, others = diverging_seed(b)
    last = [losses[-1] for losses in others]
    return min(last) < own[-1] < max(last), f"{bits(own[-1])} at epoch {epoch}, siblings {listed(last)}"


def converges_late(b: Bench) -> Found:
    end = b.epoch(50)
    epochs = [best_of(run, end)[0] for need in (FSN_CONVERGED, KURAMOTO) for run in b.runs(need)]
    return all(end - 5 < epoch <= end for epoch in epochs), "best epochs " + ", ".join(map(str, epochs))


MEAN_FIELD_SEVEN = (MEAN_FIELD.seed(0).after(7), TRANSFORMER.seed(0).after(7))
WINDING_NINE = (WINDING.seed(0).after(9), TRANSFORMER.seed(0).after(9))

# fmt: off
CLAIMS = (
    Claim("below-at-matched-epochs", "Section 1",
          "At one million parameters the FSN's loss on enwik8 is below the transformer's at matched epochs.",
          (FSN, TRANSFORMER),
          lambda b: below(mean(b, FSN), mean(b, TRANSFORMER), f" at epoch {b.epoch(30)}"),
          "sfnThirty xfThirty sfnThirtyStd xfThirtyStd"),
    Claim("below-converged", "Sections 1 and 4.2",
          "The converged FSN is also below the converged transformer at an equal budget.",
          (FSN_CONVERGED, TRANSFORMER_CONVERGED),
          lambda b: below(converged(b.runs(FSN_CONVERGED), b.epoch(50)).mean, bar(b)),
          "sfnConverged sfnConvergedStd xfConverged", early=30),
    Claim("kuramoto-does-not-reach", "Section 1",
          "Kuramoto attention is competitive with the tuned transformer but does not reach it.",
          (KURAMOTO, TRANSFORMER_CONVERGED), kuramoto_does_not_reach, "tanConverged", early=30),
    Claim("base-paper-kuramoto", "arXiv:2606.11585, abstract",
          "Kuramoto attention has 1.637 ± 0.010 bits per character on enwik8 at one million parameters.",
          (KURAMOTO,), lambda b: base_paper(b, "kuramoto", KURAMOTO)),
    Claim("base-paper-transformer", "arXiv:2606.11585, abstract",
          "The transformer has 1.616 ± 0.004 bits per character on enwik8 at one million parameters.",
          (TRANSFORMER_CONVERGED,), lambda b: base_paper(b, "transformer", TRANSFORMER_CONVERGED)),
    Claim("mean-field-within-0.019", "Section 2.4",
          "The FSN-MF reaches transformer range on enwik8, within 0.019 bits per character of the transformer.",
          (MEAN_FIELD, TRANSFORMER), within_19_millibits, "mfGapThirty"),
    Claim("mean-field-in-range", "Section 1",
          "The variant without a feed-forward network reaches transformer range and falls short of the full FSN.",
          (MEAN_FIELD, TRANSFORMER, FSN), mean_field_in_range, "mfThirty mfThirtyStd mfGapThirty sfnMfGap"),
    Claim("indistinguishable-without-phases", "Sections 4.2 and 5",
          "At thirty epochs the FSN and its no-phase configuration are statistically indistinguishable.",
          (FSN, NO_PHASES), indistinguishable, "nophaseThirty nophaseThirtyStd"),
    Claim("fsn-ahead-every-epoch", "Section 4.2",
          "On enwik8 the FSN is below the transformer at every epoch from the first onward on every seed.",
          (FSN, TRANSFORMER_FIVE), lambda b: every_epoch(b, FSN), every=True),
    Claim("no-phases-ahead-every-epoch", "Section 4.2",
          "On enwik8 the no-phase configuration is below the transformer at every epoch on every seed.",
          (NO_PHASES, TRANSFORMER_FIVE), lambda b: every_epoch(b, NO_PHASES), every=True),
    Claim("fsn-below-converged-bar", "Section 4.2",
          "Every FSN seed is by epoch 30 below the fifty-epoch converged transformer.",
          (FSN, TRANSFORMER_CONVERGED), lambda b: below_bar(b, FSN), every=True),
    Claim("no-phases-below-converged-bar", "Section 4.2",
          "Every no-phase seed is by epoch 30 below the fifty-epoch converged transformer.",
          (NO_PHASES, TRANSFORMER_CONVERGED), lambda b: below_bar(b, NO_PHASES), every=True),
    Claim("crossing-epochs", "Section 4.2",
          "The FSN seeds cross the converged transformer at epochs 19, 23, 24, 19 and 27 (here: between 16 and 30).",
          (FSN, TRANSFORMER_CONVERGED), crosses,
          tuple(("early", "fsn crosses 1.611 at epochs", str(i)) for i in range(5))),
    Claim("no-phases-reach-kuramoto", "Section 4.2",
          "The no-phase model reaches Kuramoto attention's converged loss within ten epochs on its fastest seed "
          "and eleven on all.",
          (NO_PHASES, KURAMOTO), no_phases_reach_kuramoto,
          tuple(("early", "nophase reaches 1.6272 within epochs", i) for i in "01")),
    Claim("mean-field-leads-five-epochs", "Section 4.2",
          "At the matched seed the FSN-MF leads the transformer through the first five epochs, then falls behind.",
          MEAN_FIELD_SEVEN, lambda b: leads(b, MEAN_FIELD_SEVEN, 5),
          (("early", "fsn-mf leads the transformer for epochs"),)),
    Claim("winding-leads-seven-epochs", "Section 4.2",
          "At the matched seed the winding register leads the transformer through the first seven epochs.",
          WINDING_NINE, lambda b: leads(b, WINDING_NINE, 7),
          (("early", "fsn-mf-winding leads the transformer for epochs"),)),
    Claim("mean-field-does-not-beat", "Section 4.2",
          "At this scale the mean-field family tracks the transformer without beating it (here: at most 0.03 behind).",
          (MEAN_FIELD, WINDING, TRANSFORMER), mean_field_does_not_beat, "mfwThirty mfwThirtyStd mfwGapThirty"),
    Claim("feed-forward-contributes", "Section 4.2", "The full FSN is ahead of both mean-field variants.",
          (FSN, MEAN_FIELD, WINDING), feed_forward_contributes, "sfnMfwGap"),
    Claim("one-mean-field-seed-diverges", "Section 4.2", "One of the three plain FSN-MF seeds diverges.",
          (MEAN_FIELD,), one_seed_diverges),
    Claim("divergence-without-warning", "Section 4.2",
          "The FSN-MF seed that diverged was indistinguishable from its siblings through the epoch before.",
          (MEAN_FIELD,), divergence_without_warning),
    Claim("diverging-seed-between-siblings", "Section 4.2",
          "In its last finite epoch the loss of the FSN-MF seed that diverged sat between those of the other two.",
          (MEAN_FIELD,), between_its_siblings, "mfDivergeEpSixteen"),
    Claim("converges-late", "Section 4.3",
          "The converged FSN and base-layer seeds reach their best validation within the last five of fifty epochs.",
          (FSN_CONVERGED, KURAMOTO), converges_late),
)
