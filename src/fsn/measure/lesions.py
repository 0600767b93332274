"""What a trained field does: take it out, and see where in the text the loss rises.

A field is the coupling of one layer to the present phases of the attended tokens, or to those of their successors. Its
coefficients are set to zero, nothing is trained again, and the loss of every target is compared with that of the whole
model, by copy depth. A rise on long copies alone says that the field copies; one everywhere, that others rest on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from fsn.errors import UserError
from fsn.measure.copy_depth import BINS, Battery, Tokens, bin_name
from fsn.measure.kernel import FIELDS, kernels_of
from fsn.measure.losses import battery_losses
from fsn.measure.tables import Table
from fsn.nn import CouplingKernel


def coefficients_of(kernel: CouplingKernel, field: str) -> list[torch.Tensor]:
    """The tensors behind one field of a kernel; none if it does not have that field."""
    if field not in FIELDS:
        raise UserError(f"There is no field {field!r}; a kernel has {' and '.join(FIELDS)}.")
    found = (getattr(kernel, f"{field}_{part}") for part in ("re", "im"))
    return [tensor for tensor in found if tensor is not None]


@contextlib.contextmanager
def without_field(model: nn.Module, field: str, layer: int) -> Iterator[None]:
    """Inside this block the layer (counted from 0) does not couple to the field; after it everything is as before."""
    kernels = kernels_of(model)
    if not 0 <= layer < len(kernels):
        raise UserError(f"There is no layer {layer}; the model has {len(kernels)}, counted from 0.")
    tensors = coefficients_of(kernels[layer], field)
    if not tensors:
        raise UserError(f"The kernel of this model has no {field} field to take out.")
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


def sample(battery: Battery, standard: int = 128, enriched: int = 96) -> Battery:
    """A smaller battery: so many windows of each slice, evenly spread over it."""
    chosen = []
    for wanted, rows in ((standard, battery.rows("standard")), (enriched, battery.rows("enriched"))):
        there = np.flatnonzero(rows)
        chosen.append(there[np.linspace(0, len(there) - 1, min(wanted, len(there))).round().astype(int)])
    rows = np.concatenate(chosen)
    return dataclasses.replace(
        battery,
        windows=battery.windows[rows],
        enriched=battery.enriched[rows],
        depth=battery.depth[rows],
        distance=battery.distance[rows],
    )


def lesion_table(
    model: nn.Module,
    tokens: Tokens,
    battery: Battery,
    *,
    fields: Sequence[str] = FIELDS,
    bins: Sequence[tuple[int, int]] = BINS,
    device: str | torch.device | None = None,
) -> Table:
    """One row per field, layer and bin of copy depth: bits per target without the field, and by how much that is more.

    A bin without targets has ``nan``; a field that the model does not have is left out.
    """
    kernels = kernels_of(model)
    masks = {edges: battery.mask(edges) for edges in bins}
    whole = battery_losses(model, tokens, battery, device=device, description="the whole model")
    rows = []
    for field in fields:
        for layer, kernel in enumerate(kernels):
            if not coefficients_of(kernel, field):
                continue
            with without_field(model, field, layer):
                said = f"without the {field} field of layer {layer + 1}"
                cut = battery_losses(model, tokens, battery, device=device, description=said)
            for edges, mask in masks.items():
                there = bool(mask.any())
                loss = float(cut[mask].mean(dtype=np.float64)) if there else np.nan
                base = float(whole[mask].mean(dtype=np.float64)) if there else np.nan
                rows.append(
                    {
                        "field": field,
                        "layer": layer + 1,
                        "depth": bin_name(edges),
                        "targets": int(mask.sum()),
                        "loss": loss,
                        "rise": loss - base,
                    }
                )
    columns = ("field", "layer", "depth", "targets", "loss", "rise")
    formats = {"targets": ",d", "loss": ".3f", "rise": "+.3f"}
    return Table(columns, rows, formats, "Bits per target with one field of one layer taken out.")
