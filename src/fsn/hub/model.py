"""Any model of the family as a causal language model of transformers."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from ..errors import UserError
from ..models import build_from_config, config_from_dict
from ..models.base import IGNORED
from ..nn import Cache, Probe, record, replace

CODE_FILE = "modeling_fsn"
CODE = '''"""For `from_pretrained(..., trust_remote_code=True)`. Needs the package fsn, which holds the model itself."""

try:
    from fsn.hub import FSNForCausalLM, HubConfig
except ImportError as error:
    raise ImportError(
        f"this model needs the package fsn, an implementation of arXiv:2606.18694 that is not on PyPI ({error}): "
        "clone its repository and run pip install -e '.[hub]' there"
    ) from None

__all__ = ["FSNForCausalLM", "HubConfig"]
'''


class HubConfig(PreTrainedConfig):
    """``config.json``: the model's own configuration under ``architecture``, and fields that other tools expect."""

    model_type = "fsn"

    architecture: dict[str, Any] | None = None
    """The model's configuration as ``fsn.models.config_to_dict`` writes it."""
    window: int = 256
    """Symbols in a training window, the first of them never predicted."""
    symbols: str | None = None
    """The byte values of the symbols, in hexadecimal, for ``fsn.load``."""
    line_break: int | None = None
    """The symbol in place of the tokenizer's beginning- and end-of-text token, where symbols are bytes."""
    end: int | None = None
    """The beginning- and end-of-text token, where tokens are subwords."""
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 1
    max_position_embeddings: int = 0
    """Symbols that training showed at once. Positions enter only as distances: longer texts are computed too."""
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    """None where symbols are bytes: generation goes on over line breaks."""
    pad_token_id: int | None = None
    """None: the tokenizer's is not among the model's symbols."""
    use_cache: bool = True
    """False: no cache, unless a call asks for one."""
    tie_word_embeddings: bool = False
    """Symbols are read and written by tables of their own."""

    def __post_init__(self, **kwargs: Any) -> None:
        if self.architecture is not None:
            model = config_from_dict(self.architecture)
            self.vocab_size, self.num_hidden_layers = model.vocab_size, model.layers
            self.hidden_size = int(getattr(model, "k", 0) or getattr(model, "width", 0))
            self.num_attention_heads = int(getattr(model, "heads", 1))
        self.max_position_embeddings = self.window - 1
        self.bos_token_id = self.line_break if self.end is None else self.end
        self.eos_token_id = self.end if self.eos_token_id is None else self.eos_token_id
        super().__post_init__(**kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Does nothing: with ``trust_remote_code``, transformers would copy this file beside every saved config, where
        it cannot be imported. :meth:`save_pretrained` writes one that can."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **named: Any) -> None:
        """Also writes the file with which ``trust_remote_code=True`` finds these classes."""
        self.auto_map = {
            "AutoConfig": f"{CODE_FILE}.HubConfig",
            "AutoModelForCausalLM": f"{CODE_FILE}.FSNForCausalLM",
        }
        super().save_pretrained(save_directory, *args, **named)
        (Path(save_directory) / f"{CODE_FILE}.py").write_text(CODE)


class HubCache(Cache):
    """A model's cache, with the methods that ``generate`` calls."""

    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.reorder(beam_idx)

    def activate_past_recording(self) -> None:
        """Does nothing: the cache can always drop positions."""

    def crop(self, length: int) -> None:
        """−n drops the last n positions, as in ``generate``."""
        if length > 0:
            raise UserError(f"crop({length}): pass minus the number of positions to drop, or use cut")
        self.cut(max(0, self.length + length))


class FSNForCausalLM(PreTrainedModel, GenerationMixin):
    """``AutoModelForCausalLM.from_pretrained(folder)`` returns this for an exported run, FSN or transformer.

    ``from_pretrained`` keeps weights and phases in float32, whatever ``dtype`` is given; for speed on a GPU use
    autocast.
    """

    config_class = HubConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _keep_in_fp32_modules_strict = ("model",)

    def __init__(self, config: HubConfig) -> None:
        super().__init__(config)
        if config.architecture is None:
            raise UserError("the config has no architecture; make one with fsn.models.config_to_dict")
        self.model = build_from_config(config_from_dict(config.architecture))
        embedding = self.get_input_embeddings()  # no hook of PyTorch: the fused kernels step aside for those
        embedding.forward = functools.partial(self._embed, embedding.forward)
        self.post_init()

    @property
    def probe(self) -> Probe:
        """The inner model's, so that ``fsn.record`` and ``fsn.replace`` take this one as well."""
        return self.model.probe

    @probe.setter
    def probe(self, probe: Probe) -> None:
        self.model.probe = probe

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Modules initialise their own weights; only buffers that are in no file are restored."""
        restore = getattr(module, "restore_buffers", None)
        if restore is not None:
            restore()

    def _initialize_missing_keys(self, *args: Any, **named: Any) -> None:
        """Refuse a file that lacks weights: they would stay uninitialised."""
        missing = [n for n, p in self.named_parameters() if not getattr(p, "_is_hf_initialized", False)]
        if missing:
            raise UserError(f"the file lacks {', '.join(missing[:3])}; export the run again")
        super()._initialize_missing_keys(*args, **named)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any, **named: Any
    ) -> None:
        """``generate`` starts with a HubCache, not a cache of transformers: layers cache more than keys and values."""
        if generation_config.cache_implementation is not None:
            raise UserError("this model has a cache of its own; leave cache_implementation out")
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = HubCache(self.config.num_hidden_layers)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_submodule("embedding")

    def _embed(self, table: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        """What the embedding gives for the tokenizer's tokens: padding has the row of symbol 0."""
        return table(self._without_padding(tokens, None)[0])

    def gradient_checkpointing_enable(self, *args: Any, **named: Any) -> None:
        raise UserError(
            "this model has no gradient checkpointing; to save memory, take smaller batches and accumulate gradients"
        )

    def resize_token_embeddings(self, *size: Any, **named: Any) -> nn.Module:
        raise UserError("the symbols of this model are those of its corpus; train a new one for others")

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: HubCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the symbols after each of ``input_ids`` (B, T), which follow the positions in ``past_key_values``.

        ``attention_mask`` (B, T or all positions so far) has zeros for padding. ``labels`` are the inputs themselves,
        as everywhere in transformers: they are shifted here, and −100 is ignored, as are predictions from padding.
        ``inputs_embeds`` (B, T, k) are phases (in a transformer: states) in place of symbols. ``output_hidden_states``
        returns the phases before the first layer and after each, ``output_attentions`` the attention of every layer,
        (B, heads, T, all positions so far).
        """
        cache = past_key_values
        input_ids = self._check(input_ids, inputs_embeds, attention_mask, cache)
        input_ids, padding = self._without_padding(input_ids, attention_mask)
        if use_cache is None:
            use_cache = cache is not None and self.config.use_cache
        with contextlib.ExitStack() as stack:
            if inputs_embeds is not None:
                stack.enter_context(replace(self.model, {self.model.first_point: inputs_embeds}))
            states = self._recorded(stack, output_hidden_states, "output_hidden_states", "state")
            attentions = self._recorded(stack, output_attentions, "output_attentions", "attention")
            if cache is None and not use_cache:
                logits = self.model(input_ids, attention_mask=None if padding is None else ~padding)
            else:
                if self.training and self.model.uses_dropout:
                    raise UserError("no dropout with a cache: pass use_cache=False, or call eval()")
                cache = HubCache(self.config.num_hidden_layers) if cache is None else cache
                logits = self.model.extend(input_ids, cache, padding)
        loss = None
        if labels is not None:
            ignored = kwargs.get("ignore_index", IGNORED)
            labels = predictable(self._as_read(labels), padding, ignored)
            self._check_labels(labels, logits.shape[:2], ignored)
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits[:, keep],
            past_key_values=cache if use_cache else None,
            hidden_states=None if states is None else tuple(states.values()),
            attentions=None if attentions is None else tuple(by_head(a) for a in attentions.values()),
        )

    def _recorded(
        self, stack: contextlib.ExitStack, wanted: bool | None, option: str, point: str
    ) -> dict[str, Tensor] | None:
        """Where ``wanted``, by the call or by the config, a dict that fills with every layer's ``point``."""
        if not (getattr(self.config, option, False) if wanted is None else wanted):
            return None
        first = [self.model.first_point] if point == "state" else []
        return stack.enter_context(record(self.model, *first, f"layers.*.{point}"))

    def _as_read(self, tokens: Tensor) -> Tensor:
        """Replace the beginning- and end-of-text token (two after padding) by the line break."""
        end, line_break = self.config.vocab_size + 2, self.config.line_break
        return tokens if line_break is None else tokens.masked_fill(tokens == end, line_break)

    def _without_padding(self, input_ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens in the model's range, and the padding mask: from ``mask`` and from padding tokens."""
        padding = input_ids == self.config.vocab_size
        input_ids = self._as_read(input_ids)
        if mask is not None:
            padding = padding | (mask[:, -input_ids.shape[1] :] == 0)
        input_ids = input_ids.masked_fill(padding, 0)
        if bool(((input_ids < 0) | (input_ids >= self.config.vocab_size)).any()):
            raise UserError(
                f"a token is not among the {self.config.vocab_size} symbols of this model: the text has a character "
                "that its corpus lacks"
            )
        return input_ids, padding if bool(padding.any()) else None

    def _check(self, tokens: Tensor | None, embeds: Tensor | None, mask: Tensor | None, cache: Any) -> Tensor:
        """The tokens, or zeros for ``inputs_embeds``; stop at shapes and caches that do not fit."""
        if (tokens is None) == (embeds is None):
            raise UserError("pass either input_ids or inputs_embeds")
        if tokens is None:
            assert embeds is not None
            width = self.config.hidden_size
            if embeds.dim() != 3 or embeds.shape[2] != width:
                raise UserError(
                    f"inputs_embeds have shape {tuple(embeds.shape)}; pass (batch, positions, {width})"
                )
            tokens = torch.zeros(embeds.shape[:2], dtype=torch.int64, device=embeds.device)
        if tokens.dim() != 2:
            raise UserError(f"input_ids have shape {tuple(tokens.shape)}; pass two axes, (batch, positions)")
        if mask is not None and (
            mask.dim() != 2 or mask.shape[0] != tokens.shape[0] or mask.shape[1] < tokens.shape[1]
        ):
            raise UserError(
                f"attention_mask has shape {tuple(mask.shape)} for input_ids of {tuple(tokens.shape)}; "
                "pass one number for every position so far"
            )
        if cache is not None and not isinstance(cache, HubCache):
            raise UserError(f"a {type(cache).__name__} is not this model's cache; pass a HubCache")
        return tokens

    def _check_labels(self, labels: Tensor, shape: torch.Size, ignored: int) -> None:
        if labels.shape != shape:
            raise UserError(
                f"labels have shape {tuple(labels.shape)}; pass one for each input, {tuple(shape)}"
            )
        symbols = self.config.vocab_size
        wrong = ((labels < 0) | (labels >= symbols)) & (labels != ignored)
        if bool(wrong.any()):
            raise UserError(
                f"labels hold {int(labels[wrong][0])}, but this model has symbols 0 to {symbols - 1}; give {ignored} "
                "to what counts nothing"
            )


def predictable(labels: Tensor, padding: Tensor | None, ignored: int = IGNORED) -> Tensor:
    """``labels`` (B, T) with ``ignored`` where the label is padding, or the position before it is."""
    if padding is None:
        return labels
    before = torch.nn.functional.pad(padding[:, :-1], (1, 0))
    return labels.masked_fill(padding | before, ignored)


def by_head(attention: Tensor) -> Tensor:
    """(B, T, U) -> (B, 1, T, U); with several heads the axis is there already."""
    return attention if attention.dim() == 4 else attention[:, None]
