"""Section 4.3 and Appendix C: where in the text the advantage lies, by copy depth."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...measure import copy_depth, training
from ...measure.bootstrap import SeedSummary, seed_summary
from ...measure.copy_depth import EARLY_BINS, bin_name
from ...measure.tables import Table
from ...train import Run
from ..bench import BIN_NAMES, Bench, NotRun, cell, once
from ..needs import (
    CODE_FSN,
    CODE_NO_PHASES,
    CODE_TRANSFORMER,
    FSN_CONVERGED,
    KURAMOTO,
    LEAN,
    NO_PHASES,
    REFERENCE,
    Need,
)
from ..rows import (
    DEEP_SHARE,
    Cited,
    Claim,
    Found,
    Measurement,
    NoCase,
    Result,
    cite,
    item,
    joined,
    listed,
    listing,
    macro,
    signed,
)
from .main import final

SECTION = {"text": "copy_depth", "code": "copy_depth_code"}
NAMES = {"text": "enwik8", "code": "code"}
PEAK, LAST = "16–23", "24–32"
OTHERS = [name for name in BIN_NAMES if name != PEAK]
SHALLOW_BINS, DEEP_BINS = BIN_NAMES[:2], BIN_NAMES[2:]
FAMILIES: dict[str, dict[str, Need]] = {
    "text": {"Base layer": KURAMOTO.best, "FSN": FSN_CONVERGED.best, "No phases": NO_PHASES.best},
    "code": {"FSN": CODE_FSN.best, "No phases": CODE_NO_PHASES.best},
}
"""The models of the copy-depth tables."""
REFERENCES: dict[str, Need] = {"text": REFERENCE.best, "code": CODE_TRANSFORMER.best}
"""What they are measured against: on text one converged transformer, on code the mean of three."""


def plain(name: str) -> str:
    """A bin's name as ``values.json`` writes it."""
    return name.replace("–", "-")


def interval(low: float, high: float) -> str:
    """A margin's 95 % interval as it is written in remarks."""
    return f"[{low:+.4f}, {high:+.4f}]".replace("-", "−")


def margin_of(found: Mapping[str, float], more: str) -> tuple[float, str]:
    """A margin with both intervals, windows drawn again and blocks of eight neighbouring windows, and ``more``."""
    windows, blocks = (interval(found[f"{of}low"], found[f"{of}high"]) for of in ("", "block_"))
    return found["margin"], f"95 % {windows}, in blocks {blocks}, {more.format(**found)}"


def cite_margin(role: str, label: str, name: str) -> Cited:
    """The paper's margin of one row and bin."""
    return cite(SECTION[role], "margins", label, plain(name), "margin")


# -- margins -----------------------------------------------------------------------------------------------


@once("early")
def reference(b: Bench, role: str) -> NDArray[np.float64]:
    """Loss of every target under the reference: one run, or the mean of several."""
    losses = [b.losses(run, role).astype(np.float64) for run in b.runs(REFERENCES[role])]
    return np.asarray(np.mean(losses, axis=0))


def seed_names(b: Bench, role: str, family: str) -> dict[str, Run]:
    """A family's runs by their names in the margins table: ``"FSN, s0"``."""
    return {f"{family}, s{seed}": run for seed, run in b.by_seed(FAMILIES[role][family]).items()}


@once("early")
def margins(b: Bench, role: str) -> Table:
    """Margins against the reference, one row per run and bin, of every family that has runs."""
    runs = {k: v for family in FAMILIES[role] for k, v in seed_names(b, role, family).items()}
    return b.against(role, runs, reference(b, role))


def cell_of(b: Bench, role: str, run: str, name: str) -> Mapping[str, float]:
    """The row of one run and bin."""
    return cell(margins(b, role), run, name)


def seed_margins(b: Bench, family: str, name: str) -> SeedSummary:
    """Mean, deviation and extremes over seeds of the margin on one bin of the text."""
    b.runs(FAMILIES["text"][family])
    return seed_summary([cell_of(b, "text", run, name)["margin"] for run in seed_names(b, "text", family)])


@once("early")
def curve(b: Bench, family: str) -> Table:
    """Seed-mean margin of a family at every exact depth of the text."""
    seeds = [b.losses(run, "text") for run in b.runs(FAMILIES["text"][family])]
    return copy_depth.depth_curve(seeds, reference(b, "text"), b.battery("text"))


# -- Tables 4 and 5 ----------------------------------------------------------------------------------------


def depth_table(b: Bench, out: Result, role: str) -> None:
    def margin(run: str, name: str, more: str, *_: list[Run]) -> Measurement:
        return margin_of(cell_of(b, role, run, name), more)

    def over_seeds(family: str, name: str, what: str, *_: list[Run]) -> float:
        found = seed_margins(b, family, name)
        if what == "range" and found.count < 2:
            raise NotRun("one seed has no range")
        return float(getattr(found, what))

    def loss(name: str, column: str, *_: list[Run]) -> Measurement:
        return cell_of(b, role, "FSN, s0", name)[column]

    def best_epoch(runs: list[Run]) -> float:
        return sum(training.best_epoch(run) for run in runs) / len(runs)

    out.heading, section, base = "Targets", SECTION[role], REFERENCES[role]
    for i, name in enumerate(BIN_NAMES):
        count, paper = lambda i=i: float(b.battery(role).counts()[i]), cite(section, "tokens", str(i))
        out.row(f"targets, depth {name}", paper, [], count, ",.0f", level=role)
    title, share = "validation targets of depth ≥ 24, percent", cite(DEEP_SHARE, NAMES[role])
    out.row(title, share, [], lambda: 100 * b.text(role).deep_share, ".2f", level=role)
    for family, need in FAMILIES[role].items():
        out.heading = f"{family}, seed by seed"
        for seed, name in itertools.product(need.seeds, BIN_NAMES):
            label = f"{family}, s{seed}"
            ends = (cite(section, "margins", label, plain(name), "ci95", end).value for end in "01")
            paper, pair = cite_margin(role, label, name), [need.seed(seed), base]
            measure = partial(margin, label, name, f"paper {interval(*ends)}")
            out.row(f"{label}, depth {name}", paper, pair, measure, "+.4f")
    for family, need in FAMILIES[role].items() if role == "text" else ():
        out.heading = f"{family}, over seeds"
        for name in BIN_NAMES:
            paper, title = cite_margin("text", f"{family}, mean", name), f"{family}, mean, depth {name}"
            out.row(title, paper, [need, base], partial(over_seeds, family, name, "mean"), "+.4f")
            paper = cite(section, "ranges over seeds", family, plain(name))
            title, spread = f"{family}, range, depth {name}", partial(over_seeds, family, name, "range")
            out.row(title, paper, [need, base], spread, ".4f")
    if role == "text":
        out.heading, title = "Checkpoints", "best epoch of the no-phase seeds, mean"
        out.row("best epoch of the reference", macro("cdXfEpoch"), [REFERENCE], best_epoch, ".0f")
        out.row(title, macro("cdNophaseEpoch"), [NO_PHASES], best_epoch, ".1f")
    out.heading = "Absolute loss, seed 0"
    for key, name in itertools.product(("fsn", "transformer"), (PEAK, LAST)):
        place = ("copy_depth", "absolute loss, 16-23 and 24-32", NAMES[role], key)
        title, paper = f"{key}, depth {name}: bits per target", cite(*place, str((PEAK, LAST).index(name)))
        measure = partial(loss, name, "loss" if key == "fsn" else "reference")
        remark = "mean of the transformer seeds" if role == "code" and key == "transformer" else ""
        pair = [FAMILIES[role]["FSN"].seed(0), base]
        out.row(title, paper, pair, measure, remark=remark, level=role)
    out.notes.append(
        "Negative margins favour the model. How the paper picked its 192 enriched windows is not known, "
        "so the two deep bins hold other windows than the paper's; the four shallow bins are the same."
    )
    if role == "code":
        out.notes.append(f"Code is {b.corpus_said('code')}.")
    with contextlib.suppress(NotRun):
        found = margins(b, role)
        runs = dict.fromkeys(found.column("run"))
        lines = [{"run": r, **{name: cell(found, r, name)["margin"] for name in BIN_NAMES}} for r in runs]
        matrix = Table(("run", *BIN_NAMES), lines, dict.fromkeys(BIN_NAMES, "+.4f"))
        out.tables += [("Ours, as the paper prints it", matrix)] if lines else []


@item("copy-depth", "Copy-depth margins on text", "Table 4", REFERENCE, *FAMILIES["text"].values())
def on_text(b: Bench, out: Result) -> None:
    """Paired differences of every target's loss against the converged transformer, by copy depth, with
    window-cluster bootstrap intervals."""
    depth_table(b, out, "text")


@item(
    "copy-depth-code", "Copy-depth margins on code", "Table 5", CODE_TRANSFORMER, *FAMILIES["code"].values()
)
def on_code(b: Bench, out: Result) -> None:
    """The same on code, against the mean of the transformer seeds."""
    depth_table(b, out, "code")


# -- figures -----------------------------------------------------------------------------------------------

DRAWN = ("Base layer", "FSN")


@item("copy-depth-bars", "Copy-depth margins by bin", "Figure 1", REFERENCE, KURAMOTO, FSN_CONVERGED)
def bars(b: Bench, out: Result) -> None:
    """Seed means of the base layer and the FSN against the converged transformer, whiskers over seeds."""

    def margin(family: str, name: str, *_: list[Run]) -> Measurement:
        found = seed_margins(b, family, name)
        return found.mean, f"seeds from {signed(found.low)} to {signed(found.high)}"

    for family, name in itertools.product(DRAWN, BIN_NAMES):
        paper, pair = cite_margin("text", f"{family}, mean", name), [FAMILIES["text"][family], REFERENCE.best]
        out.row(f"{family}, depth {name}", paper, pair, partial(margin, family, name), "+.4f")
    found = {family: list(seed_names(b, "text", family)) for family in DRAWN}
    found = {family: runs for family, runs in found.items() if runs}
    if any(row.ours is not None for row in out.rows):
        table = copy_depth.seed_mean_table(margins(b, "text"), found)
        caption = (
            "Margins against the converged transformer by copy depth: bars are seed means, whiskers run "
            "from the lowest to the highest seed. Below zero the model is ahead."
        )
        out.picture("copy-depth-bars", copy_depth.draw_depth_bars, table, caption=caption)


@item("copy-depth-curve", "Margin at every exact copy depth", "Figure 4", REFERENCE, KURAMOTO, FSN_CONVERGED)
def exact_depths(b: Bench, out: Result) -> None:
    """The base layer's deficit is not a law of depth: it stands in spikes at a few exact depths."""

    def margin(depth: int, *_: list[Run]) -> Measurement:
        found = curve(b, "Base layer").rows[depth]
        return found["margin"], f"{found['tokens']:,} targets"

    for depth in SPIKES:
        paper = cite("copy_depth", "base-layer spikes by exact depth", str(depth))
        pair = [KURAMOTO.best, REFERENCE.best]
        out.row(f"base layer, depth {depth}", paper, pair, partial(margin, depth), "+.2f")
    try:
        curves = {family: curve(b, family) for family in DRAWN}
    except NotRun:
        return
    out.tables += [(f"{family}, every depth", curve) for family, curve in curves.items()]
    out.picture("copy-depth-curve", copy_depth.draw_depth_curves, curves)


SPIKES = (17, 19, 22)


@once()
def distances(b: Bench) -> Table:
    seeds = [b.losses(run, "text") for run in b.runs(FSN_CONVERGED.best)]
    base, battery = reference(b, "text"), b.battery("text")
    return copy_depth.depth_distance_table(seeds, base, battery)


@item(
    "depth-distance",
    "Copy depth and distance together",
    "future work of Appendix C",
    REFERENCE,
    FSN_CONVERGED,
)
def distance(b: Bench, out: Result) -> None:
    """The paper conditions on the length of a match, not on how far back it lies. Here are both."""

    def margin(near: bool, *_: list[Run]) -> float:
        """Of targets of depth ≥ 4 whose match lies within, or beyond, a quarter of the window."""
        rows = [r for r in distances(b).rows if r["bin"] in DEEP_BINS and r["tokens"]]
        picked = [r for r in rows if (int(r["distance"].split("–")[0]) < 64) == near]
        tokens = sum(r["tokens"] for r in picked)
        return sum(r["margin"] * r["tokens"] for r in picked) / tokens if tokens else math.nan

    for near, where in ((True, "in the nearest quarter of the window"), (False, "further back")):
        title, pair = f"FSN, depth ≥ 4, match {where}", [FSN_CONVERGED.best, REFERENCE.best]
        row = out.row(title, None, pair, partial(margin, near), "+.4f")
    if row.ours is not None:
        out.picture("depth-distance", copy_depth.draw_depth_distance, distances(b))


# -- the early checkpoint ----------------------------------------------------------------------------------

SLICES = {"paper": "pooled as in the paper", "standard": "standard slice", "enriched": "enriched slice"}


@once("early")
def early_table(b: Bench, slices: str) -> Table:
    """Margins of the lean checkpoint in the earlier binning (0 and 1–3 in place of 0–1 and 2–3)."""
    losses, battery = {"lean": b.losses(b.run(LEAN.best), "text")}, b.battery("text")
    return copy_depth.margin_table(losses, reference(b, "text"), battery, EARLY_BINS, slices)


@item("early-transfer", "Early checkpoint transfer", "Section 4.3 and Appendix C", LEAN, REFERENCE)
def early_transfer(b: Bench, out: Result) -> None:
    """Copy-depth margins of an eleven-epoch checkpoint without noise on the angles, by slice."""

    def margin(name: str, slices: str, *_: list[Run]) -> Measurement:
        return margin_of(cell(early_table(b, slices), "lean", name), "{tokens:,} targets")

    title, end = f"validation loss of the checkpoint, epoch {b.epoch(11)}", b.epoch(11)
    out.row(title, cite("early", "fsn-lean@11"), [LEAN], lambda runs: training.loss_at(runs, end).mean)
    for edges, slices in itertools.product(EARLY_BINS, SLICES):
        name, pooled = bin_name(edges), slices == "paper"
        if pooled or edges[0] >= 16:
            place = "early checkpoint (lean, epoch 11)" if pooled else "early checkpoint, by slice"
            path = (plain(name),) if pooled else (plain(name), slices)
            paper, title = cite("copy_depth", place, *path) if name in DEEP_BINS else None, SLICES[slices]
            measure = partial(margin, name, slices)
            out.row(f"depth {name}, {title}", paper, [LEAN.best, REFERENCE.best], measure, "+.4f")
    out.notes.append(
        "On the two shallow bins the paper gives no number: the checkpoint remains behind the converged "
        "transformer there."
    )


# -- claims on text ----------------------------------------------------------------------------------------

Cell = tuple[str, str, float, bool]
"""Run, bin, margin, and whether the wider of its intervals lies below zero."""


def cells(b: Bench, family: str, names: list[str], role: str = "text") -> list[Cell]:
    """Every seed and bin with targets."""
    b.runs(FAMILIES[role][family])
    found = []
    for run, name in itertools.product(seed_names(b, role, family), names):
        one = cell_of(b, role, run, name)
        if math.isfinite(one["margin"]):
            found.append((run, name, one["margin"], max(one["high"], one["block_high"]) < 0))
    return found


def means(b: Bench, family: str, names: list[str]) -> list[float]:
    """Seed-mean margins on some bins of the text."""
    return [seed_margins(b, family, name).mean for name in names]


def rising(b: Bench, family: str, name: str) -> list[float]:
    """The margins of the seeds on a bin of the text, rising: of three, or of fewer of which one is not ahead."""
    found = sorted(margin for *_, margin, _ in cells(b, family, [name]))
    if len(found) < 3 and found[-1] < 0:
        raise NotRun(f"needs three seeds: {listed(found, signed)}")
    return found


def spans(b: Bench, family: str, names: Iterable[str]) -> list[float]:
    """Ranges over all seeds of the margins on some bins of the text."""
    b.runs(FAMILIES["text"][family], whole=True)
    return [seed_margins(b, family, name).range for name in names]


def clear_of_zero(found: list[Cell]) -> Found:
    if not found:
        raise NoCase("no seed to judge: none trained well")
    clear = sum(below for *_, below in found)
    run, name, margin, _ = max(found, key=lambda cell: cell[2])
    evidence = f"{clear} of {len(found)} cells clear of zero; highest {signed(margin)} ({run}, depth {name})"
    return clear == len(found), evidence


def base_behind(b: Bench) -> Found:
    found = cells(b, "Base layer", BIN_NAMES)
    run, name, margin, _ = min(found, key=lambda cell: cell[2])
    return margin > 0, f"lowest {signed(margin)} ({run}, depth {name}), {len(found)} cells"


def base_peaks(b: Bench) -> Found:
    """The text says "the long-copy bins", of which the table has 16–23 on every seed."""
    peaks: dict[str, tuple[str, float]] = {}
    for run, name, margin, _ in cells(b, "Base layer", BIN_NAMES):
        if run not in peaks or margin > peaks[run][1]:
            peaks[run] = (name, margin)
    shown = "; ".join(f"{run}: {name} ({signed(m)})" for run, (name, m) in peaks.items())
    return all(name in (PEAK, LAST) and margin > 0 for name, margin in peaks.values()), shown


def base_spikes(b: Bench) -> Found:
    margin = curve(b, "Base layer").column("margin")
    spikes = [d for d in SPIKES if margin[d] > np.nanmax([margin[d - 1], margin[d + 1], 0.0])]
    shown = ", ".join(f"depth {d} {signed(margin[d], 2)}" for d in SPIKES)
    return len(spikes) == 3, f"{shown}; above their neighbours: {spikes or 'none'}"


def base_largest(b: Bench) -> Found:
    margin = curve(b, "Base layer").column("margin")
    top = int(np.nanargmax(margin))
    return top == 17 and margin[top] > 0, f"largest {signed(margin[top], 2)} at depth {top}"


def widest_spread(b: Bench) -> Found:
    found = {family: int(np.nanargmax(spans(b, family, BIN_NAMES))) for family in FAMILIES["text"]}
    shown = ", ".join(f"{family}: {BIN_NAMES[widest]}" for family, widest in found.items())
    return {BIN_NAMES[widest] for widest in found.values()} == {PEAK}, shown


def marginal_on_shallow(b: Bench) -> Found:
    average, found = means(b, "FSN", SHALLOW_BINS), cells(b, "FSN", SHALLOW_BINS)
    touching = sum(not below for *_, below in found)
    evidence = f"means {listed(average, signed)}; {touching} of {len(found)} intervals not below zero"
    return max(average) < 0 and touching >= 2, evidence


def no_phases_track(b: Bench) -> Found:
    clear, evidence = clear_of_zero(cells(b, "No phases", DEEP_BINS))
    real, fsn = means(b, "No phases", DEEP_BINS), means(b, "FSN", DEEP_BINS)
    near = all(abs(r - f) < abs(r) for r, f in zip(real, fsn, strict=True))
    return clear and near, f"{evidence}; means {listed(real, signed)}, the FSN's {listed(fsn, signed)}"


def curve_below_zero(b: Bench) -> Found:
    deep = [row for row in curve(b, "FSN").rows if row["depth"] >= 4 and row["tokens"]]
    above = [row["depth"] for row in deep if row["margin"] >= 0]
    where = f": {', '.join(map(str, above))}" if above else ""
    return set(above) <= {19, 22}, f"{len(above)} depths at or above zero{where}"


def far_below_base(b: Bench) -> Found:
    base, fsn = (curve(b, family).column("margin") for family in DRAWN)
    shown = "; ".join(f"depth {d}: {signed(fsn[d], 2)} against {signed(base[d], 2)}" for d in (19, 22))
    if not all(base[d] > 0 for d in (19, 22)):
        raise NoCase(f"our base layer is not behind at both depths: {shown}")
    return all(fsn[d] < 0.5 * base[d] for d in (19, 22)), shown


def early_margins(b: Bench, names: Iterable[str], *slices: str) -> list[float]:
    pairs = itertools.product(names, slices or ("paper",))
    return [cell(early_table(b, which), "lean", name)["margin"] for name, which in pairs]


# -- claims on code ----------------------------------------------------------------------------------------


def code_seeds(b: Bench) -> tuple[list[str], list[str]]:
    """The FSN's code seeds that trained well, and those that ended on a plateau or diverged."""
    losses = {name: final(run, b) for name, run in seed_names(b, "code", "FSN").items()}
    best = min((loss for loss in losses.values() if math.isfinite(loss)), default=math.nan)
    well = [name for name, loss in losses.items() if loss <= best + 0.1]
    margins(b, "code")
    return well, [name for name in losses if name not in well]


def grows_with_depth(b: Bench, names: Iterable[str]) -> Found:
    rows = {run: run_margins(b, "code", DEEP_BINS, run) for run in names}
    if not rows:
        raise NoCase("no code seed trained well")
    fine = all(x > y for row in rows.values() for x, y in itertools.pairwise((0.0, *row)))
    return fine, "; ".join(f"{run}: {listed(row, signed)}" for run, row in rows.items())


def failed_seed(b: Bench) -> str:
    _, failed = code_seeds(b)
    if not failed:
        raise NoCase("none of our code seeds ended on a plateau")
    return failed[0]


def failed_seed_copies(b: Bench) -> Found:
    run, found = failed_seed(b), cells(b, "FSN", [BIN_NAMES[0], PEAK, LAST], "code")
    (*_, first, _), *deep = [cell for cell in found if cell[0] == run]
    fine = first > 0 and all(below for *_, below in deep)
    return fine, f"{run}: {signed(first)}, then {listed([cell[2] for cell in deep], signed)}"


def smaller_on_code(b: Bench) -> Found:
    text, code = (run_margins(b, role, DEEP_BINS) for role in ("text", "code"))
    fine = all(t < c < 0 for c, t in zip(code, text, strict=True))
    return fine, f"code {listed(code, signed)}; text {listed(text, signed)}"


def commoner_on_code(b: Bench) -> Found:
    text, code = (100 * b.text(role).deep_share for role in ("text", "code"))
    return code > 2 * text, joined(f"{code:.2f} percent against {text:.2f} percent", b.stand_in(["code"]))


def run_margins(b: Bench, role: str, names: Iterable[str], run: str = "FSN, s0") -> list[float]:
    """The margins of one run, the FSN's first seed unless another is named."""
    return [cell_of(b, role, run, name)["margin"] for name in names]


BASE, TEXT = (REFERENCE.best, KURAMOTO.best), (REFERENCE.best, FSN_CONVERGED.best)
EARLY, CODE = (LEAN.best, REFERENCE.best), (CODE_TRANSFORMER.best, CODE_FSN.best)
CODE_PLAIN = (CODE_TRANSFORMER.best, CODE_NO_PHASES.best)
BOTH = (CODE[0], CODE[1].seed(0), TEXT[0], TEXT[1].seed(0))

# fmt: off
ON_TEXT = (
    Claim("base-behind-everywhere", "Section 4.3",
          "All base-layer seeds are behind the converged transformer in every depth bin.",
          BASE, base_behind, every=True, shorter="for"),
    Claim("base-peaks-on-long-copies", "Section 4.3",
          "The deficit of every base-layer seed peaks on the long-copy bins (here: 16–23 or 24–32).",
          BASE, base_peaks, every=True, shorter="open", windows=True),
    Claim("base-peak-five-times", "Section 4.3",
          "The base layer's mean deficit on the sixteen-to-twenty-three bin is more than five times that on any other.",
          BASE, lambda b: listing([means(b, "Base layer", [PEAK])[0], max(means(b, "Base layer", OTHERS))],
                                  lambda m: m[0] > max(5 * m[1], 0.0), signed, "{} against at most {} elsewhere"),
          shorter="open", windows=True),
    Claim("base-returns-at-24-32", "Section 4.3",
          "On the deepest bin the base layer's deficit is smaller again than on the bin before.",
          BASE,
          lambda b: listing(means(b, "Base layer", [LAST, PEAK]), lambda m: m[0] < m[1] > 0, signed, "{} after {}"),
          shorter="open", windows=True),
    Claim("base-spikes", "Section 4.3 and Appendix C",
          "The deficit stands in spikes at depths 17, 19 and 22: each is above both neighbouring depths.",
          BASE, base_spikes, shorter="open", windows=True),
    Claim("base-largest-at-17", "Section 4.3",
          "The base layer's largest margin at any exact depth is at depth seventeen.", BASE, base_largest,
          shorter="open", windows=True),
    Claim("base-near-zero-between", "Appendix C",
          "At the nearby depths 21, 24 and 31 the base layer's margins are near zero (here: within 0.1).",
          BASE, lambda b: listing([curve(b, "Base layer").column("margin")[d] for d in (21, 24, 31)],
                                  lambda m: np.nanmax(np.abs(m)) < 0.1, "+.3f"), shorter="open", windows=True),
    Claim("fsn-ahead-on-deep-bins", "Sections 1 and 4.3",
          "Every FSN seed is ahead on every bin of depth four and beyond, and every interval excludes zero.",
          TEXT, lambda b: clear_of_zero(cells(b, "FSN", DEEP_BINS)), every=True, shorter="against"),
    Claim("fsn-reverses-base-deficit", "Section 1",
          "The FSN reverses the base layer's deficit on the deep bins: behind there, ahead here, in the seed means.",
          (*TEXT, BASE[1]), lambda b: listing(
              [means(b, family, DEEP_BINS) for family in DRAWN],
              lambda m: all(base > 0 > fsn for base, fsn in zip(*m, strict=True)), signed, "base layer {}; FSN {}"),
          shorter="open"),
    Claim("fsn-spread-tight-in-the-middle", "Section 4.3",
          "The FSN's spread over seeds is tighter on the bins 4–7 and 8–15 than on 16–23.",
          TEXT, lambda b: listing(spans(b, "FSN", ("4–7", "8–15", PEAK)), lambda ranges: max(ranges[:2]) < ranges[2]),
          shorter="open"),
    Claim("one-fsn-seed-markedly-ahead", "Section 4.3",
          "On the sixteen-to-twenty-three bin one FSN seed is markedly further ahead than the other two, though every "
          "seed is ahead.", TEXT,
          lambda b: listing(rising(b, "FSN", PEAK), lambda m: m[-1] < 0 and m[1] - m[0] > 2 * (m[2] - m[1]),
                            signed), shorter="open", windows=True),
    Claim("widest-spread-at-16-23", "Appendix C",
          "In every family the widest seed spread falls on the sixteen-to-twenty-three bin.",
          (*TEXT, KURAMOTO.best, NO_PHASES.best), widest_spread, shorter="open", windows=True),
    Claim("fsn-marginal-on-shallow-bins", "Section 4.3",
          "On the shallow bins the advantage is marginal: means below zero, several intervals touch or cross it.",
          TEXT, marginal_on_shallow, shorter="open"),
    Claim("advantage-is-deep", "Section 4.3",
          "The FSN's advantage over the converged transformer lies at deep bins: larger on each than on any shallow "
          "one.", TEXT, lambda b: listing([means(b, "FSN", names) for names in (DEEP_BINS, SHALLOW_BINS)],
                                          lambda m: max(m[0]) < min(0.0, *m[1]), signed, "deep {}; shallow {}"),
          shorter="against"),
    Claim("no-phases-track-fsn", "Section 4.3 and Appendix C",
          "The no-phase model tracks the FSN on every deep bin: nearer to it than to the transformer, every seed ahead "
          "with intervals clear of zero.",
          (*TEXT, NO_PHASES.best), no_phases_track, shorter="against"),
    Claim("fsn-curve-below-zero", "Appendix C",
          "The FSN's curve is below zero at every exact depth of four and beyond except nineteen and twenty-two.",
          TEXT, curve_below_zero, shorter="against", windows=True),
    Claim("fsn-far-below-base-at-spikes", "Appendix C",
          "At depths nineteen and twenty-two the FSN's margin is far smaller than the base layer's (under a half).",
          (*TEXT, BASE[1]), far_below_base, shorter="open", windows=True),
)
CLAIMS = (
    *(replace(claim, early=30) for claim in ON_TEXT),
    Claim("early-checkpoint-ahead", "Section 4.3",
          "A checkpoint of eleven epochs is already ahead of the converged transformer on every bin from four on.",
          EARLY, lambda b: listing(early_margins(b, DEEP_BINS), lambda m: max(m) < 0, signed)),
    Claim("early-checkpoint-ahead-on-both-slices", "Appendix C",
          "On the two deepest bins it is ahead on the standard and on the enriched slice alike.",
          EARLY, lambda b: listing(early_margins(b, (PEAK, LAST), "standard", "enriched"),
                                   lambda m: np.nanmax(m) < 0, signed)),
    Claim("early-checkpoint-behind-on-shallow", "Appendix C",
          "On the shallow bins (0 and 1–3) the early checkpoint remains behind the converged transformer.",
          EARLY,
          lambda b: listing(early_margins(b, map(bin_name, EARLY_BINS[:2])), lambda m: min(m) > 0, signed)),
    Claim("code-grows-with-depth", "Section 4.2",
          "On code the advantage of the healthy seeds grows monotonically with depth over the four bins from four on.",
          CODE, lambda b: grows_with_depth(b, code_seeds(b)[0]), every=True),
    Claim("no-phase-code-grows-with-depth", "Appendix C",
          "On the no-phase code seed too the advantage grows with depth over the four bins from four on.",
          CODE_PLAIN, lambda b: grows_with_depth(b, seed_names(b, "code", "No phases"))),
    Claim("code-deep-bins-clear", "Section 4.2",
          "On the two deepest bins the healthy seeds are ahead with intervals clear of zero.",
          CODE, lambda b: clear_of_zero([c for c in cells(b, "FSN", [PEAK, LAST], "code") if c[0] in code_seeds(b)[0]]),
          every=True),
    Claim("no-phase-code-deep-bins-clear", "Appendix C",
          "On the two deepest bins the no-phase code seed is ahead with intervals clear of zero.",
          CODE_PLAIN,
          lambda b: clear_of_zero(cells(b, "No phases", [PEAK, LAST], "code")), every=True),
    Claim("failed-seed-keeps-copying", "Section 4.2",
          "The plateau seed is behind on the shallowest bin, yet ahead on the two deepest with intervals clear of "
          "zero.",
          CODE, failed_seed_copies),
    Claim("failed-seed-behind-through-15", "Appendix C",
          "The plateau seed is behind on the shallowest bin and by smaller amounts through depth fifteen.",
          CODE, lambda b: listing(run_margins(b, "code", BIN_NAMES[:4], failed_seed(b)),
                                  lambda m: min(m) > 0 and max(m[1:]) < m[0], signed)),
    Claim("deep-targets-commoner-on-code", "Section 4.2",
          "Targets of depth 24 and beyond are far commoner on code (3.0 percent) than on text (0.6 percent).",
          (), commoner_on_code),
    Claim("code-margins-smaller", "Appendix C",
          "The code margins are smaller in absolute terms than the text margins on every deep bin (seed 0).",
          BOTH, smaller_on_code),
    Claim("code-copies-less-surprising", "Appendix C",
          "On the two deepest bins absolute losses on code are below those on text for both architectures.",
          BOTH, lambda b: listing(
              [cell_of(b, "code", "FSN, s0", name)[column] - cell_of(b, "text", "FSN, s0", name)[column]
               for name in (PEAK, LAST) for column in ("loss", "reference")], lambda less: max(less) < 0, signed)),
)
