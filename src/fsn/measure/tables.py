"""A small table: what every instrument returns beside its arrays, ready for CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UserError
from ..io import write_text_atomic
from ..text import printable


@dataclass
class Table:
    """Named columns and rows of plain values (numbers, strings, ``None`` where nothing was measured).

    ``formats`` gives the printed form of a column, as in ``{"margin": "+.4f"}``; CSV has twelve digits. ``about``
    says what a column holds and in which unit.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]] = ()
    formats: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            unknown = set(row) - set(self.columns)
            if unknown:
                raise UserError(
                    f"a table row names the columns {sorted(unknown)}; the table has {list(self.columns)}"
                )

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Sequence[str]],
        rows: Sequence[Mapping[str, Any]],
        caption: str = "",
    ) -> Table:
        """A table from what each column holds, with its unit: ``{"run": "The run.", "loss": ("In bits.", ".4f")}``."""
        pairs = {name: (said, "") if isinstance(said, str) else said for name, said in columns.items()}
        forms = {name: form for name, (_, form) in pairs.items() if form}
        return cls(tuple(columns), rows, forms, caption, {name: said for name, (said, _) in pairs.items()})

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """The values of one column, top to bottom."""
        return [row.get(name) for row in self.rows]

    def where(self, **equal: Any) -> Table:
        """The rows whose columns equal the given values."""
        kept = [row for row in self.rows if all(row.get(name) == value for name, value in equal.items())]
        return replace(self, rows=kept)

    def cell(self, row: Mapping[str, Any], column: str) -> str:
        """One value as it is printed: ``—`` for nothing, ``∞`` for never."""
        value = row.get(column)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "—"
        if isinstance(value, float) and math.isinf(value):
            return "∞" if value > 0 else "−∞"
        if isinstance(value, bool):
            return "yes" if value else "no"
        form = self.formats.get(column)
        if form:
            return format(value, form)
        if isinstance(value, int):
            return f"{value:,}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    def to_markdown(self) -> str:
        """A GitHub-flavoured Markdown table; columns that hold numbers are aligned right."""

        def numeric(name: str) -> bool:
            return any(isinstance(v, int | float) and not isinstance(v, bool) for v in self.column(name))

        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join("---:" if numeric(name) else "---" for name in self.columns) + "|",
        ]
        for row in self.rows:
            cells = (_safe(self.cell(row, name)) for name in self.columns)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Comma-separated values, an empty cell where nothing was measured.

        Twelve digits of a number: those behind depend on how many threads added it up.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            values = (row.get(name) for name in self.columns)
            writer.writerow([float(f"{x:.12g}") if isinstance(x, float) else x for x in values])
        return text.getvalue()

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_csv` in one step."""
        write_text_atomic(path, self.to_csv())


def _safe(cell: str) -> str:
    """A cell of a Markdown table: no column, no HTML and no control character begins inside it."""
    return printable(cell).replace("|", "\\|").replace("<", "&lt;")


def stacked(tables: Sequence[Table]) -> Table:
    """The rows of all tables one after the other, under every column that any of them has."""
    columns = dict.fromkeys(column for table in tables for column in table.columns)
    formats = {column: form for table in tables for column, form in table.formats.items()}
    about = {column: text for table in tables for column, text in table.about.items()}
    return Table(tuple(columns), [row for table in tables for row in table.rows], formats, about=about)


def signed(value: float, digits: int = 4) -> str:
    """A difference as it stands in a sentence: ``+0.0500``, ``−0.0500``."""
    return f"{value:+.{digits}f}".replace("-", "−")
