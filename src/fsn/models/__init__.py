"""FSN and transformer assembled from ``nn``, their configurations, presets by name, width matching."""

from __future__ import annotations

from ..ops import CouplingLaw
from . import fused_stack
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
    MATCHES,
    TARGETS,
    body_parameters,
    build,
    build_from_config,
    check_size,
    count_parameters,
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
    "MATCHES",
    "TARGETS",
    "Config",
    "CouplingLaw",
    "FSNConfig",
    "FSNLayer",
    "LanguageModel",
    "Transformer",
    "TransformerConfig",
    "body_parameters",
    "build",
    "build_from_config",
    "check_size",
    "config_from_dict",
    "config_to_dict",
    "count_parameters",
    "fused_stack",
    "match_width",
    "preset",
    "preset_with",
    "presets",
]
