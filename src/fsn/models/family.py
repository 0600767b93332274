"""Presets by name, and the public way to build a model."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..errors import UserError
from ..ops import CouplingLaw
from .base import LanguageModel
from .config import Config, FSNConfig, TransformerConfig
from .fsn import FSN
from .transformer import Transformer

PINNED_K = {"1m": 176, "2m": 246, "4m": 352, "8m": 511}
"""The FSN's width per rung of the ladder: pinned by the paper, not searched."""
TARGETS = {"1m": 1_000_000, "2m": 2_000_000, "4m": 4_000_000, "8m": 8_000_000}
WIDTH_STEP = 4

_REAL = CouplingLaw(phases=False)

FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "fsn": ({}, "complex kernel, three harmonics, co-rotating frame"),
    "fsn-literal": ({"coupling": CouplingLaw(frame="rest")}, "the same, equation 2 as written"),
    "fsn-lean": (
        {"coupling": CouplingLaw(noise=0.0)},
        "no noise on the angles: the paper's early checkpoint",
    ),
    "fsn-nophase": ({"coupling": _REAL}, "real kernel: no static frustration angles"),
    "fsn-noharmonics": ({"coupling": CouplingLaw(harmonics=1, phases=False)}, "real kernel, one harmonic"),
    "kuramoto": (
        {"coupling": CouplingLaw(harmonics=1, delay=False, phases=False, learned=False)},
        "the base layer: plain attraction, nothing to learn in the kernel",
    ),
    "daido": ({"coupling": CouplingLaw(delay=False, phases=False)}, "real harmonics of the present field"),
    "successor": ({"coupling": CouplingLaw(present=False, phases=False)}, "coupling to successors alone"),
    "fsn-nodelay": ({"coupling": CouplingLaw(delay=False)}, "complex harmonics without the delay"),
    "fsn-nobound": ({"bound": "none"}, "no bound on any update: diverges, and that is the result"),
    "fsn-mf": ({"feedforward": "mean-field"}, "collective modes in place of SwiGLU"),
    "fsn-mf-winding": ({"feedforward": "mean-field-winding"}, "collective modes and a few that read winding"),
    "fsn-dissolved": (
        {"feedforward": "mean-field", "state": "wrapped"},
        "phases wrapped after every layer, history in a small register",
    ),
    "fsn-torus-swiglu": (
        {"coupling": _REAL, "feedforward": "torus-swiglu"},
        "real kernel, SwiGLU on cos and sin: blind to winding",
    ),
    "fsn-positive-gate": ({"value_gate": "positive"}, "value gate through softplus: no repulsion"),
    "fsn-shared-kernel": ({"coupling": CouplingLaw(shared=True)}, "one coefficient for all coordinates"),
    "fsn-score": ({"coupling": CouplingLaw(score_successor=True)}, "the score sees successors too"),
    "transformer": ({}, "pre-norm, RoPE, SwiGLU, one head"),
    "transformer-kvshift": (
        {"shift": "kv"},
        "the same; keys and values mixed with their predecessors' by four scalars a layer",
    ),
}


def presets() -> list[str]:
    """Every name :func:`build` knows: families × sizes."""
    return [f"{family}-{size}" for family in FAMILIES for size in TARGETS]


def _split(name: str) -> tuple[str, str]:
    family, _, size = name.rpartition("-")
    if family not in FAMILIES or size not in TARGETS:
        close = difflib.get_close_matches(name, presets(), n=len(TARGETS), cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UserError(f"there is no preset {name!r}; {hint}`fsn models` lists them all")
    return family, size


def preset(name: str, vocab_size: int, **overrides: Any) -> Config:
    """The configuration behind a preset's name, with fields replaced by keyword.

    Fields of the coupling law can be given directly, e.g. ``preset("fsn-1m", 205, harmonics=5)``.
    """
    return preset_with(name, vocab_size, overrides)


def preset_with(name: str, vocab_size: int, fields: Mapping[str, Any]) -> Config:
    """:func:`preset` with fields that a user has written: none may take the place of an argument."""
    overrides = dict(fields)
    if "vocab_size" in overrides:
        raise UserError(
            "vocab_size is the number of symbols of the corpus; leave it out of the model's fields"
        )
    family, size = _split(name)
    point, _ = FAMILIES[family]
    if family.startswith("transformer"):
        width = overrides.pop("width", None)
        if width is None:
            width = match_width(TARGETS[size], lambda width: TransformerConfig(vocab_size, width, **point))
        base: Config = TransformerConfig(vocab_size, width, **point)
    else:
        base = FSNConfig(vocab_size, overrides.pop("k", PINNED_K[size]), **point)
    known = {f.name for f in dataclasses.fields(base)}
    if isinstance(base, FSNConfig):
        law = {f.name for f in dataclasses.fields(CouplingLaw)} & set(overrides)
        if law:
            coupling = dataclasses.replace(base.coupling, **{name: overrides.pop(name) for name in law})
            base = dataclasses.replace(base, coupling=coupling)
    for field in overrides:
        if field not in known:
            raise UserError(f"{name} has no field {field!r}; it has {', '.join(sorted(known))}")
    return dataclasses.replace(base, **overrides)


def build_from_config(config: Config) -> LanguageModel:
    return FSN(config) if isinstance(config, FSNConfig) else Transformer(config)


def build(name: str, vocab_size: int, **overrides: Any) -> LanguageModel:
    """A model by preset name: ``fsn.build("fsn-1m", vocab_size=205)``.

    Keyword arguments replace fields of the configuration: ``k``, ``layers``, ``dropout``, …; ``width`` for the
    transformer. Initial values come from PyTorch's generator: call ``torch.manual_seed`` first.
    """
    return build_from_config(preset(name, vocab_size, **overrides))


def count_parameters(config: Config) -> int:
    """The exact total, from a model built without memory."""
    with torch.device("meta"):
        return build_from_config(config).parameter_count()


def match_width(target: int, config: Callable[[int], Config], step: int = WIDTH_STEP) -> int:
    """The width, in steps of ``step``, for which the total of ``config(width)`` lands nearest the target.

    For the transformer with 205 symbols: 120, 172, 248, 352 for 1, 2, 4, 8 million.
    """
    if target < 1:
        raise UserError(f"the parameter target is {target}; give a positive number")

    def total(steps: int) -> int:
        return count_parameters(config(steps * step))

    low, high = 1, 2
    while total(high) < target:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle) < target else (low, middle)
    return step * min((low, high), key=lambda steps: abs(total(steps) - target))


class FamilyRow(NamedTuple):
    name: str
    width: int
    parameters: int
    about: str


def family_table(vocab_size: int = 205, sizes: tuple[str, ...] = ("1m",)) -> list[FamilyRow]:
    """The family with realised parameter counts."""
    rows = []
    for family, (_, about) in FAMILIES.items():
        for size in sizes:
            config = preset(f"{family}-{size}", vocab_size)
            width = config.k if isinstance(config, FSNConfig) else config.width
            rows.append(FamilyRow(f"{family}-{size}", width, count_parameters(config), about))
    return rows
