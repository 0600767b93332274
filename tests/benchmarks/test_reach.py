"""The sliding window of the benchmark: what lies beyond it is not seen, and one as long as the text changes nothing."""

from __future__ import annotations

import pytest
import torch

import benchmarks.reach as reach_benchmark
from fsn.data import Windows
from fsn.models import build_from_config, preset

REACH = 5


@pytest.mark.parametrize("family", ["fsn", "kuramoto", "transformer"])
def test_a_sliding_window(family: str) -> None:
    torch.manual_seed(0)
    width = {"width": 16} if family == "transformer" else {"k": 16}
    model = build_from_config(preset(f"{family}-1m", 11, layers=1, **width)).eval()
    text = torch.randint(11, (3, 24))

    def bits_by_position(text: torch.Tensor, reach: int | None) -> torch.Tensor:
        windows = Windows(text.flatten(), text.shape[1], text.shape[1])
        return reach_benchmark.bits_by_position(model, windows, torch.arange(len(text)), reach)

    whole = bits_by_position(text, None)
    torch.testing.assert_close(bits_by_position(text, 24), whole)
    near = bits_by_position(text, REACH)
    assert not torch.allclose(near[REACH:], whole[REACH:])
    changed = text.clone()
    changed[:, 2] = (text[:, 2] + 1) % 11
    after = bits_by_position(changed, REACH)
    first = 2 + REACH  # the first position that no longer looks at position 2
    torch.testing.assert_close(after[first:], near[first:])
    assert not torch.allclose(after[:first], near[:first])
