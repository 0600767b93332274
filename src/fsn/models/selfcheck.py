"""The check of a model's kernels at their first use (``ops/fused/check.py``): one layer of its widths, a fixed text."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from .. import ops
from ..nn import NO_PROBE, Context
from ..ops.fused import check
from ..ops.fused.check import Errors
from . import fused_stack
from .base import LanguageModel
from .config import FSNConfig
from .fsn import FSN

BATCH = 2


def agrees(config: FSNConfig, device: torch.device, dtype: torch.dtype, length: int) -> bool:
    """Whether kernels and reference agree for a model of this config; checked once, gradients only if enabled."""
    return check.agrees(config, device, dtype, length, functools.partial(disagreement, config))


def disagreement(config: FSNConfig, device: torch.device, dtype: torch.dtype, length: int) -> str | None:
    """What the kernels get wrong for one layer of this config, in words; None where they are right."""
    with torch.device("cpu"):
        model = FSN(dataclasses.replace(config, layers=1)).float().train()
        generator = torch.Generator().manual_seed(3)
        text = torch.randint(config.vocab_size, (BATCH, length + 1), generator=generator)
        counter = torch.tensor(11)
    scatter(model)
    text = text.to(device)
    dropout_key = ops.DropoutKey(counter.to(device)) if model.uses_dropout else None
    found = errors(model.to(device), text[:, :-1].contiguous(), text[:, 1:].contiguous(), dtype, dropout_key)
    return check.in_words(found, dtype, "loss")


def errors(
    model: FSN, tokens: Tensor, targets: Tensor, dtype: torch.dtype, dropout_key: ops.DropoutKey | None = None
) -> Errors:
    """Errors of the loss and, if gradients are enabled, of the gradient of its mean: see :func:`check.compare`."""
    context = Context(NO_PROBE, dropout_key)

    def losses(model: FSN, way: str) -> Tensor:
        if way == "fused":
            return fused_stack.loss(model, tokens, targets, dropout_key)
        return ops.cross_entropy(model.readout(model.phases(tokens, context)), targets)

    mean = torch.full(tokens.shape, 1 / tokens.numel(), device=tokens.device)
    return check.errors(model, losses, mean, dtype, "loss")


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
        if name == "embedding.phases":
            parameter.copy_(width * noise)
        elif (
            name == "readout.prototypes"
        ):  # wide: coherences near k would leave of the scale's gradient only rounding
            parameter.copy_(2.0 * noise)
        elif "kernel" in name:
            parameter.add_(0.3 * noise)
        elif name == "gates.weight":
            parameter.copy_(0.3 * parameter.shape[1] ** -0.5 * noise)
        elif name.endswith("alpha"):
            parameter.copy_(1.0 + 0.2 * noise.tanh())
        elif parameter.dim() <= 1:
            parameter.mul_(1 + 0.2 * noise.tanh()).add_(0.1 * noise)
