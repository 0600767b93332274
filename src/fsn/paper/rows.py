"""The row of every table: what the paper has, what we have, the difference, over how many seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fsn.errors import UserError
from fsn.measure import SeedSummary, Table
from fsn.paper.bench import Bench, NotRun
from fsn.paper.needs import Need
from fsn.paper.values import Cited

COMPUTED = "computed"
MEASURED = "measured"
PARTIAL = "fewer seeds"
MISSING = "missing"


@dataclass(frozen=True)
class Row:
    """One quantity. ``ours`` is ``None`` where it was not measured; ``remark`` then says what is missing."""

    quantity: str
    paper: Cited | None
    ours: float | None
    spread: float | None = None
    seeds: str = ""
    state: str = MEASURED
    form: str = ".4f"
    remark: str = ""
    group: str = ""
    """The heading it stands under, where a table is long."""
    comparable: bool = True
    """False where ours was measured on another text than the paper's: then a difference means nothing."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, where both are finite."""
        if self.ours is None or self.paper is None or not self.comparable or not math.isfinite(self.ours):
            return None
        return self.ours - self.paper.value


def levels(bench: Bench, role: str, rows: Iterable[Row]) -> list[Row]:
    """Levels of loss, or counts, on the text of a role: no differences where that is not the paper's text."""
    if not bench.library.stands_in(role):
        return list(rows)
    said = f"on {bench.library.corpus_name(role)}"
    return [
        dataclasses.replace(
            row, comparable=False, remark="; ".join(part for part in (said, row.remark) if part)
        )
        for row in rows
    ]


Measurement = float | SeedSummary | tuple[float | SeedSummary, str]


def grouped(group: str, rows: Iterable[Row]) -> list[Row]:
    """The rows under one heading."""
    return [dataclasses.replace(row, group=group) for row in rows]


def compare(
    bench: Bench,
    quantity: str,
    paper: Cited | None,
    needs: Sequence[Need],
    measure: Callable[..., Measurement],
    form: str = ".4f",
    remark: str = "",
    timed: bool = False,
    whole: bool = False,
) -> Row:
    """Measure a quantity on the runs of some needs, one list of runs for each.

    A need of which no seed is there makes the row missing; with some seeds it is measured on those and says
    so. ``whole`` asks for every seed, ``timed`` for runs that were timed alike. ``measure`` returns a number,
    a summary over seeds, or either with a remark.
    """
    standing = bench.standing(needs)
    groups = [list(bench.by_seed(need).values()) for need in needs]
    seeds = _seeds(
        [(len(group), len(bench.scale.seeds(need))) for group, need in zip(groups, needs, strict=True)]
    )
    if not all(groups) or (whole and not standing.complete):
        return Row(quantity, paper, None, None, seeds, MISSING, form, standing.absent())
    try:
        if timed:
            bench.same_setting(*groups)
        found = measure(*groups)
    except UserError as error:
        return Row(quantity, paper, None, None, seeds, MISSING, form, str(error))
    return _row(quantity, paper, found, seeds, MEASURED if standing.complete else PARTIAL, form, remark)


def _seeds(counts: Sequence[tuple[int, int]]) -> str:
    """``5/5`` for one need, ``5/5 × 3/3`` for a pair, the number of runs for more."""
    if len(counts) > 2:
        return f"{sum(there for there, _ in counts)}/{sum(asked for _, asked in counts)} runs"
    return " × ".join(f"{there}/{asked}" for there, asked in counts)


def compute(
    bench: Bench,
    quantity: str,
    paper: Cited | None,
    measure: Callable[[], Measurement],
    form: str = ".4f",
    remark: str = "",
) -> Row:
    """A quantity that needs no run; a text that is not at hand makes it missing."""
    try:
        found = measure()
    except NotRun as error:
        return Row(quantity, paper, None, None, "", MISSING, form, str(error))
    return _row(quantity, paper, found, "", COMPUTED, form, remark)


def _row(
    quantity: str, paper: Cited | None, found: Measurement, seeds: str, state: str, form: str, remark: str
) -> Row:
    spread = None
    if isinstance(found, tuple):
        found, more = found
        remark = "; ".join(part for part in (remark, more) if part)
    if isinstance(found, SeedSummary):
        value, spread = found.mean, found.std if found.count > 1 else None
    else:
        value = found
    if math.isnan(value):
        remark = "; ".join(part for part in (remark, "nothing to measure") if part)
    return Row(quantity, paper, value, spread, seeds, state, form, remark)


# -- as tables ---------------------------------------------------------------------------------------------

COLUMNS = (
    "group",
    "quantity",
    "paper",
    "paper_std",
    "ours",
    "ours_std",
    "difference",
    "seeds",
    "state",
    "remark",
)


def data_table(rows: Sequence[Row], caption: str = "") -> Table:
    """At full precision, for CSV."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        paper = (None, None) if row.paper is None else (row.paper.value, row.paper.spread)
        cells = (
            row.group,
            row.quantity,
            *paper,
            row.ours,
            row.spread,
            row.difference,
            row.seeds,
            row.state,
            row.remark,
        )
        lines.append(dict(zip(COLUMNS, cells, strict=True)))
    return Table(COLUMNS, lines, caption=caption)


def number(value: float | None, form: str, spread: float | None = None) -> str:
    """A number as it is printed, with its deviation."""
    if value is None:
        return ""
    if math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = format(value, form)
    if spread is not None and math.isfinite(spread):
        text += " ± " + format(spread, form.replace("+", ""))
    return text.replace("-", "−")


def signed(form: str) -> str:
    return form if form.startswith("+") else "+" + form


def cells(row: Row) -> tuple[str, str, str, str, str, str]:
    """Quantity, paper, ours, difference, seeds and remark as text."""
    paper = "" if row.paper is None else number(row.paper.value, row.form, row.paper.spread)
    ours = MISSING if row.state == MISSING else number(row.ours, row.form, row.spread)
    difference = number(row.difference, signed(row.form))
    return row.quantity, paper, ours, difference, row.seeds, row.remark


def display_table(rows: Sequence[Row]) -> Table:
    """As it is read: one line of text cells for each row."""
    columns = ("quantity", "paper", "ours", "difference", "seeds", "remark")
    return Table(columns, [dict(zip(columns, cells(row), strict=True)) for row in rows])
