"""Fields as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from fsn import UserError
from fsn.train.recipe import parse_fields


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ((), {}),
        (("k=96", "bound=none"), {"k": 96, "bound": "none"}),
        (("readout-start=1e-3", "noise=.5"), {"readout_start": 0.001, "noise": 0.5}),
        (("partition=", "a=b=c"), {"partition": None, "a": "b=c"}),
    ],
)
def test_values_are_what_they_look_like(words: tuple[str, ...], fields: dict[str, Any]) -> None:
    assert parse_fields(words) == fields


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("k",), "'k' is not of the form field=value"),
        (("=8",), "'=8' is not of the form field=value"),
        (("k=8", "layers=2", "k=16"), "k is given twice, the second time as 'k=16'; give it once"),
        (("readout-start=1", "readout_start=1"), "readout_start is given twice"),
    ],
)
def test_what_means_nothing_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_fields(words)
