"""Memory is O(T² + T·N·k): no tensor of size T²·k is ever made, forward or backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import fsn
from fsn.models import LanguageModel
from fsn.ops.cpu import ROWS
from tests.small import ALL_FAMILIES

T, K, N, V = 64, 16, 3, 11


class Largest(TorchDispatchMode):
    """The largest storage behind any tensor that an operation returns, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.where = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, Tensor):
                elements = value.untyped_storage().nbytes() // value.element_size()
                if elements > self.elements:
                    self.elements, self.where = elements, str(func)
        return result


def largest(model: LanguageModel, length: int, record: bool = False) -> Largest:
    tokens = torch.randint(V, (1, length))
    with Largest() as seen:
        if record:
            with fsn.record(model):
                loss = model.loss(tokens, tokens)
        else:
            loss = model.loss(tokens, tokens)
        loss.sum().backward()
    return seen


@pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_no_tensor_grows_with_all_of_time_squared_and_phases(family: str, record: bool) -> None:
    size = {"width": K} if family.startswith("transformer") else {"k": K}
    model = fsn.build(f"{family}-1m", vocab_size=V, layers=2, **size)
    seen = largest(model, T, record)
    assert T * K <= seen.elements <= T * T + 2 * T * N * K, seen.where
    assert seen.elements < T * T * K / 4


def test_doubling_the_phases_does_not_double_the_quadratic_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long sequence on few phases: the largest tensor is the attention matrix, whatever k is. The CPU's own path has
    only blocks of it."""
    long = 256
    for k in (4, 8, 16):
        model = fsn.build("fsn-1m", vocab_size=V, layers=1, k=k)
        monkeypatch.setenv("FSN_FUSED", "1")
        assert largest(model, long).elements == max(ROWS * long, 2 * N * k * long)
        monkeypatch.setenv("FSN_FUSED", "0")
        assert largest(model, long).elements == long * long
