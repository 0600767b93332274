"""The baseline: a pre-norm transformer with RoPE and SwiGLU, one head, no final norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops
from ..errors import UserError
from ..nn import PLAIN, CausalSelfAttention, Context, SwiGLU
from .base import SITES_PER_LAYER, LanguageModel
from .config import TransformerConfig


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

    def forward(self, x: Tensor, context: Context = PLAIN) -> Tensor:
        probe, dropout_key = context.probe, context.dropout_key
        update = probe("update.raw", self.attention(self.attention_norm(x), context))
        x = x + ops.dropout(update, self.dropout_attention, dropout_key, self.site + 1)
        update = probe("feedforward.raw", self.feedforward(self.feedforward_norm(x), None, dropout_key))
        return probe("state", x + ops.dropout(update, self.dropout, dropout_key, self.site))


class Head(nn.Linear):
    """The map to logits; its bias is zero at the start."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.bias)


class Transformer(LanguageModel):
    """tokens (B, T) -> logits (B, T, V)."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(TransformerLayer(config, i) for i in range(config.layers))
        self.head = Head(config.width, config.vocab_size)
        if config.init == "normal":
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

    def reset_parameters(self) -> None:
        """Each part of the model has its own start; the other initialisation is drawn after all of them."""
        if self.config.init == "normal":
            raise UserError(
                "init='normal' is drawn for a whole model at once; build it on a device, not on meta"
            )

    def features(self, tokens: Tensor, context: Context = PLAIN) -> Tensor:
        """The final states, before the head.

        tokens (B, T) -> (B, T, d)
        """
        site = SITES_PER_LAYER * self.config.layers
        x = context.probe("embedding", self.embedding(tokens))
        x = ops.dropout(x, self.config.dropout_embedding, context.dropout_key, site)
        for i, layer in enumerate(self.layers):
            x = layer(x, context.layer(i))
        return x

    def compute_logits(self, tokens: Tensor, context: Context) -> Tensor:
        x = self.features(tokens, context)
        return context.probe("logits", self.head(x).to(torch.promote_types(x.dtype, torch.float32)))
