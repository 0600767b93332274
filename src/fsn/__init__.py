"""fsn: attention as frustrated synchronization.

import fsn
print(fsn.load("fsn-1m").generate("The Roman ", 200))   # trained weights that come with the package
model = fsn.build("fsn-1m", vocab_size=205)       # a new model
logits = model(tokens)                            # (B, T, V)
logits, loss = model(tokens, targets=targets)     # loss per token, in nats
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import UserError
from .models import LanguageModel, build, preset, presets
from .nn import record, replace

__version__ = "0.1.0"

__all__ = ["UserError", "__version__", "build", "load", "preset", "presets", "record", "replace"]

LATER = ("data", "hub", "measure", "paper", "train")
"""Parts that ``import fsn`` leaves out, to be quick; each is imported when it is first used, as ``fsn.measure``."""

if TYPE_CHECKING:
    from . import data as data
    from . import hub as hub
    from . import measure as measure
    from . import paper as paper
    from . import train as train
    from .pretrained import load as load
else:

    def __getattr__(name: str) -> ModuleType | Callable[..., LanguageModel]:
        if name == "load":
            return importlib.import_module("fsn.pretrained").load
        if name not in LATER:
            raise AttributeError(f"module 'fsn' has no attribute {name!r}")
        try:
            return importlib.import_module(f"fsn.{name}")
        except UserError as error:  # what a part needs is missing: no attribute, for hasattr and help as well
            raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER, "load"})
