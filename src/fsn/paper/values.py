"""The paper's own numbers, each with the place in ``values.json`` it comes from.

``values.json`` was made from the paper's source: every numeric macro, and the tables typed out there. Its
first line names the paper. Nothing here is measured by this project.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fsn.errors import UserError

MACROS = "every numeric macro of the paper"
EFFICIENCY = "efficiency (A100, fp32, eager; thousand tokens/s)"
DEEP_SHARE = "deep share of validation tokens (depth >= 24), percent"

Path = tuple[str, ...]


@dataclass(frozen=True)
class Cited:
    """A number of the paper, the deviation or half-spread it gives with it, and where both stand."""

    value: float
    sources: tuple[Path, ...]
    spread: float | None = None

    def plus_minus(self, other: Cited) -> Cited:
        """The same number with ``other`` as its deviation over seeds."""
        return Cited(self.value, self.sources + other.sources, other.value)

    def also(self, *paths: Path) -> Cited:
        """The same number, naming further places that belong to it."""
        return Cited(self.value, self.sources + paths, self.spread)

    def times(self, factor: float) -> Cited:
        """The number in other units."""
        spread = None if self.spread is None else self.spread * factor
        return Cited(self.value * factor, self.sources, spread)

    def minus(self, other: Cited) -> Cited:
        """A difference the paper leaves to its reader."""
        return Cited(self.value - other.value, self.sources + other.sources)


@functools.cache
def values() -> dict[str, Any]:
    """All of ``values.json``."""
    text = resources.files("fsn.paper").joinpath("values.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def parameter_totals() -> dict[tuple[str, str, int], int]:
    """The totals the paper gives, by family, size and number of symbols: 205 on enwik8, 97 on code."""
    symbols = {"enwik8": 205, "code": 97}
    keyed = ((name.split("/"), total) for name, total in values()["parameters"].items())
    return {(family, size.lower(), symbols[corpus]): total for (family, corpus, size), total in keyed}


def source() -> str:
    """Which paper the numbers are from."""
    return str(values()["source"])


def look_up(path: Path) -> float:
    """The number at a path of keys; a list is entered by position, written as text."""
    here: Any = values()
    for key in path:
        try:
            here = here[int(key)] if isinstance(here, list) else here[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise UserError(f"the paper's values hold nothing at {' > '.join(path)}") from None
    if isinstance(here, bool) or not isinstance(here, int | float):
        raise UserError(f"the paper's values hold no number at {' > '.join(path)}")
    return float(here)


def cite(*path: str) -> Cited:
    """``cite("ladder", "2M", "fsn@30")``: the paper's number at that path."""
    return Cited(look_up(path), (path,))


def stated(value: float) -> Cited:
    """A number that stands in the paper's prose or in its configuration table, not among the values."""
    return Cited(float(value), ())


def macro(name: str) -> Cited:
    """``macro("sfnThirty")``: a number by the name of its macro in the paper's source."""
    return cite(MACROS, name)


def leaves(here: Any = None, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every single value with its path, in order."""
    here = values() if here is None else here
    if isinstance(here, dict):
        for key, inner in here.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(here, list):
        for i, inner in enumerate(here):
            yield from leaves(inner, (*path, str(i)))
    else:
        yield path, here
