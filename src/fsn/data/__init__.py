"""Corpora (fetch, verify, encode) and the windows cut from them."""

from __future__ import annotations

from fsn.data.alphabet import CODE_SYMBOLS, Alphabet, normalise_code
from fsn.data.corpus import Corpus, Reading
from fsn.data.encoding import Encoding, Subwords, TokenIds, from_record, load_tokenizer
from fsn.data.registry import available, load
from fsn.data.windows import Windows, epoch_order

__all__ = [
    "CODE_SYMBOLS",
    "Alphabet",
    "Corpus",
    "Encoding",
    "Reading",
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
