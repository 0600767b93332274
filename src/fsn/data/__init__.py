"""Corpora (fetch, verify, encode) and the windows cut from them."""

from __future__ import annotations

from fsn.data.alphabet import CODE_SYMBOLS, Alphabet, normalise_code
from fsn.data.corpus import Corpus
from fsn.data.registry import available, load
from fsn.data.windows import Windows, epoch_order

__all__ = [
    "CODE_SYMBOLS",
    "Alphabet",
    "Corpus",
    "Windows",
    "available",
    "epoch_order",
    "load",
    "normalise_code",
]
