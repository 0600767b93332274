"""Small models in float64 with nothing left at its initial value, for tests that compare numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fsn
from fsn import ops
from fsn.models import FAMILIES, FSN, CouplingLaw, FSNLayer, LanguageModel

ALL_FAMILIES = list(FAMILIES)
FSN_FAMILIES = [family for family in ALL_FAMILIES if not family.startswith("transformer")]
PERIODIC_FAMILIES = ["fsn-mf", "fsn-dissolved", "fsn-torus-swiglu"]
"""The families whose every part reads phases through cosine and sine alone."""


def small(family: str, seed: int = 1, vocab_size: int = 13, **overrides: Any) -> LanguageModel:
    """A float64 model of this family in evaluation mode, two layers, with random parameters throughout.

    Eleven phases unless told otherwise: an odd number, so that nothing can depend on halves.
    """
    overrides.setdefault("layers", 2)
    if family.startswith("transformer"):
        overrides.setdefault("width", 12)
    else:
        overrides.setdefault("k", 11)
    model = fsn.build(f"{family}-1m", vocab_size=vocab_size, **overrides).double().eval()
    randomise(model, seed)
    return model


@torch.no_grad()
def randomise(model: LanguageModel, seed: int = 1) -> None:
    """Draw every parameter anew: phases all over the circle, gates that gate, full kernels."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        if "phases" in name or "prototypes" in name:
            parameter.copy_(2.0 * noise)
        elif "kernel" in name:
            parameter.copy_(0.7 * noise)
        elif parameter.dim() == 0:
            parameter.mul_(1.0 + 0.2 * noise.tanh())
        elif parameter.dim() == 1:
            parameter.add_(0.3 * noise)
        else:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)


def law_of(model: LanguageModel) -> CouplingLaw:
    """The coupling law of an FSN."""
    assert isinstance(model, FSN)
    return model.config.coupling


def scores(
    theta: Tensor,
    gate_q: Tensor,
    gate_k: Tensor,
    rates: Tensor,
    tau: Tensor,
    rounded: bool = True,
    successor: Tensor | None = None,
) -> Tensor:
    """Equation 1 from phases and gates, perhaps with the successor: (B, T, k) -> (B, T, T)"""
    query, keys = (ops.rotary_features(theta, gate, rates) for gate in (gate_q, gate_k))
    if successor is None:
        return ops.coherence_scores(query, keys, tau, rounded)
    return ops.coherence_scores(query, ops.fold_successors(keys, successor), tau, rounded, keys)


def rotate_half(x: Tensor, rates: Tensor, first: int = 0) -> Tensor:
    """The transformer's RoPE from position ``first`` on: x (..., T, d), rates (d/2,) -> (..., T, d)"""
    return ops.turn_half(x, *ops.rotary_turns(rates, x.dtype, first, first + x.shape[-2]))


def layers_of(model: LanguageModel) -> list[FSNLayer]:
    """The layers of an FSN, first to last."""
    return [module for module in model.modules() if isinstance(module, FSNLayer)]


def random_tokens(model: LanguageModel, batch: int = 2, length: int = 9, seed: int = 2) -> Tensor:
    """Tokens drawn uniformly from the model's symbols, (batch, length)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator)
