"""Continuations: the same with and without a memory, bounded by the window, the same again for the same seed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import fsn
from fsn.data import Alphabet
from fsn.errors import UserError
from fsn.models import LanguageModel
from fsn.models.generate import draw
from tests.small import small

LETTERS = Alphabet(b"\n abcdefghijk")


def sample(model: LanguageModel, prompt: str = "", *, symbols: int, **how: Any) -> str:
    """What the model adds to the prompt."""
    model.tokenizer = LETTERS
    return model.generate(prompt, symbols, **how)[len(prompt) :]


def sample_without_memory(model: LanguageModel, prompt: str, **how: Any) -> str:
    """The same where every symbol is drawn after reading all of the text anew."""
    read: list[torch.Tensor] = []

    def extend(tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        read.append(tokens)
        return model(torch.cat(read, dim=1))

    model.extend = extend  # type: ignore[method-assign,assignment]
    try:
        return sample(model, prompt, **how)
    finally:
        del model.extend


@pytest.mark.parametrize("family", ["fsn", "fsn-mf", "transformer"])
@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"top_k": 3, "seed": 7}])
def test_memory_changes_nothing_within_a_window(family: str, how: dict[str, Any]) -> None:
    model = small(family)
    texts = [draw_text(model, "abc", symbols=40, **how) for draw_text in (sample, sample_without_memory)]
    assert texts[0] == texts[1] and len(texts[0]) == 40


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_a_replaced_point_changes_the_text_with_and_without_memory(family: str) -> None:
    model = small(family)
    how: dict[str, Any] = {"symbols": 40, "temperature": 0.0}
    plain = sample(model, "abc", **how)
    with fsn.replace(model, {"layers.*.attention": lambda a: 0 * a}):
        texts = [draw_text(model, "abc", **how) for draw_text in (sample, sample_without_memory)]
    assert texts[0] == texts[1] != plain


def test_the_window_bounds_what_is_seen_and_what_it_costs() -> None:
    model = small("fsn")
    seen: list[tuple[int, int]] = []
    plain = LanguageModel.extend

    def extend(self: LanguageModel, tokens: torch.Tensor, cache: Any, hidden: Any = None) -> torch.Tensor:
        seen.append((cache.length, tokens.shape[1]))
        return plain(self, tokens, cache, hidden)

    model.extend = extend.__get__(model)  # type: ignore[method-assign]
    model.tokenizer = LETTERS
    tokens = list(draw(model, model.encode("abcabcabc"), symbols=30, context=8))
    assert len(tokens) == 30
    assert seen[0] == (0, 8) and max(first + new for first, new in seen) == 8
    assert all(new == 1 for (before, _), (first, new) in pairwise(seen) if first > before)
    assert sum(new for _, new in seen) < 2 * 30 + 8  # a whole window is read again after half a window


def test_training_mode_returns_and_text_decodes() -> None:
    model = small("fsn").train()
    first = sample(model, symbols=12, seed=3)
    assert model.training and set(first.encode()) <= set(LETTERS.symbols)
    assert sample(model, symbols=12, seed=3) == first != sample(model, symbols=12, seed=4)
    assert sample(model, symbols=5, context=1).isascii()


@pytest.mark.parametrize("temperature", [1e-60, 1e-30, 1e-7])
def test_next_to_temperature_zero_the_likeliest_symbol_is_certain(temperature: float) -> None:
    model = small("fsn")
    greedy = sample(model, "ab", symbols=20, temperature=0.0)
    assert sample(model, "ab", symbols=20, temperature=temperature) == greedy


def test_at_the_highest_temperature_top_k_still_holds() -> None:
    model = small("fsn")
    likeliest = sample(model, "ab", symbols=1, temperature=0.0)
    assert sample(model, "ab", symbols=1, temperature=1e6, top_k=1) == likeliest


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"symbols": 0}, "symbols must be a whole number, at least 1, not 0"),
        ({"temperature": -1.0}, "temperature must lie between 0 and 1,000,000, not -1.0"),
        ({"temperature": float("nan")}, "temperature must lie .* not nan"),
        ({"temperature": float("inf")}, "temperature must lie .* not inf"),
        ({"symbols": 3.5}, "symbols must be a whole number, at least 1, not 3.5"),
        ({"symbols": "3"}, "symbols must be a whole number, .* not '3'"),
        ({"temperature": "hot"}, "temperature must lie .* not 'hot'"),
        ({"temperature": None}, "temperature must lie .* not None"),
        ({"top_k": -1}, "top_k must be a whole number, or 0 for all symbols, not -1"),
        ({"top_k": 1.5}, "top_k must be a whole number, .* not 1.5"),
        ({"context": 0}, "context must be a whole number, at least 1, not 0"),
        ({"context": 2.5}, "context must be a whole number, .* not 2.5"),
        ({"seed": "a"}, "seed must be a whole number .* not 'a'"),
        ({"seed": 2**64}, r"seed must be a whole number from 0 to 2\^64 - 1, not 18446744073709551616"),
        ({"seed": -1}, "seed must be a whole number .* not -1"),
    ],
)
def test_impossible_wishes_are_refused(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        sample(small("fsn"), "a", **{"symbols": 3, **how})


@pytest.mark.parametrize("prompt", [5, 0, None, ["a", "b"], [], torch.tensor([1])])
def test_a_prompt_is_one_text(prompt: Any) -> None:
    model = small("fsn")
    model.tokenizer = LETTERS
    for call in (model.generate, model.encode, model.begin):
        with pytest.raises(UserError, match=rf"text is a {type(prompt).__name__}; pass one str"):
            call(prompt)


@pytest.mark.parametrize("tokens", [[1, 2, 3], "abc", None, torch.zeros(3)])
def test_only_tensors_of_integers_are_decoded(tokens: Any) -> None:
    model = small("fsn")
    model.tokenizer = LETTERS
    with pytest.raises(UserError, match="pass a tensor of integers"):
        model.decode(tokens)


def test_top_k_zero_is_every_symbol() -> None:
    """As in transformers, and in what ``fsn export`` writes."""
    model = small("fsn")
    assert sample(model, "a", symbols=20, top_k=0) == sample(model, "a", symbols=20)


def test_the_largest_seed_is_a_seed() -> None:
    assert len(sample(small("fsn"), "a", symbols=3, seed=2**64 - 1)) == 3
