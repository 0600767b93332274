"""fsn: attention as frustrated synchronization.

import fsn
model = fsn.build("fsn-1m", vocab_size=205)
logits = model(tokens)                            # (B, T, V)
logits, loss = model(tokens, targets=targets)     # loss per token, in nats
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import UserError
from .models import build, preset, presets
from .nn import record, replace

__version__ = "0.1.0"

__all__ = ["UserError", "__version__", "build", "preset", "presets", "record", "replace"]

LATER = ("data", "hub", "measure", "paper", "train")
"""Parts that ``import fsn`` leaves out, to be quick; each is imported when it is first used, as ``fsn.measure``."""

if TYPE_CHECKING:
    from . import data as data
    from . import hub as hub
    from . import measure as measure
    from . import paper as paper
    from . import train as train
else:

    def __getattr__(name: str) -> ModuleType:
        if name not in LATER:
            raise AttributeError(f"module 'fsn' has no attribute {name!r}")
        try:
            return importlib.import_module(f"fsn.{name}")
        except UserError as error:  # what a part needs is missing: no attribute, for hasattr and help as well
            raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})
