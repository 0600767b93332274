"""Our layer inside zoology's harness (HazyResearch/zoology), by import path.

    ModelConfig(
        sequence_mixer=ModuleConfig(name="fsn.zoology.Mixer", kwargs={"heads": 1}),
        state_mixer=ModuleConfig(name="torch.nn.Identity"),
        max_position_embeddings=0,
        ...
    )

``kwargs`` are the arguments of :class:`fsn.FrustratedAttention`. Tried with zoology at commit dbcb60d
(``docs/lab/2026-11-19-cpu/42-zoology.log``); the commit after it returns embeddings in place of logits. Zoology draws
all linear maps from N(0, 0.02²), ours too; gates, kernel, temperature and bound start as always.
"""

from __future__ import annotations

from typing import Any

import torch

from .nn import FrustratedAttention


class Mixer(FrustratedAttention):
    """A sequence mixer as zoology builds it: ``(d_model, layer_idx, **kwargs)``, x (B, T, d) -> (B, T, d)"""

    def __init__(self, d_model: int, layer_idx: int | None = None, **options: Any) -> None:
        super().__init__(d_model, **options)
        self.layer_idx = layer_idx

    @torch.no_grad()
    def state_size(self, batch_size: int = 1, sequence_length: int = 2048) -> int:
        """The fewest numbers to keep after so many positions in order to read on, counted in a lean cache."""
        cache = self.new_cache(lean=True)
        self(self.tau.new_zeros(batch_size, sequence_length, self.d_model), cache=cache)
        return cache.numbers()
