"""Names of runs are anybody's words: no figure, table or message takes them for anything else."""

from __future__ import annotations

import pytest

from fsn.measure import Table
from fsn.measure.style import drawing, figure_bytes
from fsn.progress import count, print_table, say

ODD = "$\\frac$ [red] <img> a|b \x1b[2J"


def test_a_figure_shows_a_name_as_it_is() -> None:
    with drawing(1, 1, 2.0) as (figure, axes):
        axes[0, 0].plot([0, 1], [0, 1], label=ODD)
        axes[0, 0].set_title(ODD)
        axes[0, 0].legend()
    once, again = (figure_bytes(figure) for _ in range(2))
    assert once == again and b"<svg" in once
    assert axes[0, 0].get_title().startswith(r"\$\frac\$") and "\x1b" not in axes[0, 0].get_title()


def test_a_markdown_table_holds_no_html_and_no_escape() -> None:
    text = Table(("run", "bits"), [{"run": ODD, "bits": 1.0}]).to_markdown()
    assert "<img>" not in text and "\x1b" not in text and r"a\|b" in text and "[red]" in text


def test_terminals_get_no_escape_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say(ODD)
    print_table(("run", "state"), [(ODD, "done")])
    shown = capsys.readouterr()
    assert "\x1b" not in shown.err + shown.out
    assert "[red]" in shown.err and "[red]" in shown.out


@pytest.mark.parametrize(
    ("number", "shown"), [(12, "12"), (999_999, "1.00 M"), (995_000, "995.00 k"), (2.5e9, "2.50 G")]
)
def test_large_numbers_are_short(number: float, shown: str) -> None:
    assert count(number) == shown
