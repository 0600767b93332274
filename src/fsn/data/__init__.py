"""Corpora (fetch, verify, encode) and the windows cut from them."""

from __future__ import annotations

from .corpus import Corpus, ReadOptions
from .encoding import (
    CODE_SYMBOLS,
    Alphabet,
    Encoding,
    Subwords,
    TokenIds,
    from_record,
    load_tokenizer,
    normalise_code,
)
from .registry import available, load
from .windows import Windows, epoch_order

__all__ = [
    "CODE_SYMBOLS",
    "Alphabet",
    "Corpus",
    "Encoding",
    "ReadOptions",
    "Subwords",
    "TokenIds",
    "Windows",
    "available",
    "epoch_order",
    "from_record",
    "load",
    "load_tokenizer",
    "normalise_code",
]
