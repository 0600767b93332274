"""What a token does by itself, against complex arithmetic and plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fsn import ops

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
B, T, K, H, W = 2, 3, 5, 4, 3


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def test_mean_field_is_equation_4_in_complex_numbers() -> None:
    theta, shift = normal(B, T, K, scale=3.0), normal(B, T, H)
    gate, value, back, bias = normal(2, H, K), normal(2, H, K), normal(2, K, H), normal(H)
    z = torch.polar(torch.ones_like(theta), theta)
    c_gate, c_value, d = (torch.complex(x[0], x[1]) for x in (gate, value, back))
    for register in (None, shift):
        argument = (z @ c_gate.mT).real + bias + (0 if register is None else register)
        q = F.silu(argument) * (z @ c_value.mT)
        expected = (z.conj() * (q @ d.mT)).imag
        got = ops.mean_field(theta, gate, value, back, bias, register)
        torch.testing.assert_close(got, expected, **EXACT)


def test_mean_field_does_not_see_whole_turns_and_winding_modes_do() -> None:
    theta = normal(B, T, K)
    turned = theta.clone()
    turned[..., 0] += 2 * math.pi
    modes = (normal(2, H, K), normal(2, H, K), normal(2, K, H), normal(H))
    torch.testing.assert_close(ops.mean_field(turned, *modes), ops.mean_field(theta, *modes), **EXACT)
    winding = (normal(W, K), normal(W, K), normal(K, W), normal(W))
    assert (ops.winding_modes(turned, *winding) - ops.winding_modes(theta, *winding)).abs().max() > 0.1


def test_winding_modes_are_gated_real_modes_of_the_lifted_phases() -> None:
    theta = normal(B, T, K, scale=3.0)
    gate, value, back, bias = normal(W, K), normal(W, K), normal(K, W), normal(W)
    expected = torch.zeros_like(theta)
    for w in range(W):
        opening = (theta * gate[w]).sum(-1) + bias[w]
        mode = opening * torch.sigmoid(opening) * (theta * value[w]).sum(-1)
        expected += mode.unsqueeze(-1) * back[:, w]
    torch.testing.assert_close(ops.winding_modes(theta, gate, value, back, bias), expected, **EXACT)


def test_swiglu_middle() -> None:
    gate, up, bias = normal(B, T, H), normal(B, T, H), normal(H)
    argument = gate + bias
    torch.testing.assert_close(ops.swiglu(gate, up, bias), argument / (1 + (-argument).exp()) * up, **EXACT)


@given(st.floats(-1e4, 1e4))
def test_wrapped_phases_lie_in_the_half_open_interval_and_mean_the_same(angle: float) -> None:
    wrapped = ops.wrap(torch.tensor(angle, dtype=torch.float64)).item()
    assert -math.pi - 1e-9 < wrapped <= math.pi + 1e-9
    turns = (angle - wrapped) / (2 * math.pi)
    assert abs(turns - round(turns)) < 1e-9


def test_the_ends_of_the_interval() -> None:
    """(−π, π]: π stays, −π becomes π, and what is inside is not touched."""
    pi = math.pi
    ends = torch.tensor([pi, -pi, 3 * pi, 0.0, 3.0, -3.0], dtype=torch.float64)
    expected = torch.tensor([pi, pi, pi, 0.0, 3.0, -3.0], dtype=torch.float64)
    torch.testing.assert_close(ops.wrap(ends), expected, **EXACT)
    inside = torch.linspace(-3.14, 3.14, 101)
    assert torch.equal(ops.wrap(inside), inside)


def test_the_gradient_passes_a_wrap_untouched() -> None:
    theta = normal(7, scale=10.0).requires_grad_()
    ops.wrap(theta).sum().backward()
    assert theta.grad is not None and theta.grad.eq(1).all()
