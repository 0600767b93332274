"""Sections 4.5 and 4.6, Appendix B: the ladder, the wall-clock, and what a step costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ...measure import training
from ...measure.bootstrap import SeedSummary, seed_summary
from ...measure.metrics import diverged_at, first_epochs, pace_notes, slow_epochs
from ...measure.training import TargetLoss
from ...train import Run
from ..bench import Bench, NotRun, once
from ..needs import (
    CODE_FSN,
    CODE_TRANSFORMER,
    FSN,
    MEAN_FIELD,
    NO_HARMONICS,
    RUNGS,
    TRANSFORMER,
    Need,
    commits_of,
)
from ..rows import (
    EFFICIENCY,
    Cited,
    Claim,
    Found,
    Measurement,
    Result,
    below,
    cite,
    item,
    joined,
    listed,
    listing,
    macro,
    signed,
    times,
    told_apart,
)
from .main import LONG, Pair, final, lower, lowest, margin, marked
from .parts import heavier

# -- the ladder --------------------------------------------------------------------------------------------

EPOCH = {"1M": 30, "2M": 30, "4M": 30, "8M": 14}
"""Where the two are compared: the eight-million FSN of the paper has fourteen epochs."""
PAIRS: dict[str, Pair] = {
    rung: (RUNGS[rung][0].seed(0).after(epochs), RUNGS[rung][1].seed(0).after(epochs))
    for rung, epochs in EPOCH.items()
}
FINAL_8M = PAIRS["8M"][1].after(30)


@item(
    "ladder", "The scale ladder", "Section 4.5", *(need for pair in PAIRS.values() for need in pair), FINAL_8M
)
def ladder(b: Bench, out: Result) -> None:
    """The epoch-matched comparison at two, four and eight million parameters, seed 0."""

    def row(rung: str, family: str, need: Need) -> Cited:
        paper = cite("ladder", rung, f"{need.family}@{need.epochs}")
        out.row(f"{family}, epoch {b.epoch(need.epochs)}", paper, [need])
        return paper

    remark = "the paper gives seed means at this rung (see main)"
    out.heading, title = "1M", "FSN minus transformer"
    out.row(f"{title}, seed 0", None, PAIRS["1M"], form="+.4f", remark=remark)
    for rung in ("2M", "4M", "8M"):
        out.heading = rung
        ours, theirs = (row(rung, *one) for one in zip(("FSN", "transformer"), PAIRS[rung], strict=True))
        out.row(title, ours.minus(theirs), PAIRS[rung], form="+.4f")
    row("8M", "transformer", FINAL_8M)


# -- Table 2 and Figure 3: the wall-clock ------------------------------------------------------------------

NEEDS = tuple(need for pair in RUNGS.values() for need in pair)
WALL_CLOCK_ROWS = {
    "slowdown": ("per-epoch slowdown", ("per_epoch_slowdown",)),
    "vs_mean": ("against the mean transformer, median", ("vs_mean", "median")),
    "vs_mean_min": ("against the mean transformer, lowest", ("vs_mean", "range", "0")),
    "vs_mean_max": ("against the mean transformer, highest", ("vs_mean", "range", "1")),
    "vs_lowest": ("against the lowest-loss transformer, median", ("vs_lowest", "median")),
    "vs_lowest_min": ("against the lowest-loss transformer, lowest", ("vs_lowest", "range", "0")),
    "vs_lowest_max": ("against the lowest-loss transformer, highest", ("vs_lowest", "range", "1")),
}


@once("lower")
def target(b: Bench, pair: Pair, steady: bool = True) -> TargetLoss:
    """FSN and transformer, measured on the seeds that are there. ``steady``: an epoch during which something else used
    the device counts as the run's median epoch."""
    ours, theirs = b.runs(pair[0]), [run for run in b.runs(pair[1]) if diverged_at(run) is None]
    b.same_setting(ours, theirs)
    return training.time_to_target(ours, theirs, b.epoch(30), pair[0].size.upper(), steady=steady)


def wall_clock_value(b: Bench, rung: str, column: str = "vs_mean", steady: bool = True) -> float:
    """A number of the wall-clock table; by default the median time to the target over the transformer's own."""
    return float(training.wallclock_table([target(b, RUNGS[rung], steady)]).rows[0][column])


@item("wall-clock", "Wall-clock at the thirty-epoch target", "Table 2", *NEEDS)
def wall_clock(b: Bench, out: Result) -> None:
    """Time of the FSN to reach the transformer's thirty-epoch loss, over the transformer's own time."""

    def ratio(rung: str, column: str, ours: list[Run], theirs: list[Run]) -> Measurement:
        if column.endswith(("_min", "_max")) and len(ours) < 2:
            raise NotRun("one seed has no range")
        found, value = target(b, RUNGS[rung]), wall_clock_value(b, rung, column)
        side = found.against_lowest if "lowest" in column else found.against_mean
        never = sum(math.isinf(c.ratio) for c in side) if "vs" in column else 0
        said = f"{never} of {len(side)} FSN seeds never reach it" if never else ""
        raw = wall_clock_value(b, rung, column, steady=False)
        if abs(raw - value) < 0.005:
            return value, said
        ends = [
            c.epoch or 0 if "vs" in column else len(one.loss)
            for c, one in zip(side, found.curves, strict=True)
        ]
        slow = sum(epoch <= end for run, end in zip(ours, ends, strict=True) for epoch in slow_epochs(run))
        other = sum(epoch <= found.budget for run in theirs for epoch in slow_epochs(run))
        counted = f"{slow} of the FSN's {sum(ends)} epochs and {other} of the transformer's"
        counted += f" {found.budget * len(theirs)} count as their run's median epoch"
        return value, joined(said, f"{counted}; as logged {times(raw)}")

    for rung, pair in RUNGS.items():
        out.heading = rung
        for column, (title, path) in WALL_CLOCK_ROWS.items():
            if rung != "8M" or "range" not in path:  # one seed has no range
                paper = cite("wall_clock", rung, *path)
                out.row(title, paper, pair, partial(ratio, rung, column), ".2f", timed=True)
    runs = b.used(NEEDS)
    settings = sorted({f"{run.environment.get('device')}, {run.recipe.precision}" for run in runs})
    out.notes.append("The paper's times are those of an A100-class GPU in float32 without compilation.")
    out.notes += [f"Ours: {'; '.join(settings)}."] if settings else []
    out.notes += pace_notes(runs)


@item("wall-clock-figure", "Validation loss against wall-clock", "Figure 3", *NEEDS)
def wall_clock_figure(b: Bench, out: Result) -> None:
    """Loss against cumulative seconds of training and validation at each rung of the ladder."""

    def crossing(pair: Pair, *_: list[Run]) -> float:
        epochs = [c.epoch for c in target(b, pair).against_mean if c.epoch is not None]
        return float(sum(epochs) / len(epochs)) if epochs else math.inf

    scales = []
    for name, pair in RUNGS.items():
        title = f"{name}: epoch at which the FSN reaches the transformer's mean final loss, mean over seeds"
        if out.row(title, None, pair, partial(crossing, pair), ".1f", timed=True).ours is not None:
            scales.append(target(b, pair))
    out.notes += pace_notes(b.used(NEEDS))
    if scales:
        table = training.wallclock_table(scales)
        out.picture("wall-clock", training.draw_wallclock, scales, table, curves=b.used(NEEDS))


# -- at the crossing ---------------------------------------------------------------------------------------

COMPLETED = ("1M", "2M", "4M")
"""The rungs whose FSN runs finish their thirty epochs in the paper."""


def at_crossings(b: Bench, value: str, names: Iterable[str] = RUNGS) -> list[float]:
    """A number of every FSN seed that is there against its rung's mean transformer; those that never cross are left
    out."""
    there = b.in_hand({name: RUNGS[name] for name in names})
    crossings = [crossing for name in there for crossing in target(b, RUNGS[name]).against_mean]
    return [x for x in (float(getattr(crossing, value)) for crossing in crossings) if math.isfinite(x)]


@item("crossing", "Rates at the crossing and gain after it", "Section 4.6", *NEEDS)
def at_the_crossing(b: Bench, out: Result) -> None:
    """How fast each model still improves when the FSN reaches the transformer's final loss, and what follows."""

    def row(
        title: str, paper: Cited | float, pick: Callable[[list[float]], float], value: str, remark: str = ""
    ) -> None:
        """The least or the largest of the values of seeds that crossed."""
        gain = value == "gain_after"
        rungs = COMPLETED if gain else tuple(RUNGS)

        def end(*_: list[Run]) -> Measurement:
            known = at_crossings(b, value, rungs)
            return pick(known) if known else (math.nan, "no FSN seed reaches the transformer's final loss")

        needs = [need for rung in rungs for need in RUNGS[rung]]
        out.row(title, paper, needs, end, ".4f" if gain else ".2f", remark, timed=True)

    stopped = "transformer, last five epochs, fastest rung: millibits per epoch"
    row(stopped, 1, max, "reference_rate_mbit", "paper: at most about one")
    speed = "FSN at the crossing, {} seed: millibits per epoch"
    row(speed.format("slowest"), 1, min, "rate_mbit", "paper: between roughly one and nine")
    row(speed.format("fastest"), 9, max, "rate_mbit")
    low, high = (cite("wall_clock", "final loss below target after crossing", end) for end in "01")
    row("final loss below the target after the crossing, least", low, min, "gain_after")
    row("final loss below the target after the crossing, most", high, max, "gain_after")
    out.notes += pace_notes(b.used(NEEDS))
    for name, pair in ((name, pair) for name, pair in RUNGS.items() if all(map(b.by_seed, pair))):
        try:
            table = training.crossing_table(target(b, pair).against_mean)
            out.tables.append((marked(f"{name}, every seed", b.runs(pair[0])), table))
        except NotRun as reason:
            out.notes.append(f"{name}: {reason}")


# -- the wall-clock on code --------------------------------------------------------------------------------

CODE_PAIRS: tuple[Pair, ...] = tuple((CODE_FSN.seed(seed), CODE_TRANSFORMER.seed(seed)) for seed in (0, 2))


def ratio(b: Bench, pair: Pair) -> float:
    """The time of one FSN run over that of one transformer."""
    return target(b, pair).against_mean[0].ratio


@item(
    "code-wall-clock",
    "Wall-clock on code",
    "Section 4.6",
    *(need for pair in CODE_PAIRS for need in pair),
    *LONG,
)
def code_wall_clock(b: Bench, out: Result) -> None:
    """Time to the transformer's thirty-epoch loss on code, seed by seed, at both window lengths."""

    def row(pair: Pair, *path: str) -> None:
        need = pair[0]
        title = f"length {need.length}, seed {need.seeds[0]}: FSN time over transformer time"
        out.row(title, cite("wall_clock", *path), pair, lambda *_: ratio(b, pair), ".2f", timed=True)

    row(CODE_PAIRS[0], "code/seq256", "0")
    row(CODE_PAIRS[1], "code/seq256", "1")
    row(LONG, "code/seq512")
    title = "length 512: per-epoch slowdown"
    paper = cite("wall_clock", "code/seq512 per_epoch_slowdown")
    out.row(title, paper, LONG, lambda *_: target(b, LONG).slowdown, ".2f", timed=True)
    out.notes += pace_notes(b.used(code_wall_clock.needs))


# -- Appendix B: efficiency --------------------------------------------------------------------------------

FSN_1M, TRANSFORMER_1M = FSN.seed(0, 1, 2).speed, TRANSFORMER.speed
FSN_4M, TRANSFORMER_4M = (need.seed(0).speed for need in RUNGS["4M"])
FSN_CODE, TRANSFORMER_CODE = (need.seed(0).speed for need in (CODE_FSN, CODE_TRANSFORMER))
MEAN_FIELD_1M = MEAN_FIELD.speed
TRAINING: tuple[tuple[str, str, Need], ...] = (
    ("FSN", "fsn/1M", FSN_1M),
    ("transformer", "transformer/1M", TRANSFORMER_1M),
    ("FSN without the harmonic kernel", "fsn-nophase/1M", NO_HARMONICS),
    ("FSN-MF", "fsn-mf/1M", MEAN_FIELD_1M),
    ("FSN on code", "fsn/code/1M", FSN_CODE),
    ("transformer on code", "transformer/code/1M", TRANSFORMER_CODE),
    ("FSN at 4M", "fsn/4M", FSN_4M),
    ("transformer at 4M", "transformer/4M", TRANSFORMER_4M),
)
SLOWDOWNS: tuple[tuple[str, Need, Need, str], ...] = (
    ("FSN", FSN_1M, TRANSFORMER_1M, "slowdownOneM"),
    ("FSN at 4M", FSN_4M, TRANSFORMER_4M, "slowdownFourM"),
    ("FSN without the harmonic kernel", NO_HARMONICS, TRANSFORMER_1M, "slowdownNophaseOneM"),
)
EVALUATION = "eval_tokens_per_s"
VALIDATED = "the FSN through its kernels, the transformer without compilation"
AS_VALIDATED = f"as its validation runs: {VALIDATED}"
RUN_PEAK = "the run's peak, be it training's or validation's"


def speed(runs: list[Run], quantity: str = "train_tokens_per_s", unit: float = 1.0) -> SeedSummary:
    """Mean over seeds of a run's mean over epochs."""
    return seed_summary([training.measure_efficiency(run, steady=True)[quantity] / unit for run in runs])


def same_kernels(*groups: list[Run]) -> None:
    """Stop a comparison of models that ran through our kernels as they were at different commits."""
    if commits := commits_of(run for group in groups for run in group):
        raise NotRun(f"needs the kernels of one commit for both: these are {commits}")


def slowdown(ours: list[Run], theirs: list[Run]) -> float:
    return speed(theirs).mean / speed(ours).mean


@item("efficiency", "Efficiency", "Appendix B", *tuple(need for _, _, need in TRAINING))
def efficiency(b: Bench, out: Result) -> None:
    """Training throughput as the mean of per-epoch values, evaluation throughput, memory, the kernel's share."""

    def row(title: str, path: tuple[str, ...], need: Need, form: str, remark: str = "", **how: Any) -> None:
        out.row(title, cite(EFFICIENCY, *path), [need], lambda runs: speed(runs, **how), form, remark)

    out.heading = "Training, thousand tokens/s"
    for title, key, need in TRAINING:
        row(title, (key,), need, ".0f", unit=1e3)
    out.heading = "Others"
    for name, *pair, source in SLOWDOWNS:
        title = f"{name}: training time over the transformer's"
        out.row(title, macro(source), pair, slowdown, ".2f", timed=True)
    evaluation = {"quantity": EVALUATION, "unit": 1e6}
    for name, need in (("FSN", FSN_1M), ("transformer", TRANSFORMER_1M)):
        title, path = f"{name}: evaluation, million tokens/s", ("evaluation (million tokens/s)", need.family)
        row(title, path, need, ".2f", AS_VALIDATED, **evaluation)
        title, paper = f"{name}: peak memory, GB", cite(EFFICIENCY, "memory GB", need.family)
        peak = partial(speed, quantity="peak_memory_gb")  # the paper's is that of training
        out.row(title, paper, [need], peak, ".2f", RUN_PEAK, comparable=False)
    paper = cite(EFFICIENCY, "kernel share of the step, percent")
    title, both = "kernel's share of the training step, percent", [FSN_1M, NO_HARMONICS]

    def share(full: list[Run], without: list[Run]) -> float:
        same_kernels(full, without)
        return 100 * (1.0 - speed(full).mean / speed(without).mean)

    out.row(title, paper, both, share, ".1f", timed=True)
    used = b.used(efficiency.needs)
    settings = sorted({str(run.environment.get("device")) for run in used})
    out.notes.append(
        "The paper: one A100-class GPU, float32, eager. What its appendix calls no-phase here is the FSN "
        "with one real harmonic (fsn-noharmonics), which takes the harmonic kernel out."
    )
    if settings:
        out.notes.append(f"Ours: {'; '.join(settings)}; on a CPU the memory is that of the whole process.")
    out.notes += pace_notes(used)


# -- claims ------------------------------------------------------------------------------------------------


def wall_clocks(
    b: Bench, names: Iterable[str], true: Callable[[str, float], bool], column: str = "vs_mean"
) -> Found:
    """Whether something is true of the wall-clock ratios at each rung that is there."""
    there = b.in_hand({name: RUNGS[name] for name in names})
    steady, raw = ([wall_clock_value(b, name, column, how) for name in there] for how in (True, False))
    words = f"{{}} ({', '.join(there)})" + (f"; as logged {listed(raw, times)}" if steady != raw else "")
    return listing(steady, lambda found: all(map(true, there, found)), times, words)


def finishes_below(pair: Pair, b: Bench) -> Found:
    return lower(b, *pair)


def still_improving(b: Bench) -> Found:
    found = at_crossings(b, "rate_mbit")
    if not found:
        return False, "no FSN seed reaches the transformer's final loss"
    return min(found) >= 0.5 and max(found) <= 12, f"{listed(sorted(found), '.2f')} millibits"


def goes_on_below(b: Bench) -> Found:
    found = at_crossings(b, "gain_after", COMPLETED)
    rungs = b.in_hand({name: RUNGS[name] for name in COMPLETED})
    if len(found) < sum(len(target(b, RUNGS[name]).curves) for name in rungs):
        return False, "not every FSN seed reaches the transformer's final loss"
    low, high = (cite("wall_clock", "final loss below target after crossing", end).value for end in "01")
    return low / 2 <= min(found) and max(found) <= 1.5 * high, f"{listed(sorted(found))} bits below"


def no_transformer_reaches(b: Bench) -> Found:
    parts, apart, fine = [], {}, True
    for name, (fsn, transformer) in RUNGS.items():
        finals = [final(run, b, fsn.epochs) for run in b.by_seed(fsn).values()]
        ours = max((x for x in finals if math.isfinite(x)), default=math.nan)  # of the others judge() speaks
        theirs = lowest(b, [first_epochs(run, b.epoch(50)) for run in b.begun(transformer)])
        if not math.isnan(ours) and not math.isnan(theirs):
            fine &= theirs > ours
            apart[name] = theirs - ours
            parts.append(f"{name}: lowest transformer {theirs:.4f}, highest FSN {ours:.4f}")
    if not parts:
        raise NotRun(f"missing: {b.standing(NEEDS).absent()}")
    for name, difference in apart.items():
        told_apart(b, RUNGS[name], [difference], "; ".join(parts))
    return fine, "; ".join(parts)


def timed(b: Bench, *needs: Need) -> list[list[Run]]:
    """The runs of some needs, if they were timed alike."""
    groups = [b.runs(need) for need in needs]
    b.same_setting(*groups)
    if sum(need.family != "transformer" for need in needs) > 1:
        same_kernels(*groups)
    return groups


def slower(b: Bench, ours: Need, theirs: Need) -> float:
    return slowdown(*timed(b, ours, theirs))


def kernel_is_not_the_overhead(b: Bench) -> Found:
    seconds = [1 / speed(runs).mean for runs in timed(b, FSN_1M, NO_HARMONICS, TRANSFORMER_1M)]
    kernel, overhead = seconds[0] - seconds[1], seconds[0] - seconds[2]
    share, part = 100 * kernel / seconds[0], kernel / overhead if overhead > 0 else math.inf
    fine = 6 <= share <= 18 and part < 0.5
    return fine, f"{share:.1f} percent of the step, {100 * part:.0f} percent of the overhead"


def still_slower(b: Bench, ours: Need, theirs: Need) -> Found:
    return listing([slower(b, ours, theirs)], lambda found: found[0] > 1, ".2f", "{} times as long")


def evaluation_gap(b: Bench) -> Found:
    ours, theirs = b.runs(FSN_1M), b.runs(TRANSFORMER_1M)
    eager = [
        run.config["recipe"].get("engine") in ("eager", "compile", "compile-graph")
        for run in (*ours, *theirs)
    ]
    if len(set(eager)) > 1:
        raise NotRun(f"the two were not validated alike: {VALIDATED}")
    found = speed(theirs, EVALUATION).mean / speed(ours, EVALUATION).mean, slower(b, FSN_1M, TRANSFORMER_1M)
    return listing(found, lambda v: v[0] < v[1], ".2f", "{} times in validation; {} in training")


def training_memory(b: Bench) -> Found:
    found = [speed(b.runs(need), "train_memory_gb").mean for need in (FSN_1M, TRANSFORMER_1M)]
    if any(map(math.isnan, found)):
        raise NotRun(f"needs the memory of training alone, and these runs logged {RUN_PEAK}")
    return listing(found, lambda gb: gb[0] > gb[1], ".2f", "{} GB against {}")


def seeds_vary(b: Bench) -> Found:
    runs = b.runs(FSN_1M, whole=True)
    b.same_setting(runs)
    found = speed(runs)
    spread = 100 * found.range / found.mean
    return spread < 2, f"{spread:.1f} percent over {found.count} seeds"


# fmt: off
CLAIMS = (
    *(Claim(f"ladder-{name.lower()}", "Section 4.5",
            f"At {name} the FSN is below the transformer at epoch {EPOCH[name]}.",
            PAIRS[name], partial(finishes_below, PAIRS[name])) for name in ("2M", "4M", "8M")),
    Claim("ladder-8m-below-final", "Section 4.5",
          "At 8M the FSN is by epoch fourteen below the transformer's completed thirty-epoch value.",
          (PAIRS["8M"][0], FINAL_8M), lambda b: lower(b, PAIRS["8M"][0], FINAL_8M)),
    Claim("ladder-lighter", "Section 4.5",
          "The FSN models of the ladder are lighter than their transformers by 2.0, 4.0 and 0.15 percent.",
          (), lambda b: listing([-heavier(size) for size in ("2m", "4m", "8m")],
                                lambda v: [round(v[0], 1), round(v[1], 1), round(v[2], 2)] == [2.0, 4.0, 0.15],
                                lambda v: f"{v:.2f} %")),
    Claim("advantage-does-not-shrink", "Section 4.5",
          "The epoch-matched advantage does not shrink with scale: at each rung at least that of one million.",
          tuple(need for pair in PAIRS.values() for need in pair),
          lambda b: listing([margin(b, *pair) for pair in PAIRS.values()], lambda m: max(m[1:]) <= m[0] < 0, signed,
                            "{} (1M, 2M, 4M, 8M)")),
    Claim("several-times-slower", "Sections 1 and 4.6",
          "The FSN trains roughly three times more slowly per epoch at every scale (here: between 2.5 and 4.5).",
          NEEDS, lambda b: wall_clocks(b, RUNGS, lambda _, s: 2.5 <= s <= 4.5, "slowdown"), speed=True),
    Claim("faster-to-target-at-4m-and-8m", "Sections 1 and 4.6",
          "Against the mean transformer the FSN reaches its loss in less wall-clock at four and eight million.",
          (*RUNGS["4M"], *RUNGS["8M"]), lambda b: wall_clocks(b, ("4M", "8M"), lambda _, r: r < 1), speed=True),
    Claim("slower-to-target-at-1m-and-2m", "Sections 1 and 4.6",
          "At one and two million it needs more wall-clock than the mean transformer.",
          (*RUNGS["1M"], *RUNGS["2M"]), lambda b: wall_clocks(b, ("1M", "2M"), lambda _, r: r > 1), speed=True),
    Claim("lowest-loss-ratios", "Section 4.6",
          "Against the lowest-loss transformer the ratios are above one at one, two and four million, below at eight.",
          NEEDS, lambda b: wall_clocks(b, RUNGS, lambda rung, r: r < 1 if rung == "8M" else r > 1, "vs_lowest"),
          speed=True),
    Claim("transformer-has-stopped", "Section 4.6",
          "Over its last five epochs the transformer gains at most about one millibit per epoch at every rung.",
          NEEDS, lambda b: listing(at_crossings(b, "reference_rate_mbit"), lambda r: max(r) <= 1.5, ".2f",
                                   "{} millibits (here: at most 1.5)")),
    Claim("fsn-still-improving", "Section 4.6",
          "At the crossing the FSN still improves by roughly one to nine millibits per epoch (here: 0.5 to 12).",
          NEEDS, still_improving),
    Claim("fsn-goes-on-below", "Section 4.6",
          "On the completed rungs every FSN seed ends 0.006 to 0.039 bits below the target it crossed (here: 0.003 to "
          "0.059).",
          tuple(need for name in COMPLETED for need in RUNGS[name]), goes_on_below),
    Claim("no-transformer-reaches-fsn", "Section 4.6",
          "No transformer run reaches the final loss of any FSN run at any scale or seed.",
          NEEDS, no_transformer_reaches, every=True),
    Claim("code-at-parity", "Section 4.6",
          "On code at length 256 the seed-level wall-clock ratios sit at parity (here: between 0.9 and 1.1).",
          tuple(need for pair in CODE_PAIRS for need in pair),
          lambda b: listing([ratio(b, pair) for pair in CODE_PAIRS], lambda r: min(r) >= 0.9 and max(r) <= 1.1, times),
          speed=True),
    Claim("code-against-fsn-at-512", "Section 4.6", "At length 512 the wall-clock ratio moves against the FSN.",
          (*CODE_PAIRS[0], *LONG),
          lambda b: below(max(ratio(b, CODE_PAIRS[0]), 1.0), ratio(b, LONG), " at 512", times), speed=True),
)
SPEED_CLAIMS = (
    Claim("step-three-to-four-times", "Section 2.5",
          "A training step of the FSN costs roughly three to four times that of the transformer (here: 2.5 to 4.5).",
          (FSN_1M, TRANSFORMER_1M),
          lambda b: listing([slower(b, FSN_1M, TRANSFORMER_1M)], lambda s: 2.5 <= s[0] <= 4.5, ".2f", "{} times"),
          speed=True),
    Claim("kernel-is-not-the-overhead", "Appendix B",
          "The kernel accounts for roughly 12 percent of the step (here: 6 to 18) and is not the main source of "
          "overhead (under half).",
          (FSN_1M, NO_HARMONICS, TRANSFORMER_1M), kernel_is_not_the_overhead, speed=True),
    Claim("without-kernel-still-slower", "Appendix B",
          "Without the harmonic kernel the stack is still slower than the transformer.",
          (NO_HARMONICS, TRANSFORMER_1M), lambda b: still_slower(b, NO_HARMONICS, TRANSFORMER_1M), speed=True),
    Claim("slowdown-falls-at-4m", "Appendix B", "At four million parameters the factor is smaller than at one million.",
          (FSN_1M, TRANSFORMER_1M, FSN_4M, TRANSFORMER_4M),
          lambda b: below(slower(b, FSN_4M, TRANSFORMER_4M), slower(b, FSN_1M, TRANSFORMER_1M), "", times), speed=True),
    Claim("seeds-vary-under-two-percent", "Appendix B",
          "Per-seed mean throughputs of the FSN vary by under two percent.", (FSN_1M,), seeds_vary, speed=True),
    Claim("code-speed-like-text", "Appendix B",
          "The code corpus gives nearly identical throughput (within five percent) for both models.",
          (FSN_1M, TRANSFORMER_1M, FSN_CODE, TRANSFORMER_CODE),
          lambda b: listing([slower(b, FSN_1M, FSN_CODE), slower(b, TRANSFORMER_1M, TRANSFORMER_CODE)],
                            lambda r: min(r) > 0.95 and max(r) < 1.05, ".3f", "{} (FSN, transformer)"), speed=True),
    Claim("evaluation-gap-smaller", "Appendix B",
          "On the evaluation pass the gap in throughput is smaller than in training.",
          (FSN_1M, TRANSFORMER_1M),
          evaluation_gap, speed=True),
    Claim("more-memory", "Appendix B", "The FSN's peak training memory is larger than the transformer's.",
          (FSN_1M, TRANSFORMER_1M), training_memory, speed=True),
    Claim("mean-field-slower", "Appendix B", "The FSN-MF trains more slowly than the FSN.",
          (MEAN_FIELD_1M, FSN_1M), lambda b: still_slower(b, MEAN_FIELD_1M, FSN_1M), speed=True),
)
