"""Kernels drop the very elements that the reference drops, at every place and in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.fused.interpreter import Interpreter

CASES = [
    {"rate": 0.1, "counter": 0, "site": 2, "first_row": 0},
    {"rate": 0.5, "counter": 2**31 + 7, "site": 14, "first_row": 32},
    {"rate": 0.9, "counter": 2**61 + 2**35 + 1, "site": 0, "first_row": 1_000_003},
]
PLACES = [
    ("residual", "float32"),
    ("update", "float32"),
    ("hidden", "float32"),
    ("hidden", "bfloat16"),
    ("attention", "float32"),
    ("attention", "bfloat16"),
]


def check(masks: dict[str, list[int]], place: str, rate: float) -> None:
    assert {"forward", "backward"} < set(masks)
    reference = masks.pop("reference")
    for name, mask in masks.items():
        assert mask == reference, name
    there = 4 / 7 if place == "attention" else 1.0  # of seven columns a row sees four, on the average
    assert sum(reference) / len(reference) == pytest.approx((1 - rate) * there, abs=0.15)


@pytest.mark.parametrize(("place", "dtype"), PLACES)
@pytest.mark.parametrize("case", CASES)
def test_same_bits_in_the_interpreter(
    interpreter: Interpreter, case: dict[str, Any], place: str, dtype: str
) -> None:
    masks = interpreter("tests.ops.fused.parity:dropout_masks", place=place, dtype=dtype, **case)
    check(masks, place, case["rate"])


@pytest.mark.gpu
@pytest.mark.parametrize(("place", "dtype"), PLACES)
@pytest.mark.parametrize("case", CASES)
def test_same_bits_on_a_gpu(case: dict[str, Any], place: str, dtype: str) -> None:
    from tests.ops.fused import parity

    masks = parity.dropout_masks(place, dtype=dtype, **case, T=255, k=176, device="cuda")
    check(masks, place, case["rate"])
