"""Batches of sequences of different lengths: each has the logits, losses and gradients it has alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fsn import UserError
from tests.small import ALL_FAMILIES, random_tokens, small

LENGTHS = (9, 5, 2)
CLOSE = {"atol": 1e-9, "rtol": 1e-9}


def padded(tokens: Tensor, side: str) -> tuple[Tensor, Tensor, list[slice]]:
    """Rows of these lengths with a token no model has as padding, their mask, and where each sequence lies."""
    longest = max(LENGTHS)
    rows, mask = (
        torch.full((len(LENGTHS), longest), 99),
        torch.zeros(len(LENGTHS), longest, dtype=torch.int64),
    )
    places = []
    for i, length in enumerate(LENGTHS):
        first = {"front": longest - length, "behind": 0, "both": (longest - length) // 2}[side]
        places.append(slice(first, first + length))
        rows[i, places[-1]], mask[i, places[-1]] = tokens[i, :length], 1
    return rows, mask, places


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("side", ["front", "behind", "both"])
def test_a_padded_sequence_is_what_it_is_alone(family: str, side: str) -> None:
    model = small(family)
    tokens, targets = random_tokens(model, 3, 9), random_tokens(model, 3, 9, seed=5)
    rows, mask, places = padded(tokens, side)
    goals = padded(targets, side)[0]
    logits, losses = model(rows, targets=goals, attention_mask=mask)
    torch.testing.assert_close(model.loss(rows, goals, attention_mask=mask), losses, **CLOSE)
    together = torch.autograd.grad(losses.sum(), list(model.parameters()))
    total = torch.zeros((), dtype=torch.float64)
    for i, (length, place) in enumerate(zip(LENGTHS, places, strict=True)):
        alone, expected = model(tokens[i : i + 1, :length], targets=targets[i : i + 1, :length])
        torch.testing.assert_close(logits[i : i + 1, place], alone, **CLOSE)
        torch.testing.assert_close(losses[i : i + 1, place], expected, **CLOSE)
        total = total + expected.sum()
    assert not losses[mask == 0].any()
    for one, other in zip(together, torch.autograd.grad(total, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_targets_that_count_nothing(family: str) -> None:
    model = small(family)
    tokens = random_tokens(model)
    targets = random_tokens(model, seed=5)
    some = targets.clone()
    some[:, ::2] = -100
    _, whole = model(tokens, targets=targets)
    for losses in (model(tokens, targets=some)[1], model.loss(tokens, some)):
        assert torch.equal(losses[:, 1::2], whole[:, 1::2]) and not losses[:, ::2].any()
    nothing = model.loss(tokens, torch.full_like(targets, -100)).sum()
    grads = torch.autograd.grad(nothing, list(model.parameters()), allow_unused=True)
    assert not any(g is not None and g.any() for g in grads)
    with pytest.raises(UserError, match="targets hold -1"):
        model.loss(tokens, torch.full_like(targets, -1))
    with pytest.raises(UserError, match="tokens hold -100"):
        model(torch.full_like(targets, -100))


def test_dropout_goes_with_padding() -> None:
    model = small("fsn", dropout_hidden=0.5).train()
    rows, mask, _ = padded(random_tokens(model, 3, 9), "front")
    assert not torch.equal(model(rows, attention_mask=mask), model(rows, attention_mask=mask))


def test_a_mask_that_makes_no_sense_is_refused() -> None:
    model = small("fsn")
    tokens = random_tokens(model)
    with pytest.raises(UserError, match=r"attention_mask has shape \(2, 3\) and tokens \(2, 9\)"):
        model(tokens, attention_mask=torch.ones(2, 3))
    mask = torch.ones(2, 9)
    mask[1, 4] = 0
    with pytest.raises(UserError, match="zeros inside a sequence"):
        model(tokens, attention_mask=mask)
    with pytest.raises(UserError, match="pass a tensor"):
        model(tokens.numpy(), attention_mask=mask)
    assert torch.equal(model(tokens, attention_mask=torch.ones(2, 9)), model(tokens))
