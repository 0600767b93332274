"""The check of a layer's kernels at their first use (``ops/fused/check.py``): two heads of its width, fixed phases."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..ops import fused
from ..ops.fused import check

if TYPE_CHECKING:
    from .attention import FrustratedAttention

BATCH = 1
OPTIONS = ("harmonics", "present", "delay", "phases", "frame", "score_successor")
"""Fields of a coupling law that choose other kernels."""


def trusted(layer: FrustratedAttention, phases: Tensor) -> bool:
    """Whether kernels compute what the reference does for such a layer, on phases (B, T, d) like these."""
    law, device = layer.law, phases.device
    options = law.harmonics, law.present, law.delay, law.phases, law.frame, law.score_successor
    half, length = fused.compute_dtype(phases) == torch.bfloat16, check.stands_for(phases.shape[1])
    where = device.type, device.index
    return _agrees(layer.k, options, layer.alpha is not None, where, half, length, torch.is_grad_enabled())


def _agrees(
    k: int, options: tuple[Any, ...], bounded: bool, where: tuple[str, int | None], half: bool, length: int,
    backward: bool,
) -> bool:  # fmt: skip
    """:func:`trusted` of plain numbers: asked once while a compiler traces."""
    kind, index = where
    if kind not in check.CHECKED or fused.forced():
        return True
    named = dict(zip(OPTIONS, options, strict=True), bounded=bounded)
    device = torch.device(kind) if index is None else torch.device(kind, index)
    dtype = torch.bfloat16 if half else torch.float32
    with torch.set_grad_enabled(backward):
        return check.agrees(
            (k, options, bounded), device, dtype, length, functools.partial(disagreement, k, named)
        )


# As torch.compiler.assume_constant_result would: see ops/fused/synchronize.py.
_agrees._dynamo_marked_constant = True  # type: ignore[attr-defined]


def disagreement(
    k: int, options: dict[str, Any], device: torch.device, dtype: torch.dtype, length: int
) -> str | None:
    """What the kernels get wrong for a layer of two such heads, in words; None where they are right."""
    from .attention import FrustratedAttention

    generator = torch.Generator().manual_seed(5)
    with torch.device("cpu"), torch.no_grad():
        layer = FrustratedAttention(check.HEADS * k, check.HEADS, **options)
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
