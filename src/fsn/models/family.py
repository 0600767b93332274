"""Presets by name, and the public way to build a model."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import UserError
from .base import LanguageModel
from .budget import PINNED_K, TARGETS, count_parameters, match_width
from .config import Config, Coupling, FSNConfig, TransformerConfig
from .fsn import FSN
from .transformer import Transformer

_REAL = Coupling(phases=False)

FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "fsn": ({}, "complex kernel, three harmonics, co-rotating frame"),
    "fsn-literal": ({"coupling": Coupling(frame="rest")}, "the same, equation 2 as written"),
    "fsn-lean": ({"coupling": Coupling(noise=0.0)}, "no noise on the angles: the paper's early checkpoint"),
    "fsn-nophase": ({"coupling": _REAL}, "real kernel: no static frustration angles"),
    "fsn-noharmonics": ({"coupling": Coupling(harmonics=1, phases=False)}, "real kernel, one harmonic"),
    "kuramoto": (
        {"coupling": Coupling(harmonics=1, delay=False, phases=False, learned=False)},
        "the base layer: plain attraction, nothing to learn in the kernel",
    ),
    "daido": ({"coupling": Coupling(delay=False, phases=False)}, "real harmonics of the present field"),
    "successor": ({"coupling": Coupling(present=False, phases=False)}, "coupling to successors alone"),
    "fsn-nodelay": ({"coupling": Coupling(delay=False)}, "complex harmonics without the delay"),
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
    "fsn-shared-kernel": ({"coupling": Coupling(shared=True)}, "one coefficient for all coordinates"),
    "transformer": ({}, "pre-norm, RoPE, SwiGLU, one head"),
    "transformer-kvshift": (
        {"shift": "kv"},
        "the same; keys and values mixed with their predecessors' by four scalars a layer",
    ),
}

PAPER_TOTALS = {
    ("fsn", "1m", 205): 1_011_834,
    ("fsn", "1m", 97): 973_818,
    ("fsn", "8m", 205): 8_073_299,
    ("transformer", "1m", 205): 974_845,
    ("transformer", "1m", 97): 1_012_185,
    ("transformer", "8m", 205): 8_085_645,
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
            width = match_width(TARGETS[size], vocab_size)
        base: Config = TransformerConfig(vocab_size, width, **point)
    else:
        base = FSNConfig(vocab_size, overrides.pop("k", PINNED_K[size]), **point)
    known = {f.name for f in dataclasses.fields(base)}
    if isinstance(base, FSNConfig):
        law = {f.name for f in dataclasses.fields(Coupling)} & set(overrides)
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


class FamilyRow(NamedTuple):
    name: str
    width: int
    parameters: int
    paper: int | None
    about: str


def family_table(vocab_size: int = 205, sizes: tuple[str, ...] = ("1m",)) -> list[FamilyRow]:
    """The family with realised parameter counts, and the paper's where it gives one."""
    rows = []
    for family, (_, about) in FAMILIES.items():
        for size in sizes:
            config = preset(f"{family}-{size}", vocab_size)
            width = config.k if isinstance(config, FSNConfig) else config.width
            paper = PAPER_TOTALS.get((family, size, vocab_size))
            rows.append(FamilyRow(f"{family}-{size}", width, count_parameters(config), paper, about))
    return rows
