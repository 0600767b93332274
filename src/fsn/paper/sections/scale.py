"""Sections 4.5 and 4.6, Appendix B: the ladder, the wall-clock, and what a step costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from ...errors import UserError
from ...measure import (
    Crossing,
    SeedSummary,
    TargetLoss,
    crossing_table,
    diverged_at,
    draw_wallclock,
    kernel_share,
    loss_at,
    measure_efficiency,
    pace_notes,
    seed_summary,
    time_to_target,
    wallclock_table,
)
from ...train import Run
from ..bench import Bench, NotRun
from ..rows import (
    EFFICIENCY,
    Cited,
    Claim,
    Found,
    Measurement,
    Picture,
    Result,
    Row,
    below,
    bits,
    cite,
    compare,
    grouped,
    item,
    joined,
    listed,
    macro,
    signed,
    stated,
    times,
)
from ..runs import CODE_FSN, CODE_TRANSFORMER, FSN, MEAN_FIELD, NO_KERNEL, RUNGS, TRANSFORMER, Need
from .code import LONG, Pair
from .main import final, gap, lowest, mean
from .parts import lighter

# -- the ladder --------------------------------------------------------------------------------------------

EPOCH = {"1M": 30, "2M": 30, "4M": 30, "8M": 14}
"""Where the two are compared: the eight-million FSN of the paper has fourteen epochs."""
PAIRS: dict[str, Pair] = {
    rung: (RUNGS[rung][0].seed(0).after(epochs), RUNGS[rung][1].seed(0).after(epochs))
    for rung, epochs in EPOCH.items()
}
FINAL_8M = PAIRS["8M"][1].after(30)


def rung_rows(b: Bench, rung: str) -> list[Row]:
    epochs, (fsn, transformer) = EPOCH[rung], PAIRS[rung]

    def row(title: str, paper: Cited, need: Need) -> Row:
        return compare(b, title, paper, [need], lambda runs: loss_at(runs, b.epoch(need.epochs)).mean)

    mine, theirs = (cite("ladder", rung, f"{family}@{epochs}") for family in ("fsn", "transformer"))
    rows = [
        row(f"FSN, epoch {b.epoch(epochs)}", mine, fsn),
        row(f"transformer, epoch {b.epoch(epochs)}", theirs, transformer),
        compare(
            b,
            "FSN minus transformer",
            mine.minus(theirs),
            [fsn, transformer],
            gap(b.epoch(epochs)),
            "+.4f",
        ),
    ]
    if epochs != 30:
        completed = cite("ladder", rung, "transformer@30")
        rows.append(row(f"transformer, epoch {b.epoch(30)}", completed, transformer.after(30)))
    return grouped(rung, rows)


@item(
    "ladder", "The scale ladder", "Section 4.5", *(need for pair in PAIRS.values() for need in pair), FINAL_8M
)
def ladder(b: Bench) -> Result:
    """The epoch-matched comparison at two, four and eight million parameters, seed 0."""
    remark = "the paper gives seed means at this rung (see main)"
    title, measure = "FSN minus transformer, seed 0", gap(b.epoch(30))
    rows = grouped("1M", [compare(b, title, None, PAIRS["1M"], measure, "+.4f", remark)])
    return Result(rows=rows + [row for rung in ("2M", "4M", "8M") for row in rung_rows(b, rung)])


# -- Table 2 and Figure 3: the wall-clock ------------------------------------------------------------------

NEEDS = tuple(need for pair in RUNGS.values() for need in pair)
WALL_CLOCK_ROWS = (
    ("per-epoch slowdown", "slowdown", ("per_epoch_slowdown",)),
    ("against the mean transformer, median", "vs_mean", ("vs_mean", "median")),
    ("against the mean transformer, lowest", "vs_mean_min", ("vs_mean", "range", "0")),
    ("against the mean transformer, highest", "vs_mean_max", ("vs_mean", "range", "1")),
    ("against the lowest-loss transformer, median", "vs_lowest", ("vs_lowest", "median")),
    ("against the lowest-loss transformer, lowest", "vs_lowest_min", ("vs_lowest", "range", "0")),
    ("against the lowest-loss transformer, highest", "vs_lowest_max", ("vs_lowest", "range", "1")),
)


def rung_target(b: Bench, name: str, steady: bool = True) -> TargetLoss:
    """One rung of the ladder, measured on the seeds that are there. ``steady``: an epoch during which something else
    used the device counts as the run's median epoch."""
    fsn, transformer = RUNGS[name]

    def measure() -> TargetLoss:
        ours = b.runs(fsn)
        theirs = [run for run in b.runs(transformer) if diverged_at(run) is None]
        b.same_setting(ours, theirs)
        return time_to_target(ours, theirs, b.epoch(30), name, steady=steady)

    return b.memo(("rung", name, steady), measure)


@item("wall-clock", "Wall-clock at the thirty-epoch target", "Table 2", *NEEDS)
def wall_clock(b: Bench) -> Result:
    """Time of the FSN to reach the transformer's thirty-epoch loss, over the transformer's own time."""
    rows = []
    for rung, (title, column, path) in ((rung, row) for rung in RUNGS for row in WALL_CLOCK_ROWS):
        paper: Cited | None = None
        try:
            paper = cite("wall_clock", rung, *path)
        except UserError:  # the eight-million rung has one seed and no range
            if path[-1] in "01":
                continue

        def measure(*_: list[Run], rung: str = rung, column: str = column) -> Measurement:
            found = rung_target(b, rung)
            value = float(wallclock_table([found]).rows[0][column])
            side = found.against_lowest if "lowest" in column else found.against_mean
            never = sum(math.isinf(c.ratio) for c in side) if "vs" in column else 0
            said = f"{never} of {len(side)} FSN seeds never reach it" if never else ""
            raw = float(wallclock_table([rung_target(b, rung, steady=False)]).rows[0][column])
            return value, joined(
                said, "" if abs(raw - value) < 0.005 else f"with all seconds as logged {times(raw)}"
            )

        rows += grouped(rung, [compare(b, title, paper, RUNGS[rung], measure, ".2f", timed=True)])
    runs = b.library.used(NEEDS)
    settings = sorted({f"{run.environment.get('device')}, {run.recipe.precision}" for run in runs})
    notes = ["The paper's times are those of an A100-class GPU in float32 without compilation."]
    notes += [f"Ours: {'; '.join(settings)}."] if settings else []
    return Result(rows=rows, notes=notes + pace_notes(runs))


@item("wall-clock-figure", "Validation loss against wall-clock", "Figure 3", *NEEDS)
def wall_clock_figure(b: Bench) -> Result:
    """Loss against cumulative seconds of training and validation at each rung of the ladder."""
    rows, scales = [], []
    for name, pair in RUNGS.items():

        def crossing(*_: list[Run], name: str = name) -> Measurement:
            epochs = [c.epoch for c in rung_target(b, name).against_mean if c.epoch is not None]
            return float(sum(epochs) / len(epochs)) if epochs else math.inf

        title = f"{name}: epoch at which the FSN reaches the transformer's mean final loss, mean over seeds"
        rows.append(compare(b, title, None, pair, crossing, ".1f", timed=True))
        if rows[-1].ours is not None:
            scales.append(rung_target(b, name))
    result = Result(rows=rows, notes=pace_notes(b.library.used(NEEDS)))
    if scales:
        caption = (
            "Validation loss against wall-clock. Faint lines are seeds, bold lines their means; the band "
            "spans the transformers' final losses, the circle marks where the mean FSN crosses their "
            "mean."
        )
        draw = functools.partial(draw_wallclock, scales)
        result.pictures.append(Picture("wall-clock", caption, draw, wallclock_table(scales)))
    return result


# -- at the crossing ---------------------------------------------------------------------------------------

COMPLETED = ("1M", "2M", "4M")
"""The rungs whose FSN runs finish their thirty epochs in the paper."""


def crossings(b: Bench, names: tuple[str, ...] = tuple(RUNGS)) -> list[Crossing]:
    """Every FSN seed against its rung's mean transformer."""
    return [crossing for name in names for crossing in rung_target(b, name).against_mean]


@item("crossing", "Rates at the crossing and gain after it", "Section 4.6", *NEEDS)
def at_the_crossing(b: Bench) -> Result:
    """How fast each model still improves when the FSN reaches the transformer's final loss, and what follows."""

    def row(
        title: str,
        paper: Cited,
        pick: Callable[[list[float]], float],
        value: Callable[[Crossing], float],
        names: tuple[str, ...] = tuple(RUNGS),
        form: str = ".2f",
        remark: str = "",
    ) -> Row:
        """The least or the largest of the values of seeds that crossed."""

        def measure(*_: list[Run]) -> Measurement:
            known = [x for x in map(value, crossings(b, names)) if math.isfinite(x)]
            return pick(known) if known else (math.nan, "no FSN seed reaches the transformer's final loss")

        needs = [need for name in names for need in RUNGS[name]]
        return compare(b, title, paper, needs, measure, form, remark, timed=True)

    low, high = (cite("wall_clock", "final loss below target after crossing", end) for end in "01")
    below_target = "final loss below the target after the crossing"
    at_crossing = "FSN at the crossing, {} seed: millibits per epoch"
    rows = [
        row(
            "transformer, last five epochs, fastest rung: millibits per epoch",
            stated(1),
            max,
            lambda c: 1000 * c.reference_rate,
            remark="paper: at most about one",
        ),
        row(
            at_crossing.format("slowest"),
            stated(1),
            min,
            lambda c: 1000 * c.rate,
            remark="paper: between roughly one and nine",
        ),
        row(at_crossing.format("fastest"), stated(9), max, lambda c: 1000 * c.rate),
        row(f"{below_target}, least", low, min, lambda c: c.gain_after, COMPLETED, ".4f"),
        row(f"{below_target}, most", high, max, lambda c: c.gain_after, COMPLETED, ".4f"),
    ]
    result = Result(rows=rows, notes=pace_notes(b.library.used(NEEDS)))
    for name in (name for name, pair in RUNGS.items() if all(b.by_seed(need) for need in pair)):
        try:
            result.tables.append((f"{name}, every seed", crossing_table(rung_target(b, name).against_mean)))
        except NotRun as reason:
            result.notes.append(f"{name}: {reason}")
    return result


# -- the wall-clock on code --------------------------------------------------------------------------------

CODE_PAIRS: tuple[Pair, ...] = tuple((CODE_FSN.seed(seed), CODE_TRANSFORMER.seed(seed)) for seed in (0, 2))


def paired(b: Bench, pair: Pair) -> TargetLoss:
    """One FSN run against one transformer run."""

    def measure() -> TargetLoss:
        ours, theirs = (b.run(need) for need in pair)
        b.same_setting([ours], [theirs])
        return time_to_target([ours], [theirs], b.epoch(30), steady=True)

    return b.memo(("paired", pair), measure)


def ratio(b: Bench, pair: Pair) -> float:
    return paired(b, pair).against_mean[0].ratio


@item(
    "code-wall-clock",
    "Wall-clock on code",
    "Section 4.6",
    *(need for pair in CODE_PAIRS for need in pair),
    *LONG,
)
def code_wall_clock(b: Bench) -> Result:
    """Time to the transformer's thirty-epoch loss on code, seed by seed, at both window lengths."""
    short, long = b.scale.length(256), b.scale.length(512)
    rows = []
    for pair, length, path in (
        (CODE_PAIRS[0], short, ("code/seq256", "0")),
        (CODE_PAIRS[1], short, ("code/seq256", "1")),
        (LONG, long, ("code/seq512",)),
    ):
        title = f"length {length}, seed {pair[0].seeds[0]}: FSN time over transformer time"
        paper = cite("wall_clock", *path)
        rows.append(compare(b, title, paper, pair, lambda *_, p=pair: ratio(b, p), ".2f", timed=True))
    title, paper = f"length {long}: per-epoch slowdown", cite("wall_clock", "code/seq512 per_epoch_slowdown")
    rows.append(compare(b, title, paper, LONG, lambda *_: paired(b, LONG).slowdown, ".2f", timed=True))
    return Result(rows=rows, notes=pace_notes(b.library.used(code_wall_clock.needs)))


# -- Appendix B: efficiency --------------------------------------------------------------------------------

FSN_1M, TRANSFORMER_1M = FSN.seed(0, 1, 2).after(1), TRANSFORMER.after(1)
FSN_4M, TRANSFORMER_4M = (need.seed(0).after(1) for need in RUNGS["4M"])
FSN_CODE, TRANSFORMER_CODE = (need.seed(0).after(1) for need in (CODE_FSN, CODE_TRANSFORMER))
MEAN_FIELD_1M = MEAN_FIELD.after(1)
TRAINING: tuple[tuple[str, str, Need, str], ...] = (
    ("FSN", "fsn/1M", FSN_1M, "tpsFSNOneM"),
    ("transformer", "transformer/1M", TRANSFORMER_1M, "tpsXFOneM"),
    ("FSN without the harmonic kernel", "fsn-nophase/1M", NO_KERNEL, "tpsNophaseOneM"),
    ("FSN-MF", "fsn-mf/1M", MEAN_FIELD_1M, "tpsMFOneM"),
    ("FSN on code", "fsn/code/1M", FSN_CODE, "tpsFSNCode"),
    ("transformer on code", "transformer/code/1M", TRANSFORMER_CODE, "tpsXFCode"),
    ("FSN at 4M", "fsn/4M", FSN_4M, "tpsFSNFourM"),
    ("transformer at 4M", "transformer/4M", TRANSFORMER_4M, "tpsXFFourM"),
)
SLOWDOWNS: tuple[tuple[str, Need, Need, str], ...] = (
    ("FSN", FSN_1M, TRANSFORMER_1M, "slowdownOneM"),
    ("FSN at 4M", FSN_4M, TRANSFORMER_4M, "slowdownFourM"),
    ("FSN without the harmonic kernel", NO_KERNEL, TRANSFORMER_1M, "slowdownNophaseOneM"),
)


AS_VALIDATED = "as its validation runs: the FSN through its kernels, the transformer without compilation"


def speed(runs: list[Run], quantity: str = "train_tokens_per_s", unit: float = 1.0) -> SeedSummary:
    """Mean over seeds of a run's mean over epochs."""
    return seed_summary([getattr(measure_efficiency(run, steady=True), quantity) / unit for run in runs])


def slowdown(ours: list[Run], theirs: list[Run]) -> float:
    return speed(theirs).mean / speed(ours).mean


def share_of_step(full: list[Run], without: list[Run]) -> float:
    """The kernel's share of a training step, in percent."""
    return 100 * kernel_share(speed(full).mean, speed(without).mean)


@item("efficiency", "Efficiency", "Appendix B", *tuple(need for _, _, need, _ in TRAINING))
def efficiency(b: Bench) -> Result:
    """Training throughput as the mean of per-epoch values, evaluation throughput, memory, the kernel's share."""

    def row(
        title: str, path: tuple[str, ...], name: str, need: Need, form: str, remark: str = "", **how: object
    ) -> Row:
        paper = cite(EFFICIENCY, *path).also(*macro(name).sources)
        return compare(b, title, paper, [need], functools.partial(speed, **how), form, remark)  # type: ignore[arg-type]

    training = [row(title, (key,), name, need, ".0f", unit=1e3) for title, key, need, name in TRAINING]
    others = [
        compare(
            b, f"{title}, times slower than the transformer", macro(name), both, slowdown, ".2f", timed=True
        )
        for title, *both, name in SLOWDOWNS
    ]
    evaluation = {"quantity": "eval_tokens_per_s", "unit": 1e6}
    for title, need, eval_name, memory_name in (
        ("FSN", FSN_1M, "tpsEvalFSN", "memFSNOneM"),
        ("transformer", TRANSFORMER_1M, "tpsEvalXF", "memXFOneM"),
    ):
        key, words = need.family, f"{title}: evaluation, million tokens/s"
        path = ("evaluation (million tokens/s)", key)
        others += [
            row(words, path, eval_name, need, ".2f", AS_VALIDATED, **evaluation),
            row(
                f"{title}: peak memory, GB",
                ("memory GB", key),
                memory_name,
                need,
                ".2f",
                "the run's peak, be it training's or validation's",
                quantity="peak_memory_gb",
            ),
        ]
    share = cite(EFFICIENCY, "kernel share of the step, percent").also(*macro("kernelShare").sources)
    title, both = "kernel's share of the training step, percent", [FSN_1M, NO_KERNEL]
    others.append(compare(b, title, share, both, share_of_step, ".1f", timed=True))
    used = b.library.used(efficiency.needs)
    settings = sorted({str(run.environment.get("device")) for run in used})
    notes = [
        "The paper: one A100-class GPU, float32, eager. What its appendix calls no-phase here is the FSN "
        "with one real harmonic (fsn-noharmonics), which takes the harmonic kernel out."
    ]
    if settings:
        notes.append(f"Ours: {'; '.join(settings)}; on a CPU the memory is that of the whole process.")
    rows = grouped("Training, thousand tokens/s", training) + grouped("Others", others)
    return Result(rows=rows, notes=notes + pace_notes(used))


# -- claims ------------------------------------------------------------------------------------------------


def margin(b: Bench, name: str) -> float:
    """FSN minus transformer at a rung, seed 0, at the epoch they are compared."""
    fsn, transformer = PAIRS[name]
    return mean(b, fsn, EPOCH[name]) - mean(b, transformer, EPOCH[name])


def finishes_below(name: str) -> Claim:
    def check(b: Bench) -> Found:
        found = margin(b, name)
        return found < 0, f"{signed(found)} at epoch {b.epoch(EPOCH[name])}"

    says = f"At {name} the FSN is below the transformer at epoch {EPOCH[name]}."
    return Claim(f"ladder-{name.lower()}", "Section 4.5", says, PAIRS[name], check)


def ladder_lighter(b: Bench) -> Found:
    found = [lighter(size) for size in ("2m", "4m", "8m")]
    fine = [round(found[0], 1), round(found[1], 1), round(found[2], 2)] == [2.0, 4.0, 0.15]
    return fine, listed(found, lambda v: f"{v:.2f} %")


def does_not_shrink(b: Bench) -> Found:
    found = [margin(b, name) for name in EPOCH]
    return max(found[1:]) <= found[0], f"{listed(found, signed)} (1M, 2M, 4M, 8M)"


def several_times_slower(b: Bench) -> Found:
    found = [rung_target(b, name).slowdown for name in RUNGS]
    return all(2.5 <= s <= 4.5 for s in found), f"{listed(found, times)} (1M, 2M, 4M, 8M)"


def against(b: Bench, name: str, column: str = "vs_mean") -> float:
    """Median time to the target over the transformer's own."""
    return float(wallclock_table([rung_target(b, name)]).rows[0][column])


def faster_to_target(b: Bench) -> Found:
    found = [against(b, name) for name in ("4M", "8M")]
    return max(found) < 1, listed(found, times)


def slower_to_target(b: Bench) -> Found:
    found = [against(b, name) for name in ("1M", "2M")]
    return min(found) > 1, listed(found, times)


def lowest_is_hardest(b: Bench) -> Found:
    several = [name for name in RUNGS if len(rung_target(b, name).references) > 1]
    if not several:
        raise NotRun("needs a rung with two transformer seeds")
    pairs = [(against(b, name, "vs_lowest"), against(b, name)) for name in several]
    shown = "; ".join(f"{times(low)} and {times(average)}" for low, average in pairs)
    return all(low > average for low, average in pairs), f"{shown} ({', '.join(several)})"


def lowest_ratios(b: Bench) -> Found:
    found = [against(b, name, "vs_lowest") for name in RUNGS]
    return min(found[:3]) > 1 > found[3], f"{listed(found, times)} (1M, 2M, 4M, 8M)"


def transformer_has_stopped(b: Bench) -> Found:
    found = [1000 * rung_target(b, name).against_mean[0].reference_rate for name in RUNGS]
    return max(found) <= 1.5, f"{listed(found, lambda v: f'{v:.2f}')} millibits (here: at most 1.5)"


def still_improving(b: Bench) -> Found:
    found = [1000 * c.rate for c in crossings(b) if c.epoch is not None]
    if not found:
        return False, "no FSN seed reaches the transformer's final loss"
    return min(found) >= 0.5 and max(found) <= 12, f"{min(found):.2f} to {max(found):.2f} millibits"


def goes_on_below(b: Bench) -> Found:
    found = [c.gain_after if c.epoch is not None else -math.inf for c in crossings(b, COMPLETED)]
    if math.isinf(min(found)):
        return False, "not every FSN seed reaches the transformer's final loss"
    return min(found) > 0, f"{min(found):.4f} to {max(found):.4f} bits below"


def no_transformer_reaches(b: Bench) -> Found:
    parts, fine = [], True
    for name, (fsn, transformer) in RUNGS.items():
        finals = [final(run, b, fsn.epochs) for run in b.by_seed(fsn).values()]
        ours = max((x if math.isfinite(x) else math.inf for x in finals), default=math.nan)
        theirs = lowest(b.begun(transformer), b.epoch(50))
        if not math.isnan(ours) and not math.isnan(theirs):
            fine &= theirs > ours
            parts.append(f"{name}: lowest transformer {bits(theirs)}, highest FSN {bits(ours)}")
    if not parts:
        raise NotRun(f"missing: {b.standing(NEEDS).absent()}")
    return fine, "; ".join(parts)


def code_at_parity(b: Bench) -> Found:
    found = [ratio(b, pair) for pair in CODE_PAIRS]
    return all(0.9 <= r <= 1.1 for r in found), listed(found, times)


def against_at_512(b: Bench) -> Found:
    short, long = ratio(b, CODE_PAIRS[0]), ratio(b, LONG)
    return long > max(short, 1.0), f"{times(long)} against {times(short)} at 256"


def slower(b: Bench, ours: Need, theirs: Need) -> float:
    groups = b.runs(ours), b.runs(theirs)
    b.same_setting(*groups)
    return slowdown(*groups)


def step_costs(b: Bench) -> Found:
    found = slower(b, FSN_1M, TRANSFORMER_1M)
    return 2.5 <= found <= 4.5, f"{found:.2f} times"


def kernel_is_not_the_overhead(b: Bench) -> Found:
    full, without, theirs = (b.runs(need) for need in (FSN_1M, NO_KERNEL, TRANSFORMER_1M))
    b.same_setting(full, without, theirs)
    seconds = [1 / speed(runs).mean for runs in (full, without, theirs)]
    kernel, overhead = seconds[0] - seconds[1], seconds[0] - seconds[2]
    share, part = 100 * kernel / seconds[0], kernel / overhead if overhead > 0 else math.inf
    fine = 6 <= share <= 18 and part < 0.5
    return fine, f"{share:.1f} percent of the step, {100 * part:.0f} percent of the overhead"


def still_slower(b: Bench, ours: Need, theirs: Need) -> Found:
    found = slower(b, ours, theirs)
    return found > 1, f"{found:.2f} times slower"


def falls_at_4m(b: Bench) -> Found:
    small, large = slower(b, FSN_1M, TRANSFORMER_1M), slower(b, FSN_4M, TRANSFORMER_4M)
    return large < small, f"{large:.2f} against {small:.2f}"


def seeds_vary(b: Bench) -> Found:
    runs = b.every(FSN_1M)
    b.same_setting(runs)
    found = speed(runs)
    spread = 100 * found.range / found.mean
    return spread < 2, f"{spread:.1f} percent over {found.count} seeds"


def code_like_text(b: Bench) -> Found:
    found = [slower(b, text, code) for code, text in ((FSN_CODE, FSN_1M), (TRANSFORMER_CODE, TRANSFORMER_1M))]
    return all(abs(r - 1) < 0.05 for r in found), f"{listed(found, lambda v: f'{v:.3f}')} (FSN, transformer)"


def evaluation_gap(b: Bench) -> Found:
    training = slower(b, FSN_1M, TRANSFORMER_1M)
    ours, theirs = (speed(b.runs(need), "eval_tokens_per_s").mean for need in (FSN_1M, TRANSFORMER_1M))
    return theirs / ours < training, f"{theirs / ours:.2f} times, {AS_VALIDATED}; {training:.2f} in training"


def more_memory(b: Bench) -> Found:
    ours, theirs = (speed(b.runs(need), "peak_memory_gb").mean for need in (FSN_1M, TRANSFORMER_1M))
    return ours > theirs, f"{ours:.2f} GB against {theirs:.2f} GB"


# fmt: off
CLAIMS = (
    *(finishes_below(name) for name in ("2M", "4M", "8M")),
    Claim("ladder-8m-below-final", "Section 4.5",
          "At 8M the FSN is by epoch fourteen below the transformer's completed thirty-epoch value.",
          (PAIRS["8M"][0], FINAL_8M), lambda b: below(mean(b, PAIRS["8M"][0], 14), mean(b, FINAL_8M)),
          "ladderEightFSN ladderEightFSNEpoch ladderEightXF ladderEightXFFinal"),
    Claim("ladder-lighter", "Section 4.5",
          "The FSN models of the ladder are lighter than their transformers by 2.0, 4.0 and 0.15 percent.",
          (), ladder_lighter, "ladderTwoLighter ladderFourLighter ladderEightLighter"),
    Claim("advantage-does-not-shrink", "Section 4.5",
          "The epoch-matched advantage does not shrink with scale: at each rung at least that of one million.",
          tuple(need for pair in PAIRS.values() for need in pair), does_not_shrink,
          "ladderTwoFSN ladderTwoXFFinal ladderFourFSN ladderFourXFFinal"),
    Claim("several-times-slower", "Sections 1 and 4.6",
          "The FSN trains roughly three times more slowly per epoch at every scale (here: between 2.5 and 4.5).",
          NEEDS, several_times_slower, "wcSlowOne wcSlowTwo wcSlowFour wcSlowEight", speed=True),
    Claim("faster-to-target-at-4m-and-8m", "Sections 1 and 4.6",
          "Against the mean transformer the FSN reaches its loss in less wall-clock at four and eight million.",
          (*RUNGS["4M"], *RUNGS["8M"]), faster_to_target,
          "wcMeanFour wcMeanFourLo wcMeanFourHi wcMeanEight wcBestEight", speed=True),
    Claim("slower-to-target-at-1m-and-2m", "Sections 1 and 4.6",
          "At one and two million it needs more wall-clock than the mean transformer.",
          (*RUNGS["1M"], *RUNGS["2M"]), slower_to_target, "wcMeanOne wcMeanTwo", speed=True),
    Claim("lowest-transformer-is-hardest", "Section 4.6",
          "The lowest-loss transformer is the hardest target: each ratio against it is above the one against the mean.",
          NEEDS, lowest_is_hardest, "wcBestOne wcBestTwo wcBestFour", speed=True),
    Claim("lowest-loss-ratios", "Section 4.6",
          "Against the lowest-loss transformer the ratios are above one at one, two and four million, below at eight.",
          NEEDS, lowest_ratios, "wcBestEight", speed=True),
    Claim("transformer-has-stopped", "Section 4.6",
          "Over its last five epochs the transformer gains at most about one millibit per epoch at every rung.",
          NEEDS, transformer_has_stopped),
    Claim("fsn-still-improving", "Section 4.6",
          "At the crossing the FSN still improves by roughly one to nine millibits per epoch (here: 0.5 to 12).",
          NEEDS, still_improving),
    Claim("fsn-goes-on-below", "Section 4.6", "On the completed rungs every FSN seed ends below the target it crossed.",
          tuple(need for name in COMPLETED for need in RUNGS[name]), goes_on_below, "crossAfterMin crossAfterMax"),
    Claim("no-transformer-reaches-fsn", "Section 4.6",
          "No transformer run reaches the final loss of any FSN run at any scale or seed.",
          NEEDS, no_transformer_reaches, every=True),
    Claim("code-at-parity", "Section 4.6",
          "On code at length 256 the seed-level wall-clock ratios sit at parity (here: between 0.9 and 1.1).",
          tuple(need for pair in CODE_PAIRS for need in pair), code_at_parity, "wallCodeRatioA wallCodeRatioB",
          speed=True),
    Claim("code-against-fsn-at-512", "Section 4.6", "At length 512 the wall-clock ratio moves against the FSN.",
          (*CODE_PAIRS[0], *LONG), against_at_512, "wallCodeFiveTwelveRatio wallCodeFiveTwelveSlowdown", speed=True),
)
SPEED_CLAIMS = (
    Claim("step-three-to-four-times", "Section 2.5",
          "A training step of the FSN costs roughly three to four times that of the transformer (here: 2.5 to 4.5).",
          (FSN_1M, TRANSFORMER_1M), step_costs, "tpsFSNOneM tpsXFOneM slowdownOneM", speed=True),
    Claim("kernel-is-not-the-overhead", "Appendix B",
          "The kernel accounts for roughly 12 percent of the step (here: 6 to 18) and is not the main source of "
          "overhead (under half).",
          (FSN_1M, NO_KERNEL, TRANSFORMER_1M), kernel_is_not_the_overhead,
          "kernelShare tpsNophaseOneM slowdownNophaseOneM", speed=True),
    Claim("without-kernel-still-slower", "Appendix B",
          "Without the harmonic kernel the stack is still slower than the transformer.",
          (NO_KERNEL, TRANSFORMER_1M), lambda b: still_slower(b, NO_KERNEL, TRANSFORMER_1M), speed=True),
    Claim("slowdown-falls-at-4m", "Appendix B", "At four million parameters the factor is smaller than at one million.",
          (FSN_1M, TRANSFORMER_1M, FSN_4M, TRANSFORMER_4M), falls_at_4m, "tpsFSNFourM tpsXFFourM slowdownFourM",
          speed=True),
    Claim("seeds-vary-under-two-percent", "Appendix B",
          "Per-seed mean throughputs of the FSN vary by under two percent.", (FSN_1M,), seeds_vary, speed=True),
    Claim("code-speed-like-text", "Appendix B",
          "The code corpus gives nearly identical throughput (within five percent) for both models.",
          (FSN_1M, TRANSFORMER_1M, FSN_CODE, TRANSFORMER_CODE), code_like_text, "tpsFSNCode tpsXFCode", speed=True),
    Claim("evaluation-gap-smaller", "Appendix B",
          "On the evaluation pass the gap in throughput is smaller than in training.",
          (FSN_1M, TRANSFORMER_1M), evaluation_gap, "tpsEvalFSN tpsEvalXF", speed=True),
    Claim("more-memory", "Appendix B", "The FSN's peak training memory is larger than the transformer's.",
          (FSN_1M, TRANSFORMER_1M), more_memory, "memFSNOneM memXFOneM", speed=True),
    Claim("mean-field-slower", "Appendix B", "The FSN-MF trains more slowly than the FSN.",
          (MEAN_FIELD_1M, FSN_1M), lambda b: still_slower(b, MEAN_FIELD_1M, FSN_1M), "tpsMFOneM", speed=True),
)
