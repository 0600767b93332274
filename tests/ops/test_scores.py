"""Scores, gates, softmax and rotary drift against their formulas, pair by pair."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fsn import ops
from tests import small

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
B, T, K = 2, 6, 5


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def test_scores_are_gated_coherences_with_a_rotary_drift() -> None:
    """Equation 1, one entry at a time."""
    theta, gate_q, gate_k = normal(B, T, K, scale=3.0), normal(B, T, K), normal(B, T, K)
    rates, tau = ops.rotary_rates(K), torch.tensor(1.7, dtype=torch.float64)
    scores = small.scores(theta, gate_q, gate_k, rates, tau)
    for t in range(T):
        for u in range(T):
            angle = (
                theta[:, t] - theta[:, u] + (t - u) * 10000.0 ** (-torch.arange(K, dtype=torch.float64) / K)
            )
            expected = (gate_q[:, t] * gate_k[:, u] * angle.cos()).sum(-1) / 1.7
            torch.testing.assert_close(scores[:, t, u], expected, **EXACT)


def test_scores_depend_on_distance_alone() -> None:
    """Equal phases and gates: s_tu is a function of t − u, largest on the diagonal."""
    theta, gate = torch.zeros(1, T, K, dtype=torch.float64), torch.ones(1, T, K, dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    scores = small.scores(theta, gate, gate, ops.rotary_rates(K), one)[0]
    for d in range(T):
        band = scores.diagonal(-d)
        torch.testing.assert_close(band, band[:1].expand_as(band), **EXACT)
    torch.testing.assert_close(scores.diagonal(), torch.full((T,), float(K), dtype=torch.float64), **EXACT)
    assert (scores <= K + 1e-12).all()


def test_the_score_sees_the_successor_of_an_earlier_token_and_no_other() -> None:
    """Row t gets Re λ̄ e^{i(θ_t − θ_{u+1} + ω(t−u−1))} for u < t; its own place gets nothing."""
    theta, gate_q, gate_k, weight = normal(B, T, K), normal(B, T, K), normal(B, T, K), normal(2, K)
    rates, tau = ops.rotary_rates(K), torch.tensor(1.7, dtype=torch.float64)
    plain = small.scores(theta, gate_q, gate_k, rates, tau)
    scores = small.scores(theta, gate_q, gate_k, rates, tau, successor=weight)
    for t in range(T):
        torch.testing.assert_close(scores[:, t, t], plain[:, t, t], **EXACT)
        for u in range(t):
            angle = theta[:, t] - theta[:, u + 1] + (t - u - 1) * rates
            pull = weight[0] * angle.cos() + weight[1] * angle.sin()  # Re (a − ib)(cos + i sin)
            more = (gate_q[:, t] * gate_k[:, u + 1] * pull).sum(-1) / 1.7
            torch.testing.assert_close(scores[:, t, u], plain[:, t, u] + more, **EXACT)


def test_scores_do_not_see_whole_turns() -> None:
    theta, gate_q, gate_k = normal(B, T, K), normal(B, T, K), normal(B, T, K)
    rates, tau = ops.rotary_rates(K), torch.tensor(0.9, dtype=torch.float64)
    turned = theta + 2 * math.pi * torch.randint(-2, 3, theta.shape).double()
    torch.testing.assert_close(
        small.scores(turned, gate_q, gate_k, rates, tau),
        small.scores(theta, gate_q, gate_k, rates, tau),
        **EXACT,
    )


def test_a_sequence_may_start_later() -> None:
    theta, gate, rates = normal(B, T, K), normal(B, T, K), ops.rotary_rates(K)
    whole = ops.rotary_features(theta, gate, rates)
    rest = ops.rotary_features(theta[:, 4:], gate[:, 4:], rates, first=4)
    torch.testing.assert_close(rest, whole[:, 4:], **EXACT)


def test_positions_stay_exact_in_bfloat16() -> None:
    """Above 256 bfloat16 has no odd numbers: a model that is all in bfloat16 must not count its positions in it."""
    half = torch.bfloat16
    theta, rates = normal(1, 700, K).to(half), ops.rotary_rates(K).to(half)
    ones = torch.ones_like(theta)
    expected = ops.rotary_features(theta.double(), ones.double(), rates.double())
    assert (ops.rotary_features(theta, ones, rates) - expected).abs().max() <= 0.005
    own = torch.arange(700)[None]
    assert torch.equal(ops.rotary_features(theta, ones, rates, own), ops.rotary_features(theta, ones, rates))
    x = normal(1, 700, 2 * K).to(half)
    expected = small.rotate_half(x.double(), rates.double())
    assert (small.rotate_half(x, rates) - expected).abs().max() <= 0.01 * expected.abs().max()


def test_rates_fall_from_one_to_almost_nothing() -> None:
    rates = ops.rotary_rates(176)
    assert rates.dtype == torch.float64 and rates[0] == 1.0
    torch.testing.assert_close(rates[1:] / rates[:-1], torch.full((175,), 10000.0 ** (-1 / 176)).double())


def test_attention_is_causal_and_sums_to_one() -> None:
    scores = normal(B, T, T)
    attention = ops.causal_softmax(scores)
    for t in range(T):
        own = scores[:, t, : t + 1].exp()
        torch.testing.assert_close(attention[:, t, : t + 1], own / own.sum(-1, keepdim=True), **EXACT)
        assert attention[:, t, t + 1 :].eq(0).all()
    assert ops.causal_softmax(normal(B, 1, 1)).eq(1).all()


def test_attention_survives_huge_scores() -> None:
    scores = torch.tensor([[[3e38, 0.0], [-3e38, 3e38]]])
    assert torch.equal(ops.causal_softmax(scores), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))


def test_gates_are_nonnegative_and_average_to_one() -> None:
    gate = ops.normalise_gate(normal(B, T, K, scale=4.0))
    assert (gate >= 0).all()
    torch.testing.assert_close(gate.mean(-1), torch.ones(B, T, dtype=torch.float64), **EXACT)


def test_a_closed_gate_stays_finite() -> None:
    """The mean has a floor of 1e-6: a gate that is shut everywhere stays shut instead of blowing up."""
    raw = torch.full((1, 1, K), -200.0, requires_grad=True)
    gate = ops.normalise_gate(raw)
    gate.sum().backward()
    assert gate.eq(0).all() and raw.grad is not None and raw.grad.isfinite().all()
    half_shut = ops.normalise_gate(torch.full((1, 1, K), -16.0, dtype=torch.float64))
    torch.testing.assert_close(half_shut, torch.full_like(half_shut, math.log1p(math.exp(-16.0)) / 1e-6))


def test_rope_turns_pairs_of_coordinates() -> None:
    """The complex number x_c + i x_{c+d/2} is multiplied by e^{iω_c t}; lengths stay."""
    x, rates = normal(B, T, 6), ops.rotary_rates(3)
    angle = torch.arange(T, dtype=torch.float64)[:, None] * rates
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    torch.testing.assert_close(small.rotate_half(x, rates), expected, **EXACT)
    torch.testing.assert_close(small.rotate_half(x[:, 2:], rates, first=2), expected[:, 2:], **EXACT)
