"""Sections 1 and 4.2: language modelling at matched parameters, on text and on code; the seeds that fail."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...measure import training
from ...measure.bootstrap import SeedSummary, seed_summary
from ...measure.metrics import diverged_at, valid_bits
from ...measure.seeds import rounded
from ...measure.training import loss_at
from ...train import Run
from ..bench import Bench, NotRun
from ..needs import (
    CODE_FSN,
    CODE_NO_PHASES,
    CODE_TRANSFORMER,
    FSN,
    FSN_CONVERGED,
    KURAMOTO,
    LONG_FSN,
    LONG_SEEDS,
    LONG_TRANSFORMER,
    MEAN_FIELD,
    NO_PHASES,
    TRANSFORMER,
    TRANSFORMER_CONVERGED,
    TRANSFORMER_FIVE,
    WINDING,
    Need,
    epochs_of,
)
from ..rows import (
    Cited,
    Claim,
    Found,
    Measurement,
    NoCase,
    Result,
    below,
    cite,
    item,
    listed,
    listing,
    macro,
    signed,
    told_apart,
)

Pair = tuple[Need, Need]

# -- losses ------------------------------------------------------------------------------------------------


def mean(b: Bench, need: Need, epochs: int | None = None) -> float:
    """Seed mean at the last epoch that is asked for, or at another of the paper."""
    return loss_at(b.runs(need), b.epoch(epochs or need.epochs)).mean


def margin(b: Bench, ours: Need, theirs: Need) -> float:
    """Seed mean of ours minus that of theirs."""
    return mean(b, ours) - mean(b, theirs)


def marked(name: str, runs: Iterable[Run]) -> str:
    """A name in a figure or a table of curves, with a mark where one of these was validated with rounding."""
    return f"{name} (†)" if any(map(rounded, runs)) else name


def final(run: Run, b: Bench, epochs: int = 30) -> float:
    """A run's loss at an epoch of the paper; ``nan`` if it diverged before."""
    losses, at = valid_bits(run), b.epoch(epochs)
    return losses[at - 1] if len(losses) >= at else math.nan


def lowest(b: Bench, runs: Sequence[Run]) -> float:
    """The lowest validation loss of any of the runs at any epoch."""
    return min((x for x in map(b.lowest, runs) if math.isfinite(x)), default=math.nan)


def last_finite(run: Run) -> tuple[int, float]:
    """The last epoch whose loss was finite, and that loss; epoch 0 where there is none."""
    known = [(i, loss) for i, loss in enumerate(valid_bits(run), 1) if math.isfinite(loss)]
    return known[-1] if known else (0, math.nan)


def converged(b: Bench, runs: Sequence[Run]) -> SeedSummary:
    """Each seed at its best epoch."""
    return seed_summary(list(map(b.lowest, runs)))


BASE_PAPER = {KURAMOTO: Cited(1.637, 0.010), TRANSFORMER_CONVERGED: Cited(1.616, 0.004)}
"""enwik8 at one million parameters, from the abstract of the base layer's own paper, arXiv:2606.11585."""

# -- Table 1 -----------------------------------------------------------------------------------------------

TEXT = {
    "Transformer": TRANSFORMER,
    "FSN": FSN,
    "FSN, no phases": NO_PHASES,
    "FSN-MF": MEAN_FIELD,
    "FSN-MF, winding register": WINDING,
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


@item(
    "main",
    "Main comparison at one million parameters",
    "Table 1",
    *TEXT.values(),
    *(CODE_TRANSFORMER, CODE_FSN, CODE_FSN.seed(2), CODE_NO_PHASES),
    *(TRANSFORMER_CONVERGED, FSN_CONVERGED, KURAMOTO),
)
def main_table(b: Bench, out: Result) -> None:
    """Validation bits per character after thirty epochs of identical training, on text and code, and the
    converged values of the fifty-epoch runs."""
    end, last, least, best_epochs = b.epoch(30), b.epoch(50), partial(lowest, b), partial(converged, b)
    place, code, late = (("main_table", where) for where in ("enwik8@30", "code@30", "enwik8@50"))
    out.heading = f"Text, epoch {end}"
    for title, need in TEXT.items():
        out.row(title, cite(*place, need.family, "mean"), [need])
    for title, name, *pair in GAPS:
        out.row(title, macro(name), pair, form="+.4f")
    out.heading, first = f"Code ({b.corpus_said('code')}), epoch {end}", CODE_FSN.seed(0)
    out.row("Transformer", cite(*code, "transformer", "mean"), [CODE_TRANSFORMER], level="code")
    out.row("FSN, seed 0", cite(*code, "fsn", "seed0"), [first], level="code")
    plateau, remark = cite(*code, "fsn", "seed1_plateau"), "the paper's plateau failure"
    out.row("FSN, seed 1", plateau, [CODE_FSN.seed(1)], remark=remark, level="code")
    out.row("FSN, seed 2", cite(*code, "fsn", "seed2"), [CODE_FSN.seed(2)], level="code")
    out.row("FSN, seed 0, best epoch", cite(*code, "fsn", "best"), [first], least, level="code")
    zero = cite(*code, "fsn-nophase", "seed0")
    out.row("FSN, no phases, seed 0", zero, [CODE_NO_PHASES], level="code")

    out.heading, best = f"Text, converged ({last} epochs)", cite(*late, "transformer", "best")
    out.row("Transformer, lowest of five seeds", best, [TRANSFORMER_CONVERGED], least)
    out.row("FSN, each seed at its best epoch", cite(*late, "fsn", "mean"), [FSN_CONVERGED], best_epochs)
    best = cite(*late, "kuramoto", "converged")
    out.row("Kuramoto attention, lowest of its seeds", best, [KURAMOTO], least)
    out.heading = f"The base layer's own paper (arXiv:2606.11585, abstract), beside our best of {last} epochs"
    for title, (need, paper) in zip(("Kuramoto attention", "Transformer"), BASE_PAPER.items(), strict=True):
        out.row(f"{title}, mean of its seeds", paper, [need], best_epochs)
    there = {title: list(b.by_seed(need).values()) for title, need in TEXT.items()}
    there = {marked(title, runs): runs for title, runs in there.items()}
    if any(there.values()):
        halves = training.loss_table(there, end)
        out.tables.append(("Text, with the second half of each window", halves))
    begun = {marked(name, b.begun(need)): need for name, need in CURVES.items() if b.begun(need)}
    if begun:
        printed = {name: need.family for name, need in begun.items() if need is not KURAMOTO}
        cited = {name: cite(*place, family, "mean") for name, family in printed.items()}
        marks = {name: (30, one.value, one.spread or 0.0) for name, one in cited.items()}
        curves = {name: [training.curve_of(run) for run in b.begun(need)] for name, need in begun.items()}
        caption = "Validation loss by epoch on text: seeds faint, their mean bold."
        caption += " Diamonds are the paper's values after thirty epochs." if marks else ""
        draw = partial(training.draw_loss_curves, published=marks)
        shown = [run for need in begun.values() for run in b.begun(need)]
        out.picture("main-curves", draw, curves, caption=caption, curves=shown)


# -- code at length 512 ------------------------------------------------------------------------------------

SHORT: Pair = (CODE_FSN.seed(0), CODE_TRANSFORMER.seed(0))
LONG: Pair = (LONG_FSN, LONG_TRANSFORMER)


def mean_margin(b: Bench, ours: Need, theirs: Need) -> float:
    """Mean over the epochs of the margin between the two runs of a seed."""
    return float(np.mean(training.epoch_margins(b.run(ours), b.run(theirs), b.epoch(30))))


CONTEXT = {
    "FSN": ("codeContextDropFSN", (SHORT[0], LONG[0])),
    "transformer": ("codeContextDropXF", (SHORT[1], LONG[1])),
}
"""What each model gains by doubling the context."""


@item("sequence-512", "Code at sequence length 512", "Section 4.2", *SHORT, *LONG)
def sequence_512(b: Bench, out: Result) -> None:
    """Final and epoch-mean margins of the seed-0 pair at both window lengths, and the gain from more context."""
    for name, need in zip(CONTEXT, LONG, strict=True):
        paper = cite("main_table", "code@30/seq512", need.family)
        out.row(f"{name}, length 512", paper, [need], level="code")

    def row(key: str, words: str, value: Callable[..., float], pair: Pair, length: int) -> None:
        paper = cite("main_table", "code margins fsn minus transformer", f"seq{length} {key}")
        out.row(f"{words}, length {length}", paper, pair, lambda *_: value(b, *pair), "+.4f")

    for pair, length in ((SHORT, 256), (LONG, 512)):
        row("final", "final margin", margin, pair, length)
        row("epoch mean", "mean margin over the epochs", mean_margin, pair, length)
    for name, (source, pair) in CONTEXT.items():
        out.row(f"{name}: gain from doubling the context", macro(source), pair)


# -- failures ----------------------------------------------------------------------------------------------

CODE_FIRST = CODE_FSN.after(1)


def first_losses(runs: list[Run]) -> list[float]:
    """Validation loss after epoch one, rising; NaN where no run got so far."""
    return sorted(valid_bits(run)[0] for run in runs if valid_bits(run)) or [math.nan]


def first_epoch_rows(b: Bench, out: Result, need: Need, key: str) -> None:
    healthy = [cite("early", f"{key} healthy seeds @1", end) for end in "01"]
    papers = [*sorted(healthy, key=lambda one: one.value), cite("early", f"{key} plateau seed @1")]

    def row(title: str, paper: Cited, pick: Callable[[list[float]], float], **how: Any) -> None:
        out.row(f"epoch 1, {title}", paper, [need], lambda runs: pick(first_losses(runs)), whole=True, **how)

    row("lowest seed", papers[0], min, level="code")
    row("middle seed", papers[1], statistics.median_high, level="code")
    row("highest seed", papers[2], max, level="code")
    plateau = f"more than {macro('codeSeedSepMin').value:g} marks a plateau failure"
    apart = papers[2].minus(papers[0])
    row("highest minus lowest", apart, lambda losses: losses[-1] - losses[0], form="+.4f", remark=plateau)


def last_before(runs: list[Run]) -> Measurement:
    """The last loss of a seed that diverged."""
    for run in runs:
        epoch = diverged_at(run)
        if epoch is not None:
            return last_finite(run)[1], f"{run.name}, not finite in epoch {epoch}"
    return math.nan, f"none of the {len(runs)} seeds diverged"


@item("failures", "Training failures", "Section 4.2", CODE_FIRST, LONG_SEEDS, MEAN_FIELD)
def failures(b: Bench, out: Result) -> None:
    """First-epoch losses of the code seeds, where plateau failures separate, and the FSN-MF divergence."""
    out.heading = "Code, first epoch"
    first_epoch_rows(b, out, CODE_FIRST, "code")
    out.heading = "Code, length 512, first epoch"
    first_epoch_rows(b, out, LONG_SEEDS, "code/seq512")
    out.heading = "Divergence"
    title = "FSN-MF: last loss of a seed that diverged"
    paper = cite("early", "fsn-mf diverging seed @16 (non-finite at 17)")
    out.row(title, paper, [MEAN_FIELD], last_before, remark="paper: epoch 16 of 30")
    if b.found:
        out.tables.append(("Health of every run found", training.health_table(b.found)))


# -- claims on text ----------------------------------------------------------------------------------------


def bar(b: Bench) -> float:
    """The converged transformer: the lowest loss of its seeds in fifty epochs."""
    return lowest(b, b.runs(TRANSFORMER_CONVERGED))


def difference(b: Bench, ours: Need, theirs: Need) -> tuple[float, float]:
    """Ours minus theirs after thirty epochs, and its standard error over seeds."""
    groups = [loss_at(b.runs(need), b.epoch(30)) for need in (ours, theirs)]
    if min(group.count for group in groups) < 2:
        raise NotRun("needs at least two seeds of each")
    return groups[0].mean - groups[1].mean, math.sqrt(sum(g.std**2 / g.count for g in groups))


def every_epoch(b: Bench, ours: Need) -> Found:
    """Whether each run is below each transformer at each epoch both have, and where it is closest.

    A run that diverges is behind from there on; a reference that diverges is.
    """
    pairs = [(a, c) for a in b.begun(ours) for c in b.begun(TRANSFORMER_FIVE)]
    if not pairs:
        raise NotRun(f"missing: {b.standing([ours, TRANSFORMER_FIVE]).absent()}")
    worst = (-math.inf, 0, "", "")
    for run, reference in pairs:
        lost = diverged_at(run)
        if lost is not None and lost <= b.epoch(30):
            return False, f"{run.name} is not finite in epoch {lost}"
        margins = np.nan_to_num(training.epoch_margins(run, reference)[: b.epoch(30)], nan=-math.inf)
        i = int(np.argmax(margins))
        worst = max(worst, (float(margins[i]), i + 1, run.name, reference.name))
    value, epoch, run_name, reference_name = worst
    return value < 0, (
        f"largest margin {signed(value)} at epoch {epoch} ({run_name} against {reference_name}), "
        f"{len(pairs)} pair{'s' if len(pairs) != 1 else ''} of runs"
    )


def base_paper(b: Bench, need: Need) -> Found:
    paper, ours = BASE_PAPER[need], converged(b, b.runs(need)).mean
    fine = abs(ours - paper.value) <= 2 * (paper.spread or 0.0)
    return fine, f"{ours:.4f} against {paper.value} ± {paper.spread} (here: within two deviations)"


def lower(b: Bench, ours: Need, theirs: Need, *losses: float, where: str = "") -> Found:
    """Whether the first of two losses is below the second; without them, those after the epochs that are asked for."""
    one, other = losses or (mean(b, ours), mean(b, theirs))
    found = below(one, other, where)
    told_apart(b, (ours, theirs), [one - other], found[1])
    return found


def behind_bar(b: Bench, need: Need) -> Found:
    """Every seed after thirty epochs against the converged transformer."""
    margins = [final(run, b) - bar(b) for run in b.runs(need)]
    found = listing(margins, lambda margins: all(margin < 0 for margin in margins), signed)
    told_apart(b, [need], margins, found[1])
    return found


def crossings(b: Bench, need: Need, target: float) -> list[float]:
    """The epochs at which the seeds reach a loss, infinite where they never do."""
    return [training.first_at(valid_bits(run), target) or math.inf for run in b.runs(need)]


def leads(b: Bench, pair: Pair, epochs: int) -> Found:
    """Ahead of the transformer of the same seed for about this many epochs, then behind."""
    ours, theirs = (b.run(need) for need in pair)
    ahead, common = training.epochs_ahead(ours, theirs), min(epochs_of(ours), epochs_of(theirs))
    fine = 0 < ahead < common and abs(ahead - b.epoch(epochs)) <= 2
    return fine, f"leads for {ahead} of {common} epochs (within two of {epochs})"


def mean_field_gaps(b: Bench, theirs: Need, true: Callable[[float], bool]) -> Found:
    """How far each mean-field variant that is there is behind."""
    family = {"FSN-MF": MEAN_FIELD, "winding register": WINDING}
    names = b.in_hand({name: (need, theirs) for name, need in family.items()})
    gaps = [margin(b, family[name], theirs) for name in names]
    return listing(gaps, lambda gaps: all(map(true, gaps)), signed, f"{{}} behind ({', '.join(names)})")


def diverging_seed(b: Bench) -> tuple[int, list[float], list[list[float]]]:
    """Of the seed that diverged: its last finite epoch, its losses until then, and those of its siblings."""
    runs = b.runs(MEAN_FIELD)
    lost = [run for run in runs if diverged_at(run) is not None and last_finite(run)[0]]
    if not lost:
        raise NoCase(f"none of {len(runs)} seeds diverged after a finished epoch")
    epoch = last_finite(lost[0])[0]
    others = [valid_bits(run)[:epoch] for run in runs if run is not lost[0]]
    others = [losses for losses in others if len(losses) == epoch and all(map(math.isfinite, losses))]
    if len(others) < 2:
        raise NoCase(f"fewer than two siblings have the {epoch} epochs of the seed that diverged")
    return epoch, valid_bits(lost[0])[:epoch], others


def divergence_without_warning(b: Bench) -> Found:
    epoch, own, others = diverging_seed(b)
    spread = max(max(min(row) - loss, loss - max(row)) for loss, *row in zip(own, *others, strict=True))
    return spread <= 0.015, (
        f"through epoch {epoch} at most {signed(spread)} outside the siblings' range (here: 0.015)"
    )


def between_its_siblings(b: Bench) -> Found:
    epoch, own, others = diverging_seed(b)
    last = [losses[-1] for losses in others]
    return min(last) < own[-1] < max(last), f"{own[-1]:.4f} at epoch {epoch}, siblings {listed(last)}"


# -- claims on code ----------------------------------------------------------------------------------------


def two_of_three_ahead(b: Bench) -> Found:
    runs, references, end = b.runs(CODE_FSN, whole=True), b.runs(CODE_TRANSFORMER), b.epoch(30)
    ahead = [
        diverged_at(run) is None
        and all((training.epoch_margins(run, one)[:end] < 0).all() for one in references)
        for run in runs
    ]
    return sum(ahead) == 2, f"{sum(ahead)} of {len(ahead)} seeds ahead at every epoch"


def plateau_seed(b: Bench) -> Found:
    losses = [final(run, b) for run in b.runs(CODE_FSN, whole=True)]
    worse = sum(not loss <= lowest(b, b.runs(CODE_FSN)) + 0.1 for loss in losses)
    return worse == 1, f"{worse} of {len(losses)} seeds: {listed(losses)}"


def failed_seed(b: Bench, need: Need) -> tuple[float, float]:
    """How far the failed seed is from its siblings after the first epoch, and how far those are apart."""
    losses = first_losses(b.runs(need))
    if len(losses) < 3:
        raise NotRun(f"needs three seeds: first epochs {listed(losses)}")
    if losses[-1] - losses[0] < 0.05:
        raise NoCase(f"no seed failed: first epochs {listed(losses)}")
    return losses[-1] - losses[-2], losses[-2] - losses[0]


def separates(b: Bench, need: Need) -> Found:
    apart, spread = failed_seed(b, need)
    return apart > macro("codeSeedSepMin").value, f"{apart:.4f} apart, healthy seeds within {spread:.4f}"


MEAN_FIELD_SEVEN = (MEAN_FIELD.seed(0).after(7), TRANSFORMER.seed(0).after(7))
RANGE = macro("mfGapThirty").value
IN_RANGE = f"{{}} against the transformer (range: {RANGE} bits)"
WINDING_NINE = (WINDING.seed(0).after(9), TRANSFORMER.seed(0).after(9))

# fmt: off
CLAIMS = (
    Claim("below-at-matched-epochs", "Section 1",
          "At one million parameters the FSN's loss on enwik8 is below the transformer's at matched epochs.",
          (FSN, TRANSFORMER),
          lambda b: lower(b, FSN, TRANSFORMER, where=f" at epoch {b.epoch(30)}")),
    Claim("below-converged", "Sections 1 and 4.2",
          "The converged FSN is also below the converged transformer at an equal budget.",
          (FSN_CONVERGED, TRANSFORMER_CONVERGED),
          lambda b: lower(b, FSN_CONVERGED, TRANSFORMER_CONVERGED, converged(b, b.runs(FSN_CONVERGED)).mean, bar(b)),
          early=30, shorter="against"),
    Claim("kuramoto-does-not-reach", "Section 1",
          "Kuramoto attention is competitive with the tuned transformer but does not reach it.",
          (KURAMOTO, TRANSFORMER_CONVERGED),
          lambda b: listing([lowest(b, b.runs(KURAMOTO)), bar(b)], lambda v: v[1] < v[0] < v[1] + 0.03,
                            words="{} against {} (competitive: within 0.03)"), early=30, shorter="open"),
    Claim("base-paper-kuramoto", "arXiv:2606.11585, abstract",
          "Kuramoto attention has 1.637 ± 0.010 bits per character on enwik8 at one million parameters.",
          (KURAMOTO,), lambda b: base_paper(b, KURAMOTO)),
    Claim("base-paper-transformer", "arXiv:2606.11585, abstract",
          "The transformer has 1.616 ± 0.004 bits per character on enwik8 at one million parameters.",
          (TRANSFORMER_CONVERGED,), lambda b: base_paper(b, TRANSFORMER_CONVERGED)),
    Claim("mean-field-within-0.019", "Section 2.4",
          "The FSN-MF reaches transformer range on enwik8, within 0.019 bits per character of the transformer.",
          (MEAN_FIELD, TRANSFORMER),
          lambda b: listing([margin(b, MEAN_FIELD, TRANSFORMER)], lambda v: round(v[0], 3) <= RANGE, signed, IN_RANGE)),
    Claim("mean-field-in-range", "Section 1",
          "The variant without a feed-forward network reaches transformer range and falls short of the full FSN.",
          (MEAN_FIELD, TRANSFORMER, FSN),
          lambda b: listing([margin(b, MEAN_FIELD, other) for other in (TRANSFORMER, FSN)],
                            lambda v: round(v[0], 3) <= RANGE and v[1] > 0, signed, IN_RANGE + ", {} against the FSN")),
    Claim("indistinguishable-without-phases", "Sections 4.2 and 5",
          "At thirty epochs the FSN and its no-phase configuration are statistically indistinguishable.",
          (FSN, NO_PHASES),
          lambda b: listing(difference(b, NO_PHASES, FSN), lambda found: abs(found[0]) <= 2 * found[1],
                            words="difference and its standard error {}")),
    Claim("fsn-ahead-every-epoch", "Section 4.2",
          "On enwik8 the FSN is below the transformer at every epoch from the first onward on every seed.",
          (FSN, TRANSFORMER_FIVE), lambda b: every_epoch(b, FSN), every=True),
    Claim("no-phases-ahead-every-epoch", "Section 4.2",
          "On enwik8 the no-phase configuration is below the transformer at every epoch on every seed.",
          (NO_PHASES, TRANSFORMER_FIVE), lambda b: every_epoch(b, NO_PHASES), every=True),
    Claim("fsn-below-converged-bar", "Section 4.2",
          "Every FSN seed is by epoch 30 below the fifty-epoch converged transformer.",
          (FSN, TRANSFORMER_CONVERGED), lambda b: behind_bar(b, FSN), every=True),
    Claim("no-phases-below-converged-bar", "Section 4.2",
          "Every no-phase seed is by epoch 30 below the fifty-epoch converged transformer.",
          (NO_PHASES, TRANSFORMER_CONVERGED), lambda b: behind_bar(b, NO_PHASES), every=True),
    Claim("crossing-epochs", "Section 4.2",
          "The FSN seeds cross the converged transformer at epochs 19, 23, 24, 19 and 27 (here: between 16 and 30).",
          (FSN, TRANSFORMER_CONVERGED),
          lambda b: listing(crossings(b, FSN, bar(b)),
                            lambda epochs: b.epoch(16) <= min(epochs) and max(epochs) <= b.epoch(30), ".0f")),
    Claim("no-phases-reach-kuramoto", "Section 4.2",
          "The no-phase model reaches Kuramoto attention's converged loss within ten epochs on its fastest seed "
          "and eleven on all.", (NO_PHASES, KURAMOTO),
          lambda b: listing(crossings(b, NO_PHASES, lowest(b, b.runs(KURAMOTO))),
                            lambda e: min(e) <= 10 and max(e) <= 11, ".0f")),
    Claim("mean-field-leads-five-epochs", "Section 4.2",
          "At the matched seed the FSN-MF leads the transformer through the first five epochs, then falls behind.",
          MEAN_FIELD_SEVEN, lambda b: leads(b, MEAN_FIELD_SEVEN, 5)),
    Claim("winding-leads-seven-epochs", "Section 4.2",
          "At the matched seed the winding register leads the transformer through the first seven epochs.",
          WINDING_NINE, lambda b: leads(b, WINDING_NINE, 7)),
    Claim("mean-field-does-not-beat", "Section 4.2",
          "At this scale the mean-field family tracks the transformer without beating it (here: at most 0.03 behind).",
          (MEAN_FIELD, WINDING, TRANSFORMER),
          lambda b: mean_field_gaps(b, TRANSFORMER, lambda gap: 0 < gap <= 0.03)),
    Claim("feed-forward-contributes", "Section 4.2", "The full FSN is ahead of both mean-field variants.",
          (FSN, MEAN_FIELD, WINDING),
          lambda b: mean_field_gaps(b, FSN, lambda gap: gap > 0)),
    Claim("one-mean-field-seed-diverges", "Section 4.2", "One of the three plain FSN-MF seeds diverges.",
          (MEAN_FIELD,),
          lambda b: listing([diverged_at(run) or 0 for run in b.runs(MEAN_FIELD, whole=True)],
                            lambda epochs: sum(map(bool, epochs)) == 1, str, "in epochs {} (0: never)")),
    Claim("divergence-without-warning", "Section 4.2",
          "The FSN-MF seed that diverged was indistinguishable from its siblings through the epoch before.",
          (MEAN_FIELD,), divergence_without_warning),
    Claim("diverging-seed-between-siblings", "Section 4.2",
          "In its last finite epoch the loss of the FSN-MF seed that diverged sat between those of the other two.",
          (MEAN_FIELD,), between_its_siblings),
    Claim("converges-late", "Section 4.3",
          "The converged FSN and base-layer seeds reach their best validation within the last five of fifty epochs.",
          (FSN_CONVERGED, KURAMOTO),
          lambda b: listing([b.epoch(50) - training.best_epoch(run)
                             for need in (FSN_CONVERGED, KURAMOTO) for run in b.runs(need)],
                            lambda left: min(left) >= 0 and max(left) < 5, str,
                            "best epochs before the end: {}")),
    Claim("code-two-of-three-ahead", "Section 4.2",
          "On code the every-epoch ordering holds for two of the three FSN seeds.",
          (CODE_FSN, CODE_TRANSFORMER), two_of_three_ahead),
    Claim("code-plateau-seed", "Section 4.2",
          "One of three FSN code seeds trains to a worse plateau (more than 0.1 above its siblings at the end).",
          (CODE_FSN,), plateau_seed),
    Claim("code-below-transformer", "Section 4.2",
          "On code both main models (FSN and no phases, seed 0) are below the transformer's mean at thirty epochs.",
          (CODE_FSN.seed(0), CODE_NO_PHASES, CODE_TRANSFORMER),
          lambda b: listing([margin(b, ours, CODE_TRANSFORMER) for ours in (CODE_FSN.seed(0), CODE_NO_PHASES)],
                            lambda margins: max(margins) < 0, signed)),
    Claim("code-margin-no-larger", "Section 4.2",
          "The code result is positive but no larger than the enwik8 result.",
          (CODE_FSN.seed(0), CODE_TRANSFORMER, FSN, TRANSFORMER),
          lambda b: listing([margin(b, CODE_FSN.seed(0), CODE_TRANSFORMER), margin(b, FSN, TRANSFORMER)],
                            lambda m: m[1] <= m[0] < 0, signed, "{} (code, text)")),
    Claim("code-below-any-transformer-epoch", "Section 4.2",
          "The FSN's epoch-30 value on code is below the best the transformer reaches at any epoch on any seed.",
          (CODE_FSN.seed(0), CODE_TRANSFORMER),
          lambda b: lower(b, CODE_FSN.seed(0), CODE_TRANSFORMER, mean(b, CODE_FSN.seed(0)),
                          lowest(b, b.runs(CODE_TRANSFORMER)))),
    Claim("context-helps-more-than-architecture", "Section 4.2",
          "Doubling the context improves both models by far more than the architecture does.",
          (*SHORT, *LONG),
          lambda b: listing([margin(b, *pair) for pair in (*(pair for _, pair in CONTEXT.values()), SHORT, LONG)],
                            lambda m: min(m[:2]) > 2 * max(map(abs, m[2:])), signed, "{} (gains, then margins)")),
    Claim("margin-smaller-at-512", "Section 4.2", "The final margin is smaller at length 512 than at 256.",
          (*SHORT, *LONG),
          lambda b: listing([margin(b, *LONG), margin(b, *SHORT)], lambda m: m[1] < m[0] < 0, signed)),
    Claim("ahead-at-512", "Section 4.2", "In the completed 512 comparison the FSN finishes below the transformer.",
          LONG, lambda b: listing([margin(b, *LONG)], lambda margins: margins[0] < 0, signed)),
    Claim("epoch-mean-margins", "Section 4.2", "Averaged over the epochs the FSN is ahead at both lengths.",
          (*SHORT, *LONG),
          lambda b: listing((mean_margin(b, *pair) for pair in (SHORT, LONG)), lambda means: max(means) < 0, signed,
                            "{} (256, 512)")),
    Claim("plateau-shows-at-epoch-one", "Section 4.2",
          "The plateau failure on code separates from its siblings by more than 0.2 bits at the first epoch.",
          (CODE_FIRST,), lambda b: separates(b, CODE_FIRST)),
    Claim("plateau-shows-at-epoch-one-512", "Section 4.2",
          "So does the plateauing seed of the length-512 replication arm.",
          (LONG_SEEDS,), lambda b: separates(b, LONG_SEEDS)),
    Claim("failed-seeds-thirty-times-apart", "Section 4.2",
          "Both failed seeds separate at roughly thirty times the spread between their siblings (here: at least 20).",
          (CODE_FIRST, LONG_SEEDS),
          lambda b: listing([apart / spread if spread else math.inf
                             for apart, spread in map(failed_seed, (b, b), (CODE_FIRST, LONG_SEEDS))],
                            lambda v: min(v) >= 20, ".0f", "{} times (length 256, 512)")),
)
