"""The check of a layer's kernels at their first use (``ops/fused/check.py``): two heads of its width, fixed phases."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ops import fused
from ..ops.fused import check

if TYPE_CHECKING:
    from .attention import FrustratedAttention

BATCH = 1
HEADS = 2


def trusted(layer: FrustratedAttention, phases: Tensor) -> bool:
    """Whether kernels compute what the reference does for such a layer, on phases (B, T, d) like these."""
    law, device = layer.law, phases.device
    half = fused.compute_dtype(phases) == torch.bfloat16
    options = law.harmonics, law.present, law.delay, law.phases, law.frame, law.score_successor
    length = check.stands_for(phases.shape[1])
    return _agrees(
        layer.k,
        *options,
        layer.alpha is not None,
        device.type,
        device.index,
        half,
        length,
        torch.is_grad_enabled(),
    )


def _agrees(
    k: int, harmonics: int, present: bool, delay: bool, phases: bool, frame: str, score: bool, bounded: bool,
    kind: str, index: int | None, half: bool, length: int, backward: bool,
) -> bool:  # fmt: skip
    """:func:`trusted` of plain numbers: asked once while a compiler traces."""
    if kind not in check.CHECKED or fused.forced():
        return True
    options = dict(
        harmonics=harmonics, present=present, delay=delay, phases=phases, frame=frame, score_successor=score,
        bounded=bounded,
    )  # fmt: skip
    device = torch.device(kind) if index is None else torch.device(kind, index)
    dtype = torch.bfloat16 if half else torch.float32
    with torch.set_grad_enabled(backward):
        return check.agrees(
            (k, *options.values()), device, dtype, length, functools.partial(disagreement, k, options)
        )


# As torch.compiler.assume_constant_result would: see ops/fused/synchronize.py.
_agrees._dynamo_marked_constant = True  # type: ignore[attr-defined]


def disagreement(
    k: int, options: dict[str, Any], device: torch.device, dtype: torch.dtype, length: int, backward: bool
) -> str | None:
    """What the kernels get wrong for a layer of two such heads, in words; None where they are right."""
    from .attention import FrustratedAttention

    generator = torch.Generator().manual_seed(5)
    with torch.device("cpu"):
        layer = FrustratedAttention(HEADS * k, HEADS, **options)
        with (
            torch.no_grad()
        ):  # away from the start, to where attention is neither even nor all on the diagonal
            for name, parameter in layer.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(
                    noise, alpha=0.3 * parameter.shape[-1] ** -0.5 if name.endswith("weight") else 0.3
                )
            if layer.alpha is not None:
                layer.alpha.fill_(1.0)
        phases = (2 * k**-0.5) ** 0.5 * torch.randn(BATCH, length, HEADS * k, generator=generator)
        arriving = torch.randn(phases.shape, generator=generator)
    layer, phases, arriving = layer.to(device), phases.to(device), arriving.to(device)

    def results(layer: FrustratedAttention, way: str) -> dict[str, Tensor]:
        x = phases.to(layer.tau.dtype).requires_grad_(backward)
        rounded = dtype == torch.bfloat16 and x.dtype == torch.float32
        with torch.autocast(device.type, torch.bfloat16, enabled=rounded):
            update = getattr(layer, way)(x)
        found = {"update": update.detach()}
        if backward:
            used = {name: p for name, p in layer.named_parameters() if "_phases" not in name}
            inputs = [x, *used.values()]
            grads = torch.autograd.grad((update * arriving).sum(), inputs)
            found |= {name: g for name, g in zip(("phases", *used), grads, strict=True)}
            for name in {"tau", "alpha"} & set(found):  # each head's number is a sum with cancellation
                found |= {f"{name}.{i}": g for i, g in enumerate(found.pop(name))}
        return found

    with torch.autocast(device.type, enabled=False):
        mine, plain = results(layer, "_fused"), results(layer, "_reference")
        exact = results(copy.deepcopy(layer).double(), "_reference")
    return check.in_words(check.compare(exact, mine, plain, "update"), dtype, "update")
