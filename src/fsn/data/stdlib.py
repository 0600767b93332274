"""python-stdlib: the corpus that is already there, the source of the running Python's standard library."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path

from fsn.data.alphabet import CODE_SYMBOLS
from fsn.data.code_text import document
from fsn.data.corpus import Corpus
from fsn.errors import UserError

#: Left out: what some systems ship separately (tests, Tk, IDLE, the old build tools), what is not the
#: library's own (installed packages), and what is tables or prose rather than code (encodings, pydoc_data).
LEFT_OUT = frozenset(
    {"__pycache__", "dist-packages", "site-packages", "lib-dynload", "encodings", "pydoc_data", "test"}
    | {"tests", "idle_test", "idlelib", "tkinter", "turtledemo", "distutils", "ensurepip", "lib2to3"}
)

#: These differ from one build of the same Python to the next.
LOCAL_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize")


def source_files(root: Path) -> list[Path]:
    """The library's ``.py`` files below ``root``, in the order of the SHA-256 of their relative paths.

    The order is a fixed shuffle: it depends on names alone, is the same on every machine, and mixes the
    modules so that the last 5 % are not all of ``x``, ``y`` and ``z``.
    """
    kept = []
    for here, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in files:
            if name.endswith(".py") and not name.startswith(LOCAL_FILES):
                path = Path(here, name)
                kept.append((hashlib.sha256(path.relative_to(root).as_posix().encode()).hexdigest(), path))
    return [path for _, path in sorted(kept)]


def load(root: Path | None = None) -> Corpus:
    """The standard library as one text of 97 symbols (about 8 million)."""
    root = root or Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in source_files(root):
        try:
            texts.append(document(path.read_text(encoding="utf-8", errors="replace")))
        except OSError as error:
            raise UserError(
                f"{path} of the standard library cannot be read ({error.strerror}): choose another corpus"
            ) from error
    text = "".join(texts)
    if not text:
        raise UserError(f"this Python has no source files in {root}: choose another corpus")
    return Corpus.from_bytes("python-stdlib", text.encode("ascii"), symbols=CODE_SYMBOLS)
