"""The check of a layer's kernels at their first use (``ops/fused/check.py``): two heads of its width, fixed phases."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..ops import CouplingLaw, fused
from ..ops.fused import check

if TYPE_CHECKING:
    from .attention import FrustratedAttention

BATCH = 1
FIELDS = tuple(field.name for field in dataclasses.fields(CouplingLaw))
"""Of a coupling law."""


def trusted(layer: FrustratedAttention, phases: Tensor, make: type[FrustratedAttention]) -> bool:
    """Whether kernels compute what the reference does for such a layer, on phases (B, T, d) like these.

    ``make`` makes the small layer that is checked.
    """
    half, length = fused.compute_dtype(phases) == torch.bfloat16, check.stands_for(phases.shape[1])
    where = phases.device.type, phases.device.index
    law = tuple(getattr(layer.law, name) for name in FIELDS)
    bounded, backward = layer.alpha is not None, torch.is_grad_enabled()
    return _agrees(make, layer.k, law, bounded, where, half, length, backward)


def _agrees(
    make: type[FrustratedAttention], k: int, law: tuple[Any, ...], bounded: bool,
    where: tuple[str, int | None], half: bool, length: int, backward: bool,
) -> bool:  # fmt: skip
    """:func:`trusted` of plain values: asked once while a compiler traces, which compares them, where it would take two
    equal laws for different ones."""
    kind, index = where
    if kind not in check.CHECKED or fused.forced():
        return True
    device = torch.device(kind) if index is None else torch.device(kind, index)
    dtype = torch.bfloat16 if half else torch.float32
    with torch.set_grad_enabled(backward):
        return check.agrees(
            (k, law, bounded), device, dtype, length,
            lambda *case: disagreement(make, k, CouplingLaw(*law), bounded, *case),
        )  # fmt: skip


# As torch.compiler.assume_constant_result would: see ops/fused/synchronize.py.
_agrees._dynamo_marked_constant = True  # type: ignore[attr-defined]


def disagreement(
    make: type[FrustratedAttention], k: int, law: CouplingLaw, bounded: bool, device: torch.device,
    dtype: torch.dtype, length: int,
) -> str | None:  # fmt: skip
    """What the kernels get wrong for a layer of two such heads, in words; None where they are right."""
    options = {name: value for name, value in vars(law).items() if value != getattr(CouplingLaw, name)}
    generator = torch.Generator().manual_seed(5)
    with torch.device("cpu"), torch.no_grad():
        layer = make(check.HEADS * k, check.HEADS, bounded=bounded, **options)
        # away from the start, to where attention is neither even nor all on the diagonal
        for name, parameter in layer.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise, alpha=0.3 * parameter.shape[-1] ** -0.5 if name.endswith("weight") else 0.3)
        if layer.alpha is not None:
            layer.alpha.fill_(1.0)
        phases = (2 * k**-0.5) ** 0.5 * torch.randn(BATCH, length, check.HEADS * k, generator=generator)
        arriving = torch.randn(phases.shape, generator=generator).to(device)
    layer.register_parameter("input", nn.Parameter(phases))  # its gradient is checked with the others

    def update(layer: FrustratedAttention, way: str) -> Tensor:
        phases = layer.get_parameter("input")
        return layer._fused(phases) if way == "fused" else layer._reference(phases)

    found = check.errors(layer.to(device), update, arriving, dtype, "update")
    return check.in_words(found, dtype, "update")
