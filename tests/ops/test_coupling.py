"""The coupling law's exact special cases, as the paper states them. Float64, 1e-12."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fsn import ops
from fsn.ops import Pair

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
B, T, K, N = 2, 7, 5, 3


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def phases() -> Tensor:
    """Far from the origin on purpose: several turns in both directions."""
    return normal(B, T, K, scale=4.0)


def causal_weights() -> Tensor:
    return ops.causal_softmax(normal(B, T, T))


def differences(source: Tensor, theta: Tensor) -> Tensor:
    """source_u − θ_t for every pair, (B, t, u, k): the T²·k tensor that the package never forms."""
    return source[:, None, :, :] - theta[:, :, None, :]


def strictly_earlier(attention: Tensor) -> Tensor:
    weights = torch.zeros_like(attention)
    for t in range(attention.shape[-1]):
        weights[:, t, :t] = attention[:, t, :t]
    return weights


def real(value: float, harmonics: int = 1) -> Pair:
    return Pair(torch.full((harmonics, K), value, dtype=torch.float64), None)


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_one_harmonic_of_the_present_is_kuramoto_attention(frame: str) -> None:
    """N = 1, w0 = 1, w1 = 0: Σ_{u≤t} A_tu sin(θ_u − θ_t)."""
    theta, attention = phases(), causal_weights()
    kuramoto = torch.einsum("btu,btuk->btk", attention, differences(theta, theta).sin())
    zero = real(0.0)
    for w0, w1 in (
        (real(1.0), None),
        (real(1.0), zero),
        (Pair(real(1.0).re, zero.re), Pair(zero.re, zero.re)),
    ):
        torch.testing.assert_close(ops.coupling(theta, attention, w0, w1, 1, frame), kuramoto, **EXACT)


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_base_coupling_is_the_negative_gradient_of_disagreement(frame: str) -> None:
    """− d/dθ_t of Σ_u A_tu (1 − cos(θ_u − θ_t)), the attended phases held fixed."""
    theta, attention = phases().requires_grad_(), causal_weights()
    potential = (attention.unsqueeze(-1) * (1 - differences(theta.detach(), theta).cos())).sum()
    (gradient,) = torch.autograd.grad(potential, theta)
    coupled = ops.coupling(theta.detach(), attention, real(1.0), None, 1, frame)
    torch.testing.assert_close(coupled, -gradient, **EXACT)


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_zero_imaginary_parts_are_the_real_kernel(frame: str) -> None:
    theta, attention = phases(), causal_weights()
    re0, re1, zero = normal(N, K), normal(N, K), torch.zeros(N, K, dtype=torch.float64)
    complex_kernel = ops.coupling(theta, attention, Pair(re0, zero), Pair(re1, zero), N, frame)
    real_kernel = ops.coupling(theta, attention, Pair(re0, None), Pair(re1, None), N, frame)
    torch.testing.assert_close(complex_kernel, real_kernel, **EXACT)


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_successor_coupling_is_sakaguchi_with_the_datas_own_angle(frame: str) -> None:
    """Proposition 1: sin(θ_{u+1} − θ_t) = sin((θ_u − θ_t) + δ_u) with δ_u = θ_{u+1} − θ_u."""
    theta, attention = phases(), causal_weights()
    delta = torch.zeros_like(theta)
    delta[:, :-1] = theta[:, 1:] - theta[:, :-1]
    sakaguchi = (differences(theta, theta) + delta[:, None]).sin()
    expected = torch.einsum("btu,btuk->btk", strictly_earlier(attention), sakaguchi)
    successor = ops.coupling(theta, attention, None, real(1.0), 1, frame)
    torch.testing.assert_close(successor, expected, **EXACT)


def test_polar_form_is_the_cartesian_form() -> None:
    """Equation 3, both fields: Σ_u A_tu ρ_n sin(n(θ_u − θ_t) + φ_n), diagonal included, in the rest frame."""
    theta, attention = phases(), causal_weights()
    gain0, gain1 = normal(N, K).abs(), normal(N, K).abs()
    angle0, angle1 = normal(N, K, scale=2.0), normal(N, K, scale=2.0)
    successors = torch.cat((theta[:, 1:], torch.zeros_like(theta[:, :1])), dim=1)
    expected = torch.zeros_like(theta)
    for n in range(1, N + 1):
        here = gain0[n - 1] * (n * differences(theta, theta) + angle0[n - 1]).sin()
        after = gain1[n - 1] * (n * differences(successors, theta) + angle1[n - 1]).sin()
        expected += torch.einsum("btu,btuk->btk", attention, here)
        expected += torch.einsum("btu,btuk->btk", strictly_earlier(attention), after)
    w0 = Pair(gain0 * angle0.cos(), gain0 * angle0.sin())
    w1 = Pair(gain1 * angle1.cos(), gain1 * angle1.sin())
    torch.testing.assert_close(ops.coupling(theta, attention, w0, w1, N, "rest"), expected, **EXACT)


def test_the_frames_differ_by_the_uniform_rotation() -> None:
    """rest − co-rotating = A_tt Σ Im w0 + Σ_{u<t} A_tu Σ (Im w0 + Im w1): no phase appears in it."""
    theta, attention = phases(), causal_weights()
    w0, w1 = Pair(normal(N, K), normal(N, K)), Pair(normal(N, K), normal(N, K))
    assert w0.im is not None and w1.im is not None
    own = attention.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    earlier = strictly_earlier(attention).sum(-1, keepdim=True)
    rotation = own * w0.im.sum(0) + earlier * (w0.im + w1.im).sum(0)
    rest = ops.coupling(theta, attention, w0, w1, N, "rest")
    turning = ops.coupling(theta, attention, w0, w1, N, "co-rotating")
    torch.testing.assert_close(rest - turning, rotation, **EXACT)


def test_agreement_is_a_fixed_point_in_the_co_rotating_frame_only() -> None:
    """Tokens that agree with all they attend to stay where they are, whatever the angles of the kernel."""
    theta, attention = normal(1, 1, K).expand(B, T, K), causal_weights()
    w0, w1 = Pair(normal(N, K), normal(N, K)), Pair(normal(N, K), normal(N, K))
    thinned = attention * torch.randint(0, 2, attention.shape)  # rows need not sum to one: dropout, probes
    for weights in (attention, thinned):
        still = ops.coupling(theta, weights, w0, w1, N, "co-rotating")
        torch.testing.assert_close(still, torch.zeros_like(still), **EXACT)
    assert ops.coupling(theta, attention, w0, w1, N, "rest").abs().max() > 0.1


def test_co_rotating_angles_are_second_order_at_agreement() -> None:
    """There the loss is locally flat in the angles, as the paper says: Im w (cos nΔ − 1) starts with Δ²."""
    attention = causal_weights()
    im = torch.ones(1, K, dtype=torch.float64)
    w = Pair(torch.zeros_like(im), im)
    offset = normal(B, T, K)
    small, smaller = (
        ops.coupling(size * offset, attention, w, None, 1, "co-rotating").norm() for size in (1e-3, 5e-4)
    )
    assert (small / smaller).item() == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_one_coefficient_per_harmonic_is_that_coefficient_everywhere(frame: str) -> None:
    theta, attention = phases(), causal_weights()
    shared = [normal(N, 1) for _ in range(4)]
    full = [x.expand(N, K) for x in shared]
    one = ops.coupling(theta, attention, Pair(*shared[:2]), Pair(*shared[2:]), N, frame)
    many = ops.coupling(theta, attention, Pair(*full[:2]), Pair(*full[2:]), N, frame)
    torch.testing.assert_close(one, many, **EXACT)


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_whole_turns_change_nothing(frame: str) -> None:
    theta, attention = phases(), causal_weights()
    w0, w1 = Pair(normal(N, K), normal(N, K)), Pair(normal(N, K), normal(N, K))
    turned = theta + 2 * math.pi * torch.randint(-3, 4, theta.shape).double()
    torch.testing.assert_close(
        ops.coupling(turned, attention, w0, w1, N, frame),
        ops.coupling(theta, attention, w0, w1, N, frame),
        **EXACT,
    )


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_no_position_sees_a_later_one(frame: str) -> None:
    """The delay looks one ahead of the attended position, never ahead of the attending one."""
    theta, attention = phases(), causal_weights()
    w0, w1 = Pair(normal(N, K), normal(N, K)), Pair(normal(N, K), normal(N, K))
    before = ops.coupling(theta, attention, w0, w1, N, frame)
    for t in range(T - 1):
        changed = theta.clone()
        changed[:, t + 1 :] = normal(B, T - t - 1, K)
        after = ops.coupling(changed, attention, w0, w1, N, frame)
        assert torch.equal(before[:, : t + 1], after[:, : t + 1])
        assert not torch.equal(before[:, t + 1 :], after[:, t + 1 :])


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_the_first_token_moves_by_its_own_drift_alone(frame: str) -> None:
    theta, attention = normal(B, 1, K), torch.ones(B, 1, 1, dtype=torch.float64)
    w0, w1 = Pair(normal(N, K), normal(N, K)), Pair(normal(N, K), normal(N, K))
    assert w0.im is not None
    expected = w0.im.sum(0).expand(B, 1, K) if frame == "rest" else torch.zeros(B, 1, K, dtype=torch.float64)
    torch.testing.assert_close(ops.coupling(theta, attention, w0, w1, N, frame), expected, **EXACT)


def test_powers_are_the_harmonics() -> None:
    theta = phases()
    cos, sin = ops.harmonic_powers(theta, 6)
    for n in range(1, 7):
        torch.testing.assert_close(cos[..., n - 1, :], (n * theta).cos(), **EXACT)
        torch.testing.assert_close(sin[..., n - 1, :], (n * theta).sin(), **EXACT)


class _CountSquareProducts(TorchFunctionMode):
    """Counts matrix products with a (T, T) operand."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if getattr(func, "__name__", "") in ("matmul", "__matmul__", "bmm", "mm", "einsum", "baddbmm"):
            shapes = [tuple(a.shape[-2:]) for a in args if isinstance(a, Tensor)]
            self.count += (self.size, self.size) in shapes
        return func(*args, **(kwargs or {}))


def test_the_delay_is_folded_in_before_the_one_quadratic_product() -> None:
    theta, attention = phases(), causal_weights()
    w0, w1 = Pair(normal(N, K), normal(N, K)), Pair(normal(N, K), normal(N, K))
    with _CountSquareProducts(T) as products:
        ops.coupling(theta, attention, w0, w1, N, "rest")
    assert products.count == 1
