"""How figures look: paper width, colours that hold on white and on black, files that stay the same."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..io import write_bytes_atomic
from ..text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

WIDTH = 6.3
"""Inches between the margins of the paper."""

TONE = {"text": "#787c82", "rule": "#8a8e94", "grid": "#80808038"}
"""Text and rules: they stand off white and off black alike, by about 4.2 : 1."""

COLOURS = {
    "fsn": "#3b7fd4",
    "transformer": "#878d96",
    "kuramoto": "#d9762b",
    "transformer-kvshift": "#c8a21f",
    "fsn-nophase": "#2a9d8f",
    "fsn-mf": "#a86bc9",
    "fsn-mf-winding": "#c2559d",
}
"""One colour for each model family, the same in every figure."""

CYCLE = ("#3b7fd4", "#d9762b", "#2a9d8f", "#a86bc9", "#c8a21f", "#c2559d", "#6b8e3d", "#878d96")
LAYERS = ("#d9a520", "#dd6a3c", "#b8468f", "#5b63d3", "#2f93b8", "#3f9e6b", "#8c7a3d", "#7f7f8f")
"""Layers in order of depth, from warm to cold."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
ALIASES = {"base layer": "kuramoto", "no phases": "fsn-nophase", "fsn, no phases": "fsn-nophase"}


def family_of(name: str) -> str:
    """The model family that a name begins with: ``FSN (epoch 29)`` and ``fsn-1m, lr 0.004`` are of ``fsn``."""
    name = name.lower().partition(" (")[0]
    return ALIASES.get(name) or re.sub(r"-\d+m$", "", name.partition(",")[0])


def colours(names: list[str]) -> dict[str, str]:
    """A different colour for every name: the first of a family has the family's, others take what is left of the
    cycle."""
    chosen: dict[str, str] = {}
    for name in names:
        key = family_of(name)
        if key in COLOURS and COLOURS[key] not in chosen.values():
            chosen[name] = COLOURS[key]
    for name in names:
        if name not in chosen:
            free = [shade for shade in CYCLE if shade not in chosen.values()]
            chosen[name] = free[0] if free else CYCLE[len(chosen) % len(CYCLE)]
    return {name: chosen[name] for name in names}


SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": TONE["rule"],
    "axes.facecolor": "none",
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelcolor": TONE["text"],
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": TONE["text"],
    "axes.titlesize": 9,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "grid.color": TONE["grid"],
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.labelcolor": TONE["text"],
    "lines.linewidth": 1.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "path",
    "svg.hashsalt": "fsn",
    "text.color": TONE["text"],
    "xtick.color": TONE["text"],
    "xtick.labelsize": 8,
    "ytick.color": TONE["text"],
    "ytick.labelsize": 8,
}


def require_matplotlib() -> None:
    """Stop in one sentence where figures cannot be drawn; called before anything is measured for them."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib: pip install matplotlib")


@contextlib.contextmanager
def drawing(
    rows: int, columns: int, height: float, width: float = WIDTH, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """A figure without global state to draw on in this block, and its axes, a two-dimensional array."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


def ink_on(colour: Sequence[float] | NDArray[Any]) -> str:
    """What can be read on a cell of this colour: dark ink, or white."""
    red, green, blue = colour[:3]
    return "#1f2328" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"


def heat_map(
    axes: Axes, values: NDArray[np.floating], words: NDArray[np.str_], font: Mapping[str, Any], **shades: Any
) -> AxesImage:
    """Numbers as shades, each with its words; a cell without a number says so."""
    picture = axes.imshow(values, aspect="auto", **shades)
    for (i, j), value in np.ndenumerate(values):
        text, tint = "none", TONE["text"]
        if np.isfinite(value):
            text, tint = str(words[i, j]).replace("-", "−"), ink_on(picture.to_rgba(value))
        axes.text(j, i, text, ha="center", va="center", color=tint, **font)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return picture


def zero_line(axes: Axes) -> None:
    """A quiet line at zero, below the data."""
    axes.axhline(0.0, color=TONE["rule"], linewidth=0.9, zorder=1)


def legend(axes: Axes, **options: Any) -> None:
    """A legend, if anything in the panel has a label."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(handlelength=1.4, borderaxespad=0.2, labelspacing=0.3, **options)


def figure_bytes(figure: Figure, title: str = "") -> bytes:
    """A figure as SVG with its ``title`` inside; equal figures give equal bytes."""
    import matplotlib
    from matplotlib.text import Text

    # in the name of a run no dollar begins a formula, and no control character reaches a renderer
    for text in figure.findobj(Text):
        text.set_text(re.sub(r"(?<!\\)\$", r"\\$", printable(text.get_text(), "lines")))
    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        metadata = {"Date": None} | ({"Title": title} if title else {})
        figure.savefig(buffer, format="svg", dpi=200, metadata=metadata)
    return buffer.getvalue()


def save_figure(figure: Figure, path: str | os.PathLike[str], title: str = "") -> Path:
    """Write ``path`` with the suffix .svg, in one step."""
    target = Path(path).with_suffix(".svg")
    write_bytes_atomic(target, figure_bytes(figure, title))
    return target
