"""No speed without a check: the path that is timed computes what the reference computes.

Fused models are compared with float64 on a few small batches of full-length windows, in float32 and in bfloat16:
losses, the gradient of all weights, those of τ and the bounds' α, and that of the readout's scale, each for itself.
The last is a long sum that cancels: in bfloat16 the reference itself has a third of it wrong at eight million
parameters, and it is nearly all of the whole gradient's length. It is also one number, on which the reference may be
right by luck (its error goes from 0.02 % to 65 % with the batch and the model), so errors are taken over several
batches, and where few numbers are compared the limit leaves room for chance. Compiled models are compared with
themselves, uncompiled, on the very batch that is timed. And on that batch the gradient that the trainer's captured step
leaves in its vector is compared, parameter by parameter, with the one that autograd returns.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fsn.models import FSN, Config, LanguageModel, build_from_config, fused_stack
from fsn.ops import DropoutKey

TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}
SAME = 1e-5
"""Two ways to one gradient, the same kernels in the same precision: equal but for the order of a sum."""


BATCHES = 4
"""Batches over which a fused path is compared."""
QUANTILE = 3.7
"""Of the normal distribution; for as few numbers as it is meant for, about one pair in a thousand lies beyond it."""


def limit(precision: str, reference: float, count: float = math.inf) -> float:
    """How far off a path may be: the tolerance, or twice the error that the reference has in that precision.

    Two errors of equal size, each the root mean square of ``count`` numbers, differ by chance: the logarithm of their
    ratio is roughly normal with variance 1/count (Fisher's z). Where that allows more than twice, so does the limit.
    """
    times = max(2.0, math.exp(QUANTILE / math.sqrt(count)))
    return max(TOLERANCE[precision], times * reference if math.isfinite(reference) else 0.0)


@dataclass
class Check:
    """Relative errors of losses and gradients, by precision: ours, the reference's, and of how many numbers."""

    path: str
    errors: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failed: str | None = None

    def judge(self) -> Check:
        """A path passes if everything is within its limit."""
        for precision, errors in self.errors.items():
            for name, (error, reference, *count) in errors.items():
                if not error < limit(precision, reference, *count):
                    beyond = f"{name} off by {error:.1e}, reference by {reference:.1e}"
                    self.failed = f"{self.path} path in {precision}: {beyond}"
        return self

    def joined(self, other: Check | None) -> Check:
        """With what another check of the same model has found."""
        if other is None:
            return self
        errors = {p: self.errors.get(p, {}) | other.errors.get(p, {}) for p in self.errors | other.errors}
        return Check(other.path, errors, self.failed or other.failed)


@contextlib.contextmanager
def reference_path() -> Iterator[None]:
    before = os.environ.get("FSN_FUSED")
    os.environ["FSN_FUSED"] = "0"
    try:
        yield
    finally:
        del os.environ["FSN_FUSED"]
        if before is not None:
            os.environ["FSN_FUSED"] = before


def losses_and_gradient(
    model: LanguageModel,
    tokens: Tensor,
    targets: Tensor,
    precision: str,
    key: DropoutKey | None = None,
    function: Callable[..., Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Losses (B, T), and the gradient of their mean as one vector."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bf16"):
        losses = (function or model.loss)(tokens, targets, dropout_key=key)
    gradient = torch.autograd.grad(losses.mean(), list(model.parameters()))
    return losses.detach(), torch.cat([g.flatten() for g in gradient])


def relative(value: Tensor, reference: Tensor) -> float:
    """‖value − reference‖ / ‖reference‖; infinite where anything is not finite, or not zero where it should be."""
    distance, size = (value.double() - reference.double()).norm().item(), reference.double().norm().item()
    if not torch.isfinite(value).all() or (distance > 0 and size == 0):
        return float("inf")
    return distance / size if distance else 0.0


Result = tuple[Tensor, Tensor]


def compare(model: LanguageModel, *batches: tuple[Result, Result, Result]) -> dict[str, list[float]]:
    """Errors of a path and of the reference against the exact results, over all batches: losses, groups of gradients.

    A batch is what was found, what the reference finds, and what is exact. The third number counts what was compared.
    """
    groups: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(group_of(name, parameter), []).append(name)
    parts: dict[str, list[Tensor]] = {}
    for i in range(3):  # found, plain, exact
        parts.setdefault("losses", []).append(torch.cat([batch[i][0].flatten() for batch in batches]))
        split = [by_name(model, batch[i][1]) for batch in batches]
        for group, names in groups.items():
            parts.setdefault(group, []).append(torch.cat([one[name] for one in split for name in names]))
    return {n: [relative(a, c), relative(b, c), float(c.numel())] for n, (a, b, c) in parts.items()}


def by_name(model: LanguageModel, gradient: Tensor) -> dict[str, Tensor]:
    """The parts of a whole gradient, each a vector."""
    named = dict(model.named_parameters())
    return dict(zip(named, gradient.split([p.numel() for p in named.values()]), strict=True))


def group_of(name: str, parameter: Tensor) -> str:
    """Weights; scalars; and the readout's scale, which would hide both."""
    return "weights" if parameter.dim() else "scale" if name == "readout.scale" else "scalars"


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 numbers in float32, not in TensorFloat-32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def scatter(model: FSN) -> None:
    """Random weights under which every part matters: phases apart, gates that gate, all harmonics on."""
    spread = (2 * model.config.k**-0.5) ** 0.5
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if name in ("embedding.phases", "readout.prototypes"):
            parameter.copy_(spread * noise)
        elif name == "gates.weight":
            parameter.copy_(0.3 * parameter.shape[1] ** -0.5 * noise)
        elif "kernel" in name:
            parameter.add_(0.3 * noise)
        elif name.endswith("alpha"):
            parameter.copy_(1.0 + 0.2 * noise.tanh())
        elif parameter.dim() == 1:
            parameter.add_(0.1 * noise)


def check_fused(
    config: Config,
    positions: int,
    device: torch.device,
    layers: int = 2,
    precisions: Iterable[str] = tuple(TOLERANCE),
) -> Check:
    """A model of this width, ``layers`` deep, against float64; the reference path has nothing to be checked."""
    torch.manual_seed(0)
    model = build_from_config(config).to(device).eval()
    tokens = torch.randint(config.vocab_size, (2, positions), device=device)
    if not isinstance(model, FSN) or not fused_stack.applies(model, tokens):
        return Check("reference")
    check = Check("fused")
    model.layers = model.layers[:layers]
    scatter(model)
    double = copy.deepcopy(model).double()
    batches: dict[str, list[tuple[Result, Result, Result]]] = {precision: [] for precision in precisions}
    with exact_products():
        for _ in range(BATCHES):
            tokens, targets = torch.randint(config.vocab_size, (2, *tokens.shape), device=device)
            with reference_path():
                exact = losses_and_gradient(double, tokens, targets, "fp64")
            for precision, seen in batches.items():
                found = losses_and_gradient(model, tokens, targets, precision)
                with reference_path():
                    plain = losses_and_gradient(model, tokens, targets, precision)
                seen.append((found, plain, exact))
    check.errors = {precision: compare(model, *seen) for precision, seen in batches.items()}
    return check.judge()


def check_compiled(
    model: LanguageModel,
    compiled: Callable[..., Tensor],
    tokens: Tensor,
    targets: Tensor,
    precision: str,
    key: DropoutKey,
) -> Check:
    """Compiled against eager, both in the precision that is timed; eager in float32 says how far that is off."""
    with exact_products():
        exact = losses_and_gradient(model, tokens, targets, "fp32", key)
    plain = losses_and_gradient(model, tokens, targets, precision, key)
    found = losses_and_gradient(model, tokens, targets, precision, key, compiled)
    return Check("compiled", {precision: compare(model, (found, plain, exact))}).judge()


def check_written(
    path: str, model: LanguageModel, written: Mapping[str, Tensor], expected: Tensor, precision: str
) -> Check:
    """The gradient in the trainer's vector against what autograd returned for the same batch: the worst parameter."""
    errors = {n: relative(written[n].flatten(), right) for n, right in by_name(model, expected).items()}
    worst = max(errors, key=lambda name: errors[name])
    check = Check(path, {precision: {"step's gradient": [errors[worst], 0.0]}})
    if not errors[worst] < SAME:
        check.failed = f"{path} path in {precision}: step's gradient off by {errors[worst]:.1e} in {worst}"
    return check


@torch.no_grad()
def check_compiled_losses(
    model: LanguageModel, compiled: Callable[..., Tensor], tokens: Tensor, targets: Tensor, precision: str
) -> Check:
    """The same for an evaluation step, which has losses only."""

    def losses(function: Callable[..., Tensor], precision: str) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bf16"):
            return function(tokens, targets)

    with exact_products():
        exact = losses(model.loss, "fp32")
    errors = [relative(losses(function, precision), exact) for function in (compiled, model.loss)]
    return Check("compiled", {precision: {"evaluation losses": errors}}).judge()
