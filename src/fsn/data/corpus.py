"""A corpus: one long text as tokens, cut into training, validation and test parts."""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..checks import check_types
from ..errors import UserError
from ..io import check_writable
from ..text import printable
from .cache import cache_folder, cached_unpinned
from .encoding import Alphabet, Encoding, Subwords, TokenIds, as_text, to_bytes, token_type

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
NAMED = 5
"""Of what a sentence counts, so many are named."""
CACHED_FROM = 2_000_000
"""Characters from which on the tokens of a text go to the cache: a few seconds of work."""


@dataclass(frozen=True)
class ReadOptions:
    """How a file becomes tokens; by default it is a text whose bytes are the symbols."""

    tokenizer: str | None = None
    """Subwords instead of bytes: the path of a tokenizer.json, of a folder that transformers saved, or a hub's name."""
    text_column: str | None = None
    """JSONL and Parquet: the column with the text. Each row is a document."""
    token_dtype: Literal["uint16", "uint32"] | None = None
    """Token files (.bin): the type of their numbers; nanoGPT writes uint16."""
    vocab_size: int | None = None
    """Token files (.bin, .npy): the number of tokens. Not needed with a tokenizer."""

    def __post_init__(self) -> None:
        check_types(self, "corpus: ")

    def record(self) -> dict[str, Any]:
        """The entries of a run's config. The tokenizer itself is saved in the run folder."""
        named = {"text_column": self.text_column, "token_dtype": self.token_dtype}
        return {name: value for name, value in named.items() if value is not None}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> ReadOptions:
        return ReadOptions(text_column=record.get("text_column"), token_dtype=record.get("token_dtype"))


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text ready for training.

    ``train``, ``valid`` and ``test`` are tensors of tokens: the first 90 %, the next 5 % and the last 5 % of the
    text, in its own order. At one byte a symbol 10^8 symbols are 100 MB, small enough for the device's memory.
    ``sha256``, of the text as bytes, identifies the corpus.
    """

    name: str
    encoding: Encoding
    sha256: str
    train: Tensor
    valid: Tensor
    test: Tensor
    left_out: str = field(default="", kw_only=True)
    """A warning about how it was read, e.g. which files are not text and were left out; mostly empty."""
    n_bytes: tuple[int, ...] | None = field(default=None, kw_only=True)
    """Bytes of text in the three parts, where they are known and decoding the tokens restores the text."""
    end: int | None = field(default=None, kw_only=True)
    """The token before each document, where the text consists of documents."""
    from_tokens: bool = field(default=False, kw_only=True)
    """Whether it was loaded as tokens; the bytes of its text are then counted when they are needed."""
    reading: ReadOptions = field(default=ReadOptions(), kw_only=True)
    cut_documents: bool = field(default=False, kw_only=True)
    """Whether documents were cut in two where the validation and test parts begin."""

    @staticmethod
    def from_bytes(
        name: str,
        raw: bytes | bytearray,
        symbols: bytes | None = None,
        encoding: Subwords | None = None,
        whole: bool = False,
    ) -> Corpus:
        """Encode ``raw`` and split it 90/5/5. ``symbols`` fixes the alphabet; else it is the bytes that occur in
        ``raw``. With an ``encoding`` the splits begin at the same bytes, or at the next character. ``whole`` puts all
        of it into the first split, so that no token is cut."""
        if not raw:
            raise UserError(f"the corpus {name} is empty: choose a text with something in it")
        sha256 = hashlib.sha256(raw).hexdigest()
        if encoding is None:
            alphabet = Alphabet.of(raw) if symbols is None else Alphabet(symbols)
            places = [len(raw)] * 2 if whole else cuts(len(raw))
            parts = [alphabet.encode(raw[low:high]) for low, high in pairwise([0, *places, len(raw)])]
            return Corpus(name, alphabet, sha256, *parts)
        # A text that was cut at a round number may end within a character.
        _, end = codecs.utf_8_decode(raw, "ignore", False)
        starts = [0, *([end] * 2 if whole else character_cuts(raw)), end]
        texts = [as_text(raw[low:high], name, low) for low, high in pairwise(starts)]
        parts = [_encoded(encoding, [text], f"{printable(name)}, characters", False) for text in texts]
        n_bytes = tuple(len(text.encode()) for text in texts) if encoding.gives_back(texts[0]) else None
        return Corpus(name, encoding, sha256, *parts, n_bytes=n_bytes)

    @staticmethod
    def from_documents(
        name: str, documents: Sequence[str], encoding: Subwords | None = None, cut: bool = False
    ) -> Corpus:
        """Concatenated documents, with the end token before each and after the last.

        A document belongs to the split in which it ends, measured in bytes; with ``cut`` those that reach over the
        90 and the 95 % mark are cut there in two. The end token is the tokenizer's, or the zero byte where the
        symbols are bytes.
        """
        texts = [document for document in documents if document]
        if not texts:
            raise UserError(f"the corpus {name} has no document with text in it: choose another")
        raw = [to_bytes(text, f"document {i:,}", "strict") for i, text in enumerate(texts, 1)]
        whole, joined = b"\0" + b"\0".join(raw) + b"\0", b"".join(raw)
        ends = np.cumsum([len(part) for part in raw])
        places = character_cuts(joined) if cut else cuts(len(joined))
        if cut:
            ends = np.array(sorted({*ends.tolist(), *places} - {0}))
            raw = [joined[low:high] for low, high in pairwise([0, *ends.tolist()])]
            texts = [part.decode("utf-8") for part in raw]
        first, second = (int(np.searchsorted(ends, place, "right")) for place in places)
        groups = [slice(0, first), slice(first, second), slice(second, None)]
        if encoding is None:
            if any(b"\0" in part for part in raw):
                raise UserError(f"a document of {name} holds a zero byte, which ends documents: remove it")
            alphabet, end, counted = Alphabet.of(whole), 0, True
            packed = [b"\0" + b"".join(part + b"\0" for part in raw[group]) for group in groups]
            parts = [alphabet.encode(part) for part in packed]
        else:
            end, counted = encoding.end, encoding.gives_back(texts[0])
            parts = [_encoded(encoding, texts[g], f"{printable(name)}, characters", True) for g in groups]
        n_bytes = tuple(sum(map(len, raw[group])) for group in groups) if counted else None
        sha256 = hashlib.sha256(whole).hexdigest()
        return Corpus(name, encoding or alphabet, sha256, *parts, n_bytes=n_bytes, end=end, cut_documents=cut)

    @property
    def alphabet(self) -> Alphabet:
        """The encoding, where symbols are bytes."""
        if not isinstance(self.encoding, Alphabet):
            raise UserError(
                f"the corpus {self.name} is made of subwords; this needs one whose symbols are bytes"
            )
        return self.encoding

    @property
    def symbols(self) -> bytes:
        """The distinct byte values, rising; the index of a value is its token."""
        return self.alphabet.symbols

    @property
    def vocab_size(self) -> int:
        return len(self.encoding)

    def tokens(self, split: Split | None) -> Tensor:
        """Those of a split, or of the whole text for None; between two splits of documents one end is enough."""
        if split is not None:
            return getattr(self, split)
        whole = self.train
        for part in (self.valid, self.test):
            twice = self.end is not None and whole[-1:].tolist() == part[:1].tolist() == [self.end]
            whole = torch.cat((whole, part[1:] if twice else part))
        return whole

    def tokens_per_byte(self, split: Split | None) -> float | None:
        """bits per token × this = bits per byte; None where the bytes are not known. 1 where tokens are bytes.

        The end tokens of documents count as tokens but not as bytes: predicting where a text ends costs bits too.
        """
        if isinstance(self.encoding, Alphabet) and self.end is None:
            return 1.0
        tokens, n = self.tokens(split), 0
        if self.n_bytes is not None:
            n = sum(self.n_bytes) if split is None else self.n_bytes[SPLITS.index(split)]
        elif self.from_tokens and isinstance(self.encoding, Subwords):
            n = self.encoding.count_bytes(tokens, f"{printable(self.name)}, tokens decoded")
        return len(tokens) / n if n else None

    def document_end(self, separate: bool) -> int | None:
        """For :class:`Windows`: the token before each document if documents are to be separate, else None."""
        if separate and self.end is None:
            raise UserError(
                f"{self.name} is one text: separate documents come from JSONL or Parquet "
                "(--text-column), or from token files with --tokenizer"
            )
        return self.end if separate else None

    def record(self) -> dict[str, Any]:
        """The entries of a run's config: enough to find the text again and to check that it is the same."""
        cut = {"cut_documents": True} if self.cut_documents else {}
        return {
            "name": self.name,
            "sha256": self.sha256,
            **self.encoding.record(),
            **self.reading.record(),
            **cut,
        }

    def within(self, encoding: Encoding) -> Corpus:
        """The same text in the tokens of another alphabet, which must have all its symbols."""
        if encoding == self.encoding:
            return self
        ids, read = "tokens without a tokenizer", "text"
        if isinstance(encoding, TokenIds) != isinstance(self.encoding, TokenIds):
            here, there = (ids, read) if isinstance(self.encoding, TokenIds) else (read, ids)
            raise UserError(f"{self.name} holds {here}, and the model reads {there}: give it {there}")
        if not isinstance(encoding, Alphabet) or not isinstance(self.encoding, Alphabet):
            raise UserError(
                f"the corpus {self.name} was read with another tokenizer than the model's: give --tokenizer with the "
                f"one it was trained with ({self.vocab_size} tokens here, {len(encoding)} there)"
            )
        foreign = sorted(set(self.symbols) - set(encoding.symbols))
        if self.end is not None and self.symbols[self.end] in foreign:
            raise UserError(
                f"{self.name} consists of documents, and the model has no symbol for the end of one: it was trained "
                "on one text; give it one, as a file or a folder of text files"
            )
        if foreign:
            times = torch.bincount(self.tokens(None), minlength=self.vocab_size).tolist()
            count = {value: times[self.symbols.index(value)] for value in foreign}
            most = sorted(foreign, key=lambda value: -count[value])[:NAMED]
            named = ", ".join(f"{bytes([value])!r} ({count[value]:,}×)" for value in most)
            raise UserError(
                f"{len(foreign)} of the {self.vocab_size} symbols of the corpus {self.name} are not among the "
                f"{len(encoding)} of the model, {sum(count.values()):,} of its {len(self):,} bytes: {named}"
                f"{' and others' if len(foreign) > NAMED else ''}; leave them out of the text"
            )
        table = encoding.encode(self.symbols)
        train, valid, test = (table[getattr(self, split).long()] for split in SPLITS)
        end = None if self.end is None else int(table[self.end])
        return dataclasses.replace(self, encoding=encoding, train=train, valid=valid, test=test, end=end)

    def __len__(self) -> int:
        return len(self.train) + len(self.valid) + len(self.test)

    def encode(self, text: bytes | str) -> Tensor:
        """Text -> tokens; see :meth:`Encoding.encode`."""
        return self.encoding.encode(text)

    def decode(self, tokens: Tensor) -> str:
        """Tokens -> text; see :meth:`Encoding.decode`."""
        return self.encoding.decode(tokens)

    def __repr__(self) -> str:
        return (
            f"Corpus({self.name}: {self.vocab_size} symbols, sha256 {self.sha256[:8]}, "
            f"{len(self.train):,} train, {len(self.valid):,} valid, {len(self.test):,} test)"
        )


def cuts(n: int) -> tuple[int, int]:
    """Where the validation and test splits begin in a text of ``n`` symbols."""
    return n * 90 // 100, n * 95 // 100


def character_cuts(raw: bytes | bytearray) -> list[int]:
    """:func:`cuts` of UTF-8, each moved on to where a character begins."""
    places = list(cuts(len(raw)))
    for i in range(len(places)):
        while places[i] < len(raw) and raw[places[i]] & 0xC0 == 0x80:
            places[i] += 1
    return places


def _encoded(encoding: Subwords, texts: Sequence[str], label: str, ends: bool) -> Tensor:
    """The tokens of all texts; with ``ends``, [end] text [end] … [end]. Those of a long text come from the cache."""
    kind = token_type(len(encoding))

    def make() -> bytes:
        parts = encoding.encode_each(texts, label)
        if ends:
            end = np.array([encoding.end], dtype=kind)
            parts = [end, *(piece for part in parts for piece in (part, end))]
        return np.concatenate(parts or [np.empty(0, dtype=kind)]).tobytes()

    folder, cacheable = cache_folder(), sum(map(len, texts)) >= CACHED_FROM
    if cacheable:
        try:
            check_writable(folder, "")
        except UserError:
            cacheable = False
    if not cacheable:
        raw = make()
    else:
        digest = hashlib.sha256(f"{encoding.sha256} {encoding.end if ends else ''}".encode())
        for text in texts:
            digest.update(b"\0" + text.encode())
        raw = cached_unpinned(folder, f"tokens-{digest.hexdigest()}", make)
    return torch.from_numpy(np.frombuffer(bytearray(raw), dtype=kind))
