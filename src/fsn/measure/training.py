"""What the metrics of runs say: loss against epochs and against time, speed and memory, failed runs.

At matched epochs: seed means, who leads and for how long, when a bar is crossed. Against time: what a slower epoch
costs when fewer epochs are needed. For a transformer seed the target is its validation loss at the end of the budget
(thirty epochs) and its time the seconds of training and validation up to there. For an FSN seed the time is the end of
the first epoch whose validation loss is at or below that target. The ratio of the two is the wall-clock cost of
matching that transformer. Epoch ends are where a validation loss is known, and the paper's ratios sit on them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..train.evaluate import best_loss
from ..train.run import Run, same_but_seed
from .bootstrap import SeedSummary, seed_summary
from .finding import Finding, Subject, instrument
from .metrics import (
    check_comparable,
    diverged_at,
    epoch_value,
    epoch_values,
    finished_epochs,
    require_epochs,
    slow_epochs,
    steady_seconds,
    valid_bits,
    validated_in,
)
from .style import CYCLE, WIDTH, colours, drawing, legend
from .tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BUDGET = 30
FINAL_EPOCHS = 5
"""The stretch of the reference's last epochs over which its rate of improvement is taken."""

Array = NDArray[np.float64]

# -- at matched epochs ---------------------------------------------------------------------------------------


def best_epoch(run: Run) -> int:
    """The epoch (from 1) with the lowest finite validation loss."""
    require_epochs([run], 1)
    losses = valid_bits(run)
    return 1 + min(range(len(losses)), key=lambda i: losses[i] if math.isfinite(losses[i]) else math.inf)


def loss_at(runs: Sequence[Run], epoch: int, key: str = "valid_bits") -> SeedSummary:
    """Mean, sample deviation and extremes over seeds at the end of ``epoch``.

    ``key`` may be ``"valid_bits_second_half"``. Seeds that diverged before are left out, so ``count`` tells
    how many are in; a seed that is merely unfinished is an error.
    """
    going = [run for run in runs if diverged_at(run) is None]
    require_epochs(going, epoch)
    whole = [run for run in runs if len(finished_epochs(run)) >= epoch]
    values = [epoch_value(finished_epochs(run)[epoch - 1], key) for run in whole]
    finite = [value for value in values if math.isfinite(value)]
    return seed_summary(finite) if finite else SeedSummary(math.nan, math.nan, math.nan, math.nan, 0)


def epoch_margins(run: Run, reference: Run, epochs: int | None = None) -> NDArray[np.float64]:
    """Run minus reference in bits at every epoch both have (or the first ``epochs``)."""
    check_comparable([run, reference])
    pair = [np.array(valid_bits(one)) for one in (run, reference)]
    count = min(map(len, pair)) if epochs is None else epochs
    require_epochs([run, reference], max(count, 1))
    return np.asarray(pair[0][:count] - pair[1][:count])


def epochs_ahead(run: Run, reference: Run) -> int:
    """For how many epochs from the first on, without a break, the run's loss is below the reference's."""
    ahead = epoch_margins(run, reference) < 0
    return len(ahead) if ahead.all() else int(np.argmin(ahead))


def first_at(losses: Sequence[float] | Array, target: float) -> int | None:
    """The first epoch (from 1) that ends at or below ``target``, or ``None``."""
    below = np.flatnonzero(np.asarray(losses) <= target)
    return int(below[0]) + 1 if below.size else None


def loss_table(families: Mapping[str, Sequence[Run]], epoch: int) -> Table:
    """One row per family at the end of ``epoch``: seeds, mean, sample deviation, extremes, and its runs."""
    rows = []
    for name, runs in families.items():
        if not runs:
            continue
        summary, second = loss_at(runs, epoch), loss_at(runs, epoch, "valid_bits_second_half")
        head = {"family": name, "epoch": epoch, "seeds": summary.count, **summary.row()}
        rows.append({**head, "second_half": second.mean, "runs": ", ".join(run.name for run in runs)})
    columns = {
        "family": "The model.",
        "epoch": "Number of epochs trained.",
        "seeds": "Number of runs.",
        "mean": ("Mean validation loss, in bits per character.", ".4f"),
        "std": ("Sample standard deviation over runs, in bits per character.", ".4f"),
        "min": ("Lowest loss of a run, in bits per character.", ".4f"),
        "max": ("Highest loss of a run, in bits per character.", ".4f"),
        "second_half": ("Mean loss in the second half of each window, in bits per character.", ".4f"),
        "runs": "The runs.",
    }
    return Table.of(columns, rows, f"Validation bits per character at epoch {epoch}.")


# -- time to a target loss -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Validation loss in bits against cumulative seconds; entry i is the end of epoch i + 1."""

    name: str
    seconds: Array
    loss: Array

    def rate(self, epoch: int) -> float:
        """Bits gained per epoch around ``epoch``: minus the least-squares slope over epoch ± 2."""
        low, high = max(0, epoch - 3), min(len(self.loss), epoch + 2)
        near = self.loss[low:high]
        if len(near) < 2 or not np.isfinite(near).all():
            return math.nan
        return float(-np.polyfit(np.arange(low, high), near, 1)[0])


def curve_of(run: Run, budget: int | None = None, steady: bool = False) -> Curve:
    """The loss curve of a run up to ``budget`` epochs, from ``valid_bits`` and ``cumulative_s``.

    With ``steady`` an epoch during which something else used the device counts as the run's median epoch.
    """
    require_epochs([run], 1)
    ends = steady_seconds(run) if steady else epoch_values(finished_epochs(run), "cumulative_s")
    seconds, loss = np.array(ends[:budget]), np.array(valid_bits(run)[:budget])
    if np.isnan(seconds).any():
        raise UserError(
            f"{run.name} has epochs without cumulative_s, so its wall-clock is unknown; train it again"
        )
    return Curve(run.name, seconds, loss)


def mean_curve(curves: Sequence[Curve], name: str = "mean") -> Curve:
    """Mean loss and mean seconds at each epoch all curves have reached."""
    n = min(len(curve.loss) for curve in curves)
    return Curve(
        name,
        np.mean([curve.seconds[:n] for curve in curves], axis=0),
        np.mean([curve.loss[:n] for curve in curves], axis=0),
    )


@dataclass(frozen=True)
class Crossing:
    """One run against one target; rates are in millibits per epoch, ``gain_after`` in bits."""

    run: str
    reference: str
    target: float
    epoch: int | None
    ratio: float
    rate_mbit: float
    reference_rate_mbit: float
    gain_after: float


@dataclass(frozen=True)
class TargetLoss:
    """One scale: its curves, and the crossings of the mean and of the lowest reference."""

    label: str
    budget: int
    curves: list[Curve]
    references: list[Curve]
    against_mean: list[Crossing]
    against_lowest: list[Crossing]
    slowdown: float

    @property
    def targets(self) -> Array:
        """The references' losses at the end of the budget."""
        return np.array([curve.loss[self.budget - 1] for curve in self.references])


def _cross(curve: Curve, reference: Curve, budget: int) -> Crossing:
    target = float(reference.loss[budget - 1])
    epoch = first_at(curve.loss, target)
    back = max(0, budget - 1 - FINAL_EPOCHS)
    steps = budget - 1 - back
    return Crossing(
        curve.name,
        reference.name,
        target,
        epoch,
        math.inf if epoch is None else float(curve.seconds[epoch - 1] / reference.seconds[budget - 1]),
        1000 * (math.nan if epoch is None else curve.rate(epoch)),
        1000 * (float(reference.loss[back] - target) / steps if steps else math.nan),
        math.nan if epoch is None else target - float(curve.loss[-1]),
    )


def time_to_target(
    runs: Sequence[Run],
    references: Sequence[Run],
    budget: int = BUDGET,
    label: str = "",
    steady: bool = False,
) -> TargetLoss:
    """Measure ``runs`` (FSN seeds) against ``references`` (transformer seeds) of ``budget`` epochs.

    The mean reference has the mean loss and the mean wall-clock of the seeds, the lowest is the seed with
    the lowest loss at the budget. A run may have fewer epochs than the budget: it counts up to where it
    got. The per-epoch slowdown is the mean seconds per epoch of the runs over that of the references.
    ``steady``: see :func:`curve_of`.
    """
    if not runs or not references:
        raise UserError("time to a target loss needs at least one run and one reference run")
    check_comparable([*runs, *references])
    require_epochs(references, budget)
    curves = [curve_of(run, budget, steady) for run in runs]
    base = [curve_of(run, budget, steady) for run in references]
    for curve in base:
        if not math.isfinite(curve.loss[budget - 1]):
            raise UserError(
                f"{curve.name} diverged, so it sets no target loss; leave it out of the references"
            )
    lowest = base[int(np.argmin([curve.loss[budget - 1] for curve in base]))]
    mean = mean_curve(base, "mean of references")
    per_epoch = [float(np.mean([c.seconds[-1] / len(c.seconds) for c in group])) for group in (curves, base)]
    return TargetLoss(
        label,
        budget,
        curves,
        base,
        [_cross(curve, mean, budget) for curve in curves],
        [_cross(curve, lowest, budget) for curve in curves],
        per_epoch[0] / per_epoch[1],
    )


def wallclock_table(scales: Sequence[TargetLoss]) -> Table:
    """One row per scale: slowdown per epoch, median and range of the ratio against mean and lowest reference.

    A seed that never reaches the target counts as infinite.
    """
    columns: dict[str, str | tuple[str, str]] = {
        "scale": "Size of the models.",
        "seeds": "Number of runs, and of reference runs.",
        "slowdown": ("Seconds of an epoch over the reference's.", ".2f"),
    }
    rows: list[dict[str, Any]] = []
    for scale in scales:
        seeds = f"{len(scale.curves)} × {len(scale.references)}"
        rows.append({"scale": scale.label, "seeds": seeds, "slowdown": scale.slowdown})
    ends: tuple[tuple[str, str, Callable[..., float]], ...]
    ends = (("", "median", statistics.median), ("_min", "lowest", min), ("_max", "highest", max))
    for against, (end, word, pick) in itertools.product(("mean", "lowest"), ends):
        said = f"Time to the {against} reference's final loss over its time, {word} of the runs."
        columns[f"vs_{against}{end}"] = (said, ".2f")
        for row, scale in zip(rows, scales, strict=True):
            row[f"vs_{against}{end}"] = pick(c.ratio for c in getattr(scale, f"against_{against}"))
    return Table.of(columns, rows, "Wall-clock to the reference's final loss.")


def crossing_table(crossings: Sequence[Crossing]) -> Table:
    """One row per run and target: epoch of the crossing, ratio, rates in millibits per epoch, later gain."""
    columns = {
        "run": "The run that is measured.",
        "reference": "The run whose final loss is the target.",
        "target": ("That loss, in bits per character.", ".4f"),
        "epoch": "The first epoch that ends at or below the target.",
        "ratio": ("Time of the run until there, over the reference's whole time.", ".2f"),
        "rate_mbit": ("Gain of the run around that epoch, in millibits per epoch.", ".2f"),
        "reference_rate_mbit": ("Gain of the reference over its last epochs, in millibits per epoch.", ".2f"),
        "gain_after": ("What the run still gains after that epoch, in bits per character.", "+.4f"),
    }
    return Table.of(columns, [asdict(c) for c in crossings], "Crossings of the reference's final loss.")


# -- speed and memory: throughput is the mean of the per-epoch values, as the paper reports it ------------------


SPEEDS = {
    "train_tokens_per_s": ("Training speed, in tokens per second.", ",.0f"),
    "eval_tokens_per_s": ("Validation speed, in tokens per second.", ",.0f"),
    "epoch_s": ("Training and validation of an epoch, in seconds.", ".1f"),
    "peak_memory_gb": ("Largest device memory of any epoch, in GB.", ".2f"),
    "train_memory_gb": ("The same without validation; newer runs on a GPU.", ".2f"),
}


def _mean(values: Sequence[float]) -> float:
    found = [value for value in values if math.isfinite(value)]
    return sum(found) / len(found) if found else math.nan


def measure_efficiency(run: Run, steady: bool = False) -> dict[str, float]:
    """``SPEEDS`` of one run, ``nan`` where nothing was logged; with ``steady`` of the epochs that had the device to
    themselves (:func:`~fsn.measure.metrics.slow_epochs`)."""
    require_epochs([run], 1)
    slow = set(slow_epochs(run)) if steady else set()
    every = finished_epochs(run)
    epochs = [row for i, row in enumerate(every, 1) if i not in slow] or every
    training, validation = epoch_values(epochs, "train_s"), epoch_values(epochs, "valid_s")

    def largest(name: str) -> float:
        return max((value for value in epoch_values(every, name) if math.isfinite(value)), default=math.nan)

    return {
        "train_tokens_per_s": _mean(epoch_values(epochs, "tokens_per_s")),
        "eval_tokens_per_s": _mean(epoch_values(epochs, "eval_tokens_per_s")),
        "epoch_s": _mean([a + b for a, b in zip(training, validation, strict=True)]),
        "peak_memory_gb": largest("peak_memory_gb"),
        "train_memory_gb": largest("train_memory_gb"),
    }


# -- failed runs: plateaus, divergence, losses worse than guessing --------------------------------------------


PLATEAU_BITS = 0.2  # healthy seeds differ by hundredths of a bit after an epoch


def check_runs(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """All that is wrong with each run (``plateau``, ``divergence``, ``worse than guessing``), and where it shows.

    A plateau is a first epoch far above the best sibling's, that is, of a run that differs in nothing but the seed:
    not above their mean, so that one failed seed cannot hide another. Guessing blindly costs log₂ V bits.
    """
    found: dict[str, dict[str, str]] = {run.name: {} for run in runs}
    for run in runs:
        family = [other for other in runs if same_but_seed(other.config, run.config)]
        first = {other.name: valid_bits(other)[0] for other in family if valid_bits(other)}
        first = {name: loss for name, loss in first.items() if math.isfinite(loss)}
        if first.get(run.name, 0.0) - min(first.values(), default=0.0) > PLATEAU_BITS:
            best = f"where its best sibling has {min(first.values()):.4f}"
            found[run.name]["plateau"] = f"{first[run.name]:.4f} bits after the first epoch {best}"
        vocabulary, lost = run.model_config.vocab_size, diverged_at(run)
        guessing = math.log2(vocabulary) if vocabulary > 1 else math.inf
        losses = {row["epoch"]: epoch_value(row, "valid_bits") for row in run.epochs}
        worse = next((epoch for epoch, loss in losses.items() if loss > guessing), None)
        if lost is not None:
            found[run.name]["divergence"] = f"not finite in epoch {lost}"
        elif worse is not None:
            said = f"{losses[worse]:.2f} bits at epoch {worse}, above the {guessing:.2f} of guessing"
            found[run.name]["worse than guessing"] = f"{said} among {vocabulary} symbols"
    return found


def health_table(runs: Sequence[Run]) -> Table:
    """One row per run: its state and, where something is wrong, what."""
    troubles = check_runs(runs)
    rows = []
    for run in runs:
        state, detail = ", ".join(troubles[run.name]) or "healthy", "; ".join(troubles[run.name].values())
        epochs = len(finished_epochs(run))
        rows.append({"run": run.name, "epochs": epochs, "state": state, "detail": detail or None})
    columns = {
        "run": "The run.",
        "epochs": "Number of epochs that ran to their end.",
        "state": "Healthy, or what is wrong.",
        "detail": "Where it shows.",
    }
    return Table.of(columns, rows)


# -- figures -------------------------------------------------------------------------------------------------


def draw_wallclock(scales: Sequence[TargetLoss]) -> Figure:
    """Validation loss against wall-clock. Faint lines are seeds, bold lines their means; the band spans the
    transformers' final losses, the circle marks where the mean FSN crosses their mean.

    A panel per scale (four for the paper's ladder); the dashed line is the mean of the final losses.
    """
    columns = 1 if len(scales) == 1 else 2
    rows = -(-len(scales) // columns)
    ours, theirs = colours(["fsn", "transformer"]).values()
    width = WIDTH if columns == 2 else 0.6 * WIDTH
    with drawing(rows, columns, 2.15 * rows + 0.2, width) as (figure, grid):
        for axes, scale in zip(grid.flat, scales, strict=False):
            targets = scale.targets
            longest = max(float(c.seconds[-1]) for c in (*scale.curves, *scale.references))
            units = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
            unit, word = next((u for u in units if longest > 2 * u[0]), units[-1])
            axes.axhspan(targets.min(), targets.max(), color=theirs, alpha=0.3, linewidth=0)
            axes.axhline(targets.mean(), color=theirs, linestyle=(0, (4, 3)), linewidth=1.0)
            _plot(axes, scale.curves, unit, ours, label="FSN")
            _plot(axes, scale.references, unit, theirs, label="transformer")
            mean = mean_curve(scale.curves)
            target = float(targets.mean())
            crossing = first_at(mean.loss, target)
            if crossing is not None:
                near = slice(max(crossing - 2, 0), crossing)  # the epochs before and after
                x = np.interp(-target, -mean.loss[near], mean.seconds[near]) / unit
                y = min(target, mean.loss[0])
                ring = {"markerfacecolor": "none", "markeredgecolor": CYCLE[1], "markeredgewidth": 1.3}
                axes.plot(x, y, marker="o", markersize=6.5, zorder=5, **ring)
            axes.set_title(f"{scale.label}  ({len(scale.curves)} × {len(scale.references)} seeds)".strip())
            axes.set(xlabel=f"wall-clock ({word})", ylabel="bits per character", xlim=(0, None))
            _focus(axes, [*scale.curves, *scale.references])
        for axes in grid.flat[len(scales) :]:
            axes.set_visible(False)
        legend(grid[0, 0], loc="best")
    return figure


def _plot(axes: Axes, curves: Sequence[Curve], unit: float | None, shade: str, **look: Any) -> None:
    """Seeds faint, their mean bold; against time in units of so many seconds, or against epochs."""
    mean = mean_curve(curves)
    faint, bold = {"alpha": 0.35, "linewidth": 0.8}, {"linewidth": 1.9, **look}
    for curve in (*curves, mean) if len(curves) > 1 else (mean,):
        x = np.arange(1, len(curve.loss) + 1) if unit is None else curve.seconds / unit
        axes.plot(x, curve.loss, color=shade, **(bold if curve is mean else faint))


def _focus(axes: Axes, curves: Sequence[Curve]) -> None:
    """Let the first epoch of a long run, far above the rest, leave the panel at the top."""
    losses = [curve.loss[np.isfinite(curve.loss)] for curve in curves]
    low = min(float(loss.min()) for loss in losses)
    high = max(float(loss[1] if len(loss) > 5 else loss.max()) for loss in losses)
    room = max(high - low, 1e-3)
    axes.set_ylim(low - 0.06 * room, high + 0.06 * room)


def draw_loss_curves(
    families: Mapping[str, Sequence[Curve]],
    published: Mapping[str, tuple[int, float, float]] | None = None,
) -> Figure:
    """Validation loss by epoch: seeds faint, their mean bold.

    ``published`` marks a family's epoch, loss and deviation from elsewhere by a diamond with a bar.
    """
    shade = colours(list(families))
    with drawing(1, 1, 2.7) as (figure, grid):
        axes = grid[0, 0]
        shown = [curve for curves in families.values() for curve in curves]
        for name, curves in families.items():
            if not curves:
                continue
            label = f"{name} ({len(curves)} seed{'s' if len(curves) > 1 else ''})"
            marker = "o" if min(len(curve.loss) for curve in curves) < 3 else None
            _plot(axes, curves, None, shade[name], label=label, marker=marker)
        for i, (name, (epoch, loss, spread)) in enumerate((published or {}).items()):
            diamond = {"marker": "D", "markersize": 5.5, "markerfacecolor": "none", "markeredgewidth": 1.3}
            axes.errorbar(
                [epoch], [loss], yerr=[spread], color=shade[name], elinewidth=1.0, capsize=2.5, zorder=5,
                label=None if i else "the paper", **diamond,
            )  # fmt: skip
        axes.set(xlabel="epoch", ylabel="validation loss (bits per character)", xlim=(0.5, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        _focus(axes, shown)
        legend(axes, loc="upper right")
    return figure


def learning_rates(runs: Mapping[str, Run]) -> dict[str, Array]:
    """The rows (step, learning rate) of the runs in which it changes."""
    found = {}
    for name, run in runs.items():
        points = [
            (line["step"], line["lr"]) for line in run.metrics if line["kind"] == "step" and "lr" in line
        ]
        if len({lr for _, lr in points}) > 1:
            found[name] = np.array(points)
    return found


def draw_learning_rates(rates: Mapping[str, Array]) -> Figure:
    """Learning rate by step."""
    shade = colours(list(rates))
    with drawing(1, 1, 1.6) as (figure, grid):
        axes = grid[0, 0]
        for name, points in rates.items():
            axes.plot(points[:, 0], points[:, 1], color=shade[name], linewidth=1.9, label=name)
        axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
        legend(axes, loc="best")
    return figure


def rounding(run: Run) -> str:
    """Said of a loss that was validated in bfloat16, with the float32 loss of the best weights where it is known."""
    if validated_in(run) != "bf16":
        return ""
    exact = best_loss(run)
    return f" (validated in bfloat16{'' if exact is None else f'; {exact:.4f} in float32'})"


# -- the instrument ------------------------------------------------------------------------------------------


@instrument("training", applies=lambda run: bool(finished_epochs(run)))
def inspect(subject: Subject) -> Finding:
    """Loss by epoch, speed and health; with a second run, when the first has reached the other's final loss."""
    pairs = {subject.name: subject.run} | ({subject.other: subject.against} if subject.against else {})
    runs = {name: run for name, run in pairs.items() if finished_epochs(run)}
    shown = {name: [curve_of(run)] for name, run in runs.items()}
    told, rows = [], []
    for name, run in runs.items():
        found, troubles, best = measure_efficiency(run), check_runs([run])[run.name], best_epoch(run)
        bits = valid_bits(run)[best - 1]
        told.append(
            f"{name} is lowest after epoch {best}, at {bits:.4f} bits per character{rounding(run)}, and trains "
            f"{found['train_tokens_per_s']:,.0f} tokens a second."
        )
        told += [f"{name}: {kind}, {said}." for kind, said in troubles.items()]
        state = {"best_epoch": best, "best_bits": bits, "state": ", ".join(troubles) or "healthy"}
        rows.append({"run": name, **state, **found})
    columns = {
        "run": "The run.",
        "best_epoch": "The epoch with the lowest validation loss.",
        "best_bits": ("That loss, in bits per character.", ".4f"),
        "state": "Healthy, or what is wrong.",
        **SPEEDS,
    }
    tables = {"training": Table.of(columns, rows, "Loss, speed and memory.")}
    other = subject.against
    if other is not None and len(runs) == 2 and math.isfinite(shown[subject.other][0].loss[-1]):
        last = len(finished_epochs(other))
        (crossing,) = time_to_target([subject.run], [other], last, steady=True).against_mean
        tables["crossing"] = crossing_table([crossing])
        told.append(
            f"It does not get as low as {subject.other} after {last} epochs ({crossing.target:.4f})."
            if crossing.epoch is None
            else f"It is as low as {subject.other} after {last} epochs ({crossing.target:.4f}) after epoch "
            f"{crossing.epoch}, in {crossing.ratio:.2f} times its time."
        )
    figures: dict[str, Callable[[], Figure]] = {"training": lambda: draw_loss_curves(shown)}
    rates = learning_rates(runs)
    if rates:
        figures["learning_rate"] = lambda: draw_learning_rates(rates)
    return Finding("Training", " ".join(told), tables, figures)
