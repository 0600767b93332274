"""What the parity checks are made of: inputs and their float64 twins, sizes of errors, limits that stand elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fsn import ops
from fsn.ops.fused import tiles
from fsn.ops.fused.common import ONES, padded
from fsn.ops.fused.residual import ResidualFunction

Errors = dict[str, float]


class Inputs:
    """Draws the arguments of a case, and keeps those whose gradients are compared."""

    def __init__(self, dtype: str, device: str, seed: int) -> None:
        self.dtype, self.device = getattr(torch, dtype), torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)
        self.leaves: dict[str, Tensor] = {}
        self.doubles: dict[str, Tensor] = {}

    def draw(self, *shape: int, scale: float = 1.0, shift: float = 0.0, rounded: bool = True) -> Tensor:
        x = shift + scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return x.to(self.dtype if rounded else torch.float32).float().to(self.device)

    def leaf(self, name: str, value: Tensor) -> tuple[Tensor, Tensor]:
        """A float32 leaf for the fused function and its float64 twin for the reference."""
        self.leaves[name] = value.detach().clone().requires_grad_()
        self.doubles[name] = value.detach().double().requires_grad_()
        return self.leaves[name], self.doubles[name]

    def gradient_errors(self, worth: dict[str, float] | None = None, floor: float = 0.0) -> Errors:
        worth = worth or {}
        errors = {}
        for name, leaf in self.leaves.items():
            reference = self.doubles[name].grad
            assert leaf.grad is not None and reference is not None, f"no gradient for {name}"
            assert leaf.grad.shape == leaf.shape and leaf.grad.dtype == torch.float32
            size = max(reference.norm().item(), worth.get(name, 0.0), floor)
            errors[f"d{name}"] = relative(leaf.grad, reference, size)
        return errors


def relative(value: Tensor, reference: Tensor, size: float | None = None) -> float:
    """‖value − reference‖ over ‖reference‖ or the size given; infinite where anything is not finite."""
    if not torch.isfinite(value).all():
        return float("inf")
    distance = (value.detach().double() - reference.detach()).norm().item()
    size = reference.norm().item() if size is None else size
    return distance / size if size > 0 else distance


@contextlib.contextmanager
def limited(**limits: Any) -> Iterator[None]:
    """Other limits in ``tiles``, by name: short sequences go the way of long ones, little memory that of much.

    None leaves a limit as it is.
    """
    before = {name.upper(): getattr(tiles, name.upper()) for name in limits}
    try:
        for name, value in limits.items():
            if value is not None:
                setattr(tiles, name.upper(), value)
        yield
    finally:
        for name, size in before.items():
            setattr(tiles, name, size)


def pairs(w: Tensor, there: list[bool]) -> tuple[ops.Pair | None, ops.Pair | None]:
    """w0 and w1 from (4, ...): re, im, re, im, with None for what is not there."""
    w0 = ops.Pair(w[0], w[1] if there[1] else None) if there[0] else None
    w1 = ops.Pair(w[2], w[3] if there[3] else None) if there[2] else None
    return w0, w1


def spread_out(scalar: Tensor, *shape: int) -> Tensor:
    """One copy of a scalar per token, so that their gradients are the parts its gradient is the sum of."""
    return scalar.detach().expand(shape).clone().requires_grad_()


def pad_columns(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1]))


def with_ones(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[x, 1] as SwiGLU reads it: x (M, n) -> (M, NP + 16)"""
    wide = padded(x.shape[1])
    ones = torch.zeros(x.shape[0], ONES, device=x.device)
    ones[:, 0] = 1.0
    return torch.cat((pad_columns(x, wide), ones), dim=1).to(dtype)


def features(theta: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """θ, padded, and its [cos θ, sin θ, 1] as a layer leaves them: an update of zero."""
    rows, k = theta.shape
    still = torch.zeros(rows, padded(k), dtype=dtype, device=theta.device)
    state, feat = ResidualFunction.apply(pad_columns(theta, padded(k)), still, None, k, 1, None)
    return state, feat


def per_token(grad: Tensor, x: Tensor) -> float:
    """What the gradient of a weight is worth if the tokens' shares have random signs: √Σ ‖dy_t‖² ‖x_t‖²"""
    return (grad.detach().norm(dim=1) * x.detach().norm(dim=1)).norm().item()
