"""What autocast may round and what it may not, op by op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fsn import ops
from fsn.ops import Pair
from tests import small

B, T, K, N = 2, 16, 12, 3


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def is_bfloat16(x: Tensor) -> bool:
    """Every entry is a bfloat16 number, whatever type holds it."""
    return torch.equal(x, x.to(torch.bfloat16).to(x.dtype))


def test_without_autocast_a_product_is_a_product() -> None:
    for dtype in (torch.float32, torch.float64):
        a, b = torch.randn(B, T, K, dtype=dtype), torch.randn(B, K, T, dtype=dtype)
        for rounded in (True, False):
            assert torch.equal(ops.product(a, b, rounded), a @ b)


def test_under_autocast_the_result_is_rounded_or_kept() -> None:
    a, b = torch.randn(B, T, K), torch.randn(B, K, T)
    with autocast():
        rounded, kept = ops.product(a, b, True), ops.product(a, b, False)
    assert rounded.dtype == torch.bfloat16 and kept.dtype == torch.float32
    exact = a.bfloat16().double() @ b.bfloat16().double()
    torch.testing.assert_close(kept.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rounded.double(), exact, rtol=2**-8, atol=1e-5)
    assert not is_bfloat16(kept)


@pytest.mark.parametrize("rounded", [True, False])
def test_scores_and_coherences_come_out_in_float32(rounded: bool) -> None:
    theta, gate, prototypes = torch.randn(B, T, K), torch.rand(B, T, K), torch.randn(7, K)
    one = torch.ones(())
    with autocast():
        scores = small.scores(theta, gate, gate, ops.rotary_rates(K), one, rounded)
        coherences = ops.coherences(theta, prototypes, rounded)
    assert scores.dtype == coherences.dtype == torch.float32
    assert is_bfloat16(scores) == is_bfloat16(coherences) == rounded


def test_phases_powers_softmax_and_bound_stay_in_float32() -> None:
    """A phase of 100 rad has no fraction left in bfloat16: these must not be rounded on the way."""
    theta, scores, alpha = 100 + torch.randn(B, T, K), torch.randn(B, T, T), torch.tensor(2.0)
    plain = (
        *ops.harmonic_powers(theta, N),
        ops.phase_features(theta),
        ops.normalise_gate(theta),
        ops.causal_softmax(scores),
        ops.norm_matched_tanh(theta, alpha),
        ops.wrap(theta),
    )
    with autocast():
        cast = (
            *ops.harmonic_powers(theta, N),
            ops.phase_features(theta),
            ops.normalise_gate(theta),
            ops.causal_softmax(scores),
            ops.norm_matched_tanh(theta, alpha),
            ops.wrap(theta),
        )
    for a, b in zip(plain, cast, strict=True):
        assert b.dtype == torch.float32 and torch.equal(a, b)


@pytest.mark.parametrize("frame", ops.FRAMES)
def test_updates_come_out_in_float32_and_close(frame: str) -> None:
    theta, attention = torch.randn(B, T, K), ops.causal_softmax(torch.randn(B, T, T))
    w = [torch.randn(N, K) for _ in range(4)]
    modes = (torch.randn(2, 4, K), torch.randn(2, 4, K), torch.randn(2, K, 4), torch.randn(4))
    winding = (torch.randn(4, K), torch.randn(4, K), torch.randn(K, 4), torch.randn(4))

    def run() -> tuple[Tensor, ...]:
        return (
            ops.coupling(theta, attention, Pair(w[0], w[1]), Pair(w[2], w[3]), N, frame),
            ops.mean_field(theta, *modes),
            ops.winding_modes(theta, *winding),
        )

    plain = run()
    with autocast():
        cast = run()
    for a, b in zip(plain, cast, strict=True):
        assert b.dtype == torch.float32
        assert 0 < (a - b).norm() / a.norm() < 0.02
