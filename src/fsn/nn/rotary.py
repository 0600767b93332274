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

    def reset_parameters(self) -> None:
        """What sharded training calls in memory that ``to_empty`` gave; modules with parameters add their start."""
        self.restore_buffers()

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
        if self.rates.is_meta:
            return
        with torch.device("cpu"):
            exact = ops.rotary_rates(len(self.rates))
        if self.rates.dtype == exact.dtype and not self.rates.is_inference():
            self.rates.copy_(exact)  # in place: a captured CUDA graph reads it there
        else:
            self.rates = exact.to(self.rates.device)


def leave_meta(module: nn.Module, _: object) -> None:
    """After ``load_state_dict(assign=True)`` into a module made on the device "meta": buffers that no file holds are
    still there."""
    device = next((x.device for x in module.parameters() if not x.is_meta), None)
    for part in module.modules() if device is not None else ():
        if isinstance(part, Restored):
            buffers = {name: x for name, x in part.named_buffers(recurse=False) if x.is_meta}
            for name in buffers.keys() & part._non_persistent_buffers_set:
                setattr(part, name, torch.empty_like(buffers[name], device=device))
                part.restore_buffers()
