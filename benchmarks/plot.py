"""The figure of a benchmark: milliseconds of a step against window length, a panel for each size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STYLES = {"training": "-", "evaluation": "--", "floor of training": ":"}


def draw(results: dict[str, Any], path: Path) -> Path:
    """Write ``path`` with the suffix .svg: training solid, evaluation dashed, the floor dotted.

    Models stand a little beside each other at every length, so that none hides another that takes the same time.
    """
    from fsn.measure.style import MARKERS, TONE, colours, drawing, save_figure

    rows = [row for row in results["rows"] if "training" in row]
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    shades = colours(models)
    with drawing(1, len(sizes), 2.8, sharey=True) as (figure, grid):
        for axes, size in zip(grid.flat, sizes, strict=True):
            for model, marker in zip(models, MARKERS, strict=False):
                mine = [row for row in rows if (row["model"], row["size"]) == (model, size)]
                mine.sort(key=lambda row: row["length"])
                aside = 2 ** (0.07 * (models.index(model) - (len(models) - 1) / 2))
                for part, style in STYLES.items():
                    if part == "floor of training" and model not in ("fsn", "transformer"):
                        continue
                    axes.plot(
                        [row["length"] * aside for row in mine],
                        [row["training"]["floor_ms"] if "floor" in part else row[part]["ms"] for row in mine],
                        color=shades[model],
                        linestyle=style,
                        linewidth=1.5 if part == "training" else 1.0,
                        marker="" if "floor" in part else marker,
                        markersize=4 if part == "training" else 3,
                        label=model if part == "training" else None,
                        zorder=3 if model == "fsn" else 2,
                    )
            lengths = sorted({row["length"] for row in rows if row["size"] == size})
            axes.set_xscale("log", base=2)
            axes.set_xticks(lengths, [str(n) for n in lengths])
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("window T")
            axes.set_title(size)
        for part, style in STYLES.items():
            grid.flat[0].plot([], [], color=TONE["text"], linestyle=style, linewidth=1.0, label=part)
        tokens = rows[0]["batch"] * rows[0]["length"]
        grid.flat[0].set_ylabel(f"ms a step of {tokens:,} symbols")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", handlelength=1.8, labelspacing=0.4)
    return save_figure(figure, path, title="Milliseconds of a step by window length")
