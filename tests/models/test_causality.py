"""No prediction depends on what comes after it, at any layer; and shapes at the edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fsn
from tests.small import ALL_FAMILIES, random_tokens, small

T = 8
SAME: dict[str, Any] = {"rtol": 0.0, "atol": 1e-13}
# Products of another shape sum in another order, and bounds with α = 2π amplify the last bit layer by layer.
SAME_BUT_FOR_ORDER: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_changing_later_tokens_changes_no_earlier_state(family: str) -> None:
    model = small(family, layers=3)
    tokens = random_tokens(model, length=T)
    with torch.no_grad():
        with fsn.record(model, "layers.*.state") as before:
            logits = model(tokens)
        assert len(before) == 3
        for t in range(T - 1):
            changed = tokens.clone()
            changed[:, t + 1 :] = (changed[:, t + 1 :] + 1 + t) % model.config.vocab_size
            with fsn.record(model, "layers.*.state") as after:
                others = model(changed)
            for name, state in before.items():
                torch.testing.assert_close(after[name][:, : t + 1], state[:, : t + 1], **SAME)
                assert (after[name][:, t + 1 :] - state[:, t + 1 :]).abs().amax(-1).min() > 1e-3
            torch.testing.assert_close(others[:, : t + 1], logits[:, : t + 1], **SAME)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_disturbing_the_future_between_layers_changes_no_earlier_state(family: str) -> None:
    """The same from the inside: noise on later positions of a layer's output reaches no earlier one."""
    model = small(family, layers=3)
    tokens = random_tokens(model, length=T)
    start = "embedding" if family.startswith("transformer") else "phases"
    with torch.no_grad():
        with fsn.record(model, "layers.*.state") as before:
            logits = model(tokens)
        for point in (start, "layers.0.state", "layers.1.state"):
            for t in (0, 3, T - 2):

                def disturb(state: Tensor, after: int = t + 1) -> Tensor:
                    noisy = state.clone()
                    noisy[:, after:] += torch.randn(noisy[:, after:].shape, dtype=torch.float64)
                    return noisy

                with fsn.replace(model, {point: disturb}), fsn.record(model, "layers.*.state") as disturbed:
                    others = model(tokens)
                for name, state in before.items():
                    torch.testing.assert_close(disturbed[name][:, : t + 1], state[:, : t + 1], **SAME)
                torch.testing.assert_close(others[:, : t + 1], logits[:, : t + 1], **SAME)
                assert (others[:, t + 1 :] - logits[:, t + 1 :]).abs().max() > 1e-3


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_prefix_alone_gives_the_same_logits(family: str) -> None:
    """One position, odd and even lengths: each is the beginning of the longer one."""
    model = small(family)
    tokens = random_tokens(model, length=T)
    with torch.no_grad():
        whole = model(tokens)
        for length in range(1, T + 1):
            part = model(tokens[:, :length])
            assert part.shape == (2, length, 13)
            torch.testing.assert_close(part, whole[:, :length], **SAME_BUT_FOR_ORDER)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_rows_of_a_batch_do_not_meet(family: str) -> None:
    model = small(family)
    tokens = random_tokens(model, batch=3, length=7)
    with torch.no_grad():
        together = model(tokens)
        for row in range(3):
            alone = model(tokens[row : row + 1])
            torch.testing.assert_close(alone, together[row : row + 1], **SAME_BUT_FOR_ORDER)


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_gradients_exist_at_every_length(family: str, length: int) -> None:
    model = small(family)
    tokens = random_tokens(model, batch=1, length=length)
    loss = model.loss(tokens, tokens)
    assert loss.shape == (1, length)
    loss.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        if length > 1:
            assert parameter.grad.abs().max() > 0, f"{name} has no influence"


def test_position_matters() -> None:
    """The rotary drift tells a repeated symbol's places apart."""
    for family in ("fsn", "transformer"):
        model = small(family)
        with torch.no_grad():
            a = model(torch.tensor([[1, 2, 3, 4]]))[0, -1]
            b = model(torch.tensor([[2, 1, 3, 4]]))[0, -1]
        assert (a - b).abs().max() > 1e-3
