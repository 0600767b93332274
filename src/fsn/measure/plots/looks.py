"""Where attention goes when a text says something again, by layer and offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsn.measure.looks import Looks
from fsn.measure.plots.style import CYCLE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = {0: ("same place", CYCLE[0]), 1: ("what came next", CYCLE[1])}


def looks(seen: Sequence[Looks], surface: str = "any") -> Figure:
    """A row per model, a panel per layer: mean attention by offset from the same place in the first saying."""
    layers = max(len(found.weights) for found in seen)
    most = max(float(found.weights.max()) for found in seen)
    with styled(surface) as tone:
        figure, grid = new_figure(len(seen), layers, 0.72 * len(seen) + 0.65, sharex=True, sharey=True)
        for place, (row, found) in enumerate(zip(grid, seen, strict=True)):
            tints = [NAMED.get(offset, ("", tone["rule"]))[1] for offset in found.offsets]
            for layer, axes in enumerate(row):
                if layer >= len(found.weights):
                    axes.set_visible(False)
                    continue
                weights = found.weights[layer]
                axes.bar(found.offsets, weights, color=tints, width=0.72)
                for offset, weight in zip(found.offsets, weights, strict=True):
                    if weight > 0.08 * most:
                        axes.annotate(
                            f"{100 * weight:.0f} %" if weight >= 0.01 else f"{100 * weight:.1f} %",
                            (offset, weight), xytext=(0, 1.5), textcoords="offset points", ha="center", fontsize=6.5,
                        )  # fmt: skip
                if place == 0:
                    axes.set_title(f"layer {layer + 1}")
                axes.set_ylim(0.0, 1.18 * max(most, 1e-6))
                axes.set_yticks([])
                axes.tick_params(length=0, labelsize=6.5)
                axes.grid(False)
                axes.spines["left"].set_visible(False)
            row[0].set_ylabel(found.name, rotation=0, ha="right", va="center", fontsize=8)
        for axes in grid[-1]:
            offsets = seen[0].offsets
            axes.set_xticks(
                offsets, [f"{offset:+d}".replace("-", "−") if offset else "0" for offset in offsets]
            )
        handles = [grid[0][0].bar([0], [0], color=tint, label=name) for name, tint in NAMED.values()]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, handlelength=1.0)
    return figure
