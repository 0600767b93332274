"""Section 4.2, the code corpus: both window lengths, and the seeds that fail."""

from __future__ import annotations

from fsn.measure import epoch_margins
from fsn.measure.runs import epoch_values, finished_epochs
from fsn.paper import needs
from fsn.paper.bench import Bench, NotRun
from fsn.paper.claims.claim import Claim, bits, claim, listed, signed
from fsn.paper.claims.comparison import final, mean
from fsn.paper.items.main_table import lowest
from fsn.paper.items.sequence_512 import LONG, SHORT, drop, final_margin, mean_margin
from fsn.paper.needs import Need
from fsn.paper.values import macro
from fsn.train import Run

CLAIMS: list[Claim] = []


def code_seeds(b: Bench) -> list[Run]:
    """The FSN's code seeds that are there."""
    found = {**b.by_seed(needs.CODE_FSN), **b.by_seed(needs.CODE_FSN.seed(2))}
    if not found:
        raise NotRun(f"missing: {b.standing([needs.CODE_FSN]).absent()}")
    return list(found.values())


@claim(
    CLAIMS,
    "code-two-of-three-ahead",
    "Section 4.2",
    "On code the every-epoch ordering holds for two of the three FSN seeds.",
    needs.CODE_FSN,
    needs.CODE_FSN.seed(2),
    needs.CODE_TRANSFORMER,
    macros=("sfnCodeThirty", "sfnCodeSTwo", "xfCodeThirty", "xfCodeThirtyStd"),
)
def _(b: Bench) -> tuple[bool, str]:
    runs = code_seeds(b)
    references = b.runs(needs.CODE_TRANSFORMER)
    end = b.epoch(30)
    ahead = [all((epoch_margins(r, x)[:end] < 0).all() for x in references) for r in runs]
    return sum(ahead) == 2, f"{sum(ahead)} of {len(ahead)} seeds ahead at every epoch"


@claim(
    CLAIMS,
    "code-plateau-seed",
    "Section 4.2",
    "One of three FSN code seeds trains to a worse plateau (more than 0.1 above its siblings at the end).",
    needs.CODE_FSN,
    needs.CODE_FSN.seed(2),
    macros=("sfnCodeSOne",),
)
def _(b: Bench) -> tuple[bool, str]:
    runs = code_seeds(b)
    losses = [final(run, b) for run in runs]
    worse = sum(loss > min(losses) + 0.1 for loss in losses)
    return worse == 1, f"{worse} of {len(losses)} seeds: {listed(losses)}"


@claim(
    CLAIMS,
    "code-below-transformer",
    "Section 4.2",
    "On code the FSN (seed 0) is below the transformer at thirty epochs.",
    needs.CODE_FSN.seed(0),
    needs.CODE_TRANSFORMER,
    macros=("nophaseCodeVal",),
)
def _(b: Bench) -> tuple[bool, str]:
    ours, theirs = mean(b, needs.CODE_FSN.seed(0)), mean(b, needs.CODE_TRANSFORMER)
    return ours < theirs, f"{bits(ours)} against {bits(theirs)}"


@claim(
    CLAIMS,
    "code-margin-no-larger",
    "Section 4.2",
    "The code result is positive but no larger than the enwik8 result (here: at most 0.01 larger).",
    needs.CODE_FSN.seed(0),
    needs.CODE_TRANSFORMER,
    needs.FSN,
    needs.TRANSFORMER,
)
def _(b: Bench) -> tuple[bool, str]:
    code = mean(b, needs.CODE_FSN.seed(0)) - mean(b, needs.CODE_TRANSFORMER)
    text = mean(b, needs.FSN) - mean(b, needs.TRANSFORMER)
    return code < 0 and code >= text - 0.01, f"code {signed(code)}, text {signed(text)}"


@claim(
    CLAIMS,
    "code-below-any-transformer-epoch",
    "Section 4.2",
    "The FSN's epoch-30 value on code is below the best the transformer reaches at any epoch on any seed.",
    needs.CODE_FSN.seed(0),
    needs.CODE_TRANSFORMER,
    macros=("sfnCodeBest",),
)
def _(b: Bench) -> tuple[bool, str]:
    ours, best = mean(b, needs.CODE_FSN.seed(0)), lowest(b.runs(needs.CODE_TRANSFORMER), b.epoch(30))
    return ours < best, f"{bits(ours)} against {bits(best)}"


@claim(
    CLAIMS,
    "context-helps-more-than-architecture",
    "Section 4.2",
    "Doubling the context improves both models by far more than the architecture does.",
    *SHORT,
    *LONG,
    macros=("codeContextDropFSN", "codeContextDropXF", "sfnCodeFiveTwelve", "xfCodeFiveTwelve"),
)
def _(b: Bench) -> tuple[bool, str]:
    (fsn, xf), (fsn_long, xf_long) = ([b.runs(n) for n in pair] for pair in (SHORT, LONG))
    drops = [drop(b, fsn, fsn_long), drop(b, xf, xf_long)]
    margin = max(abs(final_margin(b, fsn, xf)), abs(final_margin(b, fsn_long, xf_long)))
    return min(drops) > 2 * margin, f"gains {listed(drops)}, largest margin {bits(margin)}"


@claim(
    CLAIMS,
    "margin-smaller-at-512",
    "Section 4.2",
    "The final margin is smaller at length 512 than at 256.",
    *SHORT,
    *LONG,
    macros=("codeMarginFiveTwelve", "codeMarginTwoFiftySix"),
)
def _(b: Bench) -> tuple[bool, str]:
    short, long = (final_margin(b, b.runs(p[0]), b.runs(p[1])) for p in (SHORT, LONG))
    return abs(long) < abs(short), f"{signed(long)} against {signed(short)}"


@claim(
    CLAIMS,
    "ahead-at-512",
    "Section 4.2",
    "In the completed 512 comparison the FSN finishes below the transformer.",
    *LONG,
)
def _(b: Bench) -> tuple[bool, str]:
    margin = final_margin(b, b.runs(LONG[0]), b.runs(LONG[1]))
    return margin < 0, signed(margin)


@claim(
    CLAIMS,
    "epoch-mean-margins",
    "Section 4.2",
    "Averaged over the epochs the FSN is ahead at both lengths.",
    *SHORT,
    *LONG,
    macros=("codeMarginFiveTwelveMean", "codeMarginTwoFiftySixMean"),
)
def _(b: Bench) -> tuple[bool, str]:
    means = [mean_margin(b, b.runs(p[0]), b.runs(p[1])) for p in (SHORT, LONG)]
    return max(means) < 0, f"{listed(means, signed)} (256, 512)"


def _first(runs: list[Run]) -> list[float]:
    return sorted(
        epoch_values([finished_epochs(run)[0] for run in runs if finished_epochs(run)], "valid_bits")
    )


def _separates(b: Bench, need: Need) -> tuple[bool, str]:
    losses = _first(b.runs(need))
    if len(losses) < 3 or losses[-1] - losses[0] < 0.05:
        raise NotRun(f"no seed failed: first epochs {listed(losses)}")
    apart, spread = losses[-1] - losses[-2], losses[-2] - losses[0]
    return apart > macro("codeSeedSepMin").value, f"{bits(apart)} apart, healthy seeds within {bits(spread)}"


@claim(
    CLAIMS,
    "plateau-shows-at-epoch-one",
    "Section 4.2",
    "The plateau failure on code separates from its siblings by more than 0.2 bits at the first epoch.",
    needs.CODE_FSN.after(1),
    needs.CODE_FSN.seed(2).after(1),
    macros=("codeFailEpOne", "codeHealthyEpOneA", "codeHealthyEpOneB", "codeSeedSepMin"),
    conditional=True,
)
def _(b: Bench) -> tuple[bool, str]:
    return _separates(b, needs.CODE_FSN.after(1))


@claim(
    CLAIMS,
    "plateau-shows-at-epoch-one-512",
    "Section 4.2",
    "So does the plateauing seed of the length-512 replication arm.",
    needs.LONG_SEEDS,
    macros=("codeFiveTwelveFailEpOne", "codeFiveTwelveHealthyEpOneA", "codeFiveTwelveHealthyEpOneB"),
    conditional=True,
)
def _(b: Bench) -> tuple[bool, str]:
    return _separates(b, needs.LONG_SEEDS)
