"""Synchronization diagnostics on states whose answers are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch

import fsn
from fsn.errors import UserError
from fsn.measure import states as sync
from tests.small import random_tokens, small

T, K = 64, 6


def test_full_consensus() -> None:
    """Every token in one state: all order parameters one, no spread, rank one, one cluster."""
    phases = torch.randn(3, 1, K, dtype=torch.float64).expand(3, T, K)
    found = sync.diagnose(phases)
    for name in (
        "token_order",
        "token_order_2",
        "token_order_3",
        "cosine",
        "effective_rank",
        "stable_rank",
        "clusters",
    ):
        assert found[name] == pytest.approx(1.0, abs=1e-6), name
    assert found["spread"] == pytest.approx(0.0, abs=1e-7)
    same = torch.randn(1, 1, K).expand(2, T, K) * torch.rand(2, T, 1).add(
        0.1
    )  # a transformer's lengths do not matter
    found = sync.diagnose(same, phases=False)
    assert found["cosine"] == pytest.approx(1.0, abs=1e-5) and found["effective_rank"] == pytest.approx(
        1.0, abs=1e-3
    )
    assert "token_order" not in found and "rms_lift" not in found


def test_uniform_phases() -> None:
    """Coordinate c winds c times round the circle over the tokens: no order, all directions used alike."""
    t, c = torch.arange(T, dtype=torch.float64)[:, None], torch.arange(1, K + 1, dtype=torch.float64)
    found = sync.diagnose(2 * math.pi * t * c / T)
    assert found["token_order"] == pytest.approx(0.0, abs=1e-12)
    assert found["cosine"] == pytest.approx(-1 / (T - 1)) and found["spread"] == pytest.approx(1.0)
    for name in ("effective_rank", "stable_rank", "clusters"):
        assert found[name] == pytest.approx(2 * K), name


def test_two_clusters() -> None:
    half = torch.zeros(T, K, dtype=torch.float64)
    half[T // 2 :] = math.pi / 2  # a right angle apart: orthogonal as phasors
    found = sync.diagnose(half)
    assert found["token_order"] == pytest.approx(math.sqrt(0.5)) and found["token_order_2"] == pytest.approx(
        0, abs=1e-12
    )
    assert found["cosine"] == pytest.approx((T / 2 - 1) / (T - 1))
    assert found["spread"] == pytest.approx(math.sqrt(0.5))
    for name in ("effective_rank", "stable_rank", "clusters"):
        assert found[name] == pytest.approx(2.0), name
    opposite = sync.diagnose(2 * half)  # half a turn apart: the first harmonic cancels, the second is full
    assert opposite["token_order"] == pytest.approx(0, abs=1e-12) and opposite[
        "token_order_2"
    ] == pytest.approx(1)
    assert opposite["effective_rank"] == pytest.approx(1, abs=1e-6)


def test_spread_is_what_order_leaves() -> None:
    """For phases spread² = 1 − mean R²: two readings of one fact."""
    phases = torch.randn(1, T, K, dtype=torch.float64)
    z = torch.polar(torch.ones_like(phases), phases)
    expected = math.sqrt(1 - z.mean(dim=1).abs().pow(2).mean().item())
    assert sync.diagnose(phases)["spread"] == pytest.approx(expected)


def test_scattered_phases_meet_the_baseline() -> None:
    generator = torch.Generator().manual_seed(0)
    phases = 2 * math.pi * torch.rand(8, 256, 64, generator=generator, dtype=torch.float64)
    found = sync.diagnose(phases)
    assert found["token_order"] == pytest.approx(math.sqrt(math.pi / (4 * 256)), rel=0.05)
    assert found["coordinate_order"] == pytest.approx(math.sqrt(math.pi / (4 * 64)), rel=0.05)


def test_winding() -> None:
    phases = torch.tensor([[[0.1, math.pi, 2 * math.pi + 0.1, -4 * math.pi]]], dtype=torch.float64)
    found = sync.winding(phases)
    assert found["wound"] == 0.5
    assert found["rms_lift"] == pytest.approx(2 * math.pi * math.sqrt((1 + 4) / 4))
    assert found["rms_phase"] == pytest.approx(phases.pow(2).mean().sqrt().item())
    assert sync.winding(torch.full((1, 1, 1), -math.pi, dtype=torch.float64))["wound"] == 1.0  # (−π, π]


@pytest.mark.parametrize("family", ["fsn", "kuramoto", "transformer", "fsn-dissolved"])
def test_profile_through_depth(family: str) -> None:
    model = small(family, layers=3)
    tokens = random_tokens(model, batch=2, length=12)
    profile = sync.depth_profile(model, tokens, family)
    oscillator = family != "transformer"
    assert profile.depth == [0, 1, 2, 3] and profile.phases is oscillator
    assert ("token_order" in profile.values) is oscillator and all(
        len(v) == 4 for v in profile.values.values()
    )
    with torch.no_grad(), fsn.record(model, "layers.1.state") as points:
        model(tokens)
    direct = sync.diagnose(points["layers.1.state"].float(), oscillator)
    assert {name: series[2] for name, series in profile.values.items()} == pytest.approx(direct)
    table = profile.table()
    assert len(table) == 4 and table.column("model") == [family] * 4
    if family == "fsn-dissolved":
        assert profile.values["wound"][1:] == [0.0, 0.0, 0.0]  # wrapped after every layer
    if oscillator:
        assert profile.baseline["token_order"] == pytest.approx(math.sqrt(math.pi / 48))


def test_shapes_are_checked() -> None:
    with pytest.raises(UserError, match="shape"):
        sync.diagnose(torch.zeros(3))
