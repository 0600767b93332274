"""What the page is made of: the paper's numbers, rows that put ours beside them, items, claims and verdicts."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..measure import SeedSummary, Table
from .bench import Bench, NotRun
from .runs import Need, kernels_of, precisions_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# -- the paper's numbers -----------------------------------------------------------------------------------

MACROS = "every numeric macro of the paper"
EFFICIENCY = "efficiency (A100, fp32, eager; thousand tokens/s)"
DEEP_SHARE = "deep share of validation tokens (depth >= 24), percent"

Path = tuple[str, ...]


@dataclass(frozen=True)
class Cited:
    """A number of the paper, the deviation or half-spread it gives with it, and where both stand."""

    value: float
    sources: tuple[Path, ...]
    spread: float | None = None

    def plus_minus(self, other: Cited) -> Cited:
        """The same number with ``other`` as its deviation over seeds."""
        return Cited(self.value, self.sources + other.sources, other.value)

    def also(self, *paths: Path) -> Cited:
        """The same number, naming further places that belong to it."""
        return Cited(self.value, self.sources + paths, self.spread)

    def minus(self, other: Cited) -> Cited:
        """A difference the paper leaves to its reader."""
        return Cited(self.value - other.value, self.sources + other.sources)


@functools.cache
def values() -> dict[str, Any]:
    """All of ``values.json``, made from the paper's source: every numeric macro, and the tables typed out there."""
    text = resources.files("fsn.paper").joinpath("values.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def parameter_totals() -> dict[tuple[str, str, int], int]:
    """The totals the paper gives, by family, size and number of symbols: 205 on enwik8, 97 on code."""
    symbols = {"enwik8": 205, "code": 97}
    keyed = ((name.split("/"), total) for name, total in values()["parameters"].items())
    return {(family, size.lower(), symbols[corpus]): total for (family, corpus, size), total in keyed}


def source() -> str:
    """Which paper the numbers are from."""
    return str(values()["source"])


def look_up(path: Path) -> float:
    """The number at a path of keys; a list is entered by position, written as text."""
    here: Any = values()
    for key in path:
        try:
            here = here[int(key)] if isinstance(here, list) else here[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise UserError(f"the paper's values hold nothing at {' > '.join(path)}") from None
    if isinstance(here, bool) or not isinstance(here, int | float):
        raise UserError(f"the paper's values hold no number at {' > '.join(path)}")
    return float(here)


def cite(*path: str) -> Cited:
    """``cite("ladder", "2M", "fsn@30")``: the paper's number at that path."""
    return Cited(look_up(path), (path,))


def cite_mean(*path: str) -> Cited:
    """A mean over seeds with its deviation."""
    return cite(*path, "mean").plus_minus(cite(*path, "std"))


def macro(name: str) -> Cited:
    """``macro("sfnThirty")``: a number by the name of its macro in the paper's source."""
    return cite(MACROS, name)


def stated(value: float) -> Cited:
    """A number that stands in the paper's prose or in its configuration table, not among the values."""
    return Cited(float(value), ())


# -- rows --------------------------------------------------------------------------------------------------

COMPUTED = "computed"
MEASURED = "measured"
PARTIAL = "fewer seeds"
MISSING = "missing"
OTHER_WEIGHTS = "the run went on, and its best weights are of a later epoch than those asked for"

COLUMNS = (
    *("group", "quantity", "paper", "paper_std", "ours", "ours_std"),
    *("difference", "seeds", "state", "remark"),
)
SHOWN = ("quantity", "paper", "ours", "difference", "seeds", "remark")


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

    @property
    def data(self) -> dict[str, Any]:
        """The row at full precision, for CSV."""
        paper = (None, None) if self.paper is None else (self.paper.value, self.paper.spread)
        ours = (self.ours, self.spread, self.difference, self.seeds, self.state, self.remark)
        return dict(zip(COLUMNS, (self.group, self.quantity, *paper, *ours), strict=True))

    @property
    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Quantity, paper, ours, difference, seeds and remark as text."""
        paper = "" if self.paper is None else number(self.paper.value, self.form, self.paper.spread)
        ours = MISSING if self.state == MISSING else number(self.ours, self.form, self.spread)
        signed = self.form if self.form.startswith("+") else "+" + self.form
        return self.quantity, paper, ours, number(self.difference, signed), self.seeds, self.remark


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


def data_table(rows: Sequence[Row]) -> Table:
    """At full precision, for CSV."""
    return Table(COLUMNS, [row.data for row in rows])


def display_table(rows: Sequence[Row]) -> Table:
    """As it is read: one line of text cells for each row."""
    return Table(SHOWN, [dict(zip(SHOWN, row.cells, strict=True)) for row in rows])


def grouped(group: str, rows: Iterable[Row]) -> list[Row]:
    """The rows under one heading."""
    return [dataclasses.replace(row, group=group) for row in rows]


def levels(bench: Bench, role: str, rows: Iterable[Row]) -> list[Row]:
    """Levels of loss, or counts, on the text of a role: no differences where that is not the paper's text."""
    said = bench.stand_in([role])
    if not said:
        return list(rows)
    return [
        dataclasses.replace(
            row, comparable=False, remark=row.remark if said in row.remark else joined(row.remark, said)
        )
        for row in rows
    ]


def joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


Measurement = float | SeedSummary | tuple[float | SeedSummary, str]


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
    asked = [len(bench.scale.seeds(need)) for need in needs]
    seeds = " × ".join(f"{len(group)}/{count}" for group, count in zip(groups, asked, strict=True))
    text = bench.stand_in({need.role for need in needs})
    if len(groups) > 2:
        seeds = f"{sum(map(len, groups))}/{sum(asked)} runs"
    if not all(groups) or (whole and not standing.complete):
        return Row(quantity, paper, None, None, seeds, MISSING, form, standing.absent() or OTHER_WEIGHTS)
    try:
        if timed:
            bench.same_setting(*groups)
            remark = joined(remark, kernels_of(run for group in groups for run in group))
        found = measure(*groups)
    except UserError as error:
        return Row(quantity, paper, None, None, seeds, MISSING, form, str(error))
    text = joined(text, precisions_of(run for group in groups for run in group))
    state = MEASURED if all(len(group) == n for group, n in zip(groups, asked, strict=True)) else PARTIAL
    return _row(quantity, paper, found, seeds, state, form, joined(remark, text))


def compute(
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
    found, more = found if isinstance(found, tuple) else (found, "")
    value, spread = found, None
    if isinstance(found, SeedSummary):
        value, spread = found.mean, found.std if found.count > 1 else None
    assert not isinstance(value, SeedSummary)
    remark = joined(remark, more, "nothing to measure" if math.isnan(value) else "")
    return Row(quantity, paper, value, spread, seeds, state, form, remark)


# -- items -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """A figure and the numbers it shows. ``draw`` takes the surface: any, light or dark."""

    name: str
    caption: str
    draw: Callable[[str], Figure]
    table: Table | None = None


@dataclass
class Result:
    """What an item found: rows beside the paper's, further tables, pictures, remarks, data for the page."""

    rows: list[Row] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    live: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """``measured``, ``computed``, ``partly`` or ``missing``."""
        states = {row.state for row in self.rows}
        if states == {MISSING}:
            return "missing"
        if MISSING in states or PARTIAL in states:
            return "partly"
        return "computed" if states == {COMPUTED} else "measured"


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper, the runs it rests on, and how it is made from them."""

    name: str
    title: str
    where: str
    about: str
    compute: Callable[[Bench], Result]
    needs: tuple[Need, ...] = ()


def item(name: str, title: str, where: str, *needs: Need) -> Callable[[Callable[[Bench], Result]], Item]:
    """Make the function below an item; its docstring is what the page says about it."""

    def enter(compute: Callable[[Bench], Result]) -> Item:
        return Item(name, title, where, " ".join((compute.__doc__ or "").split()), compute, needs)

    return enter


# -- claims ------------------------------------------------------------------------------------------------

HOLDS, FAILS = "holds", "fails"
HOLDS_SO_FAR, FAILS_SO_FAR = "holds so far", "fails so far"
NO_CASE, NOT_RUN = "no such case", "not run yet"
STATES = (HOLDS, FAILS, HOLDS_SO_FAR, FAILS_SO_FAR, NO_CASE, NOT_RUN)

Found = tuple[bool, str]
"""Whether a sentence is true of the runs, and the numbers that show it."""


class NoCase(UserError):
    """A sentence about something that did not happen in our runs, such as a seed that fails."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that runs can confirm or refute.

    ``check`` says whether it is true of the runs, and the numbers that show it. ``cites`` are the macros, or
    other places of ``values.json``, that the sentence prints. ``every`` marks a sentence about every seed or
    every epoch: one counterexample refutes it, however few runs there are. Other sentences are judged when
    all their runs are there, and before that with a "so far". ``early`` is the number of epochs from which on
    a run says something although the paper's has more. ``speed`` marks what the paper says of its own
    implementation, which is not ours.
    """

    name: str
    where: str
    says: str
    needs: tuple[Need, ...]
    check: Callable[[Bench], Found]
    cites: str | tuple[Path, ...] = ()
    every: bool = False
    early: int = 0
    speed: bool = False

    @property
    def places(self) -> tuple[Path, ...]:
        """Where the numbers of the sentence stand in ``values.json``."""
        if isinstance(self.cites, str):
            return tuple(path for name in self.cites.split() for path in macro(name).sources)
        return self.cites


@dataclass(frozen=True)
class Verdict:
    """One of ``STATES``, and what was measured."""

    state: str
    evidence: str


def judge(claim: Claim, bench: Bench) -> Verdict:
    """Check a claim against the runs that are there."""
    standing = bench.standing(claim.needs)
    count = f"{standing.total} run{'s' if standing.total != 1 else ''}"
    if claim.needs and not standing.there and not standing.begun:
        return Verdict(NOT_RUN, f"needs {count}")
    text = bench.stand_in({need.role for need in claim.needs})
    views = [bench, bench.from_epoch(claim.early)] if claim.early else [bench]
    for view in views:
        try:
            true, evidence = claim.check(view)
            break
        except NotRun as reason:
            verdict = Verdict(NOT_RUN, str(reason))
        except NoCase as reason:
            return Verdict(NO_CASE if standing.complete else NOT_RUN, joined(str(reason), text))
        except UserError as reason:
            return Verdict(NOT_RUN, f"cannot be judged: {reason}")
    else:
        return verdict
    evidence = joined(evidence, text)
    if standing.complete:
        return Verdict(HOLDS if true else FAILS, evidence)
    if claim.every and not true and view is bench:
        return Verdict(FAILS, evidence)
    in_hand = joined(f"{len(standing.there)} of {count} there", standing.begun_words())
    return Verdict(HOLDS_SO_FAR if true else FAILS_SO_FAR, f"{evidence} ({in_hand})")


def claims_table(judged: Sequence[tuple[Claim, Verdict]], scale: str = "paper") -> Table:
    """One row per claim; ``scale`` says what the verdicts are worth."""
    columns = ("claim", "where", "the paper says", "about", "verdict", "evidence", "scale")
    rows = [
        (c.name, c.where, c.says, ABOUT_SPEED if c.speed else "", v.state, v.evidence, scale)
        for c, v in judged
    ]
    return Table(columns, [dict(zip(columns, row, strict=True)) for row in rows])


ABOUT_SPEED = "the paper's own implementation; ours is another"


# -- numbers in evidence -----------------------------------------------------------------------------------


def bits(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}"


def signed(value: float, digits: int = 4) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def times(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}×"


def listed(values: Iterable[float], form: Callable[[float], str] = bits) -> str:
    return ", ".join(form(value) for value in values)


def below(ours: float, theirs: float, where: str = "") -> Found:
    """Whether one loss is below another."""
    return ours < theirs, f"{bits(ours)} against {bits(theirs)}{where}"


def beyond(value: float, positive: bool = True) -> Found:
    """Whether a difference lies above zero, or below."""
    return value > 0 if positive else value < 0, signed(value)
