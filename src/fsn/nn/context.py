"""What a pass through a model carries beside the state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..ops import DropoutKey
from .past import Cache, Past
from .probe import NO_PROBE, Probe


@dataclass(frozen=True)
class Context:
    """One argument for all that a forward pass may need beside its state; the default needs nothing."""

    probe: Probe = NO_PROBE
    dropout_key: DropoutKey | None = None
    """None: no dropout."""
    cache: Cache | None = None
    """The memory of the model, or None where a sequence is read whole."""
    past: Past | None = None
    """The part of the cache that belongs to this layer: see :meth:`layer`."""
    first: int = 0
    """Position of the first row: how many the cache held before."""
    padding: Tensor | None = None
    """(B, first + T), true for positions that no later one looks at; None: there are none."""
    documents: Tensor | None = None
    """(B, T), the number of the document that a position belongs to, rising; None: all belong to one. No position looks
    into another document. For a sequence read whole."""

    def layer(self, index: int) -> Context:
        """The same inside a layer: its points by its name, its part of the cache."""
        past = None if self.cache is None else self.cache.layers[index]
        return replace(self, probe=self.probe.at(f"layers.{index}"), past=past)

    @property
    def masked(self) -> Tensor | None:
        """(B, 1 or T, first + T), true where a row must not look at an earlier column; None: it may look everywhere."""
        if self.documents is not None:
            return self.documents[:, :, None] != self.documents[:, None, :]
        return None if self.padding is None else self.padding[:, None]


PLAIN = Context()
