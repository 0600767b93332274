"""The check of a model's kernels at their first use (``ops/fused/check.py``): one layer of its widths, a fixed text."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import ops
from ..nn import NO_PROBE, Context
from ..ops.fused import check
from ..ops.fused.check import Errors
from . import fused_stack
from .config import FSNConfig

if TYPE_CHECKING:
    from .base import LanguageModel
    from .fsn import FSN

BATCH = 2


def agrees(config: FSNConfig, device: torch.device, dtype: torch.dtype, length: int) -> bool:
    """Whether kernels and reference agree for a model of this config; checked once, gradients only if enabled."""
    return check.agrees(config, device, dtype, length, functools.partial(disagreement, config))


def disagreement(
    config: FSNConfig, device: torch.device, dtype: torch.dtype, length: int, backward: bool = True
) -> str | None:
    """What the kernels get wrong for one layer of this config, in words; None where they are right."""
    from .fsn import FSN

    with torch.device("cpu"):
        model = FSN(dataclasses.replace(config, layers=1)).float().train()
        generator = torch.Generator().manual_seed(3)
        text = torch.randint(config.vocab_size, (BATCH, length + 1), generator=generator)
        counter = torch.tensor(11)
    scatter(model)
    text = text.to(device)
    key = ops.DropoutKey(counter.to(device)) if model.uses_dropout else None
    with torch.set_grad_enabled(backward):
        found = errors(model.to(device), text[:, :-1].contiguous(), text[:, 1:].contiguous(), dtype, key)
    return check.in_words(found, dtype, "loss")


def errors(
    model: FSN, tokens: Tensor, targets: Tensor, dtype: torch.dtype, key: ops.DropoutKey | None = None
) -> Errors:
    """Errors of the loss and, if gradients are enabled, of the gradient of its mean: see :func:`check.compare`."""
    context = Context(NO_PROBE, key)

    def reference(m: FSN) -> Tensor:
        return ops.cross_entropy(m.readout(m.phases(tokens, context)), targets)

    kind, rounded = tokens.device.type, dtype == torch.bfloat16
    with torch.autocast(kind, enabled=False):  # whatever the caller's is: backward passes run outside of any
        with torch.autocast(kind, torch.bfloat16, enabled=rounded):
            losses = fused_stack.loss(model, tokens, targets, key)
        mine = _gradients(model, losses)
        with torch.autocast(kind, torch.bfloat16, enabled=rounded):
            losses = reference(model)
        plain = _gradients(model, losses)
        exact_model = copy.deepcopy(model).double()
        exact = _gradients(exact_model, reference(exact_model))
    return check.compare(exact, mine, plain, "loss")


def _gradients(model: FSN, losses: Tensor) -> dict[str, Tensor]:
    """The losses (B, T) and, if they were recorded, the gradients of their mean."""
    found = {"loss": losses.detach()}
    if losses.requires_grad:
        used = {name: p for name, p in model.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad(losses.mean(), list(used.values()), allow_unused=True)
        found |= {name: g for name, g in zip(used, grads, strict=True) if g is not None}
    return found


@torch.no_grad()
def scatter(model: LanguageModel) -> None:
    """Move every parameter away from its start, to where a layer neither does nothing nor turns all phases.

    Phases are spread so that attention is neither even nor all on the diagonal. The bounds' α start at 2π:
    with random weights that lets each layer move phases by radians, and any error with them; here they are
    about one.
    """
    generator = torch.Generator().manual_seed(7)
    width = (2 * model.config.k**-0.5) ** 0.5 if isinstance(model.config, FSNConfig) else 1.0
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        if name == "embedding.phases" or name == "readout.prototypes":
            parameter.copy_(width * noise)
        elif "kernel" in name:
            parameter.add_(0.3 * noise)
        elif name == "gates.weight":
            parameter.copy_(0.3 * parameter.shape[1] ** -0.5 * noise)
        elif name.endswith("alpha"):
            parameter.copy_(1.0 + 0.2 * noise.tanh())
        elif parameter.dim() <= 1:
            parameter.mul_(1 + 0.2 * noise.tanh()).add_(0.1 * noise)
