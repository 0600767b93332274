"""The model inside other people's tools: Hugging Face transformers and all that builds on it.

Importing this package registers the model type ``fsn`` with ``AutoConfig`` and ``AutoModelForCausalLM``. Needs
transformers.
"""

from __future__ import annotations

from ..errors import UserError

try:
    import transformers
except ImportError as error:
    raise UserError(f"this needs transformers ({error}): pip install transformers") from None

from .export import export_run, make_tokenizer
from .model import FSNForCausalLM, HubCache, HubConfig

transformers.AutoConfig.register("fsn", HubConfig, exist_ok=True)
transformers.AutoModelForCausalLM.register(HubConfig, FSNForCausalLM, exist_ok=True)

__all__ = ["FSNForCausalLM", "HubCache", "HubConfig", "export_run", "make_tokenizer"]
