"""Where a model looks when a passage is repeated.

A passage, a little of what follows it, and the passage once more. When the repetition has reached place t, two places
of the first time could help: the same place u, and u + 1, which holds what comes next. Ordinary attention passes on
what lies where it looks, so to copy it has to look at u + 1; some layer before must have told that token what precedes
it. Coupling to successors passes on what lies one further, so it can look at u itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import UserError
from ..nn import record
from .finding import Finding, Subject, instrument
from .losses import NATS_PER_BIT, evaluating
from .style import CYCLE, TONE, drawing
from .tables import Table, stacked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OFFSETS = tuple(range(-3, 4))
PASSAGES = 64
SHORTEST = 20
"""A window of fewer symbols has no room for a passage, something else, and the passage again."""
BATCH = 16


@dataclass(frozen=True)
class Looks:
    """Mean attention (layers, offsets) from a repeated passage to places around the same one the first time, and bits
    per symbol the first and the second time."""

    name: str
    offsets: tuple[int, ...]
    weights: NDArray[np.float64]
    first: float
    second: float
    bits: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Mean bits of every prediction of the windows, (T−1,)."""

    def most(self, offset: int) -> tuple[int, float]:
        """The layer that looks there most, counted from 1, and how much."""
        weights = self.weights[:, self.offsets.index(offset)]
        return int(weights.argmax()) + 1, float(weights.max())

    def table(self) -> Table:
        """One row per layer, a column per offset."""
        columns = [f"{offset:+d}".replace("-", "−") for offset in self.offsets]
        rows = [
            {"model": self.name, "layer": layer, **dict(zip(columns, map(float, weights), strict=True))}
            for layer, weights in enumerate(self.weights, 1)
        ]
        caption = (
            f"Attention from a repeated passage to the places around the same one the first time; {self.first:.3f} "
            f"bits a symbol the first time, {self.second:.3f} the second."
        )
        said: dict[str, str | tuple[str, str]] = {"model": "The run.", "layer": "Layer, counted from 1."}
        for name, offset in zip(columns, self.offsets, strict=True):
            said[name] = (f"Mean attention to {place(offset)} (1 is all of it).", ".3f")
        return Table.of(said, rows, caption)


def place(offset: int) -> str:
    """An offset from the same place the first time, in words."""
    named = {0: "the same place", 1: "what came next"}
    return named.get(offset, f"{abs(offset)} {'before' if offset < 0 else 'after'} the same place")


def repeated(tokens: Tensor, length: int) -> tuple[Tensor, int]:
    """:data:`PASSAGES` windows (n, length), each a passage, what follows it, and the passage again; and the period, by
    which the two are apart. Passages are two fifths of a window, spread evenly over the text."""
    if length < SHORTEST:
        raise UserError(f"a window of {length} symbols is too short to repeat a passage in; take {SHORTEST}")
    passage = 2 * length // 5
    period = length - passage
    text = tokens.long()
    if len(text) < period:
        raise UserError(f"the text has {len(text)} symbols; to repeat some of it takes {period}")
    starts = torch.linspace(0, len(text) - period, PASSAGES).round().long()
    once = text[starts[:, None] + torch.arange(period)]
    return torch.cat((once, once[:, :passage]), dim=1), period


def look(model: nn.Module, windows: Tensor, period: int, name: str) -> Looks:
    """Read windows (n, T) that repeat a passage after ``period`` symbols; the model stays on its device.

    The first quarter of the repetition does not count: nothing tells yet that it is one.
    """
    length = windows.shape[1] - 1
    passage = windows.shape[1] - period
    skipped = passage // 4
    t = torch.arange(period + skipped, length)
    kept = tuple(offset for offset in OFFSETS if -skipped <= offset < period)
    device = next(iter(model.parameters())).device
    sums: list[Tensor] = []
    each = torch.zeros(length, dtype=torch.float64)
    with evaluating(model):
        for batch in windows.split(BATCH):
            inputs, targets = batch[:, :-1].to(device), batch[:, 1:].to(device)
            with record(model, "layers.*.attention") as points:
                _, losses = model(inputs, targets=targets)
            seen = []
            for point in points.values():
                weights = point.double()
                weights = weights.mean(dim=1) if weights.dim() == 4 else weights  # over heads
                seen.append(
                    torch.stack([weights[:, t, t - period + offset].mean(1).sum().cpu() for offset in kept])
                )
            sums.append(torch.stack(seen))
            each += losses.double().cpu().sum(0) / NATS_PER_BIT
    mean, bits = torch.stack(sums).sum(0).numpy() / len(windows), each.numpy() / len(windows)
    first, second = (
        float(bits[part].mean()) for part in (slice(skipped, passage - 1), slice(period + skipped, None))
    )
    return Looks(name, kept, mean, first, second, bits)


FAINT = 0.08
"""Weights below this share of the largest are not named in the figure, layers with only such ones not shown."""


def draw_looks(seen: Sequence[Looks]) -> Figure:
    """Mean attention from a repeated passage to its first occurrence, by layer: 0 is the same place, +1 what came next.

    Of every model the layers that look back at least faintly have a panel, and always the one that does so most.
    """
    most = max(float(found.weights.max()) for found in seen)
    panels = [
        (found, layer)
        for found in seen
        for layer, weights in enumerate(found.weights)
        if weights.max() > FAINT * most or layer == found.weights.max(axis=1).argmax()
    ]
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    named = {0: CYCLE[0], 1: CYCLE[1]}
    with drawing(rows, columns, 1.15 * rows + 0.45, sharey=True) as (figure, grid):
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, (found, layer) in zip(grid.flat, panels, strict=False):
            weights = found.weights[layer]
            axes.bar(
                found.offsets, weights, color=[named.get(o, TONE["rule"]) for o in found.offsets], width=0.72
            )
            for offset, weight in zip(found.offsets, weights, strict=True):
                if weight > FAINT * most:
                    axes.annotate(
                        f"{100 * weight:.0f} %" if weight >= 0.01 else f"{100 * weight:.1f} %",
                        (offset, weight), xytext=(0, 1.5), textcoords="offset points", ha="center", fontsize=6.5,
                    )  # fmt: skip
            axes.set_title(f"{found.name}, layer {layer + 1}", fontsize=8)
            axes.set_ylim(0.0, 1.18 * max(most, 1e-6))
            axes.set_xticks(found.offsets, [f"{o:+d}".replace("-", "−") if o else "0" for o in found.offsets])
            axes.set_yticks([])
            axes.tick_params(length=0, labelsize=6.5)
            axes.grid(False)
            axes.spines["left"].set_visible(False)
        handles = [
            grid[0][0].bar([0], [0], color=tint, label=place(offset)) for offset, tint in named.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, handlelength=1.0)
    return figure


@instrument("looks", applies=lambda run: run.recipe.length >= SHORTEST)
def inspect(subject: Subject) -> Finding:
    """Passages of the validation text, repeated, through the run and the one it is compared with."""
    windows, period = repeated(subject.corpus.valid, subject.run.recipe.length)
    seen = [look(model, windows, period, name) for name, model in subject.models.items()]
    told = []
    for found in seen:
        layer, column = np.unravel_index(int(found.weights.argmax()), found.weights.shape)
        told.append(
            f"Layer {layer + 1} of {found.name} puts {100 * found.weights[layer, column]:.0f} % of its attention on "
            f"{place(found.offsets[column])}; a symbol costs it {found.first:.3f} bits the first time and "
            f"{found.second:.3f} the second."
        )
    return Finding(
        "Where it looks when a passage is repeated",
        " ".join(told),
        {"looks": stacked([found.table() for found in seen])},
        {"looks": lambda: draw_looks(seen)},
    )
