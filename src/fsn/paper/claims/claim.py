"""A claim: one sentence of the paper that runs can confirm or refute, with the check as code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsn.errors import UserError
from fsn.measure import Table
from fsn.paper.bench import Bench, NotRun
from fsn.paper.needs import Need
from fsn.paper.values import Path, macro

HOLDS, FAILS, NOT_RUN = "holds", "fails", "not run yet"

Check = Callable[[Bench], tuple[bool, str]]


@dataclass(frozen=True)
class Verdict:
    """``holds``, ``fails`` or ``not run yet``, and what was measured."""

    state: str
    evidence: str


@dataclass(frozen=True)
class Claim:
    """``check`` returns whether the sentence is true of the runs, and the numbers that show it.

    ``every`` marks a sentence about every seed or every epoch: one counterexample refutes it, however few
    runs there are. Other sentences are judged when all their runs are there. ``conditional`` ones speak of
    something that may not happen in our runs, such as a seed that fails.
    """

    name: str
    where: str
    says: str
    check: Check
    needs: tuple[Need, ...] = ()
    cites: tuple[Path, ...] = ()
    every: bool = False
    conditional: bool = False


def claim(
    collection: list[Claim],
    name: str,
    where: str,
    says: str,
    *needs: Need,
    macros: Sequence[str] = (),
    cites: Sequence[Path] = (),
    every: bool = False,
    conditional: bool = False,
) -> Callable[[Check], Check]:
    """Enter the function below into a collection of claims."""

    def enter(check: Check) -> Check:
        paths = (*(path for m in macros for path in macro(m).sources), *cites)
        collection.append(Claim(name, where, says, check, needs, paths, every, conditional))
        return check

    return enter


def judge(one: Claim, bench: Bench) -> Verdict:
    """Check a claim against the runs that are there."""
    standing = bench.standing(one.needs)
    if one.needs and not standing.there and not standing.begun:
        return Verdict(NOT_RUN, f"needs {_count(standing.total)}")
    try:
        true, evidence = one.check(bench)
    except NotRun as reason:
        return Verdict(NOT_RUN, str(reason))
    except UserError as reason:
        return Verdict(NOT_RUN, f"cannot be judged: {reason}")
    if standing.complete:
        return Verdict(HOLDS if true else FAILS, evidence)
    if one.every and not true:
        return Verdict(FAILS, evidence)
    so_far = "holds so far" if true else "does not hold so far"
    there = f"{len(standing.there)} of {_count(standing.total)}"
    return Verdict(NOT_RUN, f"{so_far}, with {there}: {evidence}")


def _count(runs: int) -> str:
    return f"{runs} run{'s' if runs != 1 else ''}"


def judge_all(claims: Sequence[Claim], bench: Bench) -> list[tuple[Claim, Verdict]]:
    return [(one, judge(one, bench)) for one in claims]


def claims_table(judged: Sequence[tuple[Claim, Verdict]], scale: str = "paper") -> Table:
    """One row per claim; ``scale`` says what the verdicts are worth."""
    columns = ("claim", "where", "the paper says", "verdict", "evidence", "scale")
    rows = [
        dict(zip(columns, (c.name, c.where, c.says, v.state, v.evidence, scale), strict=True))
        for c, v in judged
    ]
    return Table(columns, rows)


# -- numbers in evidence -----------------------------------------------------------------------------------


def bits(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}"


def signed(value: float, digits: int = 4) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def listed(values: Sequence[float], form: Callable[[float], str] = bits) -> str:
    return ", ".join(form(value) for value in values)
