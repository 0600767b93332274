"""FSN and transformer assembled from ``nn``, their configurations, presets by name, width matching."""

from __future__ import annotations

from . import fused
from .base import LanguageModel
from .budget import PINNED_K, TARGETS, count_parameters, match_width
from .config import (
    Config,
    Coupling,
    FSNConfig,
    TransformerConfig,
    config_from_dict,
    config_from_yaml,
    config_to_dict,
    config_to_yaml,
)
from .family import (
    FAMILIES,
    PAPER_TOTALS,
    FamilyRow,
    build,
    build_from_config,
    family_table,
    preset,
    preset_with,
    presets,
)
from .fsn import FSN, FSNLayer
from .transformer import Transformer

__all__ = [
    "FAMILIES",
    "FSN",
    "PAPER_TOTALS",
    "PINNED_K",
    "TARGETS",
    "Config",
    "Coupling",
    "FSNConfig",
    "FSNLayer",
    "FamilyRow",
    "LanguageModel",
    "Transformer",
    "TransformerConfig",
    "build",
    "build_from_config",
    "config_from_dict",
    "config_from_yaml",
    "config_to_dict",
    "config_to_yaml",
    "count_parameters",
    "family_table",
    "fused",
    "match_width",
    "preset",
    "preset_with",
    "presets",
]
