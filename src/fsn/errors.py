"""The one exception a user is meant to read, and the words for it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """Something the user can mend: one sentence that says what is wrong and what to do.

    The command line prints the sentence alone and exits with code 2; from Python it is an ordinary
    ``ValueError``.
    """


def reason(error: BaseException, limit: int = 200) -> str:
    """What an error of somebody else's says, in at most a line; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0] if len(lines[0]) <= limit else f"{lines[0][: limit - 2].rsplit(' ', 1)[0]} …"


def did_you_mean(word: str, known: Iterable[str], most: int = 1, alike: float = 0.6) -> str:
    """The known names that are closest to a mistyped one, as a question for a sentence; nothing where none is close."""
    close = difflib.get_close_matches(word, list(known), most, alike)
    return f"did you mean {' or '.join(close)}? " if close else ""


def needs(package: str, sentence: str) -> Any:
    """An optional package, imported; where it is not installed, a ``sentence`` that says what needs it and how to get
    it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(sentence) from error
