"""Text from outside (names of files and runs, generated text, a server's answer) made safe to show."""

from __future__ import annotations

import re
from typing import Literal

# Controls (C0, DEL, C1), line and paragraph separators, invisible direction marks, half characters.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Place = Literal["line", "lines", "rich"]


def printable(text: object, into: Place = "line", limit: int | None = None) -> str:
    r"""``text`` such that showing it can do nothing but show it: terminal escapes appear as ``\x1b``.

    ``into`` says where it goes: a ``line`` of a message or log; ``lines`` that keep their line ends and tabs
    (generated text); ``rich`` markup, where ``[red]`` stays as it is. ``limit`` cuts a long text and says so with an
    ellipsis. Bytes that are not UTF-8, as a name of a file may hold them, appear as ``\xff``.
    """
    shown = str(text)
    if limit is not None and len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    shown = _UNSAFE.sub(lambda found: _escape(found[0], into), shown)
    if into == "rich":
        from rich.markup import escape

        return escape(shown)
    return shown


def _escape(character: str, into: Place) -> str:
    if into == "lines" and character in "\n\t":
        return character
    if "\udc80" <= character <= "\udcff":  # a byte that was not UTF-8 (surrogateescape)
        character = chr(ord(character) - 0xDC00)
    return character.encode("unicode_escape").decode()
