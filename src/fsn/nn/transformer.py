"""The baseline's attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .probe import NO_PROBE, Probe

WIDEST_HEAD = 256
"""On a GPU the library's fast attention stops at this width, and what it falls back to has a slow backward pass (lab
notes). The paper's transformer has one head, 352 wide at eight million parameters: it gets the plain formula there."""


def library_attends(head: int, device: torch.device) -> bool:
    """Whether attention of this width is the library's business on this device."""
    return device.type != "cuda" or head <= WIDEST_HEAD


class CausalSelfAttention(nn.Module):
    """One-head (or more) causal attention with RoPE, no biases.

    x (B, T, d) -> (B, T, d)
    """

    rates: Tensor

    def __init__(self, width: int, heads: int, dropout: float, site: int) -> None:
        super().__init__()
        self.heads, self.dropout, self.site = heads, dropout, site
        bound = width**-0.5
        self.qkv = nn.Parameter(torch.empty(3 * width, width).uniform_(-bound, bound))
        self.out = nn.Parameter(torch.empty(width, width).uniform_(-bound, bound))
        head = width // heads
        self.register_buffer("rates", ops.rotary_rates(head // 2), persistent=False)

    def forward(self, x: Tensor, probe: Probe = NO_PROBE, key: ops.DropoutKey | None = None) -> Tensor:
        batch, length, width = x.shape
        qkv = (x @ self.qkv.mT).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = ops.rotate_half(q, self.rates), ops.rotate_half(k, self.rates)
        plain = not library_attends(q.shape[-1], x.device)
        if plain or probe.active or (self.dropout and key is not None):
            scores = (q @ k.mT).to(x.dtype) * q.shape[-1] ** -0.5
            attention = probe("attention", ops.causal_softmax(scores).squeeze(1)).view_as(scores)
            mixed = ops.dropout(attention, self.dropout, key, self.site).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (mixed.transpose(1, 2).reshape(batch, length, width) @ self.out.mT).to(x.dtype)
