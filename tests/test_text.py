"""Text from outside shows as characters, wherever it is shown."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsn.errors import reason
from fsn.text import Place, printable


@pytest.mark.parametrize(
    ("text", "into", "shown"),
    [
        ("\x1b[31mred\x07", "line", r"\x1b[31mred\x07"),
        ("two\nlines\t", "line", r"two\nlines\t"),
        ("two\nlines\r\t", "lines", "two\nlines\\r\t"),
        ("\udcff \ud800 \u202e", "line", r"\xff \ud800 \u202e"),
        ("[red]x[/red]", "rich", r"\[red]x\[/red]"),
        ("café 漢 €", "line", "café 漢 €"),
    ],
)
def test_examples(text: str, into: Place, shown: str) -> None:
    assert printable(text, into) == shown


def test_long_texts_are_cut() -> None:
    assert printable("x" * 1000, limit=10) == "x" * 9 + "…" and printable("x" * 10, limit=10) == "x" * 10


def test_a_long_reason_is_cut_between_words() -> None:
    assert reason(ValueError("short\nsecond line")) == "short" and reason(KeyError()) == "KeyError"
    assert reason(ValueError("one two three four"), 12) == "one two …"
    assert reason(ValueError("x" * 300), 12) == "x" * 10 + " …"


@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_anything_can_be_shown(text: str) -> None:
    for into in ("line", "lines", "rich"):
        shown = printable(text, into)  # type: ignore[arg-type]
        shown.encode("utf-8")
        assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in shown)
    assert "\n" not in printable(text)


@given(st.text(max_size=30).filter(lambda text: not text.endswith("\\")))  # rich shows two there
def test_rich_shows_names_as_they_are(text: str) -> None:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=1000, color_system=None).print(
        printable(text, "rich"), soft_wrap=True, emoji=False
    )
    assert out.getvalue() == printable(text) + "\n"
