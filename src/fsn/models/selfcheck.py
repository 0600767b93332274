"""Fused kernels against the reference, once in a process, before it relies on them.

Triton and ptxas go on changing, and a compiler's mistake shows as wrong gradients rather than as an error. So before a
model first runs fused on a GPU, one layer of its own widths goes through the kernels and through the reference, on a
small fixed text: the same kernels that the model is about to use, so there is nothing more to compile. Where the two
disagree, one line says so and the reference computes instead. ``FSN_FUSED=force`` skips the check.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import ops
from ..nn import NO_PROBE, Context
from ..versions import installed
from . import fused
from .config import FSNConfig

if TYPE_CHECKING:
    from .base import LanguageModel
    from .fsn import FSN

LENGTHS = {256: 200, 512: 500}
"""Sequences up to so long take the same kernels (``ops/fused/tiles.py``), and one length that stands for them."""
LONG = 600
"""The length that stands for all longer ones."""
BATCH = 2
LIMIT = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Errors up to this are rounding: about five times the largest that the tests find."""
FACTOR = 3.0
"""Beyond the limit, so many times the error that the reference has in the same precision."""

Errors = dict[str, tuple[float, float]]
Key = tuple[FSNConfig, torch.device, torch.dtype, int]

_verdicts: dict[tuple[Key, bool], bool] = {}
"""By what was checked, and whether its gradients were."""


def agrees(config: FSNConfig, device: torch.device, dtype: torch.dtype, length: int) -> bool:
    """Whether kernels and reference agree for a model of this config; checked once, gradients only if enabled."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    backward = torch.is_grad_enabled()
    key = config, device, dtype, next((n for most, n in LENGTHS.items() if length <= most), LONG)
    known = [(done, _verdicts[key, done]) for done in (True, False) if (key, done) in _verdicts]
    for done, verdict in known:
        if not verdict or done >= backward:
            return verdict
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        warnings.warn(
            "fsn: the fused kernels cannot be checked while a CUDA graph is captured; this graph takes the reference "
            "path, which is slower. Run the model once before",
            stacklevel=2,
        )
        return False
    reason = disagreement(*key, backward)
    if reason:
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
        versions = f"torch {torch.__version__}, Triton {installed('triton')}, {where}"
        warnings.warn(
            f"fsn: the fused kernels failed their check against the reference here ({versions}): {reason}; using the "
            "reference, which is slower",
            stacklevel=2,
        )
    _verdicts[key, backward] = not reason
    return not reason


def disagreement(
    config: FSNConfig, device: torch.device, dtype: torch.dtype, length: int, backward: bool = True
) -> str | None:
    """What the kernels get wrong for one layer of this config, in words; None where they are right."""
    from .fsn import FSN

    try:
        with _apart(), torch.set_grad_enabled(backward):
            with torch.device("cpu"):
                model = FSN(dataclasses.replace(config, layers=1)).float().train()
                generator = torch.Generator().manual_seed(3)
                text = torch.randint(config.vocab_size, (BATCH, length + 1), generator=generator)
                counter = torch.tensor(11)
            scatter(model)
            text = text.to(device)
            key = ops.DropoutKey(counter.to(device)) if model.uses_dropout else None
            found = errors(model.to(device), text[:, :-1].contiguous(), text[:, 1:].contiguous(), dtype, key)
    except Exception as error:
        first = str(error).strip().splitlines()
        return f"{type(error).__name__}: {first[0] if first else 'no more is known'}"
    worst = max(found, key=lambda name: found[name][0] / _allowed(found[name][1], dtype))
    off, plain = found[worst]
    if off <= _allowed(plain, dtype):
        return None
    what = f"the {worst}" if worst in ("loss", "gradient") else f"the gradient of {worst}"
    return f"{what} is off by {off:.1g} of its size, where {_allowed(plain, dtype):.1g} would be rounding"


def _allowed(plain: float, dtype: torch.dtype) -> float:
    return max(LIMIT[dtype], FACTOR * plain) if math.isfinite(plain) else LIMIT[dtype]


@contextmanager
def _apart() -> Iterator[None]:
    """A check leaves no trace: the random state and the precision of products are as they were."""
    precision = torch.get_float32_matmul_precision()
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)


# -- the comparison, which the tests use too -----------------------------------------------------------------


def errors(
    model: FSN, tokens: Tensor, targets: Tensor, dtype: torch.dtype, key: ops.DropoutKey | None = None
) -> Errors:
    """Errors against float64 by name: of the fused path, and of the reference in the same precision.

    Of the loss and, if gradients are enabled, of the gradient of its mean, as a whole and by parameter. Scalars (τ, α,
    s) count in the whole alone: each is a sum with cancellation, whose own error is an accident. Errors are relative
    to the norm of what they are errors of, but at least to 1e-3 of the whole gradient's norm.
    """
    context = Context(NO_PROBE, key)

    def reference(m: FSN) -> Tensor:
        return ops.cross_entropy(m.readout(m.phases(tokens, context)), targets)

    kind, rounded = tokens.device.type, dtype == torch.bfloat16
    with torch.autocast(kind, enabled=False):  # whatever the caller's is: backward passes run outside of any
        with torch.autocast(kind, torch.bfloat16, enabled=rounded):
            losses = fused.loss(model, tokens, targets, key)
        mine = _gradients(model, losses)
        with torch.autocast(kind, torch.bfloat16, enabled=rounded):
            losses = reference(model)
        plain = _gradients(model, losses)
        exact_model = copy.deepcopy(model).double()
        exact = _gradients(exact_model, reference(exact_model))
    groups = {name: [name] for name, value in exact.items() if value.dim()}
    names = [name for name in exact if name != "loss"]
    if names:
        groups["gradient"] = names
    floor = 1e-3 * _together(exact, names).norm().item() if names else 0.0
    found = {}
    for group, members in groups.items():
        true = _together(exact, members)
        size = max(true.norm().item(), 0.0 if group == "loss" else floor)
        found[group] = (_off(mine, members, true, size), _off(plain, members, true, size))
    return found


def _gradients(model: FSN, losses: Tensor) -> dict[str, Tensor]:
    """The losses (B, T) and, if they were recorded, the gradients of their mean."""
    found = {"loss": losses.detach()}
    if losses.requires_grad:
        used = {name: p for name, p in model.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad(losses.mean(), list(used.values()), allow_unused=True)
        found |= {name: g for name, g in zip(used, grads, strict=True) if g is not None}
    return found


def _together(tensors: dict[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([tensors[name].flatten().double() for name in names])


def _off(tensors: dict[str, Tensor], names: list[str], true: Tensor, size: float) -> float:
    """‖value − true‖ over the size; infinite where anything is missing or not finite."""
    if any(name not in tensors or not torch.isfinite(tensors[name]).all() for name in names):
        return float("inf")
    distance = (_together(tensors, names) - true).norm().item()
    return distance / size if size > 0 else distance


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
