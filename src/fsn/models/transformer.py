"""The baseline: a pre-norm transformer with RoPE and SwiGLU, one head, no final norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops
from ..nn import NO_PROBE, Cache, CausalSelfAttention, Past, Probe, SwiGLU
from .base import LanguageModel
from .config import TransformerConfig
from .fsn import SITES_PER_LAYER


class TransformerLayer(nn.Module):
    """x ← x + attention(norm x); x ← x + SwiGLU(norm x)."""

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        site = index * SITES_PER_LAYER
        width = config.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(
            width, config.heads, config.dropout_attention, site, config.shift
        )
        self.feedforward_norm = nn.LayerNorm(width)
        hidden = config.hidden or 4 * width
        self.feedforward = SwiGLU(width, hidden, width, 0, config.dropout_hidden, site + 1)
        self.dropout, self.dropout_attention, self.site = config.dropout, config.dropout_attention, site + 2

    def forward(self, x: Tensor, probe: Probe = NO_PROBE, key: ops.DropoutKey | None = None) -> Tensor:
        return self._move(x, self.attention(self.attention_norm(x), probe, key), probe, key)

    def extend(
        self, x: Tensor, past: Past, first: int, hidden: Tensor | None, probe: Probe = NO_PROBE
    ) -> Tensor:
        """The same for the positions from ``first`` on; only attention looks at those before."""
        return self._move(x, self.attention.extend(self.attention_norm(x), past, first, hidden, probe), probe)

    def _move(
        self, x: Tensor, update: Tensor, probe: Probe = NO_PROBE, key: ops.DropoutKey | None = None
    ) -> Tensor:
        """What follows attention, each position by itself."""
        x = x + ops.dropout(probe("update.raw", update), self.dropout_attention, key, self.site + 1)
        update = probe("feedforward.raw", self.feedforward(self.feedforward_norm(x), None, key))
        return probe("state", x + ops.dropout(update, self.dropout, key, self.site))


class Transformer(LanguageModel):
    """tokens (B, T) -> logits (B, T, V)."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(TransformerLayer(config, i) for i in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab_size)
        nn.init.zeros_(self.head.bias)
        if config.init == "normal":
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

    def features(self, tokens: Tensor, key: ops.DropoutKey | None = None, probe: Probe = NO_PROBE) -> Tensor:
        """The final states, before the head.

        tokens (B, T) -> (B, T, d)
        """
        site = SITES_PER_LAYER * self.config.layers
        x = probe("embedding", self.embedding(tokens))
        x = ops.dropout(x, self.config.dropout_embedding, key, site)
        for i, layer in enumerate(self.layers):
            x = layer(x, probe.at(f"layers.{i}"), key)
        return x

    def compute_logits(self, tokens: Tensor, key: ops.DropoutKey | None, probe: Probe) -> Tensor:
        return probe("logits", self._logits(self.features(tokens, key, probe)))

    def compute_extension(self, tokens: Tensor, cache: Cache, first: int, probe: Probe) -> Tensor:
        x = probe("embedding", self.embedding(tokens))
        for i, (layer, past) in enumerate(zip(self.layers, cache.layers, strict=True)):
            assert isinstance(layer, TransformerLayer)
            x = layer.extend(x, past, first, cache.hidden, probe.at(f"layers.{i}"))
        return probe("logits", self._logits(x))

    def _logits(self, x: Tensor) -> Tensor:
        return self.head(x).to(torch.promote_types(x.dtype, torch.float32))
