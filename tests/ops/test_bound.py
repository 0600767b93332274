"""The norm-matched bound: direction kept, norm of α tanh(x), well behaved from 0 to 1e30."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fsn import ops


def alpha(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(value, dtype=dtype)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("a", [2 * math.pi, 0.3, -1.5])
def test_direction_is_kept_and_the_norm_is_that_of_the_reference(a: float, scale: float) -> None:
    x = scale * torch.randn(4, 3, 9, dtype=torch.float64)
    y = ops.norm_matched_tanh(x, alpha(a))
    torch.testing.assert_close(y.norm(dim=-1), (a * x.tanh()).norm(dim=-1), rtol=1e-12, atol=0)
    cosine = (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
    torch.testing.assert_close(cosine, torch.ones_like(cosine), rtol=0, atol=1e-12)


def test_no_token_moves_further_than_alpha_root_k() -> None:
    x = 1e6 * torch.randn(50, 9, dtype=torch.float64)
    assert ops.norm_matched_tanh(x, alpha(2.0)).norm(dim=-1).max() <= 2.0 * 3.0 + 1e-9


def test_tokens_are_bounded_one_by_one() -> None:
    x = torch.randn(5, 9, dtype=torch.float64)
    together = ops.norm_matched_tanh(x, alpha(2.0))
    alone = torch.stack([ops.norm_matched_tanh(row, alpha(2.0)) for row in x])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("a", [2 * math.pi, -1.5])
def test_zero_stays_zero_and_its_gradient_is_alpha(a: float, dtype: torch.dtype) -> None:
    """The limit of ‖α tanh x‖/‖x‖ at zero is |α|, so the Jacobian there is |α| times the identity."""
    x = torch.zeros(4, dtype=dtype)
    assert ops.norm_matched_tanh(x, alpha(a, dtype)).eq(0).all()
    jacobian = torch.autograd.functional.jacobian(lambda v: ops.norm_matched_tanh(v, alpha(a, dtype)), x)
    torch.testing.assert_close(jacobian, abs(a) * torch.eye(4, dtype=dtype))


def test_a_zero_token_does_not_disturb_its_neighbours() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    x[1] = 0
    x.requires_grad_()
    scale = alpha(2.0).requires_grad_()
    y = ops.norm_matched_tanh(x, scale)
    y.sum().backward()
    assert y[1].eq(0).all()
    for leaf in (x, scale):
        assert leaf.grad is not None and leaf.grad.isfinite().all()
    other = x.detach()[[0, 2]].requires_grad_()
    ops.norm_matched_tanh(other, alpha(2.0)).sum().backward()
    assert x.grad is not None and other.grad is not None
    torch.testing.assert_close(x.grad[[0, 2]], other.grad)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-20, 1e-4])
def test_tiny_updates_in_float32_are_scaled_by_alpha(size: float) -> None:
    """Squares of these vanish in float32; the bound must not."""
    x = torch.full((1, 3), size, requires_grad=True)
    y = ops.norm_matched_tanh(x, alpha(2.0, torch.float32))
    y.sum().backward()
    torch.testing.assert_close(y.detach(), 2 * x.detach(), rtol=1e-6, atol=0)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full((1, 3), 2.0))


@pytest.mark.parametrize("size", [1e4, 1e12, 1e19, 1e25, 1e30, 1e36])
def test_huge_updates_in_float32_are_bounded(size: float) -> None:
    """Squares of these overflow in float32; the bound must not, and its gradient is tiny but finite."""
    direction = torch.tensor([1.0, 0.5, -0.25])
    x = (size * direction).requires_grad_()
    y = ops.norm_matched_tanh(x, alpha(2.0, torch.float32))
    y.sum().backward()
    expected = 2.0 * math.sqrt(3) * direction / direction.norm()
    torch.testing.assert_close(y.detach(), expected, rtol=1e-5, atol=0)
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().max() < 10 / size
