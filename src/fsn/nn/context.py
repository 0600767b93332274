"""What a pass through a model carries beside the state."""

from __future__ import annotations

from torch import Tensor

from ..ops import DropoutKey
from .past import Cache, Past
from .probe import NO_PROBE, Probe


class Context:
    """One argument for all that a forward pass may need beside its state; the default needs nothing.

    probe: says what happens at named points.
    dropout_key: None for no dropout.
    cache: the memory of the model, or None where a sequence is read whole.
    past: the part of the cache that belongs to this layer: see :meth:`layer`.
    first: position of the first row: how many the cache held before.
    padding: (B, first + T), true for positions that no later one looks at; None: there are none.
    documents: (B, T), the number of the document that a position belongs to, rising; None: all belong to one. No
    position looks into another document. For a sequence read whole.
    decodes: the positions follow a cache, and the shorter path of ``nn/decode.py`` computes them.

    A plain class: torch.compile of PyTorch 2.11 cannot trace a dataclass with a default that is an object, and would
    cut the model into a piece for each layer.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        dropout_key: DropoutKey | None = None,
        cache: Cache | None = None,
        past: Past | None = None,
        first: int = 0,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        decodes: bool = False,
    ) -> None:
        self.probe: Probe = NO_PROBE if probe is None else probe
        self.dropout_key, self.cache, self.past, self.first = dropout_key, cache, past, first
        self.padding, self.documents, self.decodes = padding, documents, decodes

    def layer(self, index: int) -> Context:
        """The same inside a layer: its points by its name, its part of the cache."""
        past = None if self.cache is None else self.cache.layers[index]
        probe = self.probe.at(f"layers.{index}") if self.probe.active else self.probe
        return Context(
            probe, self.dropout_key, self.cache, past, self.first, self.padding, self.documents, self.decodes
        )

    @property
    def masked(self) -> Tensor | None:
        """(B, 1 or T, first + T), true where a row must not look at an earlier column; None: it may look everywhere."""
        if self.documents is not None:
            return self.documents[:, :, None] != self.documents[:, None, :]
        return None if self.padding is None else self.padding[:, None]


PLAIN = Context()
