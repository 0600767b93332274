"""Section 4.3 and Appendix C: where in the text the advantage lies."""

from __future__ import annotations

import math

import numpy as np

from fsn.measure import EARLY_BINS
from fsn.measure.copy_depth import bin_name
from fsn.paper import depth, needs
from fsn.paper.bench import Bench
from fsn.paper.claims.claim import Claim, claim, listed, signed
from fsn.paper.depth import BIN_NAMES, DEEP_BINS, SHALLOW_BINS
from fsn.paper.items.early_transfer import margins as early_margins

CLAIMS: list[Claim] = []

PEAK = "16–23"
LAST = "24–32"


def means(b: Bench, family: str, names: list[str] = BIN_NAMES, role: str = "text") -> list[float]:
    """Seed-mean margins on some bins."""
    return [depth.seed_margins(b, role, family, name).mean for name in names]


def cells(b: Bench, family: str, names: list[str], role: str = "text") -> list[tuple[str, str, float, bool]]:
    """Run, bin, margin and whether its interval lies below zero, for every seed and bin with targets."""
    b.runs(depth.FAMILIES[role][family])
    table = depth.margins(b, role)
    found = []
    for run in depth.labels(b, role, family):
        for name in names:
            one = depth.cell(table, run, name)
            if math.isfinite(one["margin"]):
                found.append((run, name, one["margin"], one["high"] < 0))
    return found


def worst(found: list[tuple[str, str, float, bool]]) -> str:
    run, name, margin, _ = max(found, key=lambda cell: cell[2])
    return f"highest {signed(margin)} ({run}, depth {name})"


TEXT = (needs.REFERENCE, needs.FSN_CONVERGED)
BASE = (needs.REFERENCE, needs.KURAMOTO)


@claim(
    CLAIMS,
    "base-behind-everywhere",
    "Section 4.3",
    "All base-layer seeds are behind the converged transformer in every depth bin.",
    *BASE,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    found = cells(b, "Base layer", BIN_NAMES)
    run, name, margin, _ = min(found, key=lambda cell: cell[2])
    return margin > 0, f"lowest {signed(margin)} ({run}, depth {name}), {len(found)} cells"


@claim(
    CLAIMS,
    "base-peaks-at-16-23",
    "Section 4.3",
    "The deficit of every base-layer seed peaks on the sixteen-to-twenty-three bin.",
    *BASE,
    every=True,
    macros=("cdBaseSixteenMin", "cdBaseSixteenMax"),
)
def _(b: Bench) -> tuple[bool, str]:
    peaks: dict[str, tuple[str, float]] = {}
    for run, name, margin, _ in cells(b, "Base layer", BIN_NAMES):
        if run not in peaks or margin > peaks[run][1]:
            peaks[run] = (name, margin)
    shown = "; ".join(f"{run}: {name} ({signed(m)})" for run, (name, m) in peaks.items())
    return all(name == PEAK for name, _ in peaks.values()), shown


@claim(
    CLAIMS,
    "base-peak-five-times",
    "Section 4.3",
    "The base layer's mean deficit on that bin is more than five times its mean deficit on any other bin.",
    *BASE,
    macros=("cdBaseSixteenMean",),
)
def _(b: Bench) -> tuple[bool, str]:
    found = dict(zip(BIN_NAMES, means(b, "Base layer"), strict=True))
    peak = found.pop(PEAK)
    other = max(found.values())
    return peak > 5 * other, f"{signed(peak)} against at most {signed(other)} elsewhere"


@claim(
    CLAIMS,
    "base-returns-at-24-32",
    "Section 4.3",
    "On the deepest bin the base layer's deficit is smaller again than on the bin before.",
    *BASE,
    macros=("cdBaseTwentyFourMean",),
)
def _(b: Bench) -> tuple[bool, str]:
    peak, last = means(b, "Base layer", [PEAK, LAST])
    return last < peak, f"{signed(last)} after {signed(peak)}"


@claim(
    CLAIMS,
    "base-spikes",
    "Section 4.3 and Appendix C",
    "The deficit stands in spikes at depths 17, 19 and 22: each is above both neighbouring depths.",
    *BASE,
    macros=("cdCurveSeventeen", "cdCurveNineteen", "cdCurveTwentyTwo"),
)
def _(b: Bench) -> tuple[bool, str]:
    margin = depth.curve(b, "Base layer").margin
    spikes = [d for d in (17, 19, 22) if margin[d] > np.nanmax([margin[d - 1], margin[d + 1]])]
    shown = ", ".join(f"depth {d} {signed(margin[d], 2)}" for d in (17, 19, 22))
    return len(spikes) == 3, f"{shown}; above their neighbours: {spikes or 'none'}"


@claim(
    CLAIMS,
    "base-largest-at-17",
    "Section 4.3",
    "The base layer's largest margin at any exact depth is at depth seventeen.",
    *BASE,
)
def _(b: Bench) -> tuple[bool, str]:
    margin = depth.curve(b, "Base layer").margin
    top = int(np.nanargmax(margin))
    return top == 17, f"largest {signed(margin[top], 2)} at depth {top}"


@claim(
    CLAIMS,
    "base-near-zero-between",
    "Appendix C",
    "At the nearby depths 21, 24 and 31 the base layer's margins are near zero (here: within 0.1).",
    *BASE,
)
def _(b: Bench) -> tuple[bool, str]:
    margin = depth.curve(b, "Base layer").margin
    found = [float(margin[d]) for d in (21, 24, 31)]
    known = [abs(m) for m in found if math.isfinite(m)]
    return bool(known) and max(known) < 0.1, listed(found, lambda m: signed(m, 3))


@claim(
    CLAIMS,
    "fsn-ahead-on-deep-bins",
    "Sections 1 and 4.3",
    "Every FSN seed is ahead on every bin of depth four and beyond, and every interval excludes zero.",
    *TEXT,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    found = cells(b, "FSN", DEEP_BINS)
    clear = sum(below for *_, below in found)
    return clear == len(found), f"{clear} of {len(found)} cells clear of zero; {worst(found)}"


@claim(
    CLAIMS,
    "fsn-reverses-base-deficit",
    "Section 1",
    "The FSN reverses the base layer's deficit on the deep bins: behind there, ahead here, in the seed "
    "means.",
    *TEXT,
    needs.KURAMOTO,
)
def _(b: Bench) -> tuple[bool, str]:
    base, fsn = means(b, "Base layer", DEEP_BINS), means(b, "FSN", DEEP_BINS)
    fine = all(x > 0 > y for x, y in zip(base, fsn, strict=True))
    return fine, f"base layer {listed(base, signed)}; FSN {listed(fsn, signed)}"


@claim(
    CLAIMS,
    "fsn-spread-tight-in-the-middle",
    "Section 4.3",
    "The FSN's spread over seeds is tighter on the bins 4–7 and 8–15 than on 16–23.",
    *TEXT,
    macros=("cdSfnFourSevenRange", "cdSfnEightFifteenRange", "cdSfnSixteenRange", "cdSfnTwentyFourRange"),
)
def _(b: Bench) -> tuple[bool, str]:
    spans = [depth.seed_margins(b, "text", "FSN", name).range for name in ("4–7", "8–15", PEAK)]
    return max(spans[:2]) < spans[2], f"ranges {listed(spans)}"


@claim(
    CLAIMS,
    "widest-spread-at-16-23",
    "Appendix C",
    "In every family the widest seed spread falls on the sixteen-to-twenty-three bin.",
    *TEXT,
    needs.KURAMOTO,
    needs.NO_PHASES,
    macros=("cdBaseSixteenRange", "cdNophaseSixteenRange"),
)
def _(b: Bench) -> tuple[bool, str]:
    widest = {}
    for family in depth.TEXT:
        spans = {name: depth.seed_margins(b, "text", family, name).range for name in BIN_NAMES}
        spans = {name: span for name, span in spans.items() if math.isfinite(span)}
        widest[family] = max(spans, key=lambda name: spans[name])
    shown = ", ".join(f"{family}: {name}" for family, name in widest.items())
    return all(name == PEAK for name in widest.values()), shown


@claim(
    CLAIMS,
    "fsn-marginal-on-shallow-bins",
    "Section 4.3",
    "On the shallow bins the advantage is marginal: means below zero, several intervals touch or cross it.",
    *TEXT,
    macros=("cdSfnTwoThreeMean", "cdSfnZeroOneMean"),
)
def _(b: Bench) -> tuple[bool, str]:
    average, found = means(b, "FSN", SHALLOW_BINS), cells(b, "FSN", SHALLOW_BINS)
    touching = sum(not below for *_, below in found)
    fine = max(average) < 0 and touching >= 2
    return fine, f"means {listed(average, signed)}; {touching} of {len(found)} intervals not below zero"


@claim(
    CLAIMS,
    "advantage-is-deep",
    "Section 4.3",
    "The FSN's advantage over the converged transformer lies at deep bins: larger on each than on any "
    "shallow one.",
    *TEXT,
)
def _(b: Bench) -> tuple[bool, str]:
    shallow, deep = means(b, "FSN", SHALLOW_BINS), means(b, "FSN", DEEP_BINS)
    return max(deep) < min(shallow), f"deep {listed(deep, signed)}; shallow {listed(shallow, signed)}"


@claim(
    CLAIMS,
    "no-phases-track-fsn",
    "Section 4.3 and Appendix C",
    "The no-phase model tracks the FSN on every deep bin: ahead on every seed with intervals clear of zero.",
    needs.REFERENCE,
    needs.NO_PHASES,
    every=True,
    macros=(
        "cdNophaseFourSevenMean",
        "cdNophaseEightFifteenMean",
        "cdNophaseSixteenMean",
        "cdNophaseTwentyFourMean",
    ),
)
def _(b: Bench) -> tuple[bool, str]:
    found = cells(b, "No phases", DEEP_BINS)
    clear = sum(below for *_, below in found)
    return clear == len(found), f"{clear} of {len(found)} cells clear of zero; {worst(found)}"


@claim(
    CLAIMS,
    "fsn-curve-below-zero",
    "Appendix C",
    "The FSN's curve is below zero at every exact depth of four and beyond except nineteen and twenty-two.",
    *TEXT,
)
def _(b: Bench) -> tuple[bool, str]:
    curve = depth.curve(b, "FSN")
    above = [int(d) for d in curve.depth if d >= 4 and curve.tokens[d] and curve.margin[d] >= 0]
    return set(above) <= {19, 22}, f"at or above zero at depths {above or 'none'}"


@claim(
    CLAIMS,
    "fsn-far-below-base-at-spikes",
    "Appendix C",
    "At depths nineteen and twenty-two the FSN's margin is far smaller than the base layer's (under a half).",
    *TEXT,
    needs.KURAMOTO,
)
def _(b: Bench) -> tuple[bool, str]:
    base, fsn = depth.curve(b, "Base layer").margin, depth.curve(b, "FSN").margin
    fine = all(fsn[d] < 0.5 * base[d] for d in (19, 22) if math.isfinite(base[d]))
    return fine, "; ".join(f"depth {d}: {signed(fsn[d], 2)} against {signed(base[d], 2)}" for d in (19, 22))


@claim(
    CLAIMS,
    "early-checkpoint-ahead",
    "Section 4.3",
    "A checkpoint of eleven epochs is already ahead of the converged transformer on every bin from four on.",
    needs.LEAN,
    needs.REFERENCE,
    macros=("copyFourSeven", "copyEightFifteen", "copySixteen", "copyTwentyFour"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [early_margins(b, "paper").where(bin=name).rows[0]["margin"] for name in DEEP_BINS]
    return max(found) < 0, listed(found, signed)


@claim(
    CLAIMS,
    "early-checkpoint-ahead-on-both-slices",
    "Appendix C",
    "On the two deepest bins it is ahead on the standard and on the enriched slice alike.",
    needs.LEAN,
    needs.REFERENCE,
    macros=("copySixteenStd", "copySixteenEnr", "copyTwentyFourStd", "copyTwentyFourEnr"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = [
        early_margins(b, slices).where(bin=name).rows[0]["margin"]
        for name in (PEAK, LAST)
        for slices in ("standard", "enriched")
    ]
    known = [margin for margin in found if math.isfinite(margin)]
    return bool(known) and max(known) < 0, listed(found, signed)


@claim(
    CLAIMS,
    "early-checkpoint-behind-on-shallow",
    "Appendix C",
    "On the shallow bins (0 and 1–3) the early checkpoint remains behind the converged transformer.",
    needs.LEAN,
    needs.REFERENCE,
)
def _(b: Bench) -> tuple[bool, str]:
    names = [bin_name(edges) for edges in EARLY_BINS[:2]]
    found = [early_margins(b, "paper").where(bin=name).rows[0]["margin"] for name in names]
    return min(found) > 0, listed(found, signed)
