"""Sections 1 and 4.2, the text: language modelling at matched parameters, epoch by epoch."""

from __future__ import annotations

import math

import numpy as np

from fsn.measure import best_epoch, crossing_epochs, epoch_margins, epochs_ahead, loss_at
from fsn.measure.runs import diverged_at, epoch_value, finished_epochs
from fsn.paper import needs
from fsn.paper.bench import Bench, NotRun
from fsn.paper.claims.claim import Claim, bits, claim, listed, signed
from fsn.paper.items.failures import last_finite
from fsn.paper.items.main_table import converged, lowest
from fsn.paper.needs import Need
from fsn.paper.values import macro
from fsn.train import Run

CLAIMS: list[Claim] = []


def mean(b: Bench, need: Need, epochs: int = 30) -> float:
    """Seed mean at an epoch of the paper."""
    return loss_at(b.runs(need), b.epoch(epochs)).mean


def final(run: Run, b: Bench, epochs: int = 30) -> float:
    """A run's loss at an epoch of the paper; ``nan`` if it diverged before."""
    rows = finished_epochs(run)
    at = b.epoch(epochs)
    return epoch_value(rows[at - 1], "valid_bits") if len(rows) >= at else math.nan


def bar(b: Bench) -> float:
    """The converged transformer: the lowest loss of its seeds in fifty epochs."""
    return lowest(b.runs(needs.TRANSFORMER_CONVERGED), b.epoch(50))


def every_epoch(b: Bench, ours: Need, theirs: Need) -> tuple[bool, str]:
    """Whether each run is below each reference at each epoch both have, and where it is closest."""
    worst = (-math.inf, 0, "", "")
    pairs = [(a, c) for a in b.begun(ours) for c in b.begun(theirs)]
    if not pairs:
        raise NotRun(f"missing: {b.standing([ours, theirs]).absent()}")
    for run, reference in pairs:
        margins = epoch_margins(run, reference)[: b.epoch(30)]
        i = int(np.nanargmax(margins))
        worst = max(worst, (float(margins[i]), i + 1, run.name, reference.name))
    value, epoch, run_name, reference_name = worst
    return value < 0, (
        f"largest margin {signed(value)} at epoch {epoch} ({run_name} against {reference_name}), "
        f"{len(pairs)} pairs of runs"
    )


@claim(
    CLAIMS,
    "below-at-matched-epochs",
    "Section 1",
    "At one million parameters the FSN's loss on enwik8 is below the transformer's at matched epochs.",
    needs.FSN,
    needs.TRANSFORMER,
    macros=("sfnThirty", "xfThirty", "sfnThirtyStd", "xfThirtyStd"),
)
def _(b: Bench) -> tuple[bool, str]:
    ours, theirs = mean(b, needs.FSN), mean(b, needs.TRANSFORMER)
    return ours < theirs, f"{bits(ours)} against {bits(theirs)} at epoch {b.epoch(30)}"


@claim(
    CLAIMS,
    "below-converged",
    "Sections 1 and 4.2",
    "The converged FSN is also below the converged transformer at an equal budget.",
    needs.FSN_CONVERGED,
    needs.TRANSFORMER_CONVERGED,
    macros=("sfnConverged", "sfnConvergedStd", "xfConverged"),
)
def _(b: Bench) -> tuple[bool, str]:
    ours, theirs = converged(b.runs(needs.FSN_CONVERGED)).mean, bar(b)
    return ours < theirs, f"{bits(ours)} against {bits(theirs)}"


@claim(
    CLAIMS,
    "kuramoto-does-not-reach",
    "Section 1",
    "Kuramoto attention is competitive with the tuned transformer but does not reach it.",
    needs.KURAMOTO,
    needs.TRANSFORMER_CONVERGED,
    macros=("tanConverged",),
)
def _(b: Bench) -> tuple[bool, str]:
    theirs, ours = bar(b), lowest(b.runs(needs.KURAMOTO), b.epoch(50))
    return theirs < ours < theirs + 0.05, f"{bits(ours)} against {bits(theirs)} (competitive: within 0.05)"


@claim(
    CLAIMS,
    "mean-field-in-range",
    "Section 1",
    "The variant without a feed-forward network reaches transformer range and falls short of the full FSN.",
    needs.MEAN_FIELD,
    needs.TRANSFORMER,
    needs.FSN,
    macros=("mfThirty", "mfThirtyStd", "mfGapThirty", "sfnMfGap"),
)
def _(b: Bench) -> tuple[bool, str]:
    mf, xf, fsn = (mean(b, n) for n in (needs.MEAN_FIELD, needs.TRANSFORMER, needs.FSN))
    near = abs(mf - xf) <= 2 * macro("mfGapThirty").value
    return near and mf > fsn, (
        f"{signed(mf - xf)} against the transformer (range: twice the paper's gap), {signed(mf - fsn)} "
        "against the FSN"
    )


@claim(
    CLAIMS,
    "indistinguishable-without-phases",
    "Sections 4.2 and 5",
    "At thirty epochs the FSN and its no-phase configuration are statistically indistinguishable.",
    needs.FSN,
    needs.NO_PHASES,
    macros=("nophaseThirty", "nophaseThirtyStd"),
)
def _(b: Bench) -> tuple[bool, str]:
    end = b.epoch(30)
    one, other = loss_at(b.runs(needs.FSN), end), loss_at(b.runs(needs.NO_PHASES), end)
    if min(one.count, other.count) < 2:
        raise NotRun("needs at least two seeds of each")
    error = math.sqrt(one.std**2 / one.count + other.std**2 / other.count)
    difference = other.mean - one.mean
    return abs(difference) <= 2 * error, (
        f"difference {signed(difference)}, twice its standard error is {bits(2 * error)}"
    )


@claim(
    CLAIMS,
    "fsn-ahead-every-epoch",
    "Section 4.2",
    "On enwik8 the FSN is below the transformer at every epoch from the first onward on every seed.",
    needs.FSN,
    needs.TRANSFORMER_FIVE,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    return every_epoch(b, needs.FSN, needs.TRANSFORMER_FIVE)


@claim(
    CLAIMS,
    "no-phases-ahead-every-epoch",
    "Section 4.2",
    "On enwik8 the no-phase configuration is below the transformer at every epoch on every seed.",
    needs.NO_PHASES,
    needs.TRANSFORMER_FIVE,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    return every_epoch(b, needs.NO_PHASES, needs.TRANSFORMER_FIVE)


@claim(
    CLAIMS,
    "fsn-below-converged-bar",
    "Section 4.2",
    "Every FSN seed is by epoch 30 below the fifty-epoch converged transformer.",
    needs.FSN,
    needs.TRANSFORMER_CONVERGED,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    losses, reference = [final(run, b) for run in b.runs(needs.FSN)], bar(b)
    return max(losses) < reference, f"{listed(losses)} against {bits(reference)}"


@claim(
    CLAIMS,
    "no-phases-below-converged-bar",
    "Section 4.2",
    "Every no-phase seed is by epoch 30 below the fifty-epoch converged transformer.",
    needs.NO_PHASES,
    needs.TRANSFORMER_CONVERGED,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    losses, reference = [final(run, b) for run in b.runs(needs.NO_PHASES)], bar(b)
    return max(losses) < reference, f"{listed(losses)} against {bits(reference)}"


@claim(
    CLAIMS,
    "crossing-epochs",
    "Section 4.2",
    "The FSN seeds cross the converged transformer at epochs 19, 23, 24, 19 and 27 (here: between 16 and "
    "30).",
    needs.FSN,
    needs.TRANSFORMER_CONVERGED,
    cites=tuple(("early", "fsn crosses 1.611 at epochs", str(i)) for i in range(5)),
)
def _(b: Bench) -> tuple[bool, str]:
    epochs = crossing_epochs(b.runs(needs.FSN), bar(b))
    low = 16 if b.epoch(30) == 30 else 1
    fine = all(epoch is not None and low <= epoch <= b.epoch(30) for epoch in epochs)
    return fine, "epochs " + ", ".join("never" if epoch is None else str(epoch) for epoch in epochs)


@claim(
    CLAIMS,
    "no-phases-reach-kuramoto",
    "Section 4.2",
    "The no-phase model reaches Kuramoto attention's converged loss within ten epochs on its fastest seed "
    "and eleven on all.",
    needs.NO_PHASES,
    needs.KURAMOTO,
    cites=tuple(("early", "nophase reaches 1.6272 within epochs", i) for i in "01"),
)
def _(b: Bench) -> tuple[bool, str]:
    target = lowest(b.runs(needs.KURAMOTO), b.epoch(50))
    epochs = crossing_epochs(b.runs(needs.NO_PHASES), target)
    known = [epoch for epoch in epochs if epoch is not None]
    fine = len(known) == len(epochs) and min(known) <= 10 and max(known) <= 11
    shown = ", ".join("never" if epoch is None else str(epoch) for epoch in epochs)
    return fine, f"{bits(target)} reached at epochs {shown}"


def _leads(b: Bench, need: Need, epochs: int) -> tuple[bool, str]:
    ours, theirs = b.run(need.seed(0)), b.run(needs.TRANSFORMER.seed(0))
    ahead = epochs_ahead(ours, theirs)
    end = b.epoch(30)
    behind = final(ours, b) > final(theirs, b)
    fine = behind and (abs(ahead - epochs) <= 2 if end == 30 else 0 < ahead < end)
    return (
        fine,
        f"leads for {ahead} epochs (within two of {epochs}), {'behind' if behind else 'ahead'} at {end}",
    )


@claim(
    CLAIMS,
    "mean-field-leads-five-epochs",
    "Section 4.2",
    "At the matched seed the FSN-MF leads the transformer through the first five epochs, then falls behind.",
    needs.MEAN_FIELD.seed(0),
    needs.TRANSFORMER.seed(0),
    cites=(("early", "fsn-mf leads the transformer for epochs"),),
)
def _(b: Bench) -> tuple[bool, str]:
    return _leads(b, needs.MEAN_FIELD, 5)


@claim(
    CLAIMS,
    "winding-leads-seven-epochs",
    "Section 4.2",
    "At the matched seed the winding register leads the transformer through the first seven epochs.",
    needs.WINDING.seed(0),
    needs.TRANSFORMER.seed(0),
    cites=(("early", "fsn-mf-winding leads the transformer for epochs"),),
)
def _(b: Bench) -> tuple[bool, str]:
    return _leads(b, needs.WINDING, 7)


@claim(
    CLAIMS,
    "mean-field-does-not-beat",
    "Section 4.2",
    "At this scale the mean-field family tracks the transformer without beating it.",
    needs.MEAN_FIELD,
    needs.WINDING,
    needs.TRANSFORMER,
    macros=("mfwThirty", "mfwThirtyStd", "mfwGapThirty"),
)
def _(b: Bench) -> tuple[bool, str]:
    xf = mean(b, needs.TRANSFORMER)
    gaps = [mean(b, need) - xf for need in (needs.MEAN_FIELD, needs.WINDING)]
    return min(gaps) > 0, f"{listed(gaps, signed)} behind (FSN-MF, winding register)"


@claim(
    CLAIMS,
    "feed-forward-contributes",
    "Section 4.2",
    "The full FSN is ahead of both mean-field variants.",
    needs.FSN,
    needs.MEAN_FIELD,
    needs.WINDING,
    macros=("sfnMfwGap",),
)
def _(b: Bench) -> tuple[bool, str]:
    fsn = mean(b, needs.FSN)
    gaps = [mean(b, need) - fsn for need in (needs.MEAN_FIELD, needs.WINDING)]
    return min(gaps) > 0, f"{listed(gaps, signed)} (FSN-MF, winding register)"


@claim(
    CLAIMS,
    "one-mean-field-seed-diverges",
    "Section 4.2",
    "One of the three plain FSN-MF seeds diverges.",
    needs.MEAN_FIELD,
)
def _(b: Bench) -> tuple[bool, str]:
    epochs = [diverged_at(run) for run in b.runs(needs.MEAN_FIELD)]
    lost = [epoch for epoch in epochs if epoch is not None]
    where = f" (epoch {', '.join(map(str, lost))})" if lost else ""
    return len(lost) == 1, f"{len(lost)} of {len(epochs)} seeds{where}"


@claim(
    CLAIMS,
    "divergence-without-warning",
    "Section 4.2",
    "The seed that diverged was indistinguishable from its siblings in the epoch before.",
    needs.MEAN_FIELD,
    macros=("mfDivergeEpSixteen",),
    conditional=True,
)
def _(b: Bench) -> tuple[bool, str]:
    runs = b.runs(needs.MEAN_FIELD)
    lost = [run for run in runs if diverged_at(run) is not None and last_finite(run)[0]]
    if not lost or len(lost) == len(runs):
        raise NotRun("no seed diverged after a finished epoch while a sibling went on")
    epoch, own = last_finite(lost[0])
    others = [epoch_value(finished_epochs(r)[epoch - 1], "valid_bits") for r in runs if r is not lost[0]]
    return own <= max(others) + 0.02, f"{bits(own)} at epoch {epoch}, siblings {listed(others)}"


@claim(
    CLAIMS,
    "converges-late",
    "Section 4.3",
    "The converged FSN and base-layer seeds reach their best validation within the last five of fifty "
    "epochs.",
    needs.FSN_CONVERGED,
    needs.KURAMOTO,
)
def _(b: Bench) -> tuple[bool, str]:
    end = b.epoch(50)
    runs = [*b.runs(needs.FSN_CONVERGED), *b.runs(needs.KURAMOTO)]
    epochs = [best_epoch(run).epoch for run in runs]
    return all(end - 5 < epoch <= end for epoch in epochs), "best epochs " + ", ".join(map(str, epochs))
