"""Any file or folder as a corpus: its bytes are the symbols."""

from __future__ import annotations

import os
from pathlib import Path

from fsn.data.corpus import Corpus
from fsn.errors import UserError


def load(path: Path, name: str) -> Corpus:
    """A file byte for byte, or the text files of a folder one after the other."""
    raw = read_folder(path) if path.is_dir() else read(path)
    if not raw:
        what = "the folder holds no text files" if path.is_dir() else "the file is empty"
        raise UserError(f"{name}: {what}; choose one with text in it")
    return Corpus.from_bytes(name, raw)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): check the name and that you may read it"
        ) from error


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


def read_folder(folder: Path) -> bytes:
    """The text files of ``folder``, each ended by a newline. A file is text if it is UTF-8 and holds no
    zero byte."""
    parts = []
    for path in text_files(folder):
        raw = read(path)
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if raw and b"\0" not in raw:
            parts.append(raw if raw.endswith(b"\n") else raw + b"\n")
    return b"".join(parts)
