"""Corpora by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fsn.data import enwik8, paths, python_code
from fsn.data.cache import cache_folder
from fsn.data.corpus import Corpus, Reading
from fsn.data.encoding import Encoding, Subwords, load_tokenizer
from fsn.errors import UserError
from fsn.io import user_path

#: name -> (one line about it, function of the cache folder)
CORPORA: dict[str, tuple[str, Callable[[Path], Corpus]]] = {
    "enwik8": ("10^8 bytes of English Wikipedia, 205 symbols: the paper's main corpus", enwik8.load),
    "python-stdlib": (
        "the running Python's standard library, about 8 million characters, 97 symbols: needs no network",
        lambda folder: python_code.load_stdlib(),
    ),
    "codeparrot": (
        "10^8 characters of Python from GitHub, 97 symbols: the paper's code corpus (needs its hub)",
        python_code.load_codeparrot,
    ),
    "pypi-python": (
        "10^8 characters of Python from pinned PyPI packages, 97 symbols: stands in for codeparrot",
        python_code.load_pypi,
    ),
}


def available() -> list[tuple[str, str]]:
    """The corpora that have a name, each with a line about it."""
    return [(name, line) for name, (line, _) in CORPORA.items()]


def load(
    name: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    reading: Reading | None = None,
    encoding: Encoding | None = None,
) -> Corpus:
    """A corpus by name, or any file or folder by its path.

    ``cache`` is the folder for what is fetched or built (default: ``FSN_CACHE`` or ``~/.cache/fsn``). A
    name goes before a path; write ``./enwik8`` for a file of that name. ``reading`` says how a file becomes tokens;
    ``encoding`` is that of a trained model, in whose tokens the text is wanted.
    """
    text, reading = os.fspath(name), reading or Reading()
    if text in CORPORA:
        for option, value in (("text-column", reading.text_column), ("token-dtype", reading.token_dtype)):
            if value is not None:
                raise UserError(f"--{option} is for files; the corpus {text} is a text, leave it out")
        corpus = CORPORA[text][1](cache_folder(cache))
        subwords = encoding if isinstance(encoding, Subwords) else None
        if subwords is None and reading.tokenizer is not None:
            subwords = load_tokenizer(reading.tokenizer)
        return corpus if subwords is None else corpus.in_subwords(subwords)
    path = user_path(text)
    if text and os.path.lexists(path):
        return paths.load(path, text, reading, encoding)
    known = ", ".join(CORPORA)
    raise UserError(
        f"there is no corpus or file called {text!r}: choose one of {known}, "
        "or give the path of a file or folder"
    )


def folder_of(name: str | os.PathLike[str]) -> Path | None:
    """The folder whose files are the corpus of this name, or None where it is no folder."""
    text = os.fspath(name)
    path = user_path(text)
    return path if text and text not in CORPORA and path.is_dir() else None
