"""The one check of types: what fits, and a short sentence for what does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsn.checks import check_types
from fsn.errors import UserError


@dataclass(frozen=True)
class Inner:
    on: bool = True


@dataclass(frozen=True)
class Outer:
    count: int = 1
    rate: float = 0.5
    name: str = "x"
    on: bool = False
    perhaps: int | None = None
    kind: Literal["a", "b"] = "a"
    steps: tuple[int, ...] = ()
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        check_types(self, "outer: ")


def test_what_fits() -> None:
    Outer(count=-3, rate=2, perhaps=4, kind="b", steps=(1, 2), inner=Inner(False))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"count": True}, "outer: count is True; it takes a whole number"),
        ({"count": 1.0}, "count is 1.0; it takes a whole number"),
        ({"count": None}, "count is None; it takes a whole number"),
        ({"count": 10**23}, "count is 100000000000000000000000; it takes a whole number below 2^64"),
        ({"rate": float("nan")}, "rate is nan; it takes a finite number"),
        ({"rate": "fast"}, "rate is 'fast'; it takes a finite number"),
        ({"on": 1}, "on is 1; it takes true or false"),
        ({"perhaps": "3"}, "perhaps is '3'; it takes a whole number or nothing (null)"),
        ({"kind": "c"}, "kind is 'c'; it takes one of a, b"),
        ({"kind": ["a"]}, "kind is ['a']; it takes one of a, b"),
        ({"steps": 3}, "steps is 3; it takes a list, each entry a whole number"),
        ({"steps": (1, "2")}, "each entry a whole number"),
        ({"inner": {"on": True}}, "it takes a Inner"),
    ],
)
def test_what_does_not(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        Outer(**fields)
    assert sentence in str(caught.value)


tree = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=30
)


@given(st.sampled_from(["count", "rate", "name", "on", "perhaps", "kind", "steps", "inner"]), tree)
def test_anything_a_file_may_hold_is_taken_or_told_in_a_short_sentence(name: str, value: Any) -> None:
    try:
        Outer(**{name: value})
    except UserError as error:
        assert len(str(error)) < 300
