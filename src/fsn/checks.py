"""Checks of configs that a user has written: frozen dataclasses whose mistakes raise one sentence with the remedy."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Mapping, Sequence
from reprlib import repr as short
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import UserError
from .text import printable

INT_LIMIT = 2**64
"""Whole numbers must be smaller than this."""

_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def check(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    check(value in choices, f"{name} is {value!r}; choose one of {', '.join(choices)}")


def check_types(config: Any, what: str = "") -> None:
    """Stop with one sentence if a field of the dataclass ``config`` does not hold what it is declared to hold.

    Declarations may be ``int``, ``float``, ``bool``, ``str``, a ``Literal``, ``tuple[X, ...]``, a class, and unions
    of these with None. A whole number fits where a float is declared; true and false are no numbers. ``what`` is put
    before the sentence, e.g. ``"recipe: "``.
    """
    for name, declared in field_types(config.__class__).items():
        value = getattr(config, name)
        if not _fits(value, declared):
            limit = " below 2^64" if isinstance(value, int) and abs(value) >= INT_LIMIT else ""
            raise UserError(
                f"{what}{name} is {printable(short(value), limit=80)}; it takes {_words(declared)}{limit}"
            )


@functools.cache  # reading them takes longer than the check, and a reproduction asks for thousands of recipes
def field_types(cls: Any) -> dict[str, Any]:
    """The declared type of every field of a dataclass."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _fits(value: Any, declared: Any) -> bool:
    origin = get_origin(declared)
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(declared))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(declared)
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(_fits(part, get_args(declared)[0]) for part in value)
    if declared in (int, float) and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < INT_LIMIT
    if declared is float:
        return isinstance(value, float) and math.isfinite(value)
    return isinstance(value, declared)


def _words(declared: Any) -> str:
    origin = get_origin(declared)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(choice) for choice in get_args(declared))
    if origin is Literal:
        return f"one of {', '.join(get_args(declared))}"
    if origin is tuple:
        return f"a list, each entry {_words(get_args(declared)[0])}"
    if declared is type(None):
        return "nothing (null)"
    return _NAMES.get(declared, f"a {declared.__name__}")


def construct(cls: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass from its fields by name; what is unknown or missing is an error that names it."""
    fields = dataclasses.fields(cls)
    known = sorted(f.name for f in fields)
    for name in values:
        check(name in known, f"{cls.__name__} has no field {short(name)}; it has {', '.join(known)}")
    needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    missing = sorted(needed - set(values))
    check(not missing, f"{cls.__name__} needs {', '.join(missing)}; add it")
    return cls(**values)
