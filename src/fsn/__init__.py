"""fsn: attention as frustrated synchronization.

import fsn
model = fsn.build("fsn-1m", vocab_size=205)
logits = model(tokens)                            # (B, T, V)
logits, loss = model(tokens, targets=targets)     # loss per token, in nats
"""

from __future__ import annotations

from .errors import UserError
from .models import build, preset, presets
from .nn import record, replace

__version__ = "0.1.0"

__all__ = ["UserError", "__version__", "build", "preset", "presets", "record", "replace"]
