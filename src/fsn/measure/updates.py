"""How far each layer moves the phases, and whether its blocks work inside their bound.

Coupling and feed-forward block each make a raw update; the bound keeps its direction and takes its norm from
α tanh(raw). Far beyond 1 rad a larger raw update moves a token no further: its direction alone still matters, and a
gradient comes back divided by as much. Models can live with that while α is small. Where α is near 2π such a block
turns phases by more than half a circle: small models that a high learning rate brought there lost 0.6 to 1.6 bits
(docs/findings.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from ..models import FSN, FSNConfig
from ..nn import record
from ..train.run import Run
from .finding import Finding, Subject, instrument
from .losses import evaluating
from .states import first_windows
from .style import CYCLE, drawing, legend
from .tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCKS = {"coupling": "update", "feed-forward": "feedforward"}
BEYOND = 0.02
"""A block that passes less than this of its raw update works far beyond its bound."""
COLUMNS = {
    "model": "The run.",
    "layer": "The layer, from 1.",
    "block": "The coupling or the feed-forward block.",
    "alpha": ("Scale α of the block's bound.", ".3f"),
    "raw": ("Root mean square of the update before its bound, in radians.", ".4g"),
    "moved": ("The same after it: how far a phase moves.", ".3f"),
    "passed": ("Moved over raw: the share of a gradient across the update that comes back.", ".2g"),
    "differs": (
        "How much of what is added differs between tokens: standard deviation over root mean square.",
        ".1%",
    ),
}


def rms(values: Tensor) -> float:
    return values.double().pow(2).mean().sqrt().item()


def ratio(part: float, whole: float) -> float:
    """NaN where nothing moves at all."""
    return part / whole if whole else math.nan


def update_table(model: FSN, tokens: Tensor, label: str = "") -> Table:
    """One row for each block of each layer that has a bound, on ``tokens`` (B, T)."""
    with evaluating(model), record(model, "layers.*.raw", "layers.*.bounded") as points:
        model(tokens)
    rows = []
    for i, layer in enumerate(model.stack):
        bounds = {"coupling": layer.attention_bound, "feed-forward": layer.feedforward_bound}
        for block, bound in bounds.items():
            if bound.alpha is None:
                continue
            raw, moved = (points[f"layers.{i}.{BLOCKS[block]}.{part}"] for part in ("raw", "bounded"))
            before, after, spread = rms(raw), rms(moved), rms(moved - moved.mean((0, 1)))
            row = {"model": label, "layer": i + 1, "block": block, "alpha": bound.alpha.item()}
            row |= {"raw": before, "moved": after, "passed": ratio(after, before)}
            rows.append(row | {"differs": ratio(spread, after)})
    return Table.of(COLUMNS, rows)


def told(table: Table) -> str:
    """What the table says of its model, with the remedy where a block beyond its bound makes more than half a turn."""
    far = [row for row in table.rows if row["passed"] < BEYOND]
    moves = [row["moved"] for row in table.rows]
    label = table.rows[0]["model"]
    if not far:
        return (
            f"A block of {label} moves a phase by {min(moves):.2g} to {max(moves):.2g} rad, inside its bound."
        )
    layers = {block: [str(row["layer"]) for row in far if row["block"] == block] for block in BLOCKS}
    named = " and ".join(f"the {block} block of layer {', '.join(at)}" for block, at in layers.items() if at)
    raw, moved = (max(row[name] for row in far) for name in ("raw", "moved"))
    text = (
        f"In {label} {named} {'works' if len(far) == 1 else 'work'} far beyond the bound: raw updates of up to "
        f"{raw:,.0f} rad move a phase by no more than {moved:.2g} rad, and only their direction matters."
    )
    if moved > math.pi:
        text += " That is more than half a turn: train again with "
        text += "--warmup-steps, a lower --lr or --model alpha_start=1."
    return text


def draw_updates(table: Table) -> Figure:
    """Updates of every layer before their bound (hollow) and after it (filled), and how much of them differs between
    tokens."""
    layers = sorted({row["layer"] for row in table.rows})
    with drawing(1, 2, 2.3) as (figure, grid):
        sizes, shares = grid.flat
        for colour, block in zip(CYCLE, BLOCKS, strict=False):
            found = table.where(block=block)
            if not len(found):
                continue
            at, look = found.column("layer"), {"color": colour, "marker": "o", "markersize": 4.5}
            sizes.plot(at, found.column("raw"), linestyle=":", markerfacecolor="none", **look)
            sizes.plot(at, found.column("moved"), label=block, **look)
            shares.plot(at, found.column("differs"), label=block, **look)
        sizes.set_yscale("log")
        sizes.set_title("RMS update (rad): before its bound, after it", fontsize=8)
        shares.set_title("how much of it differs between tokens", fontsize=8)
        shares.set_ylim(0.0, 1.05)
        shares.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        for axes in (sizes, shares):
            axes.set_xticks(layers)
            axes.set_xlabel("layer")
        legend(sizes, loc="best", fontsize=7)
    return figure


def has_bounds(run: Run) -> bool:
    """Whether the run's model bounds its updates."""
    return isinstance(run.model_config, FSNConfig) and run.model_config.bound == "tanh"


@instrument("updates", applies=has_bounds)
def inspect(subject: Subject) -> Finding:
    """Updates on the first validation windows, before and after their bound."""
    tokens = first_windows(subject.corpus.valid, subject.run.recipe.length)[:, :-1].to(subject.device)
    model = subject.models[subject.name]
    assert isinstance(model, FSN)  # has_bounds
    table = update_table(model, tokens, subject.name)
    return Finding(
        "Updates and their bound",
        f"How far does each layer move the phases? {told(table)}",
        {"updates": table},
        {"updates": lambda: draw_updates(table)},
    )
