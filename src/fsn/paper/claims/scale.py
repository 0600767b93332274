"""Sections 4.5 and 4.6: the ladder and the wall-clock."""

from __future__ import annotations

import math

from fsn.measure import TargetLoss, wallclock_table
from fsn.paper import needs
from fsn.paper.bench import Bench, NotRun
from fsn.paper.claims.claim import Claim, bits, claim, listed, signed
from fsn.paper.claims.comparison import final, mean
from fsn.paper.items.code_wall_clock import LONG, PAIRS, paired
from fsn.paper.items.crossing import COMPLETED, crossings
from fsn.paper.items.ladder import EPOCH, pair
from fsn.paper.items.main_table import lowest
from fsn.paper.items.parameters import lighter
from fsn.paper.items.wall_clock import NEEDS, rung
from fsn.paper.needs import Need

CLAIMS: list[Claim] = []


def margin(b: Bench, name: str) -> float:
    """FSN minus transformer at a rung, seed 0, at the epoch they are compared."""
    fsn, transformer = pair(name)
    return mean(b, fsn, EPOCH[name]) - mean(b, transformer, EPOCH[name])


def _finishes_below(name: str) -> None:
    @claim(
        CLAIMS,
        f"ladder-{name.lower()}",
        "Section 4.5",
        f"At {name} the FSN is below the transformer at epoch {EPOCH[name]}.",
        *pair(name),
    )
    def _(b: Bench) -> tuple[bool, str]:
        found = margin(b, name)
        return found < 0, f"{signed(found)} at epoch {b.epoch(EPOCH[name])}"


for _name in ("2M", "4M", "8M"):
    _finishes_below(_name)


@claim(
    CLAIMS,
    "ladder-8m-below-final",
    "Section 4.5",
    "At 8M the FSN is by epoch fourteen below the transformer's completed thirty-epoch value.",
    pair("8M")[0],
    pair("8M")[1].after(30),
    macros=("ladderEightFSN", "ladderEightFSNEpoch", "ladderEightXF", "ladderEightXFFinal"),
)
def _(b: Bench) -> tuple[bool, str]:
    ours, theirs = mean(b, pair("8M")[0], 14), mean(b, pair("8M")[1].after(30))
    return ours < theirs, f"{bits(ours)} against {bits(theirs)}"


@claim(
    CLAIMS,
    "ladder-lighter",
    "Section 4.5",
    "The FSN models of the ladder are lighter than their transformers by 2.0, 4.0 and 0.15 percent.",
    macros=("ladderTwoLighter", "ladderFourLighter", "ladderEightLighter"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [lighter(size) for size in ("2m", "4m", "8m")]
    fine = [round(found[0], 1), round(found[1], 1), round(found[2], 2)] == [2.0, 4.0, 0.15]
    return fine, listed(found, lambda v: f"{v:.2f} %")


@claim(
    CLAIMS,
    "advantage-does-not-shrink",
    "Section 4.5",
    "The epoch-matched advantage does not shrink with scale: at each rung at least that of one million.",
    *(need for name in EPOCH for need in pair(name)),
    macros=("ladderTwoFSN", "ladderTwoXFFinal", "ladderFourFSN", "ladderFourXFFinal"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [margin(b, name) for name in EPOCH]
    return max(found[1:]) <= found[0], f"{listed(found, signed)} (1M, 2M, 4M, 8M)"


def rungs(b: Bench) -> dict[str, TargetLoss]:
    return {name: rung(b, name) for name in needs.RUNGS}


@claim(
    CLAIMS,
    "several-times-slower",
    "Sections 1 and 4.6",
    "The FSN trains roughly three times more slowly per epoch at every scale (here: between 2.5 and 4.5).",
    *NEEDS,
    macros=("wcSlowOne", "wcSlowTwo", "wcSlowFour", "wcSlowEight"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [one.slowdown for one in rungs(b).values()]
    return all(2.5 <= s <= 4.5 for s in found), f"{listed(found, lambda v: f'{v:.2f}×')} (1M, 2M, 4M, 8M)"


def _ratio(b: Bench, name: str, column: str) -> float:
    return float(wallclock_table([rung(b, name)]).rows[0][column])


def _times(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}×"


@claim(
    CLAIMS,
    "faster-to-target-at-4m-and-8m",
    "Sections 1 and 4.6",
    "Against the mean transformer the FSN reaches its loss in less wall-clock at four and eight million.",
    *needs.RUNGS["4M"],
    *needs.RUNGS["8M"],
    macros=("wcMeanFour", "wcMeanFourLo", "wcMeanFourHi", "wcMeanEight", "wcBestEight"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [_ratio(b, name, "vs_mean") for name in ("4M", "8M")]
    return max(found) < 1, listed(found, _times)


@claim(
    CLAIMS,
    "slower-to-target-at-1m-and-2m",
    "Sections 1 and 4.6",
    "At one and two million it needs more wall-clock than the mean transformer.",
    *needs.RUNGS["1M"],
    *needs.RUNGS["2M"],
    macros=("wcMeanOne", "wcMeanTwo"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [_ratio(b, name, "vs_mean") for name in ("1M", "2M")]
    return min(found) > 1, listed(found, _times)


@claim(
    CLAIMS,
    "lowest-transformer-is-hardest",
    "Section 4.6",
    "The lowest-loss transformer is the hardest target: no ratio against it is below the one against the "
    "mean.",
    *NEEDS,
    macros=("wcBestOne", "wcBestTwo", "wcBestFour"),
)
def _(b: Bench) -> tuple[bool, str]:
    pairs = [(_ratio(b, name, "vs_lowest"), _ratio(b, name, "vs_mean")) for name in needs.RUNGS]
    shown = "; ".join(f"{_times(low)} and {_times(mean_)}" for low, mean_ in pairs)
    return all(low >= mean_ - 0.005 for low, mean_ in pairs), shown


@claim(
    CLAIMS,
    "transformer-has-stopped",
    "Section 4.6",
    "Over its last five epochs the transformer gains at most about one millibit per epoch at every rung.",
    *NEEDS,
)
def _(b: Bench) -> tuple[bool, str]:
    found = [1000 * one.against_mean[0].reference_rate for one in rungs(b).values()]
    return max(found) <= 1.5, f"{listed(found, lambda v: f'{v:.2f}')} millibits (here: at most 1.5)"


@claim(
    CLAIMS,
    "fsn-still-improving",
    "Section 4.6",
    "At the crossing the FSN still improves by roughly one to nine millibits per epoch (here: 0.5 to 12).",
    *NEEDS,
)
def _(b: Bench) -> tuple[bool, str]:
    found = [1000 * c.rate for c in crossings(b, tuple(needs.RUNGS)) if c.epoch is not None]
    if not found:
        return False, "no FSN seed reaches the transformer's final loss"
    return min(found) >= 0.5 and max(found) <= 12, f"{min(found):.2f} to {max(found):.2f} millibits"


@claim(
    CLAIMS,
    "fsn-goes-on-below",
    "Section 4.6",
    "On the completed rungs every FSN seed ends below the target it crossed.",
    *(need for name in COMPLETED for need in needs.RUNGS[name]),
    macros=("crossAfterMin", "crossAfterMax"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [c.gain_after if c.epoch is not None else -math.inf for c in crossings(b, COMPLETED)]
    if math.isinf(min(found)):
        return False, "not every FSN seed reaches the transformer's final loss"
    return min(found) > 0, f"{min(found):.4f} to {max(found):.4f} bits below"


@claim(
    CLAIMS,
    "no-transformer-reaches-fsn",
    "Section 4.6",
    "No transformer run reaches the final loss of any FSN run at any scale or seed.",
    *NEEDS,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    parts, fine = [], True
    for name, (fsn, transformer) in needs.RUNGS.items():
        ours = _finals(b, fsn)
        theirs = lowest(b.begun(transformer), b.epoch(30)) if b.begun(transformer) else math.nan
        if ours and math.isfinite(theirs):
            fine &= theirs > max(ours)
            parts.append(f"{name}: lowest transformer {bits(theirs)}, highest FSN {bits(max(ours))}")
    if not parts:
        raise NotRun(f"missing: {b.standing(NEEDS).absent()}")
    return fine, "; ".join(parts)


def _finals(b: Bench, need: Need) -> list[float]:
    return [final(run, b, need.epochs) for run in b.by_seed(need).values()]


@claim(
    CLAIMS,
    "code-at-parity",
    "Section 4.6",
    "On code at length 256 the seed-level wall-clock ratios sit at parity (here: between 0.9 and 1.1).",
    *(need for one in PAIRS for need in one),
    macros=("wallCodeRatioA", "wallCodeRatioB"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [paired(b, *one).against_mean[0].ratio for one in PAIRS]
    return all(0.9 <= r <= 1.1 for r in found), listed(found, _times)


@claim(
    CLAIMS,
    "code-against-fsn-at-512",
    "Section 4.6",
    "At length 512 the wall-clock ratio moves against the FSN.",
    *PAIRS[0],
    *LONG,
    macros=("wallCodeFiveTwelveRatio", "wallCodeFiveTwelveSlowdown"),
)
def _(b: Bench) -> tuple[bool, str]:
    short, long = (paired(b, *one).against_mean[0].ratio for one in (PAIRS[0], LONG))
    return long > max(short, 1.0), f"{_times(long)} against {_times(short)} at 256"
