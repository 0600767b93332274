"""What the page is made of: the paper's numbers, rows that put ours beside them, items, claims and verdicts."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UserError
from ..measure.bootstrap import SeedSummary
from ..measure.metrics import diverged_at
from ..measure.seeds import ROUNDED, rounded
from ..measure.tables import Table
from ..measure.tables import signed as signed
from ..measure.training import loss_at
from ..train import Run
from .bench import Bench, NotRun
from .needs import Need, commits_of, epochs_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# -- the paper's numbers -----------------------------------------------------------------------------------

MACROS = "every numeric macro of the paper"
EFFICIENCY = "efficiency (A100, fp32, eager; thousand tokens/s)"
DEEP_SHARE = "deep share of validation tokens (depth >= 24), percent"


@dataclass(frozen=True)
class Cited:
    """A number of the paper, and the deviation or half-spread it gives with it."""

    value: float
    spread: float | None = None

    def minus(self, other: Cited) -> Cited:
        """A difference the paper leaves to its reader."""
        return Cited(self.value - other.value)


@functools.cache
def values() -> dict[str, Any]:
    """All of ``values.json``, made from the paper's source: every numeric macro, and the tables typed out there."""
    text = resources.files("fsn.paper").joinpath("values.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def parameter_totals() -> dict[tuple[str, str, int], int]:
    """The totals the paper gives, by family, size and number of symbols: 205 on enwik8, 97 on code."""
    symbols = {"enwik8": 205, "code": 97}
    keyed = ((name.split("/"), int(look_up("parameters", name))) for name in values()["parameters"])
    return {(family, size.lower(), symbols[corpus]): total for (family, corpus, size), total in keyed}


def look_up(*path: str) -> float:
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
    """``cite("ladder", "2M", "fsn@30")``: the paper's number at that path; a ``mean`` comes with its deviation."""
    return Cited(look_up(*path), look_up(*path[:-1], "std") if path[-1] == "mean" else None)


def macro(name: str) -> Cited:
    """``macro("sfnThirty")``: a number by the name of its macro in the paper's source."""
    return cite(MACROS, name)


# -- rows --------------------------------------------------------------------------------------------------

COMPUTED, MEASURED, PARTIAL, MISSING = "computed", "measured", "fewer seeds", "missing"
OTHER_WEIGHTS = "the run went on, and its best weights are of a later epoch than those asked for"

COLUMNS = (
    *("group", "quantity", "paper", "paper_std", "ours", "ours_std"),
    *("difference", "seeds", "state", "mark", "remark"),
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
    rounded: bool = False
    """Whether ours rests on a curve that was validated with rounded coherences."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, where both are finite."""
        if self.ours is None or self.paper is None or not self.comparable or not math.isfinite(self.ours):
            return None
        return self.ours - self.paper.value

    @property
    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Quantity, paper, ours, difference, seeds and remark as text."""
        paper = "" if self.paper is None else number(self.paper.value, self.form, self.paper.spread)
        ours = MISSING if self.state == MISSING else number(self.ours, self.form, self.spread)
        ours += "†" if self.rounded else ""
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


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table from the values of each row."""
    return Table(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def data_table(rows: Sequence[Row]) -> Table:
    """At full precision, for CSV."""
    lines = []
    for row in rows:
        paper = (None, None) if row.paper is None else (row.paper.value, row.paper.spread)
        ours = (row.ours, row.spread, row.difference, row.seeds, row.state, "†" * row.rounded, row.remark)
        lines.append((row.group, row.quantity, *paper, *ours))
    return table_of(COLUMNS, lines)


def losses_at_end(bench: Bench, needs: Sequence[Need], groups: Sequence[Sequence[Run]]) -> Measurement:
    """The seed mean of one need; or of the first minus that of the second. Seeds that diverged are named, not
    averaged."""
    found = [loss_at(runs, bench.epoch(need.epochs)) for need, runs in zip(needs, groups, strict=True)]
    if len(found) == 2:
        return found[0].mean - found[1].mean
    return found[0], joined(*diverged(groups[0]))


def diverged(runs: Iterable[Run]) -> list[str]:
    return [f"{run.name} diverged in epoch {diverged_at(run)}" for run in runs if diverged_at(run)]


def joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


Measurement = float | SeedSummary | tuple[float | SeedSummary, str]


# -- items -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """A figure and the numbers it shows."""

    name: str
    caption: str
    draw: Callable[[], Figure]
    table: Table | None = None


@dataclass
class Result:
    """What an item finds on a bench: rows beside the paper's, further tables, pictures, remarks, data for the page."""

    bench: Bench
    rows: list[Row] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    live: Mapping[str, Any] = field(default_factory=dict)
    heading: str = ""
    """What the next rows stand under."""

    @property
    def state(self) -> str:
        """``measured``, ``computed``, ``partly`` or ``missing``."""
        states = {row.state for row in self.rows}
        if states == {MISSING}:
            return "missing"
        if MISSING in states or PARTIAL in states:
            return "partly"
        return "computed" if states == {COMPUTED} else "measured"

    def row(
        self,
        quantity: str,
        paper: Cited | float | None,
        needs: Sequence[Need],
        measure: Callable[..., Measurement] | None = None,
        form: str = ".4f",
        remark: str = "",
        level: str = "",
        timed: bool = False,
        whole: bool = False,
        comparable: bool = True,
    ) -> Row:
        """Measure a quantity on the runs of some needs, one list of runs for each; or compute it, without needs.
        Without ``measure`` it is the seed mean of the loss after the epochs that are needed, of two needs their
        difference.

        A need of which no seed is there makes the row missing; with some seeds it is measured on those and says
        so. ``whole`` asks for every seed, ``timed`` for runs that were timed alike. ``level`` is the role of
        the text of which this is a level of loss, or a count: no difference where that is not the paper's text, nor
        where the two are not ``comparable``.
        ``measure`` returns a number, a summary over seeds, or either with a remark. The paper's number may stand
        in its prose or in its configuration table: then it is given as it is.
        """
        bench, standing = self.bench, self.bench.standing(needs)
        paper = Cited(float(paper)) if isinstance(paper, int | float) else paper
        groups = [list(bench.by_seed(need).values()) for need in needs]
        runs = [run for group in groups for run in group]
        asked = [len(need.seeds) for need in needs]
        seeds = " × ".join(f"{len(group)}/{count}" for group, count in zip(groups, asked, strict=True))
        if len(groups) > 2:
            seeds = f"{len(runs)}/{sum(asked)} runs"
        other = bench.stand_in([level] if level else [])
        text = other or bench.stand_in({need.role for need in needs})
        ours, spread, state = None, None, MISSING
        try:
            if not all(groups) or (whole and not standing.complete):
                raise NotRun(standing.absent() or OTHER_WEIGHTS)
            if timed:
                bench.same_setting(*groups)
                remark = joined(remark, commits_of(runs))
            found = measure(*groups) if measure is not None else losses_at_end(bench, needs, groups)
        except UserError as error:
            remark = joined(str(error), other)
        else:
            value, more = found if isinstance(found, tuple) else (found, "")
            if isinstance(value, SeedSummary):
                ours, spread = value.mean, value.std if value.count > 1 else None
            else:
                ours = value
            state = COMPUTED if not needs else MEASURED if len(runs) == sum(asked) else PARTIAL
            nothing = "nothing to measure" if math.isnan(ours) else ""
            remark = joined(remark, text, more, nothing)
        row = Row(
            quantity, paper, ours, spread, seeds, state, form, remark, self.heading, comparable and not other
        )
        self.rows.append(row)
        return row

    def picture(
        self,
        name: str,
        draw: Callable[[Any], Figure],
        shown: Any,
        table: Table | None = None,
        caption: str | None = None,
        curves: Iterable[Run] = (),
    ) -> None:
        """A figure of what is ``shown``; the first paragraph of its function's docstring is the caption, unless one is
        given. ``table`` has the numbers, where what is shown is not a table of them; ``curves`` are the runs whose
        losses it shows."""
        said = " ".join((draw.__doc__ or "").partition("\n\n")[0].split()) if caption is None else caption
        said += f" {ROUNDED}" if any(map(rounded, curves)) else ""
        numbers = shown if table is None and isinstance(shown, Table) else table
        self.pictures.append(Picture(name, said, functools.partial(draw, shown), numbers))


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper, the runs it rests on, and how it is made from them."""

    name: str
    title: str
    where: str
    about: str
    fill: Callable[[Bench, Result], None]
    needs: tuple[Need, ...] = ()

    def compute(self, bench: Bench) -> Result:
        """What the item finds; rows that come out otherwise with lower rounded curves are marked."""
        result, lower = Result(bench), bench.lowered()
        self.fill(bench, result)
        if lower is not None:
            other = Result(lower)
            self.fill(lower, other)
            ours = {(row.group, row.quantity): row.ours or 0.0 for row in other.rows}
            for i, row in enumerate(result.rows):
                apart = abs((row.ours or 0.0) - ours.get((row.group, row.quantity), math.inf))
                result.rows[i] = dataclasses.replace(row, rounded=apart > 1e-9)  # beyond the last digits
        return result


def item(
    name: str, title: str, where: str, *needs: Need
) -> Callable[[Callable[[Bench, Result], None]], Item]:
    """Make the function below an item; its docstring is what the page says about it."""
    return lambda fill: Item(name, title, where, " ".join((fill.__doc__ or "").split()), fill, needs)


# -- claims ------------------------------------------------------------------------------------------------

HOLDS, FAILS = "holds", "fails"
HOLDS_SO_FAR, FAILS_SO_FAR = "holds so far", "fails so far"
NO_CASE, OPEN, NOT_RUN = "no such case", "open", "not run yet"
"""Open: every model that is asked for has a run, and they do not decide."""
ABOUT_SPEED = "About the paper's own implementation; ours is another."
ABOUT_WINDOWS = (
    "Most targets this deep lie in the enriched windows, and the paper does not say which its own are."
)

CLOSE = 0.015
"""Bits. Runs of one seed whose kernels add in another order are as far apart, so single runs closer than this decide
nothing (docs/findings.md)."""

Found = tuple[bool, str]
"""Whether a sentence is true of the runs, and the numbers that show it."""


class Undecided(NotRun):
    """The runs are there, and do not decide."""


class NoCase(UserError):
    """A sentence about something that did not happen in our runs, such as a seed that fails."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that runs can confirm or refute.

    ``check`` says whether it is true of the runs, and the numbers that show it. ``every`` marks a sentence
    about every seed or every epoch: one counterexample refutes it, however few runs there are. Other
    sentences are judged when all their runs are there, and before that with a "so far". ``early`` is the
    number of epochs from which on a run says something although the paper's has more, and ``shorter`` what that
    does to the sentence: it works ``against`` it, so that what fails stays open, ``for`` it, so that what holds does,
    or nobody can tell and all is ``open``. ``speed`` marks what the paper says of its own implementation, which is
    not ours, ``windows`` what rests on windows that are not the paper's.
    """

    name: str
    where: str
    says: str
    needs: tuple[Need, ...]
    check: Callable[[Bench], Found]
    every: bool = False
    early: int = 0
    shorter: Literal["either way", "against", "for", "open"] = "either way"
    speed: bool = False
    windows: bool = False

    @property
    def about(self) -> str:
        """What to know about the sentence."""
        return ABOUT_SPEED if self.speed else ABOUT_WINDOWS if self.windows else ""


@dataclass(frozen=True)
class Verdict:
    """One of the states above, and what was measured."""

    state: str
    evidence: str


def judge(claim: Claim, bench: Bench) -> Verdict:
    """Check a claim against the runs that are there."""
    standing = bench.standing(claim.needs)
    count = f"{standing.total} run{'s' if standing.total != 1 else ''}"
    if claim.needs and not standing.there and not standing.begun:
        return Verdict(NOT_RUN, f"needs {count}")
    text = bench.stand_in({need.role for need in claim.needs})
    undecided = OPEN if claim.needs and all(map(bench.begun, claim.needs)) else NOT_RUN
    views = [bench, dataclasses.replace(bench, early=claim.early)] if claim.early else [bench]
    for view in views:
        try:
            true, evidence = claim.check(view)
            lower = view.lowered() if claim.needs else None
            other = (true, evidence) if lower is None else claim.check(lower)
            break
        except NotRun as reason:
            verdict = Verdict(OPEN if isinstance(reason, Undecided) else undecided, str(reason))
        except NoCase as reason:
            return Verdict(NO_CASE if standing.complete else undecided, joined(str(reason), text))
        except UserError as reason:
            return Verdict(undecided, f"cannot be judged: {reason}")
    else:
        return verdict
    runs, mark = bench.used(claim.needs), "" if other[1] == evidence else " †"
    commits = commits_of(runs) if claim.speed else ""
    evidence = joined(evidence + mark, *diverged(runs), commits, text)
    if other[0] != true:
        return Verdict(OPEN, f"needs a curve validated in float32: {evidence}")
    if standing.complete:
        return Verdict(HOLDS if true else FAILS, evidence)
    if claim.every and not true and view is bench:
        return Verdict(FAILS, evidence)
    asked = [(run, bench.epoch(need.epochs)) for need, run in standing.begun]
    begun = ", ".join(f"{run.name} has {epochs_of(run)} of {epochs} epochs" for run, epochs in asked)
    evidence += f" ({joined(f'{len(standing.there)} of {count} done', begun)})"
    if view is not bench and claim.shorter in ("open", "for" if true else "against"):
        return Verdict(OPEN, f"needs as many epochs as the paper's: {evidence}")
    return Verdict(HOLDS_SO_FAR if true else FAILS_SO_FAR, evidence)


# -- numbers in evidence -----------------------------------------------------------------------------------


def times(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}×"


def listed(values: Iterable[float], form: Callable[[float], str] | str = ".4f") -> str:
    """Numbers with commas between them; ``form`` is a function, or a format such as ``.3f``."""
    write = (lambda value: number(value, form)) if isinstance(form, str) else form
    return ", ".join("no value" if math.isnan(value) else write(value) for value in values)


def listing(
    values: Iterable[Any],
    true: Callable[[Any], Any],
    form: Callable[[float], str] | str = ".4f",
    words: str = "{}",
) -> Found:
    """Whether something is true of these values, and the values in words: all of them at the one ``{}``, or each at
    its own. Where a value is itself a list, it is written with commas. Nothing is true of a value that is not there:
    ``max([-0.02, nan])`` is below zero, and a model that diverged is not ahead."""
    found = list(values)
    rows = [one if isinstance(one, Sequence) else [one] for one in found]
    shown = [listed(row, form) for row in rows]
    whole = not any(math.isnan(value) for row in rows for value in row)
    return whole and bool(true(found)), words.format(
        *(shown if words.count("{}") > 1 else [", ".join(shown)])
    )


def told_apart(bench: Bench, needs: Iterable[Need], differences: Iterable[float], evidence: str) -> None:
    """Stop where a model has a single run and a difference of losses is closer than single runs are told apart."""
    alone = any(len(bench.by_seed(need)) < 2 for need in needs)
    if alone and min(map(abs, differences), default=CLOSE) < CLOSE:
        raise Undecided(f"single runs closer than {CLOSE} are not told apart: {evidence}")


def below(ours: float, theirs: float, where: str = "", form: Callable[[float], str] | str = ".4f") -> Found:
    """Whether one number is below another, and both."""
    return ours < theirs, f"{listed([ours], form)} against {listed([theirs], form)}{where}"
