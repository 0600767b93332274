"""Kernels against the reference, once in a process, before anything relies on them.

Triton and ptxas go on changing, and a compiler's mistake shows as wrong gradients rather than as an error. So before a
model (``models/selfcheck.py``) or a layer (``nn/selfcheck.py``) first runs fused on a GPU, a small case of its own
widths goes through the kernels and through the reference: the same kernels that it is about to use, so there is nothing
more to compile. Where the two disagree, one line says so and the reference computes instead. ``FSN_FUSED=force`` skips
the check.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...versions import installed

CHECKED = {"cuda"}
"""Kinds of device for which kernels are compiled, so that they are checked before their first use."""
LENGTHS = {256: 200, 512: 500}
"""Sequences up to so long take the same kernels (``tiles.py``), and one length that stands for them."""
LONG = 600
"""The length that stands for all longer ones."""
LIMIT = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Errors up to this are rounding: about five times the largest that the tests find."""
FACTOR = 3.0
"""Beyond the limit, so many times the error that the reference has in the same precision."""

HEADS = 2
"""Heads of a layer that is checked."""

Errors = dict[str, tuple[float, float]]
"""By name: of the kernels, and of the reference in the same precision."""
Tensors = dict[str, Tensor]
M = TypeVar("M", bound=nn.Module)

_verdicts: dict[tuple[Hashable, bool], bool] = {}
"""By what was checked, and whether its gradients were."""


def stands_for(length: int) -> int:
    """The length at which sequences of this one are checked."""
    for most, standing in LENGTHS.items():
        if length <= most:
            return standing
    return LONG


def agrees(
    what: Hashable,
    device: torch.device,
    dtype: torch.dtype,
    length: int,
    disagreement: Callable[[torch.device, torch.dtype, int], str | None],
) -> bool:
    """Whether kernels and reference agree; asked once for each case, about gradients only if they are enabled.

    ``disagreement`` (device, dtype, length) says in words what is wrong, or None.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    backward, length = torch.is_grad_enabled(), stands_for(length)
    key = what, device, dtype, length
    known = [(done, _verdicts[key, done]) for done in (True, False) if (key, done) in _verdicts]
    for done, verdict in known:
        if not verdict or done >= backward:
            return verdict
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        warnings.warn(
            "fsn: the fused kernels cannot be checked while a CUDA graph is captured; this graph takes the reference "
            "path, which is slower. Run the model once before",
            stacklevel=3,
        )
        return False
    try:
        with _apart(), torch.set_grad_enabled(backward):
            reason = disagreement(device, dtype, length)
    except Exception as error:
        first = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {first[0] if first else 'no more is known'}"
    if reason:
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
        versions = f"torch {torch.__version__}, Triton {installed('triton')}, {where}"
        warnings.warn(
            f"fsn: the fused kernels failed their check against the reference here ({versions}): {reason}; using the "
            "reference, which is slower",
            stacklevel=3,
        )
    _verdicts[key, backward] = not reason
    return not reason


@contextmanager
def _apart() -> Iterator[None]:
    """A check is the same in every process, and leaves no trace: the random state and the precision of products are as
    they were."""
    precision = torch.get_float32_matmul_precision()
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.default_generator.manual_seed(0)  # the CPU's alone, where modules are made
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)


def errors(
    module: M, compute: Callable[[M, str], Tensor], arriving: Tensor, dtype: torch.dtype, value: str
) -> Errors:
    """Errors of what ``compute(module, way)`` gives, the way being ``fused`` or ``reference``, and, if gradients are
    enabled, of the parameters' gradients where ``arriving`` is that of the value: see :func:`compare`."""
    kind = arriving.device.type

    def results(module: M, way: str, rounded: bool) -> Tensors:
        with torch.autocast(kind, torch.bfloat16, enabled=rounded):
            result = compute(module, way)
        found = {value: result.detach()}
        if result.requires_grad:
            used = {name: p for name, p in module.named_parameters() if p.requires_grad}
            grads = torch.autograd.grad(
                result, list(used.values()), arriving.to(result.dtype), allow_unused=True
            )
            found |= {name: g for name, g in zip(used, grads, strict=True) if g is not None}
        return found

    rounded = dtype == torch.bfloat16
    with torch.autocast(kind, enabled=False):  # whatever the caller's is: backward passes run outside of any
        mine, plain = (results(module, way, rounded) for way in ("fused", "reference"))
        exact = results(copy.deepcopy(module).double(), "reference", False)
    return compare(exact, mine, plain, value)


def compare(exact: Tensors, mine: Tensors, plain: Tensors, value: str) -> Errors:
    """Errors against float64 by name: of the value of that name, and of all else, its gradients, one by one and as one.

    Scalars, and vectors of a number for each head, count in the whole alone: each is a sum with cancellation, whose own
    error is an accident. Errors are relative to the norm of what they are errors of, but a gradient's at least to 1e-3
    of that of all that count by themselves.
    """
    names = [name for name in exact if name != value]
    groups = {name: [name] for name, x in exact.items() if name == value or x.dim() > 1 or x.numel() > HEADS}
    counted = [name for name in names if name in groups]
    floor = 1e-3 * _together(exact, counted).norm().item() if counted else 0.0
    if names:
        groups["gradient"] = names
    found = {}
    for group, members in groups.items():
        true = _together(exact, members)
        size = max(true.norm().item(), 0.0 if group == value else floor)
        found[group] = (_off(mine, members, true, size), _off(plain, members, true, size))
    return found


def in_words(found: Errors, dtype: torch.dtype, value: str) -> str | None:
    """What is off by more than rounding; None where nothing is."""
    worst = max(found, key=lambda name: found[name][0] / _allowed(found[name][1], dtype))
    off, plain = found[worst]
    if off <= _allowed(plain, dtype):
        return None
    what = f"the {worst}" if worst in (value, "gradient") else f"the gradient of {worst}"
    return f"{what} is off by {off:.1g} of its size, where {_allowed(plain, dtype):.1g} would be rounding"


def _allowed(plain: float, dtype: torch.dtype) -> float:
    return max(LIMIT[dtype], FACTOR * plain) if math.isfinite(plain) else LIMIT[dtype]


def _together(tensors: Tensors, names: list[str]) -> Tensor:
    return torch.cat([tensors[name].flatten().double() for name in names])


def _off(tensors: Tensors, names: list[str], true: Tensor, size: float) -> float:
    """‖value − true‖ over the size; infinite where anything is missing or not finite."""
    if any(name not in tensors or not torch.isfinite(tensors[name]).all() for name in names):
        return float("inf")
    distance = (_together(tensors, names) - true).norm().item()
    return distance / size if size > 0 else distance
