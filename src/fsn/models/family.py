"""Presets by name, and the public way to build a model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..checks import check_choice
from ..errors import UserError, did_you_mean
from ..ops import CouplingLaw
from .base import LanguageModel
from .config import Config, FSNConfig, TransformerConfig
from .fsn import FSN
from .transformer import Transformer

PINNED_K = {"1m": 176, "2m": 246, "4m": 352, "8m": 511}
"""The FSN's width per rung of the ladder: pinned by the paper, not searched."""
TARGETS = {"1m": 1_000_000, "2m": 2_000_000, "4m": 4_000_000, "8m": 8_000_000}
WIDTH_STEP = 4
MATCHES = ("paper", "total", "body")
"""What makes models of one size alike. ``paper``: as the paper has it, the FSN's width pinned and the transformer's
total matched, which is fair for a few hundred symbols. With tens of thousands, embedding and readout outweigh the
layers: ``total`` matches all parameters of both, ``body`` those of the layers, with the widths of 205 symbols."""
PAPER_VOCABULARY = 205
MOST_LAYERS = 10_000

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
    "fsn-nobound": ({"bound": "none"}, "no bound on any update; the paper's run diverged, ours did not"),
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
        hint = did_you_mean(name, presets(), len(TARGETS), 0.4)
        raise UserError(f"there is no preset {name!r}; {hint}`fsn models` lists them all")
    return family, size


def preset(name: str, vocab_size: int, **overrides: Any) -> Config:
    """The configuration behind a preset's name, with fields replaced by keyword.

    Fields of the coupling law can be given directly, e.g. ``preset("fsn-1m", 205, harmonics=5)``. ``match``, one of
    :data:`MATCHES`, says how the width follows from the size, e.g. ``preset("transformer-1m", 32_000, match="body")``.
    """
    return preset_with(name, vocab_size, overrides)


def preset_with(name: str, vocab_size: int, fields: Mapping[str, Any]) -> Config:
    """:func:`preset` with fields that a user has written: none may take the place of an argument."""
    overrides = {
        field: value.item() if isinstance(value, np.generic) else value for field, value in fields.items()
    }
    vocab_size = vocab_size.item() if isinstance(vocab_size, np.generic) else vocab_size
    if "vocab_size" in overrides:
        raise UserError(
            "vocab_size is the number of symbols of the corpus; leave it out of the model's fields"
        )
    family, size = _split(name)
    point, _ = FAMILIES[family]
    field, kind = ("width", TransformerConfig) if family.startswith("transformer") else ("k", FSNConfig)
    if "match" in overrides and overrides.get(field) is not None:
        raise UserError(
            f"match chooses the width, and {field}={overrides[field]} sets it: leave out one of the two"
        )
    match = overrides.pop("match", "paper")
    check_choice("match", match, MATCHES)

    def of_width(width: int, symbols: int = vocab_size) -> Config:
        return kind(symbols, width, **point)

    width = overrides.pop(field, None)
    if width is None:
        width = _width(of_width, size, kind is FSNConfig, match)
    return with_fields(of_width(width), overrides, name)


def with_fields(base: Config, fields: Mapping[str, Any], name: str) -> Config:
    """A config with other values for some of its fields, or its coupling law's; ``name`` is the model's in an error."""
    overrides = dict(fields)
    known = {f.name for f in dataclasses.fields(base)}
    if isinstance(base, FSNConfig):
        law = {f.name for f in dataclasses.fields(CouplingLaw)} & set(overrides)
        if law:
            coupling = dataclasses.replace(base.coupling, **{name: overrides.pop(name) for name in law})
            base = dataclasses.replace(base, coupling=coupling)
    for field in overrides:
        if field not in known:
            more = ", ".join(f.name for f in dataclasses.fields(CouplingLaw))
            more = f", in its coupling {more}" if isinstance(base, FSNConfig) else ""
            raise UserError(f"{name} has no field {field!r}; it has {', '.join(sorted(known))}{more}")
    return dataclasses.replace(base, **overrides)


def _width(of_width: Callable[..., Config], size: str, pinned: bool, match: str) -> int:
    """The width that a preset has where none is given."""
    if pinned and match != "total":
        return PINNED_K[size]
    target = TARGETS[size]
    if match == "body":
        return match_width(target, lambda width: of_width(width, PAPER_VOCABULARY))
    width = match_width(target, of_width)
    total = count_parameters(of_width(width))
    if match == "total" and abs(total - target) > target / 4:
        raise UserError(
            f"with {of_width(width).vocab_size:,} symbols no width comes near {target:,} parameters (width {width} has "
            f"{total:,}): take match=body, a larger size or fewer symbols"
        )
    return width


def check_size(config: Config) -> None:
    """Stop before memory is taken that this machine does not have."""
    if config.layers > MOST_LAYERS:
        raise UserError(f"layers is {config.layers:,}; take at most {MOST_LAYERS:,}")
    wide = config.k if isinstance(config, FSNConfig) else config.width
    inner = [getattr(config, name, None) or 0 for name in ("hidden", "modes", "winding", "register")]
    if isinstance(config, FSNConfig):
        inner.append(config.coupling.harmonics)
    least = 4 * wide * (config.vocab_size + config.layers * (wide + sum(inner)))  # bytes, from below
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # where a system does not say it
        return
    if least > memory:
        raise UserError(
            f"this model would take more than {least / 2**30:,.0f} GiB, and this machine has {memory / 2**30:,.0f}: "
            "make it smaller"
        )


def build_from_config(config: Config) -> LanguageModel:
    if torch.get_default_device().type != "meta":
        check_size(config)
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


def width_of(config: Config) -> int:
    return config.k if isinstance(config, FSNConfig) else config.width


def body_parameters(config: Config) -> int:
    """The parameters that do not grow with the number of symbols: all but embedding and readout."""
    one, two = (count_parameters(dataclasses.replace(config, vocab_size=symbols)) for symbols in (1, 2))
    return 2 * one - two


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
