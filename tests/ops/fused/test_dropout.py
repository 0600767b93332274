"""The fused residual drops the very elements that the reference drops."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.fused.interpreter import Interpreter

CASES = [
    {"rate": 0.1, "counter": 0, "site": 2, "first_row": 0},
    {"rate": 0.5, "counter": 2**31 + 7, "site": 14, "first_row": 32},
    {"rate": 0.9, "counter": 2**61 + 2**35 + 1, "site": 0, "first_row": 1_000_003},
]


def check(masks: dict[str, list[int]], rate: float) -> None:
    assert masks["forward"] == masks["reference"]
    assert masks["backward"] == masks["reference"]
    kept = sum(masks["reference"]) / len(masks["reference"])
    assert kept == pytest.approx(1 - rate, abs=0.15)


@pytest.mark.parametrize("case", CASES)
def test_same_bits_in_the_interpreter(interpreter: Interpreter, case: dict[str, Any]) -> None:
    check(interpreter("tests.ops.fused.parity:dropout_masks", **case), case["rate"])


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_same_bits_on_a_gpu(case: dict[str, Any]) -> None:
    from tests.ops.fused import parity

    check(parity.dropout_masks(**case, T=255, k=176, device="cuda"), case["rate"])
