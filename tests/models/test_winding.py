"""Whole turns: who can see them, who cannot, and what carries history where phases are wrapped."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fsn
from fsn.models import LanguageModel
from tests.small import FSN_FAMILIES, PERIODIC_FAMILIES, random_tokens, small

SAME: dict[str, Any] = {"rtol": 0.0, "atol": 1e-9}


def run(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.no_grad(), fsn.record(model) as points:
        logits = model(tokens)
    return logits, points


def turn(model: LanguageModel, symbol: int, coordinate: int, turns: int = 1) -> None:
    """Add 2π to one coordinate of one symbol's embedding."""
    with torch.no_grad():
        model.get_parameter("embedding.phases")[symbol, coordinate] += 2 * math.pi * turns


@pytest.mark.parametrize("family", FSN_FAMILIES)
def test_a_turn_of_the_embedding(family: str) -> None:
    """The first layer's attention half cannot see a turn; only what reads the lifted phases can."""
    model = small(family)
    tokens = random_tokens(model)
    before, points = run(model, tokens)
    turn(model, symbol=int(tokens[0, 2]), coordinate=3)
    after, turned = run(model, tokens)
    assert (turned["phases"] - points["phases"]).abs().max() > 6
    for name in ("gates.query", "gates.key", "gates.value", "scores", "attention", "fields", "coupling"):
        torch.testing.assert_close(turned[f"layers.0.{name}"], points[f"layers.0.{name}"], **SAME)
    moved = (turned["layers.0.feedforward.raw"] - points["layers.0.feedforward.raw"]).abs().max()
    if family in PERIODIC_FAMILIES:
        assert moved < 1e-11
        torch.testing.assert_close(after, before, **SAME)
    else:
        assert moved > 1e-2
        assert (after - before).abs().max() > 1e-2


@pytest.mark.parametrize("family", PERIODIC_FAMILIES)
@pytest.mark.parametrize("turns", [-1, 3])
def test_periodic_variants_are_blind_to_any_number_of_turns(family: str, turns: int) -> None:
    model = small(family, layers=3)
    tokens = random_tokens(model)
    before, _ = run(model, tokens)
    for coordinate in range(0, 11, 3):
        turn(model, symbol=int(tokens[1, 0]), coordinate=coordinate, turns=turns)
    after, _ = run(model, tokens)
    torch.testing.assert_close(after, before, **SAME)


def test_a_layer_without_a_block_is_periodic_too() -> None:
    model = small("fsn", feedforward="none")
    tokens = random_tokens(model)
    before, _ = run(model, tokens)
    turn(model, symbol=int(tokens[0, 0]), coordinate=0)
    torch.testing.assert_close(run(model, tokens)[0], before, **SAME)


def test_the_winding_register_is_what_sees_turns() -> None:
    """Without its winding modes the block is the mean field: blind again."""
    model = small("fsn-mf-winding")
    for i in range(2):
        model.get_parameter(f"layers.{i}.feedforward.winding_projection").data.zero_()
    tokens = random_tokens(model)
    before, _ = run(model, tokens)
    turn(model, symbol=int(tokens[0, 0]), coordinate=0)
    torch.testing.assert_close(run(model, tokens)[0], before, **SAME)


def test_lifted_phases_wind_and_wrapped_ones_do_not() -> None:
    tokens = torch.arange(9).view(1, 9)
    _, lifted = run(small("fsn-mf", layers=3), tokens)
    assert max(lifted[f"layers.{i}.state"].abs().max().item() for i in range(3)) > math.pi
    _, wrapped = run(small("fsn-dissolved", layers=3), tokens)
    for i in range(3):
        state = wrapped[f"layers.{i}.state"]
        assert state.max() <= math.pi + 1e-12 and state.min() > -math.pi - 1e-12


@pytest.mark.parametrize("which", ["layers.0.register", "layers.1.register", "layers.*.register"])
def test_zeroing_the_register_changes_the_logits(which: str) -> None:
    model = small("fsn-dissolved")
    tokens = random_tokens(model)
    before, points = run(model, tokens)
    assert all(points[f"layers.{i}.register"].abs().max() > 0 for i in range(2))
    with torch.no_grad(), fsn.replace(model, {which: torch.zeros_like}):
        assert (model(tokens) - before).abs().max() > 1e-3


def test_the_register_acts_through_the_gate_alone() -> None:
    """A register nobody reads may be zeroed: it acts through the block's gate and nowhere else."""
    model = small("fsn-dissolved")
    tokens = random_tokens(model)
    for i in range(2):
        model.get_parameter(f"layers.{i}.feedforward.register_in").data.zero_()
    before, _ = run(model, tokens)
    with torch.no_grad(), fsn.replace(model, {"layers.*.register": torch.zeros_like}):
        torch.testing.assert_close(model(tokens), before, **SAME)
