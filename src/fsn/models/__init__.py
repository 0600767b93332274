"""FSN and transformer assembled from ``nn``, their configurations, presets by name, width matching."""

from __future__ import annotations

from ..ops import CouplingLaw
from . import fused
from .base import LanguageModel
from .config import (
    Config,
    FSNConfig,
    TransformerConfig,
    config_from_dict,
    config_to_dict,
)
from .family import (
    FAMILIES,
    PINNED_K,
    TARGETS,
    FamilyRow,
    build,
    build_from_config,
    count_parameters,
    family_table,
    match_width,
    preset,
    preset_with,
    presets,
)
from .fsn import FSN, FSNLayer
from .transformer import Transformer

__all__ = [
    "FAMILIES",
    "FSN",
    "PINNED_K",
    "TARGETS",
    "Config",
    "CouplingLaw",
    "FSNConfig",
    "FSNLayer",
    "FamilyRow",
    "LanguageModel",
    "Transformer",
    "TransformerConfig",
    "build",
    "build_from_config",
    "config_from_dict",
    "config_to_dict",
    "count_parameters",
    "family_table",
    "fused",
    "match_width",
    "preset",
    "preset_with",
    "presets",
]
