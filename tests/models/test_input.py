"""Bad input is refused with one sentence and a remedy; good input of every kind is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsn import UserError
from tests.small import random_tokens, small

FAMILIES = ["fsn", "fsn-dissolved", "transformer"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("tokens", "names"),
    [
        (torch.tensor([[0, 13]]), ("13", "0 to 12", "encode")),
        (torch.tensor([[0, -1]]), ("-1", "0 to 12", "encode")),
        (torch.zeros(2, 0, dtype=torch.int64), ("empty", "(2, 0)", "at least one")),
        (torch.zeros(0, 3, dtype=torch.int64), ("empty", "(0, 3)", "at least one")),
        (torch.zeros(2, 3), ("torch.float32", "long()")),
        (torch.zeros(2, 3, dtype=torch.bool), ("torch.bool", "long()")),
        (torch.zeros(2, 3, dtype=torch.uint8), ("torch.uint8", "long()")),
        (torch.zeros(3, dtype=torch.int64), ("(3,)", "(batch, positions)")),
        (torch.zeros(1, 2, 3, dtype=torch.int64), ("(1, 2, 3)", "(batch, positions)")),
        (torch.tensor(3), ("()", "(batch, positions)")),
    ],
    ids=["too large", "negative", "no position", "no row", "float", "bool", "bytes", "1d", "3d", "0d"],
)
def test_bad_tokens(family: str, tokens: Tensor, names: tuple[str, ...]) -> None:
    model = small(family)
    good = random_tokens(model)
    for call in (
        lambda: model(tokens),
        lambda: model(tokens, targets=tokens),
        lambda: model.loss(tokens, tokens),
        lambda: model(good, targets=tokens),
        lambda: model.loss(good, tokens),
    ):
        with pytest.raises(UserError) as caught:
            call()
        text = str(caught.value)
        assert "\n" not in text and "; " in text and len(text) < 200
        for name in names:
            assert name in text


@pytest.mark.parametrize("tokens", [[[0, 1]], "text", np.zeros((1, 2), dtype=np.int64)])
def test_tokens_that_are_no_tensor(tokens: Any) -> None:
    model = small("fsn")
    with pytest.raises(UserError, match=rf"tokens are a {type(tokens).__name__}; pass a tensor"):
        model(tokens)
    with pytest.raises(UserError, match=rf"targets are a {type(tokens).__name__}; pass a tensor"):
        model(random_tokens(model), targets=tokens)


@pytest.mark.parametrize("cache", [None, {}, 3])
def test_a_cache_that_is_none(cache: Any) -> None:
    model = small("fsn")
    with pytest.raises(UserError, match=rf"cache is a {type(cache).__name__}; pass model\.new_cache\(\)"):
        model.extend(random_tokens(model), cache)


def test_the_sentence_names_the_culprit() -> None:
    model = small("fsn")
    good, bad = random_tokens(model), random_tokens(model) + 13
    with pytest.raises(UserError, match=r"^tokens"):
        model(bad, targets=good)
    with pytest.raises(UserError, match=r"^targets"):
        model(good, targets=bad)


def test_targets_of_another_shape() -> None:
    model = small("fsn")
    tokens = random_tokens(model)
    with pytest.raises(UserError, match=r"\(2, 8\).*\(2, 9\).*equal"):
        model(tokens, targets=tokens[:, :-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_int32_is_as_good_as_int64(family: str) -> None:
    model = small(family)
    tokens, targets = random_tokens(model), random_tokens(model, seed=3)
    with torch.no_grad():
        long_logits, long_loss = model(tokens, targets=targets)
        logits, loss = model(tokens.int(), targets=targets.int())
    assert torch.equal(logits, long_logits) and torch.equal(loss, long_loss)


def test_the_ends_of_the_vocabulary_are_in_it() -> None:
    model = small("fsn")
    assert model(torch.tensor([[0, 12]])).shape == (1, 2, 13)


def test_a_vocabulary_of_one_symbol() -> None:
    """Nothing to predict: the loss is zero."""
    for family in FAMILIES:
        model = small(family, vocab_size=1)
        tokens = torch.zeros(2, 4, dtype=torch.int64)
        assert model.loss(tokens, tokens).abs().max() == 0


def test_input_is_not_changed() -> None:
    model = small("fsn-dissolved")
    tokens = random_tokens(model)
    copy = tokens.clone()
    model.loss(tokens, tokens).sum().backward()
    assert torch.equal(tokens, copy)


def test_a_slice_of_a_larger_tensor_will_do() -> None:
    """Windows are slices: inputs w[:, :-1], targets w[:, 1:], neither contiguous."""
    for family in FAMILIES:
        model = small(family)
        windows = random_tokens(model, length=8)
        inputs, targets = windows[:, :-1], windows[:, 1:]
        assert not inputs.is_contiguous()
        with torch.no_grad():
            expected = model.loss(inputs.contiguous(), targets.contiguous())
            assert torch.equal(model.loss(inputs, targets), expected)
