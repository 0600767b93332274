"""The plateau failure: some seeds stay far behind their siblings after the first epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .folder import LABELS, flatten, read_config, read_metrics
from .recipe import BOOKKEEPING, DURATION

MARGIN_BITS = 0.2  # healthy seeds differ by hundredths of a bit after an epoch


@dataclass(frozen=True)
class Trailing:
    """A run that trails the best of its siblings."""

    run: str
    bits: float
    best: float

    @property
    def by(self) -> float:
        return self.bits - self.best


def trailing(bits: Mapping[str, float], margin: float = MARGIN_BITS) -> list[Trailing]:
    """The runs whose bits after epoch 1 exceed the best sibling's by more than ``margin``."""
    if len(bits) < 2:
        return []
    best = min(bits.values())
    return [Trailing(run, b, best) for run, b in bits.items() if b - best > margin]


def same_but_seed(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two configs differ in nothing but the seed (and in what does not touch epoch 1)."""
    free = LABELS | {f"recipe.{name}" for name in BOOKKEEPING | DURATION | {"seed"}}
    x, y = flatten(dict(a)), flatten(dict(b))
    return {k: v for k, v in x.items() if k not in free} == {k: v for k, v in y.items() if k not in free}


def epoch_one_bits(lines: Iterable[Mapping[str, Any]]) -> float | None:
    for line in lines:
        if line.get("kind") == "epoch" and line.get("epoch") == 1 and line.get("complete", True):
            return line.get("valid_bits")
    return None


def siblings(folder: Path, config: Mapping[str, Any]) -> dict[str, float]:
    """Epoch-1 bits of the other run folders beside ``folder`` with the same config and another seed."""
    found: dict[str, float] = {}
    here = folder.resolve()
    for other in sorted(here.parent.iterdir()):
        if other == here or not (other / "config.yaml").is_file():
            continue
        try:
            theirs = read_config(other)
            bits = epoch_one_bits(read_metrics(other))
        except (UserError, OSError):
            continue
        different = theirs["recipe"].get("seed") != config["recipe"].get("seed")
        if bits is not None and different and same_but_seed(config, theirs):
            found[other.name] = bits
    return found
