"""The remedies of the benchmark: what a sliding window leaves out is not seen, clamped distances stay below the reach,
and a reach as long as the text changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import benchmarks.reach as reach_benchmark
from fsn.data import Windows
from fsn.models import LanguageModel, build_from_config, preset
from tests.small import rotate_half

REACH = 5


SYMBOLS = 11


def small(family: str) -> LanguageModel:
    torch.manual_seed(0)
    width = {"width": 16} if family == "transformer" else {"k": 16}
    return build_from_config(preset(f"{family}-1m", SYMBOLS, layers=1, **width)).eval()


def bits(model: LanguageModel, text: Tensor, way: str, reach: int) -> Tensor:
    windows = Windows(text.flatten(), text.shape[1], text.shape[1])
    found, far = reach_benchmark.bits_by_position(model, windows, torch.arange(len(text)), way, reach)
    assert len(far) == 1 and 0 <= far[0] <= 1 and (far[0] > 0) == (reach < text.shape[1])
    return found.float()


@pytest.mark.parametrize("family", ["fsn", "kuramoto", "transformer"])
def test_a_sliding_window(family: str) -> None:
    model, text = small(family), torch.randint(SYMBOLS, (3, 24))
    whole = bits(model, text, "as it is", 24)
    torch.testing.assert_close(bits(model, text, "sliding", 24), whole)
    near = bits(model, text, "sliding", REACH)
    assert not torch.allclose(near[:, REACH:], whole[:, REACH:])
    changed = text.clone()
    changed[:, 2] = (text[:, 2] + 1) % SYMBOLS
    after = bits(model, changed, "sliding", REACH)
    first = 2 + REACH  # the first position that no longer looks at position 2
    torch.testing.assert_close(after[:, first:], near[:, first:])
    assert not torch.allclose(after[:, :first], near[:, :first])


@pytest.mark.parametrize("family", ["fsn", "kuramoto", "transformer"])
def test_clamped_distances(family: str) -> None:
    model, text = small(family), torch.randint(SYMBOLS, (3, 24))
    whole = bits(model, text, "as it is", 24)
    torch.testing.assert_close(bits(model, text, "clamped", 24), whole)
    assert not torch.allclose(bits(model, text, "clamped", REACH)[:, REACH:], whole[:, REACH:])


def test_products_of_clamped_distances() -> None:
    """Every pair turned by its own distance, one at a time."""
    torch.manual_seed(0)
    length, pairs = 9, 3
    query, keys = torch.randn(2, length, 2 * pairs, dtype=torch.float64)
    rates = torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)
    rotated = [rotate_half(x, rates) for x in (query, keys)]
    found = reach_benchmark.clamped_products(*rotated, rates, REACH)
    for t in range(length):
        for u in range(t + 1):
            angle = min(t - u, REACH - 1) * rates
            q, k = (torch.complex(*x.chunk(2)) for x in (query[t], keys[u]))
            right = (q * torch.polar(torch.ones_like(angle), angle) * k.conj()).real.sum()
            torch.testing.assert_close(found[t, u], right)
