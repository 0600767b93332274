"""Models over seeds: the mean of each, and its difference to a reference, paired by seed, with an interval.

Two runs of one seed read the same windows in the same order, so their difference varies less than either loss. Runs
that differ in nothing but the seed are one model here, whatever their folders are called.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import needs
from ..models import Config, config_to_dict, preset_with, presets
from ..train.recipe import Recipe
from ..train.run import BOOKKEEPING, DURATION, LABELS, Run, differing_entries
from .bootstrap import LEVEL, seed_summary
from .finding import Finding
from .metrics import check_comparable, diverged_at, finished_epochs, valid_bits, validated_in
from .style import CYCLE, TONE, colours, drawing, family_of
from .tables import Table
from .training import Curve, draw_loss_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSE = 0.015
"""Bits: single runs closer than this differ in nothing. Rounding alone has moved a repeated run by 0.012."""
ADDED = (0.002, 0.005)
"""Bits that validation in bfloat16 added to the loss of oscillator models."""
ROUNDED = (
    f"†: validated in bfloat16, which adds {ADDED[0]} to {ADDED[1]} bits to an oscillator model's loss; all else in "
    "float32."
)
FREE = LABELS | BOOKKEEPING | {"recipe.seed", "recipe.engine"}
"""Entries of a config in which the seeds of one model may differ."""


@dataclass(frozen=True)
class Paired:
    """Differences by seed, and their mean with the half width of its interval (``nan`` for fewer than two pairs)."""

    differences: Mapping[int, float]
    rounding: float = 0.0
    """What rounding in validation may have added to the mean, or taken from it."""

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.differences.values()))) if self.differences else math.nan

    @property
    def half(self) -> float:
        """Student's t · s / √n."""
        n = len(self.differences)
        if n < 2:
            return math.nan
        t = needs("scipy.stats", "an interval over seeds needs the package scipy: pip install scipy").t
        spread = np.std(list(self.differences.values()), ddof=1)
        return float(t.ppf(0.5 + LEVEL / 2, n - 1) * spread / math.sqrt(n))

    @property
    def apart(self) -> bool:
        """Whether the interval excludes zero; on one seed, whether the difference is more than ``CLOSE``. Not where
        rounding may have made it."""
        low, high = sorted((self.mean, self.mean - self.rounding))
        least = CLOSE if len(self.differences) < 2 else self.half
        return low > least or high < -least


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired:
    """Ours minus theirs at every seed that both have."""
    return Paired({seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())})


def parts_of(run: Run, usual: Recipe) -> tuple[str, ...]:
    """What makes a run the model it is: its preset, and all in which its config differs from that and from a recipe.

    Under a schedule the number of epochs is part of it; at a constant rate it is not.
    """
    free = FREE | (DURATION if run.recipe.schedule == "constant" else set())
    name, model = _usual(run.config.get("preset"), run.model_config)
    own = {part: run.config[part] for part in ("model", "recipe")}
    different = differing_entries(own, {"model": model, "recipe": usual.to_dict()}, free)
    begun = run.config.get("begin_with")
    begin = (f"begun with {begun['run']} {begun['sha256'][:7]}",) if begun else ()
    return (name, *(f"{entry.rpartition('.')[2]} {value}" for entry, (value, _) in different.items()), *begin)


def _usual(preset: str | None, config: Config) -> tuple[str, dict[str, Any]]:
    """A model's name and the config that needs no words: its preset's, or one of its size with nothing changed."""
    if preset in presets():
        return str(preset), config_to_dict(preset_with(str(preset), config.vocab_size, {}))
    size = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.default is field.default_factory is dataclasses.MISSING
    }
    words = [f"{name} {value}" for name, value in size.items() if name != "vocab_size"]
    plain = config_to_dict(type(config)(**size))
    return " ".join([str(plain["kind"]), *words]), plain


def rounded(run: Run) -> bool:
    """Whether a run's loss curve is too high, because it was validated with rounded coherences: see ``ROUNDED``."""
    return validated_in(run) == "bf16" and run.config["model"].get("kind") != "transformer"


def loss_of(run: Run, epoch: int | None = None) -> float:
    """The loss at an epoch, or that of the best weights of a run that did not diverge; ``nan`` where there is none."""
    if epoch is None:
        best = run.best if diverged_at(run) is None else None
        return math.nan if best is None else float(best["valid_bits"])
    losses = valid_bits(run)
    return losses[epoch - 1] if epoch <= len(losses) else math.nan


def trained(run: Run) -> str:
    """``30 epochs``, or ``500 steps`` of a run that ended within its first."""
    epochs = len(finished_epochs(run))
    return f"{run.step:,} steps" if not epochs else f"{epochs} epoch{'s' if epochs > 1 else ''}"


def compare(runs: Sequence[Run], reference: Run, epoch: int | None = None) -> Finding:
    """Every model among ``runs`` beside that of ``reference``, at one epoch or each run at its best. Of two runs of one
    model and seed the reference counts, else the one that went further, of equals that validated in float32."""
    check_comparable([reference, *runs])
    precision = statistics.mode(run.recipe.precision for run in [reference, *runs])
    usual = Recipe(precision=precision, length=reference.recipe.length)
    models: dict[tuple[str, ...], dict[int, Run]] = {}
    for run in [*sorted(runs, key=lambda run: (run.step, not rounded(run))), reference]:
        models.setdefault(parts_of(run, usual), {})[run.recipe.seed] = run
    shared = set.intersection(*(set(parts[1:]) for parts in models)) if len(models) > 1 else set()
    marks = {parts: " (†)" if any(map(rounded, seeds.values())) else "" for parts, seeds in models.items()}
    names = {parts: ", ".join(p for p in parts if p not in shared) + marks[parts] for parts in models}
    base = names[parts_of(reference, usual)]
    by_name = {names[parts]: seeds for parts, seeds in models.items()}
    bits = {
        name: {seed: loss_of(run, epoch) for seed, run in sorted(seeds.items())}
        for name, seeds in by_name.items()
    }
    finite = {name: {s: x for s, x in found.items() if math.isfinite(x)} for name, found in bits.items()}
    added = {n: {s: ADDED[1] * rounded(run) for s, run in seeds.items()} for n, seeds in by_name.items()}
    against = {
        name: replace(
            pair, rounding=float(np.mean([added[name][s] - added[base][s] for s in pair.differences]))
        )
        for name, found in finite.items()
        if name != base and (pair := paired(found, finite[base])).differences
    }
    rows = [_row(name, seeds, bits[name], against.get(name)) for name, seeds in by_name.items()]
    rows.sort(key=lambda row: (math.isnan(row["bits"]), row["bits"]))
    when = "each run at its best epoch" if epoch is None else f"epoch {epoch}"
    told = f"Differences from {base}, {when}{', all with ' if shared else ''}{', '.join(sorted(shared))}."
    if any(marks.values()):
        told += f" {ROUNDED}"
    if any(len(pair.differences) == 1 for pair in against.values()):
        told += f" Single runs less than {CLOSE} bits apart are not told apart."
    curves = {
        name: [Curve(run.name, np.array([]), np.array(valid_bits(run)[:epoch])) for run in seeds.values()]
        for name, seeds in by_name.items()
        if finite[name] and all(valid_bits(run) for run in seeds.values())
    }
    first = [base, *(row["model"] for row in rows if row["model"] != base)][: len(CYCLE)]
    drawn = {name: curves[name] for name in first if name in curves}
    figures: dict[str, Callable[[], Figure]] = {}
    if drawn:
        figures["losses"] = lambda: draw_loss_curves(drawn)
    if against:
        figures["differences"] = lambda: draw_differences(against, base)
    return Finding(f"Against {base}", told, {"comparison": Table.of(COLUMNS, rows)}, figures)


COLUMNS: dict[str, str | tuple[str, str]] = {
    "model": "Its preset, and what sets it apart from the others.",
    "seeds": "Its seeds.",
    "trained": "Epochs, or steps, of the shortest of these runs.",
    "bits": ("Validation loss in bits per symbol, mean of the seeds.", ".4f"),
    "spread": ("Sample standard deviation over the seeds.", ".4f"),
    "difference": ("Its loss minus that of the reference with the same seed, mean of the pairs.", "+.4f"),
    "half": (f"Half the width of the {LEVEL:.0%} interval of that mean (Student's t).", ".4f"),
    "pairs": "Seeds that both have.",
    "apart": f"Whether the interval excludes zero; on one seed, whether the two are more than {CLOSE} apart. Not where "
    "rounding may have made the difference (†).",
    "left_out": "Seeds that have no loss there, or diverged.",
}


def _row(
    name: str, seeds: Mapping[int, Run], bits: Mapping[int, float], pair: Paired | None
) -> dict[str, Any]:
    known = [x for x in bits.values() if math.isfinite(x)]
    summary = seed_summary(known) if known else None
    return {
        "model": name,
        "seeds": ", ".join(map(str, bits)),
        "trained": trained(min(seeds.values(), key=lambda run: run.step)),
        "bits": summary.mean if summary else math.nan,
        "spread": summary.std if summary else math.nan,
        "difference": pair.mean if pair else None,
        "half": pair.half if pair else None,
        "pairs": len(pair.differences) if pair else None,
        "apart": pair.apart if pair else None,
        "left_out": ", ".join(str(seed) for seed, x in bits.items() if not math.isfinite(x)) or None,
    }


def draw_differences(against: Mapping[str, Paired], base: str) -> Figure:
    """A row for each model, in its family's colour: its differences by seed, their mean and its interval. Within the
    band single runs do not tell models apart."""
    families = list(dict.fromkeys(map(family_of, against)))
    shade = {name: colours(families)[family_of(name)] for name in against}
    shown = sorted((pair.mean, name) for name, pair in against.items())
    labels = [textwrap.fill(name, 44) for _, name in reversed(shown)]
    with drawing(1, 1, 0.7 + 0.24 * sum(1 + label.count("\n") for label in labels)) as (figure, grid):
        axes = grid[0, 0]
        axes.axvspan(-CLOSE, CLOSE, color=TONE["grid"], linewidth=0)
        axes.axvline(0.0, color=TONE["rule"], linewidth=0.9)
        for y, (mean, name) in enumerate(reversed(shown)):
            pair = against[name]
            points = list(pair.differences.values())
            axes.plot(points, [y] * len(points), "o", color=shade[name], markersize=3.5, alpha=0.6)
            half = np.nan_to_num(pair.half)
            axes.errorbar([mean], [y], xerr=[half], fmt="D", color=shade[name], capsize=2.5)
        axes.set_yticks(range(len(shown)), labels)
        axes.set(xlabel=f"bits minus {base}, by seed", ylim=(-0.6, len(shown) - 0.4))
        axes.grid(False, axis="y")
    return figure
