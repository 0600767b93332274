"""What a trained field does: take it out, and see where in the text the loss rises.

A field is the coupling of one layer to the present phases of the attended tokens, or to those of their successors. Its
coefficients are set to zero, nothing is trained again, and the loss of every target is compared with that of the whole
model, by copy depth. A rise on long copies alone says that the field copies; one everywhere, that others rest on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UserError
from ..nn import CouplingKernel
from .copy_depth import BINS, DEPTH, TARGETS, Battery, bin_name, mean_loss
from .coupling import FIELDS, kernels_of
from .finding import Finding, Subject, has_coupling, instrument
from .losses import battery_losses
from .style import CYCLE, drawing, heat_map
from .tables import Table, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def coefficients_of(kernel: CouplingKernel, field: str) -> list[Tensor]:
    """The tensors behind one field of a kernel; none if it does not have that field."""
    if field not in FIELDS:
        raise UserError(f"there is no field {field!r}; a kernel has {' and '.join(FIELDS)}")
    found = (getattr(kernel, f"{field}_{part}") for part in ("re", "im"))
    return [tensor for tensor in found if tensor is not None]


@contextlib.contextmanager
def without_field(model: nn.Module, field: str, layer: int) -> Iterator[None]:
    """Inside this block the layer (counted from 0) does not couple to the field; after it everything is as before."""
    kernels = kernels_of(model)
    if not 0 <= layer < len(kernels):
        raise UserError(f"there is no layer {layer}; the model has {len(kernels)}, counted from 0")
    tensors = coefficients_of(kernels[layer], field)
    if not tensors:
        raise UserError(f"the kernel of this model has no {field} field to take out")
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            for tensor in tensors:
                tensor.zero_()
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def lesion_table(model: nn.Module, tokens: Tensor, battery: Battery) -> Table:
    """One row per field, layer and bin of copy depth: bits per target without the field, and by how much that is more.

    A bin without targets has ``nan``; a field that the model does not have is left out.
    """
    kernels = kernels_of(model)
    masks = {edges: battery.mask(edges) for edges in BINS}
    whole = battery_losses(model, tokens, battery, "the whole model")
    rows = []
    for field in FIELDS:
        for layer, kernel in enumerate(kernels):
            if not coefficients_of(kernel, field):
                continue
            with without_field(model, field, layer):
                said = f"without the {field} field of layer {layer + 1}"
                cut = battery_losses(model, tokens, battery, said)
            for edges, mask in masks.items():
                loss, base = (mean_loss(losses, mask) for losses in (cut, whole))
                where = {"field": field, "layer": layer + 1, "depth": bin_name(edges)}
                rows.append({**where, "targets": int(mask.sum()), "loss": loss, "rise": loss - base})
    columns = {
        "field": "Which field is taken out: the coupling to the attended token, or to its successor.",
        "layer": "Of which layer, counted from 1.",
        "depth": DEPTH,
        "targets": (TARGETS, ",d"),
        "loss": ("Mean loss without the field, in bits per target.", ".3f"),
        "rise": ("By how much that is more than with the field, in bits per target.", "+.3f"),
    }
    return Table.of(columns, rows, "Bits per target with one field of one layer taken out.")


def draw_lesions(table: Table) -> Figure:
    """A panel per field, from :func:`lesion_table`: layers down, copy depth across.

    A cell shows by how many bits per target the loss rises; both panels share their shades.
    """
    fields, layers, depths = (list(dict.fromkeys(table.column(c))) for c in ("field", "layer", "depth"))
    cells = {(row["field"], row["layer"], row["depth"]): row["rise"] for row in table.rows}
    values = np.array(
        [[[cells.get((f, y, d), np.nan) for d in depths] for y in layers] for f in fields], float
    )
    most = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    with drawing(1, len(fields), 0.36 * len(layers) + 0.85) as (figure, grid):
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm

        shades = LinearSegmentedColormap.from_list("rise", ["#eceff2", "#f3c9a0", CYCLE[1], "#8f3a06"])
        norm = PowerNorm(0.6, vmin=0.0, vmax=max(most, 1e-3), clip=True)
        for axes, field, panel in zip(grid[0], fields, values, strict=True):
            words = np.vectorize("{:+.2f}".format)(panel)
            heat_map(axes, panel, words, {"fontsize": 7}, cmap=shades, norm=norm)
            axes.set_title(f"without the {field} field of")
            axes.set_xticks(range(len(depths)), depths)
            axes.set_yticks(range(len(layers)), [f"layer {layer}" for layer in layers])
            axes.set_xlabel("copy depth of the target")
            axes.tick_params(length=0)
    return figure


def side_by_side(table: Table) -> Table:
    """A :func:`lesion_table` as it is read: a row per field and layer, the rise in a column for every copy depth."""
    depths = list(dict.fromkeys(table.column("depth")))
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in table.rows:
        key = row["field"], row["layer"]
        rows.setdefault(key, {"field": key[0], "layer": key[1]})[row["depth"]] = row["rise"]
    columns: dict[str, str | tuple[str, str]] = {name: table.about[name] for name in ("field", "layer")}
    columns |= {d: (f"Rise on targets of copy depth {d}, in bits per target.", "+.3f") for d in depths}
    return Table.of(columns, list(rows.values()), table.caption)


@instrument("lesions", applies=has_coupling)
def inspect(subject: Subject) -> Finding:
    """Every field of every layer of the run, taken out in turn."""
    table = lesion_table(subject.models[subject.name], subject.corpus.valid, subject.battery)
    most = max((row for row in table.rows if row["targets"]), key=lambda row: row["rise"])
    return Finding(
        "Which field does what",
        "Bits per target that are added when one field of one layer is taken out, by copy depth; nothing is trained "
        f"again. Most is added without the {most['field']} field of layer {most['layer']}: {signed(most['rise'])} bits "
        f"at copy depth {most['depth']}.",
        {"lesions": side_by_side(table), "lesions-data": table},
        {"lesions": lambda: draw_lesions(table)},
    )
