"""Fields of models and recipes as people write them, on the command line or in a sweep file."""

from __future__ import annotations

import contextlib
from typing import Any

import yaml

from ..errors import UserError


def parse_fields(words: tuple[str, ...]) -> dict[str, Any]:
    """``("k=96", "bound=none")`` as a dict; values are read as YAML."""
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"{word!r} is not of the form field=value")
        name = name.replace("-", "_")
        if name in fields:
            raise UserError(f"{name} is given twice, the second time as {word!r}; give it once")
        parsed: Any = value
        with contextlib.suppress(yaml.YAMLError):
            parsed = yaml.safe_load(value)
        fields[name] = with_numbers(parsed)
    return fields


def with_numbers(value: Any) -> Any:
    """A value from a YAML file, where 1e-3 is a number too: YAML 1.1 takes it for text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value
