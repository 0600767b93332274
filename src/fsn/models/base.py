"""What every language model here shares: checking input, logits, losses, probing."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor, nn

from .. import ops
from ..errors import UserError
from ..nn import NO_PROBE, Cache, Probe
from .config import Config
from .generate import Generation


class LanguageModel(Generation, nn.Module):
    """``model(tokens)`` gives logits; ``model(tokens, targets=...)`` gives logits and the loss of every token; after
    ``fsn.load``, ``model.generate(prompt)`` gives text."""

    config: Config
    probe: Probe = NO_PROBE

    def compute_logits(self, tokens: Tensor, key: ops.DropoutKey | None, probe: Probe) -> Tensor:
        raise NotImplementedError

    @overload
    def forward(
        self, tokens: Tensor, targets: None = None, dropout_key: ops.DropoutKey | None = None
    ) -> Tensor: ...

    @overload
    def forward(
        self, tokens: Tensor, targets: Tensor, dropout_key: ops.DropoutKey | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, dropout_key: ops.DropoutKey | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """tokens (B, T) int64 -> logits (B, T, V) float32, and with targets also the losses (B, T) in nats."""
        self.check_tokens(tokens, targets)
        logits = self.compute_logits(tokens, self._key(tokens, dropout_key), self.probe)
        if targets is None:
            return logits
        return logits, ops.cross_entropy(logits, targets)

    def loss(self, tokens: Tensor, targets: Tensor, dropout_key: ops.DropoutKey | None = None) -> Tensor:
        """Per-token loss in nats without keeping logits: what training and evaluation use.

        tokens, targets (B, T) -> (B, T) float32
        """
        self.check_tokens(tokens, targets)
        return self.compute_loss(tokens, targets, self._key(tokens, dropout_key))

    def compute_loss(self, tokens: Tensor, targets: Tensor, key: ops.DropoutKey | None) -> Tensor:
        return ops.cross_entropy(self.compute_logits(tokens, key, self.probe), targets)

    def new_cache(self) -> Cache:
        """An empty memory for :meth:`extend`."""
        return Cache(self.config.layers)

    def extend(self, tokens: Tensor, cache: Cache, hidden: Tensor | None = None) -> Tensor:
        """Read on: tokens that follow what ``cache`` has seen, any number of them, and their logits.

        For reading: no dropout, the reference path (a few positions at a time leave kernels nothing to win), and
        gradients only through a sequence read in one piece. ``hidden`` marks new positions that are padding in front of
        a sequence: nobody looks at them, and their own logits mean nothing. Positions only enter as distances, so
        such padding changes nothing. If the call fails the cache is as it was. Probes see the new positions.

        tokens (B, n), hidden (B, n) bool -> logits (B, n, V)
        """
        self.check_tokens(tokens)
        if hidden is not None and (hidden.shape != tokens.shape or hidden.dtype != torch.bool):
            raise UserError(
                f"hidden is {hidden.dtype} of shape {tuple(hidden.shape)}; it marks tokens: "
                f"make it bool of shape {tuple(tokens.shape)}"
            )
        if cache.batch not in (None, tokens.shape[0]):
            raise UserError(
                f"the cache holds {cache.batch} sequences and tokens {tokens.shape[0]}; make them equal, "
                "or choose sequences with cache.reorder"
            )
        first = cache.length
        cache.grow(tokens, hidden)
        try:
            return self.compute_extension(tokens, cache, first, self.probe)
        except BaseException:
            cache.cut(first)
            raise

    def compute_extension(self, tokens: Tensor, cache: Cache, first: int, probe: Probe) -> Tensor:
        raise NotImplementedError

    def _key(self, tokens: Tensor, key: ops.DropoutKey | None) -> ops.DropoutKey | None:
        if not self.training or not self.uses_dropout:
            return None
        return key if key is not None else ops.DropoutKey.draw(tokens.device)

    @property
    def uses_dropout(self) -> bool:
        names = ("dropout", "dropout_hidden", "dropout_attention", "dropout_update", "dropout_embedding")
        return any(getattr(self.config, name, 0.0) for name in names)

    def check_tokens(self, tokens: Tensor, targets: Tensor | None = None) -> None:
        """Reject bad input before work starts. Ranges are checked on the CPU only: on a GPU it would stall."""
        for name, value in (("tokens", tokens), ("targets", targets)):
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise UserError(
                    f"{name} are a {type(value).__name__}; pass a tensor, e.g. torch.tensor({name})"
                )
            if value.dtype not in (torch.int64, torch.int32):
                raise UserError(f"{name} have type {value.dtype}; pass integers, e.g. {name}.long()")
            if value.dim() != 2:
                raise UserError(f"{name} have shape {tuple(value.shape)}; pass two axes, (batch, positions)")
            if value.shape[1] == 0 or value.shape[0] == 0:
                raise UserError(f"{name} are empty (shape {tuple(value.shape)}); pass at least one position")
            if value.device.type == "cpu" and not torch.compiler.is_compiling():
                low, high = int(value.min()), int(value.max())
                if low < 0 or high >= self.config.vocab_size:
                    bad = low if low < 0 else high
                    raise UserError(
                        f"{name} hold {bad}, but this model has symbols 0 to {self.config.vocab_size - 1}; "
                        "encode the text with the corpus the model was built for"
                    )
        if targets is not None and targets.shape != tokens.shape:
            raise UserError(
                f"targets have shape {tuple(targets.shape)} and tokens {tuple(tokens.shape)}; make them equal"
            )

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
