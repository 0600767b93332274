"""Section 4.2, the code corpus: both window lengths, and the seeds that fail."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...measure import diverged_at, epoch_margins, epoch_value, finished_epochs, health_table, loss_at
from ...train import Run
from ..bench import Bench, NotRun
from ..rows import (
    Claim,
    Found,
    Measurement,
    NoCase,
    Result,
    Row,
    below,
    beyond,
    bits,
    cite,
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
    LONG_FSN,
    LONG_SEEDS,
    LONG_TRANSFORMER,
    MEAN_FIELD,
    TRANSFORMER,
    Need,
)
from .main import final, gap, last_finite, lowest, mean

Pair = tuple[Need, Need]

SHORT: Pair = (CODE_FSN.seed(0), CODE_TRANSFORMER.seed(0))
LONG: Pair = (LONG_FSN, LONG_TRANSFORMER)

# -- length 512 --------------------------------------------------------------------------------------------


def final_margin(b: Bench, pair: Pair) -> float:
    """FSN minus transformer after thirty epochs."""
    return gap(b.epoch(30))(b.runs(pair[0]), b.runs(pair[1]))


def mean_margin(b: Bench, pair: Pair) -> float:
    """Mean over the epochs of the margin between the two runs of a seed."""
    return float(np.mean(epoch_margins(b.run(pair[0]), b.run(pair[1]), b.epoch(30))))


def context_gain(b: Bench, which: int) -> float:
    """Bits that the FSN (0) or the transformer (1) gains by doubling the context."""
    return gap(b.epoch(30))(b.runs(SHORT[which]), b.runs(LONG[which]))


@item("sequence-512", "Code at sequence length 512", "Section 4.2", *SHORT, *LONG)
def sequence_512(b: Bench) -> Result:
    """Final and epoch-mean margins of the seed-0 pair at both window lengths, and the gain from more context."""
    end, long = b.epoch(30), b.scale.length(512)
    rows = []
    for name, need in (("FSN", LONG_FSN), ("transformer", LONG_TRANSFORMER)):
        paper = cite("main_table", "code@30/seq512", need.family)
        rows.append(compare(b, f"{name}, length {long}", paper, [need], lambda runs: loss_at(runs, end)))
    rows = levels(b, "code", rows)
    place = ("main_table", "code margins fsn minus transformer")
    for pair, length in ((SHORT, 256), (LONG, 512)):
        for words, key, margin in (
            ("final margin", "final", final_margin),
            ("mean margin over the epochs", "epoch mean", mean_margin),
        ):
            title, paper = f"{words}, length {b.scale.length(length)}", cite(*place, f"seq{length} {key}")
            rows.append(compare(b, title, paper, pair, lambda *_, p=pair, m=margin: m(b, p), "+.4f"))
    for i, (name, source) in enumerate((("FSN", "codeContextDropFSN"), ("transformer", "codeContextDropXF"))):
        title, both = f"{name}: gain from doubling the context", [SHORT[i], LONG[i]]
        rows.append(compare(b, title, macro(source), both, lambda *_, i=i: context_gain(b, i)))
    return Result(rows=rows)


# -- failures ----------------------------------------------------------------------------------------------

CODE_FIRST = CODE_FSN.after(1)
PLACES = ("lowest seed", "middle seed", "highest seed")


def first_losses(runs: list[Run]) -> list[float]:
    """Validation loss after epoch one, rising."""
    return sorted(epoch_value(finished_epochs(run)[0], "valid_bits") for run in runs if finished_epochs(run))


def rank(place: int) -> Callable[[list[Run]], Measurement]:
    """The lowest (0), middle (1) or highest (2) of the seeds' first losses."""

    def measure(runs: list[Run]) -> Measurement:
        losses = first_losses(runs)
        return losses[(0, len(losses) // 2, -1)[place]]

    return measure


def first_epoch_rows(b: Bench, need: Need, key: str) -> list[Row]:
    healthy = [cite("early", f"{key} healthy seeds @1", end) for end in "01"]
    papers = [*sorted(healthy, key=lambda one: one.value), cite("early", f"{key} plateau seed @1")]
    rows = [
        compare(b, f"epoch 1, {place}", paper, [need], rank(i), whole=True)
        for i, (place, paper) in enumerate(zip(PLACES, papers, strict=True))
    ]
    apart = compare(
        b,
        "epoch 1, highest minus lowest",
        papers[2].minus(papers[0]),
        [need],
        lambda runs: first_losses(runs)[-1] - first_losses(runs)[0],
        "+.4f",
        f"more than {macro('codeSeedSepMin').value:g} marks a plateau failure",
        whole=True,
    )
    return [*levels(b, "code", rows), apart]


def last_before(runs: list[Run]) -> Measurement:
    """The last loss of a seed that diverged."""
    for run in runs:
        epoch = diverged_at(run)
        if epoch is not None:
            return last_finite(run)[1], f"{run.name}, not finite in epoch {epoch}"
    return math.nan, f"none of the {len(runs)} seeds diverged"


@item("failures", "Training failures", "Section 4.2", CODE_FIRST, LONG_SEEDS, MEAN_FIELD)
def failures(b: Bench) -> Result:
    """First-epoch losses of the code seeds, where plateau failures separate, and the FSN-MF divergence."""
    diverging = compare(
        b,
        "FSN-MF: last loss of a seed that diverged",
        cite("early", "fsn-mf diverging seed @16 (non-finite at 17)"),
        [MEAN_FIELD],
        last_before,
        remark="paper: epoch 16 of 30",
    )
    rows = grouped("Code, first epoch", first_epoch_rows(b, CODE_FIRST, "code"))
    rows += grouped("Code, length 512, first epoch", first_epoch_rows(b, LONG_SEEDS, "code/seq512"))
    result = Result(rows=rows + grouped("Divergence", [diverging]))
    if b.library.runs:
        result.tables.append(("Health of every run found", health_table(b.library.runs)))
    return result


# -- claims ------------------------------------------------------------------------------------------------


def two_of_three_ahead(b: Bench) -> Found:
    runs, references, end = b.every(CODE_FSN), b.runs(CODE_TRANSFORMER), b.epoch(30)
    healthy = [diverged_at(run) is None for run in runs]
    ahead = [
        fine and all((epoch_margins(run, one)[:end] < 0).all() for one in references)
        for run, fine in zip(runs, healthy, strict=True)
    ]
    return sum(ahead) == 2, f"{sum(ahead)} of {len(ahead)} seeds ahead at every epoch"


def plateau_seed(b: Bench) -> Found:
    losses = [final(run, b) for run in b.every(CODE_FSN)]
    worse = sum(not loss <= lowest(b.runs(CODE_FSN), b.epoch(30)) + 0.1 for loss in losses)
    return worse == 1, f"{worse} of {len(losses)} seeds: {listed(losses)}"


def both_below_transformer(b: Bench) -> Found:
    ours, theirs = [mean(b, need) for need in (CODE_FSN.seed(0), CODE_NO_PHASES)], mean(b, CODE_TRANSFORMER)
    return max(ours) < theirs, f"{listed(ours)} (FSN, no phases) against {bits(theirs)}"


def no_larger_than_text(b: Bench) -> Found:
    code = mean(b, CODE_FSN.seed(0)) - mean(b, CODE_TRANSFORMER)
    text = mean(b, FSN) - mean(b, TRANSFORMER)
    return text <= code < 0, f"code {signed(code)}, text {signed(text)}"


def context_helps_more(b: Bench) -> Found:
    gains = [context_gain(b, 0), context_gain(b, 1)]
    margin = max(abs(final_margin(b, pair)) for pair in (SHORT, LONG))
    return min(gains) > 2 * margin, f"gains {listed(gains)}, largest margin {bits(margin)}"


def smaller_at_512(b: Bench) -> Found:
    short, long = final_margin(b, SHORT), final_margin(b, LONG)
    return abs(long) < abs(short), f"{signed(long)} against {signed(short)}"


def epoch_mean_margins(b: Bench) -> Found:
    means = [mean_margin(b, pair) for pair in (SHORT, LONG)]
    return max(means) < 0, f"{listed(means, signed)} (256, 512)"


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
    return apart > macro("codeSeedSepMin").value, f"{bits(apart)} apart, healthy seeds within {bits(spread)}"


def thirty_times_apart(b: Bench) -> Found:
    found = [apart / spread for apart, spread in (failed_seed(b, need) for need in (CODE_FIRST, LONG_SEEDS))]
    return min(found) >= 20, f"{listed(found, lambda v: f'{v:.0f}')} times (length 256, 512)"


# fmt: off
CLAIMS = (
    Claim("code-two-of-three-ahead", "Section 4.2",
          "On code the every-epoch ordering holds for two of the three FSN seeds.",
          (CODE_FSN, CODE_TRANSFORMER), two_of_three_ahead, "sfnCodeThirty sfnCodeSTwo xfCodeThirty xfCodeThirtyStd"),
    Claim("code-plateau-seed", "Section 4.2",
          "One of three FSN code seeds trains to a worse plateau (more than 0.1 above its siblings at the end).",
          (CODE_FSN,), plateau_seed, "sfnCodeSOne"),
    Claim("code-below-transformer", "Section 4.2",
          "On code both main models (FSN and no phases, seed 0) are below the transformer's mean at thirty epochs.",
          (CODE_FSN.seed(0), CODE_NO_PHASES, CODE_TRANSFORMER), both_below_transformer, "nophaseCodeVal"),
    Claim("code-margin-no-larger", "Section 4.2",
          "The code result is positive but no larger than the enwik8 result.",
          (CODE_FSN.seed(0), CODE_TRANSFORMER, FSN, TRANSFORMER), no_larger_than_text),
    Claim("code-below-any-transformer-epoch", "Section 4.2",
          "The FSN's epoch-30 value on code is below the best the transformer reaches at any epoch on any seed.",
          (CODE_FSN.seed(0), CODE_TRANSFORMER),
          lambda b: below(mean(b, CODE_FSN.seed(0)), lowest(b.runs(CODE_TRANSFORMER), b.epoch(30))), "sfnCodeBest"),
    Claim("context-helps-more-than-architecture", "Section 4.2",
          "Doubling the context improves both models by far more than the architecture does.",
          (*SHORT, *LONG), context_helps_more,
          "codeContextDropFSN codeContextDropXF sfnCodeFiveTwelve xfCodeFiveTwelve"),
    Claim("margin-smaller-at-512", "Section 4.2", "The final margin is smaller at length 512 than at 256.",
          (*SHORT, *LONG), smaller_at_512, "codeMarginFiveTwelve codeMarginTwoFiftySix"),
    Claim("ahead-at-512", "Section 4.2", "In the completed 512 comparison the FSN finishes below the transformer.",
          LONG, lambda b: beyond(final_margin(b, LONG), False)),
    Claim("epoch-mean-margins", "Section 4.2", "Averaged over the epochs the FSN is ahead at both lengths.",
          (*SHORT, *LONG), epoch_mean_margins, "codeMarginFiveTwelveMean codeMarginTwoFiftySixMean"),
    Claim("plateau-shows-at-epoch-one", "Section 4.2",
          "The plateau failure on code separates from its siblings by more than 0.2 bits at the first epoch.",
          (CODE_FIRST,), lambda b: separates(b, CODE_FIRST),
          "codeFailEpOne codeHealthyEpOneA codeHealthyEpOneB codeSeedSepMin"),
    Claim("plateau-shows-at-epoch-one-512", "Section 4.2",
          "So does the plateauing seed of the length-512 replication arm.",
          (LONG_SEEDS,), lambda b: separates(b, LONG_SEEDS),
          "codeFiveTwelveFailEpOne codeFiveTwelveHealthyEpOneA codeFiveTwelveHealthyEpOneB"),
    Claim("failed-seeds-thirty-times-apart", "Section 4.2",
          "Both failed seeds separate at roughly thirty times the spread between their siblings (here: at least 20).",
          (CODE_FIRST, LONG_SEEDS), thirty_times_apart),
)
