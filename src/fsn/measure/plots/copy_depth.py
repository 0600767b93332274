"""Copy-depth figures: bars by bin, the curve by exact depth, depth against distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fsn.measure.margins import DepthCurve
from fsn.measure.plots.style import MARKERS, WIDTH, colours, ink_on, legend, new_figure, styled, zero_line
from fsn.measure.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def depth_bars(families: Table, surface: str = "any") -> Figure:
    """Copy-depth margins by bin, from :func:`~fsn.measure.margins.family_table`.

    Bars are seed means, whiskers run from the lowest to the highest seed; below zero the model is ahead.
    """
    names = list(dict.fromkeys(families.column("family")))
    bins = list(dict.fromkeys(families.column("bin")))
    shade = colours(names)
    with styled(surface) as tone:
        from matplotlib.colors import to_rgba

        figure, grid = new_figure(1, 1, 2.7)
        axes, width = grid[0, 0], 0.8 / max(len(names), 1)
        zero_line(axes, tone)
        for i, name in enumerate(names):
            rows = [families.where(family=name, bin=b).rows[0] for b in bins]
            mean = np.array([row["mean"] for row in rows])
            ends = np.array([[row["mean"] - row["min"], row["max"] - row["mean"]] for row in rows]).T
            place = np.arange(len(bins)) + (i - (len(names) - 1) / 2) * width
            seeds = rows[0]["seeds"]
            label = f"{name} ({seeds} seed{'s' if seeds > 1 else ''})"
            axes.bar(place, mean, 0.88 * width, color=to_rgba(shade[name], 0.5), label=label, zorder=2)
            if seeds > 1:
                axes.errorbar(
                    place, mean, ends, fmt="none", ecolor=shade[name], elinewidth=1.5, capsize=2.5, zorder=3
                )
        axes.set_xticks(range(len(bins)), [str(b) for b in bins])
        axes.grid(False, axis="x")
        axes.set_xlabel("copy depth of the target")
        axes.set_ylabel("margin (bits per character)")
        legend(axes, loc="best")
    return figure


def depth_curves(curves: Mapping[str, DepthCurve], surface: str = "any") -> Figure:
    """Seed-mean margin at every exact copy depth with its 95 % band; the last point pools what is deeper."""
    shade = colours(list(curves))
    with styled(surface) as tone:
        figure, grid = new_figure(1, 1, 2.7)
        axes = grid[0, 0]
        zero_line(axes, tone)
        for i, (name, curve) in enumerate(curves.items()):
            axes.fill_between(curve.depth, curve.low, curve.high, color=shade[name], alpha=0.25, linewidth=0)
            axes.plot(
                curve.depth,
                curve.margin,
                color=shade[name],
                marker=MARKERS[i],
                markersize=3,
                linewidth=1.2,
                label=name,
            )
        deepest = int(max(curve.depth[-1] for curve in curves.values()))
        ticks = list(range(0, deepest + 1, 4))
        axes.set_xticks(ticks, [f"{t}+" if t == deepest else f"{t}" for t in ticks])
        axes.set_xlim(-0.6, deepest + 0.6)
        axes.set_xlabel("exact copy depth")
        axes.set_ylabel("margin (bits per character)")
        legend(axes, loc="best")
    return figure


def depth_distance(table: Table, surface: str = "any") -> Figure:
    """Margins by depth and distance to the matching occurrence, with the number of tokens in each cell."""
    rows, columns = (list(dict.fromkeys(table.column(name))) for name in ("bin", "distance"))
    cells = {(row["bin"], row["distance"]): row for row in table.rows}
    values = np.array([[cells[r, c]["margin"] for c in columns] for r in rows], dtype=float)
    reach = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    with styled(surface) as tone:
        figure, grid = new_figure(1, 1, 0.36 * len(rows) + 0.75, width=0.8 * WIDTH)
        axes = grid[0, 0]
        picture = axes.imshow(values, cmap=_diverging(), vmin=-reach, vmax=reach, aspect="auto")
        for i, r in enumerate(rows):
            for j, c in enumerate(columns):
                cell = cells[r, c]
                if cell["tokens"]:
                    text = f"{cell['margin']:+.3f}\n{cell['tokens']:,}".replace("-", "−")
                    tint = ink_on(picture.to_rgba(values[i, j]))
                else:
                    text, tint = "none", tone["text"]
                axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=tint, linespacing=1.1)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("distance back to the match (characters)")
        axes.set_ylabel("copy depth")
        bar = figure.colorbar(picture, ax=axes, pad=0.02, fraction=0.05)
        bar.outline.set_visible(False)
        bar.set_label("margin (bits)")
    return figure


def _diverging() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    shades = ["#1f5fae", "#7fb0e6", "#eceff2", "#eda873", "#b8560f"]
    return LinearSegmentedColormap.from_list("margin", shades)
