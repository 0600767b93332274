"""Text from a model, one symbol at a time."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from reprlib import repr as short
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..checks import check
from ..errors import UserError

if TYPE_CHECKING:
    from .base import LanguageModel

COLDEST, HOTTEST = 1e-6, 1e6
"""Below the one the likeliest symbol is certain, above the other all are alike, and float32 comes to its ends."""


class Tokenizer(Protocol):
    """Text to tokens (T,) and back: an :class:`fsn.data.Alphabet` is one."""

    def encode(self, text: str, /) -> Tensor: ...

    def decode(self, tokens: Tensor, /) -> str: ...


def draw(
    model: LanguageModel,
    tokens: Tensor,
    *,
    symbols: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    context: int = 255,
    seed: int = 0,
) -> Iterator[int]:
    """Yield ``symbols`` tokens that continue ``tokens`` (1, T), each as soon as it is drawn.

    The model sees at most the last ``context`` symbols, as many as a training window shows it. Each symbol is
    drawn from softmax(logits / temperature), among the ``top_k`` likeliest if given and not 0; temperature 0, or next
    to it, takes the likeliest. The same seed gives the same tokens.

    What was read is remembered, so that a symbol costs one position. When the window is full its last half is read
    again and the rest forgotten.
    """
    check_drawing(symbols, temperature, top_k, seed)
    check(_whole(context, 1), f"context must be a whole number, at least 1, not {short(context)}")

    def drawn(tokens: Tensor) -> Iterator[int]:
        generator = torch.Generator().manual_seed(int(seed))
        training = model.training
        model.eval()
        cache, unread = model.new_cache(), tokens.shape[1]
        try:
            for _ in range(symbols):
                if cache.length + unread > context:
                    cache, unread = model.new_cache(), max(1, context // 2)
                with torch.no_grad():
                    logits = model.extend(tokens[:, -unread:], cache)
                scores = logits[0, -1].float().cpu()
                if not bool(scores.isfinite().all()):
                    raise UserError(
                        "the model's logits are NaN or Inf: its training diverged or its file is damaged; load "
                        "other weights"
                    )
                if top_k and top_k < scores.numel():
                    scores[scores < scores.topk(top_k).values[-1]] = -torch.inf
                if temperature < COLDEST:
                    new = scores.argmax()
                else:
                    new = torch.multinomial((scores / temperature).softmax(-1), 1, generator=generator)
                tokens, unread = torch.cat([tokens, new.view(1, 1).to(tokens)], dim=1)[:, -context:], 1
                yield int(new)
        finally:
            model.train(training)

    return drawn(tokens[:, -context:])


def check_drawing(symbols: int, temperature: float, top_k: int | None, seed: int) -> None:
    """Stop if symbols cannot be drawn so."""
    check(_whole(symbols, 1), f"symbols must be a whole number, at least 1, not {short(symbols)}")
    fits = isinstance(temperature, Real) and 0 <= temperature <= HOTTEST
    check(fits, f"temperature must lie between 0 and {HOTTEST:,.0f}, not {short(temperature)}")
    fits = top_k is None or _whole(top_k, 0)
    check(fits, f"top_k must be a whole number, or 0 for all symbols, not {short(top_k)}")
    fits = _whole(seed, 0) and seed < 2**64
    check(fits, f"seed must be a whole number from 0 to 2^64 - 1, not {short(seed)}")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def first_token(tokenizer: Tokenizer) -> int:
    """What stands before a text that begins: the token that ends texts, else the line end, else the first symbol."""
    end = getattr(tokenizer, "end", None)
    if end is not None:
        return int(end)
    try:
        return int(tokenizer.encode("\n")[-1])
    except UserError:
        return 0
