"""Dropout as a pure function of a counter.

The mask of an element follows from (counter, site, row of the global batch, position, coordinate) alone. So it
needs no generator state in a checkpoint, is the same however a batch is split over processes, and can be
replayed inside a CUDA graph that increments the counter.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

_MIX = (0x7FEB352D, 0x42365345)  # odd and below 2^31: products of 32-bit values stay below 2^63 in int64
_MASK = 0xFFFFFFFF


class DropoutKey(NamedTuple):
    """counter: int64 tensor () that names the step; first_row: where this process's rows start in the batch."""

    counter: Tensor
    first_row: int = 0

    @classmethod
    def draw(cls, device: torch.device) -> DropoutKey:
        """A key from PyTorch's own generator, for use outside a training loop."""
        return cls(torch.randint(0, 2**31, (), device="cpu").to(device))


Number = TypeVar("Number", int, Tensor)


def _mix(x: Number) -> Number:
    """A 32-bit integer hash in 64-bit arithmetic (the shift-multiply-shift form)."""
    x = ((x ^ (x >> 16)) * _MIX[0]) & _MASK
    x = ((x ^ (x >> 15)) * _MIX[1]) & _MASK
    return x ^ (x >> 16)


def dropout(x: Tensor, p: float, dropout_key: DropoutKey | None, site: int) -> Tensor:
    """Zero each element with probability p and divide the rest by 1 − p; the identity without a dropout key.

    ``site`` tells the places of a model apart.

    x: (B, ...) -> (B, ...)
    """
    if p == 0.0 or dropout_key is None:
        return x
    if p >= 1.0:
        return torch.zeros_like(x)
    per_row = x[0].numel()
    seed = _mix((dropout_key.counter & _MASK) ^ _mix(site + 1))
    first = dropout_key.first_row
    rows = torch.arange(first, first + x.shape[0], device=x.device)
    row_seed = _mix(seed ^ _mix(rows + 1))
    columns = torch.arange(per_row, device=x.device)
    hashed = _mix(row_seed[:, None] ^ _mix(columns + 1)[None, :])
    keep = (hashed >= int(p * 2**32)).view(x.shape)
    return torch.where(keep, x / (1.0 - p), torch.zeros((), dtype=x.dtype, device=x.device))
