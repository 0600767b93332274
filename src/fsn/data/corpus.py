"""A corpus: one long text as tokens, cut into training, validation and test parts."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field

from torch import Tensor

from fsn.data.alphabet import Alphabet
from fsn.errors import UserError


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text ready for training.

    ``train``, ``valid`` and ``test`` are ``uint8`` tensors of tokens: the first 90 %, the next 5 % and the
    last 5 % of the text, in its own order. One byte a symbol means that 10^8 symbols are 100 MB, small
    enough to live on the device whole. ``sha256`` is that of the text as bytes and pins the corpus for
    good.
    """

    name: str
    alphabet: Alphabet
    sha256: str
    train: Tensor
    valid: Tensor
    test: Tensor
    left_out: str = field(default="", kw_only=True)
    """A sentence on the files of a folder that are not text, where there are any."""

    @staticmethod
    def from_bytes(name: str, raw: bytes | bytearray, symbols: bytes | None = None) -> Corpus:
        """Encode ``raw`` and split it 90/5/5. ``symbols`` fixes the alphabet; else it is what occurs in
        ``raw``."""
        if not raw:
            raise UserError(f"the corpus {name} is empty: choose a text with something in it")
        alphabet = Alphabet.of(raw) if symbols is None else Alphabet(symbols)
        tokens = alphabet.encode(raw)
        n = len(tokens)
        first, second = n * 90 // 100, n * 95 // 100
        return Corpus(
            name=name,
            alphabet=alphabet,
            sha256=hashlib.sha256(raw).hexdigest(),
            train=tokens[:first],
            valid=tokens[first:second],
            test=tokens[second:],
        )

    @property
    def symbols(self) -> bytes:
        """The distinct byte values, rising; the index of a value is its token."""
        return self.alphabet.symbols

    @property
    def vocab_size(self) -> int:
        return len(self.alphabet)

    def within(self, alphabet: Alphabet) -> Corpus:
        """The same text in the tokens of another alphabet, which must have all its symbols."""
        if alphabet == self.alphabet:
            return self
        foreign = sorted(set(self.symbols) - set(alphabet.symbols))
        if foreign:
            raise UserError(
                f"{len(foreign)} of the {self.vocab_size} symbols of the corpus {self.name} are not among the "
                f"{len(alphabet)} that the model knows, for example {bytes(foreign[:1])!r}: leave them out of the text"
            )
        table = alphabet.encode(self.symbols)
        train, valid, test = (table[part.long()] for part in (self.train, self.valid, self.test))
        return dataclasses.replace(self, alphabet=alphabet, train=train, valid=valid, test=test)

    def __len__(self) -> int:
        return len(self.train) + len(self.valid) + len(self.test)

    def encode(self, text: bytes | str) -> Tensor:
        """Text -> tokens (``uint8``); see :meth:`Alphabet.encode`."""
        return self.alphabet.encode(text)

    def decode(self, tokens: Tensor) -> str:
        """Tokens -> text; see :meth:`Alphabet.decode`."""
        return self.alphabet.decode(tokens)

    def __repr__(self) -> str:
        return (
            f"Corpus({self.name}: {self.vocab_size} symbols, sha256 {self.sha256[:8]}, "
            f"{len(self.train):,} train, {len(self.valid):,} valid, {len(self.test):,} test)"
        )
