"""Windows: the pieces of text that a model is trained on, and their order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError


class Windows:
    """Every piece of ``length`` symbols that starts at a multiple of ``stride``.

        window i = tokens[i * stride : i * stride + length],   i = 0 .. (n - length) // stride

    A window of 256 symbols has 255 predictions: inputs ``w[:, :-1]``, targets ``w[:, 1:]``. The text stays
    on its device as one byte a symbol; :meth:`gather` gathers windows there, without a copy to or from the host,
    so it can be part of a captured CUDA graph.

    ``end`` is the token in front of each document, where the text is made of documents: see :meth:`documents`.
    ``part`` names the text in an error.
    """

    def __init__(
        self,
        tokens: Tensor,
        length: int = 256,
        stride: int = 64,
        end: int | None = None,
        part: str = "this part of the text",
    ) -> None:
        if length < 2 or stride < 1:
            raise UserError(f"a window needs length >= 2 and stride >= 1, not {length} and {stride}")
        if tokens.dim() != 1:
            raise UserError(f"windows are cut from a text of one dimension, not of {tokens.dim()}")
        if len(tokens) < length:
            raise UserError(
                f"{part} holds {len(tokens):,} symbol{'s' * (len(tokens) != 1)}, fewer than one window of {length}: "
                f"use a longer text (where it is split, validation and test get 5 % each, so at least {20 * length:,} "
                "symbols), more documents, or a shorter --length"
            )
        self.tokens, self.length, self.stride, self.end = tokens, length, stride, end

    def __len__(self) -> int:
        return (len(self.tokens) - self.length) // self.stride + 1

    def to(self, device: torch.device | str) -> Windows:
        """The same windows with the text on ``device``."""
        return Windows(self.tokens.to(device), self.length, self.stride, self.end)

    def gather(self, index: Tensor) -> Tensor:
        """Windows ``index`` (int64, shape (B,)) -> tokens (int64, shape (B, length)) on the text's device."""
        index = index.to(self.tokens.device, non_blocking=True)
        if self.tokens.dtype == torch.uint16:  # not all devices can index unsigned numbers
            return self.tokens.view(torch.int16).unfold(0, self.length, self.stride)[index].long() & 0xFFFF
        return self.tokens.unfold(0, self.length, self.stride)[index].long()

    def documents(self, tokens: Tensor) -> Tensor | None:
        """The index of the document of each token, (B, T) like ``tokens``; None without ``end``.

        The end token begins a document: from it alone the model predicts the first token of the next text.
        """
        return None if self.end is None else (tokens == self.end).cumsum(1)


def epoch_order(n_windows: int, seed: int, epoch: int) -> Tensor:
    """The order in which epoch ``epoch`` visits ``n_windows`` windows: an int64 permutation on the CPU.

    It depends on its three arguments only and advances no generator, so a run that resumes in the middle of epoch 7
    has the same order as one that was not interrupted. Each window draws a 64-bit key from a counter-based generator
    seeded by (seed, epoch), and the windows are sorted by key. Raw generator bits and a stable sort are specified,
    while NumPy's and PyTorch's shuffles may change from one version to the next.
    """
    if n_windows < 0 or epoch < 0:
        raise UserError(f"an order needs n_windows >= 0 and epoch >= 0, not {n_windows} and {epoch}")
    source = np.random.Philox(np.random.SeedSequence(seed % 2**64, spawn_key=(epoch,)))
    keys = source.random_raw(n_windows)
    return torch.from_numpy(np.argsort(keys, kind="stable").astype(np.int64, copy=False))
