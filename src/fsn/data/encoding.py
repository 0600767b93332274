"""Encodings: from text to tokens and back.

Three kinds: an :class:`Alphabet` has a token for every byte value of its corpus (205 in enwik8, a fixed 97 in the code
corpora), :class:`Subwords` are the tokens of any tokenizer of the package ``tokenizers``, :class:`TokenIds` are numbers
without text. A run folder holds :meth:`Encoding.record` in its config, and a tokenizer as ``tokenizer.json``, so that a
trained model can be used without its corpus.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, needs, reason
from ..io import read_file, user_path
from ..progress import Bar, say
from ..text import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
PIECE = 1 << 18
"""Characters that are encoded at a time; a longer text is cut after a line end."""
SAMPLE = 10_000
"""Characters on which a tokenizer is tested for a lossless round trip."""
GROUP = 64
"""Pieces that are encoded at once, on all cores."""
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")
"""Names of the end-of-text token, for tokenizers whose configuration does not name it."""

HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
HUB_TIMEOUT_S = 20.0
EXPECTED = (
    "give the path of a tokenizer.json, of a folder that holds one, or a name the Hugging Face hub knows"
)


class Encoding(ABC):
    """A mapping between text and tokens. ``len`` is the number of tokens, V."""

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
        """The entries of a run's config: plain values from which, with the run folder, it can be restored."""

    end: int | None = None
    """The token between two documents, if there is one."""

    def streamed(self) -> Callable[[int | None], str]:
        """A function that takes one token after the other and returns the text that is complete; None ends it."""
        tokens, shown = list[int](), ""

        def text() -> str:
            return self.decode(torch.tensor(tokens, dtype=torch.int64))

        def take(token: int | None) -> str:
            nonlocal tokens, shown
            if token is not None:
                tokens.append(token)
            whole = text()
            if token is not None and whole.endswith("\ufffd"):  # perhaps half a character
                return ""
            new = whole[len(shown) :] if whole.startswith(shown) else ""
            shown += new
            if len(tokens) > 64 and whole == shown:  # keep it short: a few tokens are context enough
                tokens = tokens[-8:]
                shown = text()
            return new

        return take

    def files(self) -> dict[str, str]:
        """Further files of a run folder, by name."""
        return {}

    def check_tokens(self, tokens: Tensor) -> Tensor:
        """``tokens`` as one row on the CPU; stop if one is out of range."""
        flat = tokens.detach().reshape(-1).cpu().long()
        if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= len(self)):
            raise UserError(f"a token must lie between 0 and {len(self) - 1} in this corpus")
        return flat


@dataclass(frozen=True)
class Alphabet(Encoding):
    """The symbols of a corpus: distinct byte values in rising order; a token is an index into them.

    A run's config has them: ``Alphabet(bytes.fromhex(config["corpus"]["symbols"]))``.
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

    def encode(self, text: bytes | bytearray | str) -> Tensor:
        """Text -> tokens, ``uint8`` of shape (len,).

        A ``str`` is encoded as UTF-8; for the code alphabet it is first normalised to the 97 symbols. Bytes of a
        command line that are not UTF-8 are kept. A symbol that the corpus does not have is an error that names it.
        """
        if isinstance(text, str):
            text = to_bytes(normalise_code(text) if self.symbols == CODE_SYMBOLS else text)
        foreign = text.translate(None, self.symbols)
        if foreign:
            raise UserError(
                f"the byte {bytes(foreign[:1])!r} is not among the {len(self)} symbols of this corpus: "
                "leave it out of the text"
            )
        if not text:
            return torch.empty(0, dtype=torch.uint8)
        # A table look-up for the whole text at once; the bytearray it returns becomes the tensor's memory.
        table = bytes.maketrans(self.symbols, bytes(range(len(self))))
        return torch.frombuffer(bytearray(text).translate(table), dtype=torch.uint8)

    def decode_bytes(self, tokens: Tensor) -> bytes:
        """Tokens -> the bytes they stand for."""
        table = bytes.maketrans(bytes(range(len(self))), self.symbols)
        return self.check_tokens(tokens).to(torch.uint8).numpy().tobytes().translate(table)

    def decode(self, tokens: Tensor) -> str:
        """Tokens -> text. Bytes that are not UTF-8 show as U+FFFD: a window may cut a character in two."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def record(self) -> dict[str, Any]:
        return {"symbols": self.symbols.hex()}


class Subwords(Encoding):
    """The tokens of a tokenizer, and one that ends a document.

    ``end`` is the tokenizer's own end-of-text token, or one after its last where it has none. A text that spells a
    special token is encoded as ordinary text.
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
        self.end: int = end

    def __len__(self) -> int:
        return max(self._size, self.end + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subwords) and (self.sha256, self.end) == (other.sha256, other.end)

    def __hash__(self) -> int:
        return hash(self.sha256)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: bytes | bytearray | str) -> Tensor:
        return torch.from_numpy(self.encode_each([as_text(text)])[0].astype(np.int64))

    def encode_each(self, texts: Sequence[str], label: str | None = None) -> list[np.ndarray]:
        """The tokens of each text."""
        pieces = [(i, piece) for i, text in enumerate(texts) for piece in _pieces(text)]
        found: list[list[np.ndarray]] = [[] for _ in texts]
        with Bar(label or "", sum(map(len, texts)), shown=label is not None) as bar:
            for low in range(0, len(pieces), GROUP):
                group = pieces[low : low + GROUP]
                try:
                    encoded = self.tokenizer.encode_batch_fast(
                        [piece for _, piece in group], add_special_tokens=False
                    )
                except (
                    Exception
                ) as error:  # the package raises no other type, e.g. for a word without a token
                    raise UserError(
                        f"the tokenizer cannot encode this text ({printable(error, limit=120)}); use one made for it"
                    ) from error
                for (i, _), one in zip(group, encoded, strict=True):
                    found[i].append(np.asarray(one.ids, dtype=token_type(len(self))))
                bar.update(sum(len(piece) for _, piece in group))
        return [np.concatenate(parts) for parts in found]

    def decode(self, tokens: Tensor) -> str:
        ids = [token for token in self.check_tokens(tokens).tolist() if token < self._size]
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def gives_back(self, text: str) -> bool:
        """Whether the beginning of ``text`` survives a round trip; if not, bits per byte would be too low."""
        return self.decode(self.encode(text[:SAMPLE])) == text[:SAMPLE]

    def count_bytes(self, tokens: Tensor, label: str) -> int:
        """Bytes of the decoded ``tokens``; 0 where decoding loses text, so that they are not known."""
        total, ends = 0, (tokens == self.end).nonzero()[:, 0]
        with Bar(label, total=len(tokens)) as bar:
            for document in tokens.tensor_split(ends.cpu()):
                text = self.decode(document[document != self.end])
                if total == 0 and not self.gives_back(text.lstrip()):  # some add a space in front
                    return 0
                total += len(text.encode())
                bar.update(len(document))
        return total

    def record(self) -> dict[str, Any]:
        return {"tokenizer": self.sha256, "vocab_size": len(self), "end": self.end}

    def files(self) -> dict[str, str]:
        return {TOKENIZER_FILE: self.tokenizer.to_str()}


@dataclass(frozen=True)
class TokenIds(Encoding):
    """Numbers without a tokenizer: they can be trained on, but not decoded."""

    vocab_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size < 2**31:
            raise UserError(f"vocab_size is {self.vocab_size}; it must lie between 1 and 2^31 - 1")

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: bytes | bytearray | str) -> Tensor:
        raise UserError(
            "these tokens have no tokenizer, so text cannot be encoded; give --tokenizer with the token file"
        )

    def decode(self, tokens: Tensor) -> str:
        return " ".join(map(str, self.check_tokens(tokens).tolist())) + " "

    def record(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size}


def from_record(record: Mapping[str, Any], folder: Path) -> Encoding:
    """The encoding of a run from the corpus part of its config and its folder."""
    if "symbols" in record:
        return Alphabet(bytes.fromhex(record["symbols"]))
    if "tokenizer" not in record:
        return TokenIds(record["vocab_size"])
    path = folder / TOKENIZER_FILE
    encoding = Subwords(_from_file(path, "copy it from where the run was trained"), record["end"])
    if encoding.sha256 != record["tokenizer"] or len(encoding) != record["vocab_size"]:
        raise UserError(
            f"{path} is not the tokenizer this run was trained with (its sha256 differs); restore that one"
        )
    return encoding


# -- tokenizers by path or name ----------------------------------------------------------------------------------------


def load_tokenizer(name: str, end: int | None = None) -> Subwords:
    """A tokenizer by the path of a ``tokenizer.json``, of a folder saved by transformers, or by its name on the hub.

    ``end`` is its end-of-text token, for a file that does not name it."""
    path = user_path(name)
    if not name or (os.path.lexists(path) and not path.is_dir()):
        return Subwords(_from_file(path, "give the path of a tokenizer.json"), end)
    if (path / TOKENIZER_FILE).is_file():
        tokenizer = _from_file(path / TOKENIZER_FILE)
        return Subwords(tokenizer, _configured_end(path, tokenizer))
    if not path.exists() and (name.endswith(".json") or not HUB_NAME.fullmatch(name)):
        raise UserError(f"there is no tokenizer {name!r}: {EXPECTED}")
    transformers = needs(
        "transformers",
        f"{name!r} is not a tokenizer.json; a tokenizer by name needs transformers: pip install transformers",
    )

    def get(local: bool) -> Any:
        source, how = str(path) if path.exists() else name, {"local_files_only": local}
        return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **how)

    try:
        with _silent("huggingface_hub", "transformers"):
            try:
                found = get(local=True)  # what was downloaded before needs no network
            except Exception:
                if path.exists():
                    raise
                say(f"looking for the tokenizer {printable(name)} on the Hugging Face hub")
                hub = needs("huggingface_hub", f"{name!r} is looked for with: pip install huggingface_hub")
                # Answers at once where there is no such name, or no network.
                hub.model_info(name, timeout=HUB_TIMEOUT_S)
                found = get(local=False)
            inner = found.backend_tokenizer
    except Exception as error:  # the hub's client raises many types
        why = printable(reason(error, 160))
        raise UserError(f"there is no tokenizer {name!r} ({why}): {EXPECTED}") from error
    return Subwords(_from_json(inner.to_str().encode(), path), found.eos_token_id)


@contextlib.contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Only errors of these packages' loggers, whose retries would fill the screen."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _from_file(path: Path, instead: str = "check that you may read it") -> Tokenizer:
    return _from_json(read_file(path, instead), path)


def _from_json(raw: bytes, path: Path) -> Tokenizer:
    tokenizers = needs("tokenizers", "a tokenizer needs the package tokenizers: pip install tokenizers")
    try:
        return tokenizers.Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # the package raises plain Exception
        raise UserError(
            f"{path} is not a tokenizer of tokenizers ({printable(error, limit=120)}); give a tokenizer.json"
        ) from error


def _configured_end(folder: Path, tokenizer: Tokenizer) -> int | None:
    """The end-of-text token that tokenizer_config.json names."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    try:
        named = json.loads(read_file(path)).get("eos_token")
    except (ValueError, AttributeError, RecursionError):
        return None
    named = named.get("content") if isinstance(named, dict) else named
    return tokenizer.token_to_id(named) if isinstance(named, str) else None


# -- code --------------------------------------------------------------------------------------------------------------

#: The alphabet of the code corpora: tab, newline and the 95 printable ASCII characters, 97 in all.
CODE_SYMBOLS = b"\t\n" + bytes(range(0x20, 0x7F))

# The decomposition of a character may change with the Unicode version of a Python release. The tables of Unicode 3.2,
# which every Python has, are frozen, so a corpus has one hash everywhere.
_UNICODE = unicodedata.ucd_3_2_0
_OUTSIDE = re.compile(r"[^\t\n\x20-\x7e]")


@cache
def _stand_in(character: str) -> str:
    """The ASCII replacement of a character outside of the 97."""
    if _UNICODE.category(character) in ("Cc", "Cf", "Mn", "Me"):
        return ""  # control characters, byte order marks, zero-width joiners, lone accents
    parts = _UNICODE.normalize("NFKD", character)
    return "".join(part for part in parts if 0x20 <= ord(part) < 0x7F) or "?"


def normalise_code(text: str) -> str:
    r"""``text`` in the 97 symbols of :data:`CODE_SYMBOLS`, the same on every machine.

    Line ends become ``\n``. Other control and formatting characters (a form feed, a byte order mark) are removed. A
    letter with an accent, a ligature or a full-width form becomes the ASCII it decomposes into (``é`` -> ``e``,
    ``ﬁ`` -> ``fi``); any other character becomes ``?``.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _OUTSIDE.sub(lambda found: _stand_in(found[0]), text)


# -- tokens as numbers -------------------------------------------------------------------------------------------------


def token_type(vocab_size: int) -> type[np.integer[Any]]:
    """The smallest type for the tokens that PyTorch can index and compare."""
    if vocab_size <= 2**8:
        return np.uint8
    return np.int16 if vocab_size <= 2**15 else np.int32


def as_text(text: bytes | bytearray | str, name: str = "the text", first: int = 0) -> str:
    """Decode UTF-8; an error gives the position of the bad byte, if ``text`` begins at byte ``first`` of ``name``."""
    text = to_bytes(text) if isinstance(text, str) else bytes(text)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = text[error.start : error.start + 1]
        raise UserError(
            f"a tokenizer reads UTF-8, but byte {first + error.start:,} of {name} is {bad!r}; leave --tokenizer out to "
            "read bytes as they are"
        ) from None


def to_bytes(text: str, name: str = "the text", errors: str = "surrogateescape") -> bytes:
    """``text`` as UTF-8. Bytes of a command line that are not UTF-8 are kept."""
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        raise UserError(f"{name} holds {text[error.start]!r}, half of a character: remove it") from None


def _pieces(text: str) -> list[str]:
    """``text`` in pieces of at most PIECE characters, cut after line ends where there are any."""
    pieces, low = [], 0
    while len(text) - low > PIECE:
        cut = text.rfind("\n", low, low + PIECE) + 1 or low + PIECE
        pieces.append(text[low:cut])
        low = cut
    return [*pieces, text[low:]]
