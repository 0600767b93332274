"""Symbols: which characters a corpus may contain, and their numbers.

A model of this project reads symbols, not words: every byte value that occurs in the corpus is one symbol,
and its token is its place in the sorted list of those values. enwik8 has 205 of them, the code corpora have
a fixed 97.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fsn.data.encoding import ByteStream, Encoding
from fsn.errors import UserError

#: The alphabet of the code corpora: tab, newline and the 95 printable ASCII characters, 97 in all.
CODE_SYMBOLS = b"\t\n" + bytes(range(0x20, 0x7F))

# Unicode grows with every Python release, and with it the answer to "how does this character decompose?".
# The frozen 3.2 tables that every Python carries give one answer for all of them, so a corpus has one hash
# everywhere.
_UNICODE = unicodedata.ucd_3_2_0
_OUTSIDE = re.compile(r"[^\t\n\x20-\x7e]")


class _ToCode(dict[int, str]):
    """Code point -> its ASCII stand-in; worked out on first sight, remembered after."""

    def __missing__(self, point: int) -> str:
        character = chr(point)
        if 0x20 <= point < 0x7F or character in "\t\n":
            stand_in = character
        elif _UNICODE.category(character) in ("Cc", "Cf", "Mn", "Me"):
            stand_in = ""  # control characters, byte order marks, zero-width joiners, lone accents
        else:
            parts = _UNICODE.normalize("NFKD", character)
            stand_in = "".join(part for part in parts if 0x20 <= ord(part) < 0x7F) or "?"
        self[point] = stand_in
        return stand_in


_TO_CODE = _ToCode()


def normalise_code(text: str) -> str:
    r"""``text`` in the 97 symbols of :data:`CODE_SYMBOLS`, the same on every machine.

    Line ends become ``\n``. Other control and formatting characters (a form feed, a byte order mark)
    vanish. A letter with an accent, a ligature or a full-width form becomes the ASCII it decomposes into
    (``é`` -> ``e``, ``ﬁ`` -> ``fi``); whatever has no ASCII in it becomes ``?``, one for each character.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _OUTSIDE.search(text) is None:
        return text
    return text.translate(_TO_CODE)


@dataclass(frozen=True)
class Alphabet(Encoding):
    """The symbols of a corpus: distinct byte values in rising order; a token is an index into them.

    This is all that is needed to speak to a trained model, without the corpus it was trained on:
    ``Alphabet(bytes.fromhex(config["corpus"]["symbols"]))``.
    """

    symbols: bytes

    def __post_init__(self) -> None:
        if not self.symbols or list(self.symbols) != sorted(set(self.symbols)):
            raise UserError("an alphabet needs at least one symbol, each once, in rising order of byte value")

    def __len__(self) -> int:
        return len(self.symbols)

    @staticmethod
    def of(raw: bytes | bytearray) -> Alphabet:
        """The alphabet of the byte values that occur in ``raw``."""
        return Alphabet(bytes(value for value in range(256) if value in raw))

    @cached_property
    def _table(self) -> bytes:
        table = bytearray(256)
        for token, value in enumerate(self.symbols):
            table[value] = token
        return bytes(table)

    def encode(self, text: bytes | bytearray | str) -> Tensor:
        """Text -> tokens, ``uint8`` of shape (len,).

        A ``str`` is taken as UTF-8; in the code alphabet it is first brought to the 97 symbols. Bytes that are not
        UTF-8, as a command line hands them over, are taken as they are. A symbol the corpus does not have is an
        error that names it.
        """
        if isinstance(text, str):
            text = _to_bytes(normalise_code(text) if self.symbols == CODE_SYMBOLS else text)
        foreign = text.translate(None, self.symbols)
        if foreign:
            raise UserError(
                f"the byte {bytes(foreign[:1])!r} is not among the {len(self)} symbols of this corpus: "
                "leave it out of the text"
            )
        if not text:
            return torch.empty(0, dtype=torch.uint8)
        # A table look-up for the whole text at once; the bytearray it returns becomes the tensor's memory.
        return torch.frombuffer(bytearray(text).translate(self._table), dtype=torch.uint8)

    def decode_bytes(self, tokens: Tensor) -> bytes:
        """Tokens -> the bytes they stand for."""
        inverse = self.symbols + bytes(256 - len(self))
        return self.check_tokens(tokens).to(torch.uint8).numpy().tobytes().translate(inverse)

    def decode(self, tokens: Tensor) -> str:
        """Tokens -> text. Bytes that are not UTF-8 show as U+FFFD: a window may cut a character in two."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def record(self) -> dict[str, Any]:
        return {"symbols": self.symbols.hex()}

    def start(self) -> Tensor:
        """A line end, or the first symbol."""
        return self.encode(b"\n" if b"\n" in self.symbols else self.symbols[:1]).long()

    def streamed(self) -> Callable[[int | None], str]:
        return ByteStream(self.symbols)


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text holds {text[error.start]!r}, half of a character: leave it out of the text"
        ) from None
