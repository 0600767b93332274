"""Sections 2 and 5, Appendix A: the parts of the model, and what it costs to leave one out."""

from __future__ import annotations

import math

from fsn.measure import loss_at
from fsn.measure.runs import diverged_at, epoch_value, finished_epochs, vocabulary_of
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.claims.claim import Claim, bits, claim, listed, signed
from fsn.paper.claims.comparison import mean
from fsn.paper.items.ablations import FSN_EARLY, MEAN_FIELD_EARLY, NO_PHASES_EARLY
from fsn.paper.items.init_ramp import growth
from fsn.paper.items.parameters import kernel_share, mean_field_mismatch, torus_factor, total
from fsn.paper.needs import Need
from fsn.paper.values import parameter_totals

CLAIMS: list[Claim] = []


def after_two(b: Bench, need: Need) -> float:
    """Seed-0 loss at epoch two."""
    return loss_at(b.runs(need.seed(0)), b.epoch(2)).mean


# -- needs no run ------------------------------------------------------------------------------------------


@claim(
    CLAIMS,
    "parameter-totals",
    "Section 2.5",
    "The realized parameter counts of both models on text and code, and of the 8M rung.",
    macros=("sfnParams", "xfParams", "sfnCodeParams", "xfCodeParams", "paramImbalance"),
)
def _(b: Bench) -> tuple[bool, str]:
    stated = parameter_totals()
    found = {key: total(f"{key[0]}-{key[1]}", key[2]) for key in stated}
    same = sum(found[key] == stated[key] for key in found)
    return same == len(found), f"{same} of {len(found)} totals are the paper's to the digit"


@claim(
    CLAIMS,
    "kernel-below-one-percent",
    "Section 2.5",
    "The kernel's coefficients are below one percent of the total.",
)
def _(b: Bench) -> tuple[bool, str]:
    found = kernel_share()
    return found < 1.0, f"{found:.2f} percent"


@claim(
    CLAIMS,
    "counts-within-four-percent",
    "Section 4.1",
    "Realized counts of the main pairs differ by under four percent, in directions that vary by corpus.",
)
def _(b: Bench) -> tuple[bool, str]:
    found = [100 * (total("fsn-1m", v) / total("transformer-1m", v) - 1) for v in (205, 97)]
    fine = max(map(abs, found)) < 4 and found[0] * found[1] < 0
    return fine, f"{listed(found, lambda v: signed(v, 2))} percent (text, code)"


@claim(
    CLAIMS,
    "mean-field-matches-block",
    "Section 2.4",
    "The mean-field block has the parameter count of the SwiGLU block to within a tenth of a percent.",
)
def _(b: Bench) -> tuple[bool, str]:
    found = mean_field_mismatch()
    return found < 0.1, f"{found:.3f} percent off"


@claim(
    CLAIMS,
    "periodic-block-is-larger",
    "Section 2.4",
    "The periodic-input block has roughly three times the parameters of the block it replaces.",
)
def _(b: Bench) -> tuple[bool, str]:
    found = torus_factor()
    return 2.5 <= found <= 3.5, f"{found:.2f} times"


@claim(
    CLAIMS,
    "init-ramp",
    "Section 2.4",
    "At initialization the scale grows by a factor of roughly 33 from the first layer to the last (25 to "
    "41).",
    macros=("rmsRamp",),
)
def _(b: Bench) -> tuple[bool, str]:
    found = growth(b)
    return 25 <= found.mean <= 41, f"{found.mean:.1f} times"


# -- screens -----------------------------------------------------------------------------------------------


@claim(
    CLAIMS,
    "delay-matters-most",
    "Sections 3.3 and 5",
    "Removing the delay is the largest single subtraction at epoch two (phases, periodic input, "
    "feed-forward).",
    needs.NO_DELAY,
    FSN_EARLY.seed(0),
    NO_PHASES_EARLY.seed(0),
    needs.TORUS,
    MEAN_FIELD_EARLY,
    macros=("ablNoSuccDelta",),
)
def _(b: Bench) -> tuple[bool, str]:
    fsn, real = after_two(b, FSN_EARLY), after_two(b, NO_PHASES_EARLY)
    delay = after_two(b, needs.NO_DELAY) - fsn
    others = [real - fsn, after_two(b, needs.TORUS) - real, after_two(b, MEAN_FIELD_EARLY) - fsn]
    return delay > max(others), f"{signed(delay)} against {listed(others, signed)}"


@claim(
    CLAIMS,
    "delay-helps",
    "Section 5",
    "Without the delay, harmonics alone, the loss at epoch two is higher.",
    needs.NO_DELAY,
    FSN_EARLY.seed(0),
)
def _(b: Bench) -> tuple[bool, str]:
    found = after_two(b, needs.NO_DELAY) - after_two(b, FSN_EARLY)
    return found > 0, signed(found)


@claim(
    CLAIMS,
    "phases-help-early",
    "Section 5",
    "Early in training the static phases help: lower seed mean at epoch two.",
    FSN_EARLY,
    NO_PHASES_EARLY,
)
def _(b: Bench) -> tuple[bool, str]:
    fsn, real = mean(b, FSN_EARLY, 2), mean(b, NO_PHASES_EARLY, 2)
    return fsn < real, f"{bits(fsn)} against {bits(real)}"


@claim(
    CLAIMS,
    "phases-lead-closes",
    "Section 5",
    "The lead of the phases closes by thirty epochs.",
    FSN_EARLY,
    NO_PHASES_EARLY,
    needs.FSN.seed(0, 1, 2),
    needs.NO_PHASES,
)
def _(b: Bench) -> tuple[bool, str]:
    early = mean(b, NO_PHASES_EARLY, 2) - mean(b, FSN_EARLY, 2)
    late = mean(b, needs.NO_PHASES) - mean(b, needs.FSN.seed(0, 1, 2))
    return (
        early > 0 and late < early,
        f"{signed(early)} at epoch {b.epoch(2)}, {signed(late)} at {b.epoch(30)}",
    )


@claim(
    CLAIMS,
    "noise-acts-early",
    "Section 2.3",
    "The effect of the noisy start concentrates early: the lean model's gap is larger at epoch two than at "
    "eleven.",
    needs.LEAN,
    needs.FSN.seed(0).after(11),
)
def _(b: Bench) -> tuple[bool, str]:
    gaps = [
        loss_at(b.runs(needs.LEAN), b.epoch(e)).mean
        - loss_at(b.runs(needs.FSN.seed(0).after(11)), b.epoch(e)).mean
        for e in (2, 11)
    ]
    return abs(gaps[0]) > abs(gaps[1]), f"{listed(gaps, signed)} (epochs {b.epoch(2)} and {b.epoch(11)})"


@claim(
    CLAIMS,
    "periodic-input-costs",
    "Section 2.4",
    "Restricting the SwiGLU's input to periodic functions of the state costs loss at epoch two.",
    needs.TORUS,
    NO_PHASES_EARLY.seed(0),
    macros=("torusSwigluPenalty",),
)
def _(b: Bench) -> tuple[bool, str]:
    found = after_two(b, needs.TORUS) - after_two(b, NO_PHASES_EARLY)
    return found > 0, signed(found)


@claim(
    CLAIMS,
    "periodic-input-third-of-gap",
    "Section 2.4",
    "That penalty is more than a third of the mean-field gap at the same checkpoint.",
    needs.TORUS,
    NO_PHASES_EARLY.seed(0),
    MEAN_FIELD_EARLY,
    FSN_EARLY.seed(0),
)
def _(b: Bench) -> tuple[bool, str]:
    penalty = after_two(b, needs.TORUS) - after_two(b, NO_PHASES_EARLY)
    gap = after_two(b, MEAN_FIELD_EARLY) - after_two(b, FSN_EARLY)
    return penalty > gap / 3, f"{signed(penalty)} of {signed(gap)}"


@claim(
    CLAIMS,
    "mean-field-recovers-most",
    "Section 2.4",
    "The mean field recovers most of the SwiGLU block's contribution (against a stack without any block).",
    needs.MEAN_FIELD.seed(0),
    needs.FSN.seed(0),
    needs.NO_FEEDFORWARD,
)
def _(b: Bench) -> tuple[bool, str]:
    none, mf, fsn = (
        mean(b, need) for need in (needs.NO_FEEDFORWARD, needs.MEAN_FIELD.seed(0), needs.FSN.seed(0))
    )
    share = (none - mf) / (none - fsn) if none != fsn else math.nan
    return (
        none > fsn and share > 0.5,
        f"{bits(none)} without, {bits(mf)} mean field, {bits(fsn)} SwiGLU: {share:.0%}",
    )


@claim(
    CLAIMS,
    "winding-register-helps",
    "Appendix A",
    "The winding register has lower validation loss than the plain mean-field row.",
    needs.WINDING,
    needs.MEAN_FIELD,
)
def _(b: Bench) -> tuple[bool, str]:
    winding, plain = mean(b, needs.WINDING), mean(b, needs.MEAN_FIELD)
    return winding < plain, f"{bits(winding)} against {bits(plain)}"


@claim(
    CLAIMS,
    "bound-is-essential",
    "Appendix A",
    "Without the bound the run diverges within the first epoch (not finite, or worse than guessing).",
    needs.NO_BOUND,
    macros=("bndNoneEpOne",),
)
def _(b: Bench) -> tuple[bool, str]:
    run = b.run(needs.NO_BOUND)
    if diverged_at(run) is not None:
        return diverged_at(run) == 1, f"not finite in epoch {diverged_at(run)}"
    loss, guessing = epoch_value(finished_epochs(run)[0], "valid_bits"), math.log2(vocabulary_of(run) or 2)
    return loss > guessing, f"{loss:.2f} bits at epoch 1; guessing has {guessing:.2f}"
