"""The trained kernel drawn as coupling functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fsn.errors import UserError
from fsn.measure.kernel import FIELDS, KernelReading
from fsn.measure.plots.style import LAYERS, legend, new_figure, styled, zero_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _phase_axis(axes: Axes) -> None:
    axes.set_xticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], ["−π", "−π/2", "0", "π/2", "π"])
    axes.set_xlim(-np.pi, np.pi)
    axes.set_xlabel("phase difference Δ")


def _functions(
    axes: Axes, reading: KernelReading, field: int, frame: str | None, tone: dict[str, str]
) -> None:
    delta = np.linspace(-np.pi, np.pi, 361)
    zero_line(axes, tone)
    axes.plot(delta, np.sin(delta), color=tone["rule"], linestyle=(0, (4, 3)), linewidth=1.2, label="sin Δ")
    for layer, values in enumerate(reading.functions(delta, frame)[field]):
        axes.plot(delta, values, color=LAYERS[layer % len(LAYERS)], label=f"layer {layer + 1}")
    _phase_axis(axes)
    axes.set_title(f"{FIELDS[field]} field")


def _magnitudes(axes: Axes, reading: KernelReading, tone: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    layers, harmonics = reading.layers, reading.harmonics
    width, gap = 0.8 / layers, 0.6
    ticks, names = [], []
    for f in range(len(FIELDS)):
        for n in range(harmonics):
            centre = f * (harmonics + gap) + n
            ticks.append(centre)
            names.append(f"n={n + 1}")
            for layer in range(layers):
                axes.bar(
                    centre + (layer - (layers - 1) / 2) * width,
                    reading.magnitude[f, layer, n],
                    0.9 * width,
                    color=LAYERS[layer % len(LAYERS)],
                    edgecolor="white",
                    linewidth=0.0,
                    hatch="//////" if reading.sign_flips[f, layer, n] else None,
                )
        middle = f * (harmonics + gap) + (harmonics - 1) / 2
        axes.annotate(
            f"{FIELDS[f]} field w{'₀₁'[f]}",
            (middle, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -19),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=8,
        )
    axes.set_xticks(ticks, names)
    axes.tick_params(axis="x", length=0, pad=2)
    axes.grid(False, axis="x")
    axes.set_xlabel(" ")  # keeps the room of the two field names
    axes.set_title("RMS magnitude of w")
    if reading.sign_flips.any():
        mark = Patch(
            facecolor=tone["rule"], edgecolor="white", hatch="//////", linewidth=0, label="mean Re w < 0"
        )
        axes.set_ylim(top=1.2 * axes.get_ylim()[1])  # room for the legend above the bars
        axes.legend(handles=[mark], loc="upper center", handlelength=1.4)


def coupling(
    reading: KernelReading, frame: str | None = None, successor: bool = False, surface: str = "any"
) -> Figure:
    """The trained kernel as coupling functions (left) and harmonic magnitudes (right).

    Hatched bars are harmonics whose coordinate-mean real coefficient is negative. ``successor`` adds the
    coupling functions of the successor field as a panel of their own. ``frame`` defaults to the model's.
    """
    with styled(surface) as tone:
        panels = 3 if successor else 2
        shares = {"width_ratios": [1, 1, 1.5] if successor else [1, 1.25]}
        figure, grid = new_figure(1, panels, 2.6 if panels == 2 else 2.4, gridspec_kw=shares)
        for field in range(panels - 1):
            _functions(grid[0, field], reading, field, frame, tone)
        grid[0, 0].set_ylabel("coupling f(Δ)")
        low, high = (
            pick(grid[0, f].get_ylim()[e] for f in range(panels - 1)) for e, pick in enumerate((min, max))
        )
        for field in range(panels - 1):
            grid[0, field].set_ylim(low, high)
        legend(grid[0, 0], loc="upper left", fontsize=7)
        _magnitudes(grid[0, -1], reading, tone)
    return figure


def coupling_history(
    readings: Sequence[KernelReading], frame: str | None = None, surface: str = "any"
) -> Figure:
    """How the coupling functions changed through training: a row per field, a column per layer."""
    if not readings:
        raise UserError("There is no checkpoint to draw; give at least one kernel reading.")
    delta = np.linspace(-np.pi, np.pi, 181)
    with styled(surface) as tone:
        figure, grid = new_figure(2, readings[0].layers, 3.2, sharex=True, sharey="row")
        for i, reading in enumerate(readings):
            functions = reading.functions(delta, frame)
            strength = 0.25 + 0.75 * (i + 1) / len(readings)
            for f in range(2):
                for layer in range(reading.layers):
                    grid[f, layer].plot(
                        delta,
                        functions[f, layer],
                        color=LAYERS[layer % len(LAYERS)],
                        alpha=strength,
                        linewidth=1.7 if i == len(readings) - 1 else 0.9,
                    )
        for f in range(2):
            grid[f, 0].set_ylabel(f"{FIELDS[f]} f(Δ)")
            for axes in grid[f]:
                zero_line(axes, tone)
                axes.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
                axes.set_xlim(-np.pi, np.pi)
        for layer, axes in enumerate(grid[0]):
            axes.set_title(f"layer {layer + 1}")
        labels = [reading.label for reading in readings if reading.label]
        through = f": {labels[0]} (faint) to {labels[-1]} (bold)" if len(labels) > 1 else ""
        figure.supxlabel(f"phase difference Δ{through}", fontsize=8.5)
    return figure
