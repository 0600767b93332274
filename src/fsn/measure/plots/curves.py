"""Loss against epochs and against wall-clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fsn.errors import UserError
from fsn.measure.plots.style import CYCLE, WIDTH, colour, colours, legend, new_figure, styled
from fsn.measure.wallclock import Curve, TargetLoss, mean_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def wallclock(
    scales: Sequence[TargetLoss], surface: str = "any", names: tuple[str, str] = ("FSN", "transformer")
) -> Figure:
    """Validation loss against cumulative hours, a panel per scale (four for the paper's ladder).

    Faint lines are seeds, bold lines their means; the band spans the references' final losses, the dashed
    line is their mean, the open circle the place where the mean run crosses it.
    """
    if not scales:
        raise UserError("There is no scale to draw; give at least one measured pair of families.")
    columns = 1 if len(scales) == 1 else 2
    rows = -(-len(scales) // columns)
    ours, theirs = colour("fsn"), colour("transformer")
    with styled(surface):
        figure, grid = new_figure(
            rows, columns, 2.15 * rows + 0.2, width=WIDTH if columns == 2 else 0.6 * WIDTH
        )
        for axes, scale in zip(grid.flat, scales, strict=False):
            targets = scale.targets
            longest = max(float(c.seconds[-1]) for c in (*scale.curves, *scale.references))
            unit, word = (
                (3600.0, "hours")
                if longest > 7200
                else (60.0, "minutes")
                if longest > 120
                else (1.0, "seconds")
            )
            axes.axhspan(targets.min(), targets.max(), color=theirs, alpha=0.3, linewidth=0)
            axes.axhline(targets.mean(), color=theirs, linestyle=(0, (4, 3)), linewidth=1.0)
            for group, shade, name in ((scale.curves, ours, names[0]), (scale.references, theirs, names[1])):
                for curve in group if len(group) > 1 else []:
                    axes.plot(curve.seconds / unit, curve.loss, color=shade, alpha=0.35, linewidth=0.8)
                mean = mean_curve(group)
                axes.plot(mean.seconds / unit, mean.loss, color=shade, linewidth=1.9, label=name)
            mean = mean_curve(scale.curves)
            target = float(targets.mean())
            if mean.crossing(target) is not None:
                axes.plot(
                    mean.time_to(target, interpolate=True) / unit,
                    target if mean.crossing(target) != 1 else mean.loss[0],
                    marker="o",
                    markersize=6.5,
                    markerfacecolor="none",
                    markeredgecolor=CYCLE[1],
                    markeredgewidth=1.3,
                    zorder=5,
                )
            axes.set_title(f"{scale.label}  ({len(scale.curves)} × {len(scale.references)} seeds)".strip())
            axes.set_xlabel(f"wall-clock ({word})")
            axes.set_ylabel("bits per character")
            axes.set_xlim(left=0)
            _focus(axes, [*scale.curves, *scale.references])
        for axes in grid.flat[len(scales) :]:
            axes.set_visible(False)
        legend(grid[0, 0], loc="best")
    return figure


def _focus(axes: Axes, curves: Sequence[Curve]) -> None:
    """Let the first epoch of a long run, far above the rest, leave the panel at the top."""
    losses = [curve.loss[np.isfinite(curve.loss)] for curve in curves]
    low = min(float(loss.min()) for loss in losses)
    high = max(float(loss[1] if len(loss) > 5 else loss.max()) for loss in losses)
    room = max(high - low, 1e-3)
    axes.set_ylim(low - 0.06 * room, high + 0.06 * room)


def loss_curves(
    families: Mapping[str, Sequence[Curve]],
    surface: str = "any",
    title: str = "",
    published: Mapping[str, tuple[int, float, float]] | None = None,
) -> Figure:
    """Validation loss by epoch: seeds faint, their mean bold.

    ``published`` marks a family's epoch, loss and deviation from elsewhere by a diamond with a bar.
    """
    shade = colours(list(families))
    with styled(surface):
        figure, grid = new_figure(1, 1, 2.7)
        axes = grid[0, 0]
        shown = [curve for curves in families.values() for curve in curves]
        for name, curves in families.items():
            if not curves:
                continue
            for curve in curves if len(curves) > 1 else []:
                axes.plot(
                    np.arange(1, len(curve.loss) + 1),
                    curve.loss,
                    color=shade[name],
                    alpha=0.35,
                    linewidth=0.8,
                )
            mean = mean_curve(curves)
            label = f"{name} ({len(curves)} seed{'s' if len(curves) > 1 else ''})"
            marker = "o" if len(mean.loss) < 3 else None
            axes.plot(
                np.arange(1, len(mean.loss) + 1),
                mean.loss,
                color=shade[name],
                linewidth=1.9,
                label=label,
                marker=marker,
            )
        for i, (name, (epoch, loss, spread)) in enumerate((published or {}).items()):
            axes.errorbar(
                [epoch],
                [loss],
                yerr=[spread],
                color=shade[name],
                marker="D",
                markersize=5.5,
                markerfacecolor="none",
                markeredgewidth=1.3,
                elinewidth=1.0,
                capsize=2.5,
                label=None if i else "the paper",
                zorder=5,
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel("validation loss (bits per character)")
        axes.set_title(title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(left=0.5)
        if shown:
            _focus(axes, shown)
        legend(axes, loc="upper right")
    return figure
