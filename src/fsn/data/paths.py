"""Any file or folder as a corpus: its bytes are the symbols."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from fsn.data.corpus import Corpus
from fsn.errors import UserError
from fsn.io import read_file
from fsn.text import printable

NAMED = 5
"""Files that are left out and named; the others are counted."""


def load(path: Path, name: str) -> Corpus:
    """A file byte for byte, or the text files of a folder one after the other."""
    raw, left_out = read_folder(path) if path.is_dir() else (read_file(path), "")
    if not raw:
        what = left_out or ("the folder holds no text files" if path.is_dir() else "the file is empty")
        raise UserError(f"{name}: {what}; choose one with text in it")
    return dataclasses.replace(Corpus.from_bytes(name, raw), left_out=left_out)


def text_files(folder: Path) -> list[Path]:
    """Files below ``folder`` in the order of their relative paths, without hidden ones and without
    following links to folders."""
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


def reads(folder: Path, path: Path) -> bool:
    """Whether what is written to ``path`` becomes part of the text of ``folder``."""
    try:
        parts = path.resolve().relative_to(folder.resolve()).parts
    except ValueError:
        return False
    return not any(part.startswith(".") for part in parts)


def read_folder(folder: Path) -> tuple[bytes, str]:
    """The text files of ``folder``, each ended by a newline, and a sentence on the files that are none. A file is
    text if it is UTF-8 and holds no zero byte."""
    parts, others = [], []
    files = text_files(folder)
    for path in files:
        raw = read_file(path)
        if not _is_text(raw):
            others.append(path.relative_to(folder).as_posix())
        elif raw:
            parts.append(raw if raw.endswith(b"\n") else raw + b"\n")
    return b"".join(parts), _left_out(others, len(files))


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
    said = "is not UTF-8 text and was" if len(names) == 1 else "are not UTF-8 text and were"
    return (
        f"{len(names):,} of {files:,} files {said} left out: {', '.join(map(printable, names[:NAMED]))}{more}"
    )
