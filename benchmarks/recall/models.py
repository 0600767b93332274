"""The models that are compared: this repository's families, and others' mixers in the transformer's frame.

Every model here gives states (B, T, d) for tokens, and logits for chosen states, so that a large vocabulary is
computed only where a query stands.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import fsn
from fsn.errors import UserError
from fsn.models import FSNConfig
from fsn.models.fused_stack import supports
from fsn.nn import NoFeedForward
from fsn.ops.fused import available
from fsn.zoology import Mixer

OURS = ("transformer", "transformer-kvshift", "kuramoto", "successor", "fsn-nophase", "fsn")
LAYER = "frustrated-attention"
"""fsn.FrustratedAttention in the transformer's frame: its projections, norms and linear readout."""
OTHERS = {
    "gated-deltanet": ("GatedDeltaNet", True),
    "gated-deltanet-noconv": ("GatedDeltaNet", False),
    "deltanet": ("DeltaNet", True),
    "deltanet-noconv": ("DeltaNet", False),
    "gla-conv": ("GatedLinearAttention", True),
    "gla": ("GatedLinearAttention", False),
}
"""Layers of flash-linear-attention, each with its short convolution and without."""


def families() -> list[str]:
    return list(dict.fromkeys(name.rpartition("-")[0] for name in fsn.presets()))


def names(device: torch.device) -> list[str]:
    """The models that can be trained here: flash-linear-attention has kernels for a GPU alone."""
    known = families()
    ours = [name for name in OURS if name in known]
    ours += [name for name in known if name.startswith("fsn-score")]
    return [*ours, LAYER, *(OTHERS if device.type == "cuda" and has_fla() else ())]


def has_fla() -> bool:
    """Whether flash-linear-attention can be imported; it needs transformers too."""
    try:
        importlib.import_module("fla.layers")
    except ImportError as error:
        print(f"flash-linear-attention is left out: {error}")
        return False
    return True


def known_names() -> list[str]:
    """Every name that :class:`Learner` takes, whether it can run here or not."""
    return [*families(), LAYER, *OTHERS]


class Foreign(nn.Module):
    """Another mixer where the transformer has its attention: x (B, T, d) -> (B, T, d)"""

    def __init__(self, name: str, width: int, index: int) -> None:
        super().__init__()
        from fla import layers

        kind, convolution = OTHERS[name]
        heads = max(1, width // 64)
        options: dict[str, Any] = {"hidden_size": width, "num_heads": heads, "layer_idx": index}
        if kind == "GatedDeltaNet":
            options["head_dim"] = width // heads
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it advises against going without the convolution: that is the point
            self.mixer = getattr(layers, kind)(use_short_conv=convolution, **options)

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """In bfloat16: the kernels of the delta rule take nothing else."""
        with torch.autocast(x.device.type, torch.bfloat16):
            mixed: Tensor = self.mixer(x)[0]
        return mixed.to(x.dtype)


class Ours(nn.Module):
    """The same for our own layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixer = Mixer(width)

    def forward(self, x: Tensor, *_: object) -> Tensor:
        mixed: Tensor = self.mixer(x)
        return mixed


class Learner(nn.Module):
    """A model with its readout apart."""

    def __init__(self, name: str, vocab: int, width: int, layers: int, feedforward: bool) -> None:
        super().__init__()
        self.name, self.vocab, self.width = name, vocab, width
        if name not in known_names():
            raise UserError(f"there is no model {name!r}; choose one of {', '.join(known_names())}")
        family = name if name in families() else "transformer"
        size: dict[str, Any] = {"layers": layers, "dropout": 0.0}
        if isinstance(fsn.preset(f"{family}-1m", vocab_size=vocab), FSNConfig):
            size |= {"k": width} if feedforward else {"k": width, "feedforward": "none"}
        else:
            size["width"] = width
        self.model = fsn.build(f"{family}-1m", vocab_size=vocab, **size)
        if family.startswith("transformer"):
            for index, layer in enumerate(self.model.layers):  # type: ignore[arg-type]
                if not feedforward:
                    layer.feedforward, layer.feedforward_norm = NoFeedForward(), nn.Identity()
                if name in OTHERS:
                    layer.attention = Foreign(name, width, index)
                elif name == LAYER:
                    layer.attention = Ours(width)

    def states(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, d)"""
        model: Any = self.model
        return model.phases(tokens) if hasattr(model, "phases") else model.features(tokens)

    def logits(self, states: Tensor) -> Tensor:
        """states (..., d) -> (..., V)"""
        model: Any = self.model
        return model.readout(states) if hasattr(model, "readout") else model.head(states)

    def answers(self, tokens: Tensor, places: Tensor) -> Tensor:
        """The logits at chosen places: tokens (B, T), places (B, Q) -> (B, Q, V)"""
        states = self.states(tokens)
        return self.logits(states.gather(1, places[..., None].expand(-1, -1, states.shape[-1])))

    def path(self, device: torch.device) -> str:
        """One line on why no kernels are used here, or that they could be."""
        config = self.model.config
        if self.name in OTHERS:
            return "flash-linear-attention's kernels"
        if self.name == LAYER:
            return "kernels" if available(device) else "reference: no kernels here (there is no GPU)"
        if not isinstance(config, FSNConfig):
            return "PyTorch"
        if supports(config, device):
            return "reference: kernels exist for this config, but compute every logit of a row"
        reasons = {
            "there is no GPU": device.type != "cuda",
            f"{self.vocab:,} symbols": self.vocab > 2048,
        }
        said = [reason for reason, holds in reasons.items() if holds] or ["fields of this config"]
        return f"reference: no kernels here ({', '.join(said)})"

    def described(self) -> dict[str, Any]:
        config = dataclasses.asdict(self.model.config)
        mixers = {name: kind for name, (kind, _) in OTHERS.items()} | {LAYER: "FrustratedAttention"}
        return config | ({"mixer": mixers[self.name]} if self.name in mixers else {})

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    @torch.no_grad()
    def state_size(self, length: int, device: torch.device) -> int:
        """The fewest numbers to keep after ``length`` symbols in order to read on, counted in a lean cache."""
        tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
        if self.name == LAYER:
            mixers = [module for module in self.modules() if isinstance(module, Mixer)]
            return sum(mixer.state_size(sequence_length=length) for mixer in mixers)
        if self.name not in OTHERS:
            cache = self.model.new_cache(lean=True)
            self.model.extend(tokens, cache)
            return cache.numbers()
        from fla.models.utils import Cache

        cache = Cache()
        x = torch.randn(1, length, self.width, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            for module in self.modules():
                if isinstance(module, Foreign):
                    module.mixer.eval()(x, past_key_values=cache, use_cache=True)
                    module.mixer.train()
        return count_numbers(cache)


def count_numbers(value: object, seen: set[int] | None = None) -> int:
    """Floating-point numbers in all tensors that can be reached from ``value``."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, Tensor):
        return value.numel() if value.is_floating_point() else 0
    if isinstance(value, dict):
        return sum(count_numbers(item, seen) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(count_numbers(item, seen) for item in value)
    return count_numbers(vars(value), seen) if hasattr(value, "__dict__") else 0
