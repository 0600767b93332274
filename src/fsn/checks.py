"""Checks for frozen dataclasses that hold what a user has written: one sentence with the remedy, or nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import UserError


def check(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    check(value in choices, f"{name} is {value!r}; choose one of {', '.join(choices)}")


def check_types(config: Any) -> None:
    """Every field holds what it is declared to hold; a YAML file may hold anything."""
    for f in dataclasses.fields(config):
        value, declared = getattr(config, f.name), str(f.type).split(" | ")
        kind = "None" if value is None else type(value).__name__
        fits = kind in declared or (kind == "int" and "float" in declared)
        check(fits, f"{f.name} is {value!r}; it takes {' or '.join(declared)}")
        check(kind != "float" or math.isfinite(value), f"{f.name} is {value}; it takes a finite number")


def construct(cls: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass from its fields by name; what is unknown or missing is an error that names it."""
    fields = dataclasses.fields(cls)
    known = sorted(f.name for f in fields)
    for name in values:
        check(name in known, f"{cls.__name__} has no field {name!r}; it has {', '.join(known)}")
    missing = sorted(f.name for f in fields if _required(f) and f.name not in values)
    check(not missing, f"{cls.__name__} needs {', '.join(missing)}; add it")
    return cls(**values)


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
