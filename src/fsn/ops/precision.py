"""Matrix products under autocast, with the choice of what happens to their output."""

from __future__ import annotations

import torch
from torch import Tensor


def autocasts(kind: str) -> bool:
    """Whether autocast is on for a device; there is none for "meta", where shapes are counted without memory."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work: gradients written by hand know neither."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def product(a: Tensor, b: Tensor, round_output: bool = True) -> Tensor:
    """``a @ b`` in autocast's type; the result is rounded to that type, or kept in float32.

    Without autocast this is ``a @ b``. Under autocast to bfloat16 both operands are rounded to bfloat16; the
    result is rounded too (``round_output=True``, what autocast does by itself) or keeps its float32 accumulator.
    The difference matters for scores and logits: see "rounding" in ``docs/model.md``.

    a: (..., M, K), b: (..., K, N) -> (..., M, N)
    """
    kind = a.device.type
    if round_output or not autocasts(kind):
        return a @ b
    dtype = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        return a.to(dtype).float() @ b.to(dtype).float()
