"""The baseline's attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .context import PLAIN, Context
from .rotary import Rotary

WIDEST_HEAD = 256
"""On a GPU PyTorch's fast attention stops at this width, and what it falls back to has a slow backward pass (lab
notes). The paper's transformer has one head, 352 wide at eight million parameters: it gets the plain formula there."""


class KVShift(nn.Module):
    """k'_t = a k_t + b k_{t−1},  v'_t = c v_t + d v_{t−1}: the transformer's twin of successor coupling.

    a, b, c, d are scalars of a head, as in KV shifting attention (arXiv:2411.19574), or numbers of a coordinate;
    all ½ at the start. Keys are mixed before they are turned by their positions.
    """

    def __init__(self, heads: int, numbers: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.empty(4, heads, 1, numbers))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.mix.fill_(0.5)

    def forward(self, k: Tensor, v: Tensor, k_before: Tensor, v_before: Tensor) -> tuple[Tensor, Tensor]:
        """Four (B, H, T, d/H) -> the mixed keys and values"""
        a, b, c, d = self.mix.to(k.dtype)
        return a * k + b * k_before, c * v + d * v_before


class KeyOffset(nn.Module):
    """Half of each key's coordinates, those that turn slowest, come from the predecessor's key.

    What modded-nanogpt calls partial key offset; there these coordinates do not turn at all.
    """

    def forward(self, k: Tensor, v: Tensor, k_before: Tensor, v_before: Tensor) -> tuple[Tensor, Tensor]:
        """Four (B, H, T, d/H) -> the mixed keys, and the values as they were"""
        quarter = k.shape[-1] // 4
        own, before = k.split(quarter, dim=-1), k_before.split(quarter, dim=-1)
        return torch.cat((own[0], before[1], own[2], before[3]), dim=-1), v


def make_shift(kind: str, heads: int, head: int) -> KVShift | KeyOffset | None:
    """The shift that ``TransformerConfig.shift`` names."""
    if kind == "none":
        return None
    if kind == "key-offset":
        return KeyOffset()
    return KVShift(heads, {"kv": 1, "kv-coordinate": head}[kind])


def torch_attends(head: int, device: torch.device) -> bool:
    """Whether attention of this width is left to ``F.scaled_dot_product_attention`` on this device."""
    return device.type != "cuda" or head <= WIDEST_HEAD


class CausalSelfAttention(Rotary):
    """One-head (or more) causal attention with RoPE, no biases.

    x (B, T, d) -> (B, T, d)
    """

    def __init__(self, width: int, heads: int, dropout: float, site: int, shift: str = "none") -> None:
        super().__init__()
        self.heads, self.dropout, self.site = heads, dropout, site
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.out = nn.Parameter(torch.empty(width, width))
        head = width // heads
        self.shift = make_shift(shift, heads, head)
        self.make_rates(head // 2)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = self.out.shape[1] ** -0.5
        self.qkv.uniform_(-bound, bound)
        self.out.uniform_(-bound, bound)

    def _split(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, turned by their positions, and values: (B, T, d) -> three (B, H, T, d/H)

        With a shift, the first new position's predecessor comes from the cache; padding is nobody's predecessor. A lean
        cache keeps keys and values before they are mixed, and this mixes all of them again.
        """
        first, past, padding = context.first, context.past, context.padding
        since = 0 if self.mixes_again(context) else first
        batch, length, width = x.shape
        qkv = F.linear(x, self.qkv).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.shift is not None:
            both = torch.cat((k, v), dim=-1)
            if padding is not None:
                both = both.masked_fill(padding[:, None, first:, None], 0.0)
            if past is not None:
                both = past["unshifted"].write(first, both.transpose(1, 2)).transpose(1, 2)
            before = F.pad(both, (0, 0, 1, 0))[:, :, since:-1]  # the very first one's is zero
            if context.documents is not None:  # the first position of a document has no predecessor
                begins = context.documents.diff(dim=1, prepend=context.documents[:, :1]) != 0
                before = before.masked_fill(begins[:, None, :, None], 0.0)
            k_before, v_before = before.chunk(2, dim=-1)
            if since < first:
                k, v = both.to(k.dtype).chunk(2, dim=-1)
            k, v = self.shift(k, v, k_before, v_before)
        make = ops.rotary_turns if context.cache is None else context.cache.cosines  # for all layers at once
        turns = make(self.rates, x.dtype, first, first + length)
        again = ops.rotary_turns(self.rates, x.dtype, since, first + length) if since < first else turns
        return ops.turn_half(q, *turns), ops.turn_half(k, *again), v

    def mixes_again(self, context: Context) -> bool:
        """Whether keys and values of all positions are made anew, from those before the shift."""
        return self.shift is not None and context.cache is not None and context.cache.lean

    def forward(self, x: Tensor, context: Context = PLAIN) -> Tensor:
        probe, past, first = context.probe, context.past, context.first
        q, k, v = self._split(x, context)
        if past is not None and not self.mixes_again(context):
            k = past["keys"].write(first, k.transpose(1, 2)).transpose(1, 2).to(q.dtype)
            v = past["values"].write(first, v.transpose(1, 2)).transpose(1, 2).to(q.dtype)
        dropout = self.dropout and context.dropout_key is not None
        plain = past is not None or context.masked is not None or probe.active or dropout
        if not plain and torch_attends(q.shape[-1], x.device):
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self._mix(q, k, v, x.dtype, context)
        return F.linear(mixed.transpose(1, 2).reshape(x.shape), self.out).to(x.dtype)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, context: Context) -> Tensor:
        """The plain formula: q (B, H, T, d/H), k and v (B, H, U, d/H) -> (B, H, T, d/H), softmax in ``dtype``"""
        # keys first, which is faster for a single query
        raw = (k @ q.mT).mT if q.shape[2] == 1 else q @ k.mT
        scores = raw.to(dtype) * q.shape[-1] ** -0.5
        masked = None if context.masked is None else context.masked[:, None]
        attention = ops.causal_softmax(scores, context.first, masked)
        attention = context.probe("attention", attention.squeeze(1)).view_as(scores)
        return ops.dropout(attention, self.dropout, context.dropout_key, self.site).to(v.dtype) @ v
