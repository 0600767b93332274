"""Corpora by name, and any file or folder as a corpus: text, documents, or tokens."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from ..errors import UserError, needs
from ..io import check_regular, read_file, user_path
from ..progress import Bar
from ..text import printable
from . import enwik8, python_code
from .cache import DAMAGED, cache_folder
from .corpus import NAMED, Corpus, ReadOptions, cuts
from .encoding import CODE_SYMBOLS, Alphabet, Encoding, Subwords, TokenIds, load_tokenizer

TABLES = (".jsonl", ".ndjson", ".parquet")
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
"""Compressed texts and JSONL are read as what is in them."""
ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".zst", ".lz4", ".br")
TOKENS_AT_ONCE = 1 << 24

#: name -> (description, the text as a function of the cache folder, its symbols where they are fixed)
CORPORA: dict[str, tuple[str, Callable[[Path], bytes], bytes | None]] = {
    "enwik8": ("10^8 bytes of English Wikipedia, 205 symbols: the paper's main corpus", enwik8.load, None),
    "python-stdlib": (
        "the running Python's standard library, about 8 million characters, 97 symbols: needs no network",
        python_code.load_stdlib,
        CODE_SYMBOLS,
    ),
    "codeparrot": (
        "10^8 characters of Python from GitHub, 97 symbols: the paper's code corpus (needs its hub)",
        python_code.load_codeparrot,
        CODE_SYMBOLS,
    ),
    "pypi-python": (
        "10^8 characters of Python from pinned PyPI packages, 97 symbols: stands in for codeparrot",
        python_code.load_pypi,
        CODE_SYMBOLS,
    ),
}


def available() -> list[tuple[str, str]]:
    """The named corpora, each with a description."""
    return [(name, line) for name, (line, _, _) in CORPORA.items()]


def load(
    name: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    reading: ReadOptions | None = None,
    encoding: Encoding | None = None,
    cut_documents: bool = False,
    whole: bool = False,
) -> Corpus:
    """A corpus by name, or any file or folder by its path.

    ``cache`` is the folder for downloads (default: ``FSN_CACHE`` or ``~/.cache/fsn``). A name takes precedence over
    a path; write ``./enwik8`` for a file of that name. ``reading`` says how a file becomes tokens; ``encoding`` is
    that of a trained model, in whose tokens the text is to be read. ``cut_documents`` cuts documents in two where the
    validation and test parts begin, where there are too few for whole ones. ``whole`` is for texts that are only read:
    their ``tokens(None)`` are then those of the uncut text.

    A path is tokens (.bin, .npy, or a folder with train.bin), documents (.jsonl or .parquet, or a folder of them with
    a text column), or else text: a file byte for byte, or the concatenated text files of a folder. Text and JSONL may
    be compressed (.gz, .bz2, .xz).
    """
    text, reading = os.fspath(name), reading or ReadOptions()
    path = user_path(text)
    named = text in CORPORA
    if not named and not (text and os.path.lexists(path)):
        raise UserError(
            f"there is no corpus or file called {text!r}: choose one of {', '.join(CORPORA)}, "
            "or give the path of a file or folder"
        )
    if not named and path.is_file():
        _check_packed(path)
    tokens = not named and (path.suffix.lower() in (".bin", ".npy") or (path / "train.bin").is_file())
    _check_options(text, reading, named, tokens)
    subwords = encoding if isinstance(encoding, Subwords) else None
    if isinstance(encoding, Alphabet) and reading.tokenizer is not None:
        raise UserError("--tokenizer does not apply: the model reads bytes; leave it out")
    if reading.tokenizer is not None:
        asked = load_tokenizer(reading.tokenizer)
        if subwords not in (None, asked):
            raise UserError(f"{reading.tokenizer} is not the tokenizer of the model; leave --tokenizer out")
        subwords = subwords or asked
    if tokens:
        size = reading.vocab_size if encoding is None else len(encoding)
        corpus = load_tokens(path, text, reading.token_dtype, size, subwords)
    elif not named and (reading.text_column is not None or kind_of(path) in TABLES):
        corpus = load_documents(path, text, reading.text_column, subwords, cut_documents)
    elif named:
        _, get, symbols = CORPORA[text]
        return Corpus.from_bytes(text, get(cache_folder(cache)), symbols, subwords, whole)
    else:
        corpus = load_text(path, text, subwords, whole)
    return dataclasses.replace(corpus, reading=reading)


def _check_options(name: str, reading: ReadOptions, named: bool, tokens: bool) -> None:
    """Refuse options that do not apply."""
    for option, value, fits in (
        ("text-column", reading.text_column, not named and not tokens),
        ("token-dtype", reading.token_dtype, tokens),
        ("vocab-size", reading.vocab_size, tokens),
    ):
        if value is not None and not fits:
            what = "a corpus by name" if named else "tokens" if tokens else "text"
            raise UserError(f"--{option} does not apply to {name}, which is {what}: leave it out")


def kind_of(path: Path) -> str:
    """The suffix of a file's name, without that of its compression: ``.jsonl`` of ``rows.jsonl.gz``."""
    return (path.with_suffix("") if path.suffix.lower() in UNPACK else path).suffix.lower()


def _check_packed(path: Path) -> None:
    """Stop at a file whose bytes would be learned as they are packed."""
    kind, packed = kind_of(path), path.suffix.lower() in UNPACK
    if kind in ARCHIVES or (packed and kind in (".bin", ".npy", ".parquet")):
        raise UserError(f"{path} is compressed: unpack it first, and name what was in it")


def read_unpacked(path: Path) -> bytes:
    raw, unpack = read_file(path), UNPACK.get(path.suffix.lower(), bytes)
    try:
        return unpack(raw)
    except DAMAGED as error:
        raise UserError(
            f"{path} cannot be unpacked ({printable(error, limit=100)}): get it again, or give it another suffix if "
            "it is not compressed"
        ) from error


def check_outside(path: Path, corpus: str | os.PathLike[str], option: str) -> None:
    """Stop if a run written to ``path`` would become part of its own corpus."""
    text = os.fspath(corpus)
    folder = user_path(text)
    if not text or text in CORPORA or not folder.is_dir():
        return
    target, root = path.resolve(), folder.resolve()
    hidden = any(part.startswith(".") for part in target.parts[len(root.parts) :])
    if target.is_relative_to(root) and not hidden:
        raise UserError(
            f"{path} is in the corpus {folder} and would become part of its text; "
            f"choose {option} outside of it"
        )


# -- documents -------------------------------------------------------------------------------------------------


def load_documents(
    path: Path, name: str, column: str | None, encoding: Subwords | None, cut: bool = False
) -> Corpus:
    """The rows of a JSONL or Parquet file, or of those in a folder in the order of their paths."""
    if column is None:
        raise UserError(f"{name} is a table: give the column of the text with --text-column")
    files = [path]
    if path.is_dir():
        files = [file for file in text_files(path) if kind_of(file) in TABLES]
        if not files:
            raise UserError(
                f"{name}: the folder holds no .jsonl or .parquet files; leave --text-column out for text"
            )
    texts = []
    for file in files:
        check_regular(file)
        _check_packed(file)
        rows = _parquet(file, column) if file.suffix.lower() == ".parquet" else _jsonl(file, column)
        texts += list(rows)
    empty = sum(not text for text in texts)
    left_out = f"{empty:,} of {len(texts):,} documents are empty and were left out" if empty else ""
    return dataclasses.replace(Corpus.from_documents(name, texts, encoding, cut), left_out=left_out)


def _jsonl(path: Path, column: str) -> Iterator[str]:
    kind = kind_of(path)
    remedy = (
        "fix or remove it"
        if kind in TABLES
        else f"give JSONL, an object in each line, or Parquet, not {kind}"
    )
    if kind == ".json":
        remedy += " (jq -c '.[]' makes JSONL of an array)"
    with io.BytesIO(read_unpacked(path)) if path.suffix.lower() in UNPACK else open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise UserError(f"line {number:,} of {path} is not JSON: {remedy}") from None
            if not isinstance(row, dict) or column not in row:
                has = f"it is not an object: {remedy}"
                if isinstance(row, dict):
                    has = f"it has {printable(', '.join(map(str, row)), limit=80)}"
                raise UserError(f"line {number:,} of {path} has no column {column!r}; {has}")
            text = row[column]
            if text is not None and not isinstance(text, str):
                raise UserError(
                    f"column {column!r} in line {number:,} of {path} is not text: choose another column"
                )
            yield text or ""


def _parquet(path: Path, column: str) -> Iterator[str]:
    sentence = "Parquet files need the package pyarrow: pip install pyarrow"
    pyarrow, parquet = needs("pyarrow", sentence), needs("pyarrow.parquet", sentence)
    try:
        file = parquet.ParquetFile(path)
        kinds = {field.name: field.type for field in file.schema_arrow}
        if column not in kinds:
            raise UserError(
                f"{path} has no column {column!r}; it has {printable(', '.join(kinds), limit=120)}"
            )
        if not (pyarrow.types.is_string(kinds[column]) or pyarrow.types.is_large_string(kinds[column])):
            raise UserError(
                f"column {column!r} of {path} holds {kinds[column]}, not text: choose another column"
            )
        for batch in file.iter_batches(columns=[column]):
            yield from (text or "" for text in batch.column(0).to_pylist())
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read as Parquet ({printable(error, limit=100)}): get it again"
        ) from error


# -- token files -----------------------------------------------------------------------------------------------


TYPES = "--token-dtype uint16 (nanoGPT's) or uint32"


def load_tokens(
    path: Path, name: str, dtype: str | None, vocab_size: int | None, encoding: Subwords | None = None
) -> Corpus:
    """Files of tokens, mapped into memory.

    A file is split 90/5/5; a folder has train.bin and val.bin as nanoGPT writes them, and perhaps test.bin.
    """
    if encoding is None and vocab_size is None:
        raise UserError(
            f"{name} holds tokens: give their number with --vocab-size, or their tokenizer with --tokenizer"
            + ("" if dtype or path.suffix == ".npy" else f", and their type with {TYPES}")
            + " (if its bytes are the text, give it another suffix)"
        )
    kind: Encoding = encoding or TokenIds(vocab_size or 0)
    if encoding is not None and vocab_size not in (None, len(encoding)):
        raise UserError(
            f"--vocab-size is {vocab_size}, but the tokenizer has {len(encoding)} tokens: leave it out"
        )
    digest = hashlib.sha256()
    if path.is_dir():
        files = [path / "train.bin", path / "val.bin", path / "test.bin"]
        arrays = [_mapped(file, dtype, len(kind), digest) for file in files[:2]]
        arrays.append(_mapped(files[2], dtype, len(kind), digest) if files[2].exists() else arrays[0][:0])
    else:
        whole = _mapped(path, dtype, len(kind), digest)
        first, second = cuts(len(whole))
        arrays = [whole[:first], whole[first:second], whole[second:]]
    if dtype == "uint16" and len(arrays[0]) > 1 and not arrays[0][1::2].any():
        raise UserError(
            f"in {name} every second token is 0, as where uint32 is read as uint16: give --token-dtype uint32"
        )
    train, valid, test = map(torch.from_numpy, arrays)
    end, sha256 = None if encoding is None else encoding.end, digest.hexdigest()
    return Corpus(name, kind, sha256, train, valid, test, end=end, from_tokens=True)


def _mapped(path: Path, dtype: str | None, vocab_size: int, digest: hashlib._Hash) -> np.ndarray:
    """The numbers in a file, mapped into memory. All are read once, for the hash and a check of their range."""
    check_regular(path)
    array = path.suffix.lower() == ".npy"
    if not array and dtype is None:
        raise UserError(f"{path} does not say the type of its numbers: give {TYPES}")
    if not path.stat().st_size:
        raise UserError(f"{path} is empty: choose a file with tokens in it")
    try:
        if array:
            tokens = np.load(path, mmap_mode="c", allow_pickle=False)
        else:
            tokens = np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="c")
    except (ValueError, OSError, EOFError) as error:
        raise UserError(
            f"{path} cannot be read as tokens ({printable(error, limit=100)}): check its type"
        ) from error
    if not isinstance(tokens, np.ndarray):
        raise UserError(f"{path} holds several arrays; write one row of integers with numpy.save")
    kind = tokens.dtype
    if tokens.ndim != 1 or kind.kind not in "iu" or kind == np.uint64 or not kind.isnative:
        raise UserError(
            f"{path} holds {tokens.ndim} axes of {tokens.dtype}; write one row of integers, e.g. uint16 or int32"
        )
    with Bar(f"{printable(path.name)}, tokens checked", total=len(tokens)) as bar:
        for low in range(0, len(tokens), TOKENS_AT_ONCE):
            piece = np.ascontiguousarray(tokens[low : low + TOKENS_AT_ONCE])
            digest.update(piece.data)
            least, most = int(piece.min()), int(piece.max())
            if least < 0 or most >= vocab_size:
                bad = least if least < 0 else most
                raise UserError(
                    f"{path} holds the token {bad}, but there are only {vocab_size:,}: give the right --vocab-size, "
                    "--tokenizer or --token-dtype"
                )
            bar.update(len(piece))
    if tokens.dtype == np.uint32:
        return tokens.view(np.int32)
    return tokens.view(np.int16) if tokens.dtype == np.uint16 and vocab_size <= 2**15 else tokens


# -- text files ------------------------------------------------------------------------------------------------


def text_files(folder: Path) -> list[Path]:
    """Files below ``folder`` in the order of their relative paths, without hidden ones; symbolic links to folders are
    not followed."""
    found = []

    def refuse(error: OSError) -> None:
        raise UserError(
            f"{error.filename} cannot be read ({error.strerror}): check that you may read it"
        ) from error

    for here, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(here, name) for name in files if not name.startswith(".")]
    regular = [path for path in found if path.is_file()]
    return sorted(regular, key=lambda path: path.relative_to(folder).as_posix())


def load_text(path: Path, name: str, encoding: Subwords | None, whole: bool = False) -> Corpus:
    """A file byte for byte, or the text files of a folder, each ending in a newline. A file in a folder is text if it
    is UTF-8 and has no zero byte."""
    if not path.is_dir():
        raw, left_out, what = read_unpacked(path), "", "the file is empty"
    else:
        parts, others, files = [], [], text_files(path)
        for file in files:
            try:
                found = read_unpacked(file)
            except UserError:  # compressed, and damaged
                found = b"\0"
            if not _is_text(found):
                others.append(file.relative_to(path).as_posix())
            elif found:
                parts.append(found if found.endswith(b"\n") else found + b"\n")
        raw, left_out = b"".join(parts), _left_out(others, len(files))
        what = left_out or "the folder holds no text files"
    if not raw:
        raise UserError(f"{name}: {what}; choose one with text in it")
    return dataclasses.replace(Corpus.from_bytes(name, raw, None, encoding, whole), left_out=left_out)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in raw


def _left_out(names: list[str], files: int) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    verb = "is not UTF-8 text and was" if len(names) == 1 else "are not UTF-8 text and were"
    return (
        f"{len(names):,} of {files:,} files {verb} left out: {', '.join(map(printable, names[:NAMED]))}{more}"
    )
