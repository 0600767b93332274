"""Encodings: from text to tokens and back.

Three kinds: an :class:`~fsn.data.alphabet.Alphabet` has a token for every byte value of its corpus, :class:`Subwords`
are the tokens of any tokenizer that the package ``tokenizers`` can hold, :class:`TokenIds` are numbers that came
without their text. A run folder keeps what :meth:`Encoding.record` says, and a tokenizer as ``tokenizer.json``, so that
a trained model can be spoken to without its corpus.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fsn.errors import UserError
from fsn.io import read_file, user_path
from fsn.progress import Bar, say
from fsn.text import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
PIECE = 1 << 18
"""Characters that are encoded at a time; a longer text is cut behind a line end."""
SAMPLE = 10_000
"""Characters by which a tokenizer shows whether it gives a text back."""
GROUP = 64
"""Pieces that are encoded at once, on all cores."""
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")
"""What tokenizers call the end of a text, where their configuration does not say it."""


class Encoding(ABC):
    """What a token means. ``len`` is the number of tokens there are, V."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encode(self, text: bytes | bytearray | str) -> Tensor:
        """Text -> tokens (n,)"""

    @abstractmethod
    def decode(self, tokens: Tensor) -> str:
        """Tokens -> text; what is not UTF-8 shows as U+FFFD."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What a run's config keeps of it: plain values from which, with the run folder, it can be had again."""

    @property
    def end(self) -> int | None:
        """The token that stands between two documents, if there is one."""
        return None

    def start(self) -> Tensor:
        """What a generated text begins with where there is no prompt, (1,)."""
        return torch.tensor([0 if self.end is None else self.end])

    def streamed(self) -> Callable[[int | None], str]:
        """A function that takes one token after the other and gives the text that is complete; None ends it."""
        return _Stream(self)

    def files(self) -> dict[str, str]:
        """What :meth:`record` does not hold and a run folder keeps: names of files and their text."""
        return {}

    def check_tokens(self, tokens: Tensor) -> Tensor:
        """``tokens`` as one row on the CPU, all of them within range."""
        flat = tokens.detach().reshape(-1).cpu().long()
        if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= len(self)):
            raise UserError(f"a token must lie between 0 and {len(self) - 1} in this corpus")
        return flat


class _Stream:
    """Decodes a growing list of tokens, and holds back what may be half a character."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding, self.tokens, self.shown = encoding, list[int](), ""

    def __call__(self, token: int | None) -> str:
        if token is not None:
            self.tokens.append(token)
        text = self.encoding.decode(torch.tensor(self.tokens, dtype=torch.int64))
        if token is not None and text.endswith("\ufffd"):
            return ""
        new = text[len(self.shown) :] if text.startswith(self.shown) else ""
        self.shown += new
        if len(self.tokens) > 64 and text == self.shown:  # keep it short: a few tokens are context enough
            self.tokens = self.tokens[-8:]
            self.shown = self.encoding.decode(torch.tensor(self.tokens, dtype=torch.int64))
        return new


class ByteStream:
    """:meth:`Encoding.streamed` where every token is a byte: a character may take several of them."""

    def __init__(self, symbols: bytes) -> None:
        self.symbols, self.text = symbols, codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, token: int | None) -> str:
        return self.text.decode(
            b"" if token is None else self.symbols[token : token + 1], final=token is None
        )


class Subwords(Encoding):
    """The tokens of a tokenizer, and one that ends a document.

    ``end`` is the tokenizer's own token for the end of a text, or one more behind its last where it has none. Letters
    in a text that spell a special token are letters.
    """

    def __init__(self, tokenizer: Tokenizer, end: int | None = None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self.tokenizer = tokenizer
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
        if not ids:
            raise UserError("the tokenizer has no tokens; train it first")
        self._size = max(ids) + 1
        if end is None:
            end = next((i for i in map(tokenizer.token_to_id, ENDS) if i is not None), self._size)
        if not 0 <= end <= self._size:
            raise UserError(f"the end of a document is token {end}; the tokenizer has {self._size}")
        self._end = end

    def __len__(self) -> int:
        return max(self._size, self._end + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subwords) and (self.sha256, self._end) == (other.sha256, other._end)

    def __hash__(self) -> int:
        return hash(self.sha256)

    @property
    def end(self) -> int:
        return self._end

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: bytes | bytearray | str) -> Tensor:
        return torch.from_numpy(self.encode_each([as_text(text)])[0].astype(np.int64))

    def encode_each(self, texts: Sequence[str], label: str | None = None) -> list[np.ndarray]:
        """The tokens of each text."""
        pieces = [(i, piece) for i, text in enumerate(texts) for piece in _pieces(text)]
        found: list[list[np.ndarray]] = [[] for _ in texts]
        bar = Bar(label, total=sum(map(len, texts))) if label else None
        with bar or contextlib.nullcontext():
            for low in range(0, len(pieces), GROUP):
                group = pieces[low : low + GROUP]
                try:
                    encoded = self.tokenizer.encode_batch_fast(
                        [piece for _, piece in group], add_special_tokens=False
                    )
                except (
                    Exception
                ) as error:  # the package raises plain Exception, e.g. for a word without a token
                    raise UserError(
                        f"the tokenizer cannot encode this text ({printable(error, limit=120)}); use one made for it"
                    ) from error
                for (i, _), one in zip(group, encoded, strict=True):
                    found[i].append(np.asarray(one.ids, dtype=token_type(len(self))))
                if bar is not None:
                    bar.update(sum(len(piece) for _, piece in group))
        return [np.concatenate(parts) for parts in found]

    def decode(self, tokens: Tensor) -> str:
        ids = [token for token in self.check_tokens(tokens).tolist() if token < self._size]
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def gives_back(self, text: str) -> bool:
        """Whether the beginning of ``text`` comes back from its tokens; else bits per byte would flatter the model."""
        return self.decode(self.encode(text[:SAMPLE])) == text[:SAMPLE]

    def count_bytes(self, tokens: Tensor, label: str) -> int:
        """Bytes of the text behind ``tokens``; 0 where it cannot be known, since the same text has other tokens."""
        total = low = 0
        with Bar(label, total=len(tokens)) as bar:
            while low < len(tokens):
                high = min(low + PIECE, len(tokens))
                text = self._text(tokens[low:high])
                while text.endswith("\ufffd") and low + 1 < high < len(
                    tokens
                ):  # a character goes on behind it
                    high -= 1
                    text = self._text(tokens[low:high])
                if low == 0 and not self.gives_back(text):
                    return 0
                total += len(text.encode())
                bar.update(high - low)
                low = high
        return total

    def _text(self, tokens: Tensor) -> str:
        """What stands between documents has no text."""
        tokens = tokens.long()
        return self.decode(tokens[tokens != self._end])

    def record(self) -> dict[str, Any]:
        return {"tokenizer": self.sha256, "vocab_size": len(self), "end": self._end}

    def files(self) -> dict[str, str]:
        return {TOKENIZER_FILE: self.tokenizer.to_str()}


class TokenIds(Encoding):
    """Numbers without their text: they can be trained on, not read."""

    def __init__(self, vocab_size: int) -> None:
        if not 1 <= vocab_size < 2**31:
            raise UserError(f"vocab_size is {vocab_size}; it must lie between 1 and 2^31 - 1")
        self._size = vocab_size

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenIds) and len(self) == len(other)

    def __hash__(self) -> int:
        return self._size

    def encode(self, text: bytes | bytearray | str) -> Tensor:
        raise UserError(
            "these tokens came without a tokenizer, so text has no tokens; give --tokenizer with the token file"
        )

    def decode(self, tokens: Tensor) -> str:
        return " ".join(map(str, self.check_tokens(tokens).tolist())) + " "

    def record(self) -> dict[str, Any]:
        return {"vocab_size": self._size}


def from_record(record: Mapping[str, Any], folder: Path) -> Encoding:
    """The encoding of a run from the corpus part of its config and its folder."""
    from fsn.data.alphabet import Alphabet

    if "symbols" in record:
        return Alphabet(bytes.fromhex(record["symbols"]))
    if "tokenizer" not in record:
        return TokenIds(record["vocab_size"])
    path = folder / TOKENIZER_FILE
    encoding = Subwords(
        _from_json(read_file(path, "copy it from where the run was trained"), path), record["end"]
    )
    if encoding.sha256 != record["tokenizer"] or len(encoding) != record["vocab_size"]:
        raise UserError(
            f"{path} is not the tokenizer this run was trained with (its sha256 differs); put that back"
        )
    return encoding


# -- tokenizers by path or name ----------------------------------------------------------------------------------------


def load_tokenizer(name: str, end: int | None = None) -> Subwords:
    """A tokenizer by the path of a ``tokenizer.json``, of a folder saved by transformers, or by its name on a hub.

    ``end`` is its token for the end of a text, for a file that does not say it."""
    path = user_path(name)
    if not name or (os.path.lexists(path) and not path.is_dir()):
        return Subwords(_from_json(read_file(path, "give the path of a tokenizer.json"), path), end)
    if (path / TOKENIZER_FILE).is_file():
        tokenizer = _from_json(read_file(path / TOKENIZER_FILE), path / TOKENIZER_FILE)
        return Subwords(tokenizer, _configured_end(path, tokenizer))
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError(
            f"{name!r} is no tokenizer.json; a tokenizer by name needs transformers: pip install 'fsn[hub]'"
        ) from None
    if not path.exists():
        say(f"looking for the tokenizer {printable(name)} on the Hugging Face hub")
    try:
        found = AutoTokenizer.from_pretrained(str(path) if path.exists() else name, trust_remote_code=False)
        inner = found.backend_tokenizer
    except Exception as error:  # a hub's client raises many kinds; to the user they are one
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"there is no tokenizer {name!r} ({printable(reason, limit=160)}): give the path of a tokenizer.json, of a "
            "folder that holds one, or a name the Hugging Face hub knows"
        ) from error
    return Subwords(_from_json(inner.to_str().encode(), path), found.eos_token_id)


def _from_json(raw: bytes, path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError("a tokenizer needs the package tokenizers: pip install 'fsn[data]'") from None
    try:
        return Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # the package raises plain Exception
        raise UserError(
            f"{path} is no tokenizer of the package tokenizers ({printable(error, limit=120)}); give a tokenizer.json"
        ) from error


def _configured_end(folder: Path, tokenizer: Tokenizer) -> int | None:
    """The end of a text as tokenizer_config.json names it."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    try:
        named = json.loads(read_file(path)).get("eos_token")
    except (ValueError, AttributeError, RecursionError):
        return None
    named = named.get("content") if isinstance(named, dict) else named
    return tokenizer.token_to_id(named) if isinstance(named, str) else None


# -- tokens as numbers -------------------------------------------------------------------------------------------------


def token_type(vocab_size: int) -> type[np.integer[Any]]:
    """The smallest type that holds the tokens and that PyTorch can work with."""
    if vocab_size <= 2**8:
        return np.uint8
    return np.int16 if vocab_size <= 2**15 else np.int32


def as_text(text: bytes | bytearray | str, name: str = "the text", first: int = 0) -> str:
    """``text``, which begins at byte ``first`` of what is called ``name``, from UTF-8."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogateescape")
    try:
        return bytes(text).decode("utf-8")
    except UnicodeDecodeError as error:
        bad = bytes(text[error.start : error.start + 1])
        raise UserError(
            f"a tokenizer reads UTF-8, but byte {first + error.start:,} of {name} is {bad!r}; leave --tokenizer out to "
            "read bytes as they are"
        ) from None


def _pieces(text: str) -> list[str]:
    """``text`` in pieces of at most PIECE characters, cut behind line ends where there are any."""
    pieces, low = [], 0
    while len(text) - low > PIECE:
        cut = text.rfind("\n", low, low + PIECE) + 1 or low + PIECE
        pieces.append(text[low:cut])
        low = cut
    return [*pieces, text[low:]]
