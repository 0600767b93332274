"""Every op's derivative against finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from fsn import ops
from fsn.ops import DropoutKey, Pair
from tests import small

B, T, K, N, H, W, V = 2, 4, 3, 3, 2, 2, 5


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def check(function: Callable[..., Any], *inputs: Tensor) -> None:
    assert gradcheck(function, inputs, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_harmonics() -> None:
    check(lambda x: torch.stack(ops.harmonic_powers(x, 4)), normal(B, K))
    check(ops.phase_features, normal(B, K))


def test_gates() -> None:
    check(ops.normalise_gate, normal(B, T, K))


def test_scores() -> None:
    rates, tau = ops.rotary_rates(K), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    theta, query, key = (normal(B, T, K) for _ in range(3))
    check(lambda x, q, k, t: small.scores(x, q, k, rates, t), theta, query, key, tau)
    weight = normal(2, K)
    check(lambda x, q, k, t, w: small.scores(x, q, k, rates, t, successor=w), theta, query, key, tau, weight)
    check(ops.fold_successors, normal(B, T, 2 * K), normal(2, 1))
    check(lambda x, g: ops.rotary_features(x, g, rates, first=3), normal(B, T, K), normal(B, T, K))
    check(lambda x: small.rotate_half(x, ops.rotary_rates(2)), normal(B, T, 4))


def test_attention() -> None:
    check(ops.causal_softmax, normal(B, T, T))


@pytest.mark.parametrize("frame", ops.FRAMES)
@pytest.mark.parametrize("columns", [K, 1])
def test_coupling_with_a_complex_kernel(frame: str, columns: int) -> None:
    def law(theta: Tensor, scores: Tensor, re0: Tensor, im0: Tensor, re1: Tensor, im1: Tensor) -> Tensor:
        return ops.coupling(theta, scores.softmax(-1), Pair(re0, im0), Pair(re1, im1), N, frame)

    check(law, normal(B, T, K), normal(B, T, T), *(normal(N, columns) for _ in range(4)))


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_coupling_with_parts_missing(frame: str) -> None:
    theta, attention, re, im = normal(B, T, K), normal(B, T, T), normal(N, K), normal(N, K)
    check(lambda x, a, r: ops.coupling(x, a, Pair(r, None), None, N, frame), theta, attention, re)
    check(lambda x, a, r: ops.coupling(x, a, None, Pair(r, None), N, frame), theta, attention, re)
    check(lambda x, a, r, i: ops.coupling(x, a, Pair(r, i), None, N, frame), theta, attention, re, im)
    check(lambda x, a, r, i: ops.coupling(x, a, None, Pair(r, i), N, frame), theta, attention, re, im)


def test_the_stages_of_the_coupling() -> None:
    theta, attention, field = normal(B, T, K), normal(B, T, T), normal(B, T, N, 2, K)
    w = [normal(N, K) for _ in range(4)]
    check(lambda x, a, b, c, d: ops.fields(x, Pair(a, b), Pair(c, d), N), theta, *w)
    check(ops.aggregate_fields, attention, field)
    check(ops.contract_fields, theta, field)
    check(ops.successor_advance, theta)
    for frame in ops.FRAMES:
        check(lambda a, x, y, f=frame: ops.drift(a, Pair(x, x), Pair(y, y), f), attention, w[0], w[1])


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 20.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bound(scale: float, sign: float) -> None:
    alpha = torch.tensor(sign * 2.1, dtype=torch.float64, requires_grad=True)
    x = normal(B, T, K, scale=scale)
    assert gradcheck(ops.norm_matched_tanh, (x, alpha), eps=1e-6 * min(1.0, 10 * scale), atol=1e-6, rtol=1e-5)


def test_bound_exactly_at_zero() -> None:
    """Finite differences straddle zero, where the function is x ↦ |α| x to second order."""
    alpha = torch.tensor(2.1, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, K, dtype=torch.float64)
    x[1] = 0
    assert gradcheck(ops.norm_matched_tanh, (x.requires_grad_(), alpha), eps=1e-6, atol=1e-7)


def test_mean_field() -> None:
    parts = (normal(2, H, K), normal(2, H, K), normal(2, K, H), normal(H))
    check(ops.mean_field, normal(B, T, K), *parts)
    check(ops.mean_field, normal(B, T, K), *parts, normal(B, T, H))


def test_winding_modes() -> None:
    check(ops.winding_modes, normal(B, T, K), normal(W, K), normal(W, K), normal(K, W), normal(W))


def test_swiglu() -> None:
    check(ops.swiglu, normal(B, T, H), normal(B, T, H), normal(H))


def test_wrap() -> None:
    """Away from the cut, which the seed stays clear of, wrapping is a shift."""
    theta = normal(B, T, K, scale=6.0)
    assert (ops.wrap(theta).abs() - torch.pi).abs().min() > 1e-3
    check(ops.wrap, theta)


def test_readout_and_loss() -> None:
    targets = torch.randint(V, (B, T))
    check(ops.coherences, normal(B, T, K), normal(V, K))
    check(lambda x: ops.cross_entropy(x, targets), normal(B, T, V))
    check(ops.product, normal(B, T, K), normal(B, K, T))


def test_dropout_with_a_fixed_key() -> None:
    key = DropoutKey(torch.tensor(11))
    check(lambda x: ops.dropout(x, 0.4, key, site=3), normal(B, T, K))
