"""Tokens and targets of a batch in one kernel: the same symbols as by indexing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.fused.interpreter import Interpreter

CASES: list[dict[str, Any]] = [
    {"position": 0, "batch": 4, "rows": [0, 4], "length": 9},
    {"position": 2, "batch": 4, "rows": [1, 3], "length": 9},  # not the first rows
    {"position": 1, "batch": 7, "rows": [3, 4], "length": 600},  # several blocks
    {"position": 3, "batch": 5, "rows": [2, 4], "length": 2},
    {"position": 1, "batch": 4, "rows": [0, 4], "length": 9, "kind": "int16"},  # subwords
    {"position": 1, "batch": 4, "rows": [0, 4], "length": 9, "kind": "uint16"},
    {"position": 1, "batch": 4, "rows": [0, 4], "length": 9, "kind": "int32"},
]


def differences(
    position: int,
    batch: int,
    rows: list[int],
    length: int,
    stride: int = 3,
    device: str = "cpu",
    kind: str = "uint8",
) -> int:
    """Symbols that differ from those of ``Windows.gather``."""
    import torch

    from fsn.data import Windows
    from fsn.ops.fused.gather import gather

    symbols = {"uint8": 256, "int16": 2**15, "uint16": 2**16, "int32": 100_000}[kind]
    text = torch.randint(symbols, (length + 19 * stride,)).to(getattr(torch, kind)).to(device)
    windows = Windows(text, length, stride)
    order = torch.randperm(len(windows)).to(device)
    counters = torch.tensor([position, 77, 99], device=device)
    tokens, targets = gather(counters, order, text, batch, range(*rows), stride, length)
    places = order[position * batch + rows[0] : position * batch + rows[1]]
    expected = windows.gather(places)
    wrong = int((tokens != expected[:, :-1]).sum() + (targets != expected[:, 1:]).sum())
    assert tokens.dtype == targets.dtype == torch.int64
    assert tokens.is_contiguous() and targets.is_contiguous()
    return wrong


@pytest.mark.parametrize("case", CASES)
def test_the_same_symbols_in_the_interpreter(interpreter: Interpreter, case: dict[str, Any]) -> None:
    assert interpreter("tests.ops.fused.test_gather:differences", **case) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_the_same_symbols_on_a_gpu(case: dict[str, Any]) -> None:
    assert differences(**case, device="cuda") == 0
