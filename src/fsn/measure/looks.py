"""Where a model looks when a text says something again.

A passage, a little of what follows it, and the passage once more. When the second saying has reached place t, two
places of the first could help: the same place u, and u + 1, which holds what comes next. Ordinary attention passes on
what lies where it looks, so to copy it has to look at u + 1; some layer before must have told that token what precedes
it. Coupling to successors passes on what lies one further, so it can look at u itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fsn.errors import UserError
from fsn.measure.copy_depth import Tokens
from fsn.measure.losses import NATS_PER_BIT, evaluating
from fsn.measure.tables import Table
from fsn.nn import record

OFFSETS = tuple(range(-3, 4))
PASSAGES = 64
SHORTEST = 20
"""Symbols in a window below which nothing can be said twice with anything in between."""
BATCH = 16


@dataclass(frozen=True)
class Looks:
    """What was seen: mean attention (layers, offsets) from the second saying to places of the first, counted from the
    same place, and bits per symbol of both sayings."""

    name: str
    offsets: tuple[int, ...]
    weights: NDArray[np.float64]
    first: float
    second: float

    def weight(self, layer: int, offset: int) -> float:
        """Mean attention of a layer, counted from 1, at an offset."""
        return float(self.weights[layer - 1, self.offsets.index(offset)])

    def most(self, offset: int) -> tuple[int, float]:
        """The layer that looks there most, counted from 1, and how much."""
        layer = int(self.weights[:, self.offsets.index(offset)].argmax()) + 1
        return layer, self.weight(layer, offset)

    def table(self) -> Table:
        """One row per layer, a column per offset."""
        columns = [f"{offset:+d}".replace("-", "−") for offset in self.offsets]
        rows = [
            {"model": self.name, "layer": layer, **dict(zip(columns, map(float, weights), strict=True))}
            for layer, weights in enumerate(self.weights, 1)
        ]
        caption = (
            f"Attention from a passage said again to the places of its first saying; {self.first:.3f} bits a symbol "
            f"the first time, {self.second:.3f} the second."
        )
        return Table(("model", "layer", *columns), rows, dict.fromkeys(columns, ".3f"), caption)


def said_again(tokens: Tokens, length: int, count: int = PASSAGES) -> tuple[Tensor, int]:
    """``count`` windows (count, length), each a passage, what follows it, and the passage again; and the period, by
    which the sayings are apart. Passages are two fifths of a window, spread evenly over the text."""
    if length < SHORTEST:
        raise UserError(f"a window of {length} symbols is too short to say something twice; take {SHORTEST}")
    passage = 2 * length // 5
    period = length - passage
    text = torch.as_tensor(tokens).long()
    if len(text) < period:
        raise UserError(f"the text has {len(text)} symbols; to say some of it twice takes {period}")
    starts = torch.linspace(0, len(text) - period, count).round().long()
    once = text[starts[:, None] + torch.arange(period)]
    return torch.cat((once, once[:, :passage]), dim=1), period


def look(model: nn.Module, windows: Tensor, period: int, name: str) -> Looks:
    """Read windows (n, T) that say something again after ``period`` symbols; the model stays on its device.

    The first quarter of the second saying does not count: nothing tells yet that it is one.
    """
    length = windows.shape[1] - 1
    passage = windows.shape[1] - period
    skipped = passage // 4
    t = torch.arange(period + skipped, length)
    kept = tuple(offset for offset in OFFSETS if -skipped <= offset < period)
    device = next(iter(model.parameters())).device
    sums: list[Tensor] = []
    bits = torch.zeros(2, dtype=torch.float64)
    with evaluating(model):
        for batch in windows.split(BATCH):
            inputs, targets = batch[:, :-1].to(device), batch[:, 1:].to(device)
            with record(model, "layers.*.attention") as points:
                _, losses = model(inputs, targets=targets)
            seen = []
            for point in sorted(points, key=lambda name: int(name.split(".")[1])):
                weights = points[point].double()
                weights = weights.mean(dim=1) if weights.dim() == 4 else weights  # over heads
                seen.append(
                    torch.stack([weights[:, t, t - period + offset].mean(1).sum().cpu() for offset in kept])
                )
            sums.append(torch.stack(seen))
            losses = losses.double().cpu() / NATS_PER_BIT
            bits += torch.stack(
                [losses[:, skipped : passage - 1].mean(1).sum(), losses[:, period + skipped :].mean(1).sum()]
            )
    mean = torch.stack(sums).sum(0).numpy() / len(windows)
    first, second = (bits / len(windows)).tolist()
    return Looks(name, kept, mean, first, second)
