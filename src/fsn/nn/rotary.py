"""Buffers that no file holds, because they follow from a module's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import ops


class Restored(nn.Module):
    """A module that makes such buffers again whatever is done to it: a cast must not round them, and memory that
    ``to_empty`` gives must not stay as it is."""

    def restore_buffers(self) -> None:
        """Give the buffers their values, e.g. where a loader has made a model without any."""
        raise NotImplementedError

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.restore_buffers()
        return self


class Rotary(Restored):
    """A module with rotary rates, in float64 whatever its parameters are in."""

    rates: Tensor

    def make_rates(self, count: int) -> None:
        self.register_buffer("rates", ops.rotary_rates(count), persistent=False)

    def restore_buffers(self) -> None:
        if not self.rates.is_meta:
            with torch.device("cpu"):
                exact = ops.rotary_rates(len(self.rates))
            self.rates = exact.to(self.rates.device)
