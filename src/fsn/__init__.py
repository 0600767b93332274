"""fsn: attention as frustrated synchronization.

import fsn
print(fsn.load("fsn-1m").generate("The Roman ", 200))   # trained weights that come with the package
model = fsn.build("fsn-1m", vocab_size=205)       # a new model
logits = model(tokens)                            # (B, T, V)
logits, loss = model(tokens, targets=targets)     # loss per token, in nats
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import UserError

__version__ = "0.1.0"

PARTS = ("data", "hub", "measure", "models", "nn", "ops", "paper", "train")
"""Parts that are imported when they are first used, as ``fsn.measure``."""
FROM = {
    "FrustratedAttention": "nn",
    "build": "models",
    "load": "pretrained",
    "preset": "models",
    "presets": "models",
    "record": "nn",
    "replace": "nn",
}
"""Names that ``fsn`` itself has, and the part each comes from; PyTorch is imported with the first of them."""

__all__ = [
    "FrustratedAttention",
    "UserError",
    "__version__",
    "build",
    "load",
    "preset",
    "presets",
    "record",
    "replace",
]

if TYPE_CHECKING:
    from . import data as data
    from . import hub as hub
    from . import measure as measure
    from . import models as models
    from . import nn as nn
    from . import ops as ops
    from . import paper as paper
    from . import train as train
    from .models import build, preset, presets
    from .nn import FrustratedAttention, record, replace
    from .pretrained import load
else:

    def __getattr__(name: str) -> Any:
        if name in FROM:
            value = getattr(importlib.import_module(f"fsn.{FROM[name]}"), name)
            globals()[name] = value
            return value
        if name not in PARTS:
            raise AttributeError(f"module 'fsn' has no attribute {name!r}")
        try:
            return importlib.import_module(f"fsn.{name}")
        except UserError as error:  # what a part needs is missing: no attribute, for hasattr and help as well
            raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *PARTS, *FROM})
