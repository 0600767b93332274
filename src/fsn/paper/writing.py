"""Writing results down: CSV, figures and Markdown."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..io import write_text_atomic
from ..measure.metrics import validated_in
from ..measure.seeds import ROUNDED, rounded
from ..measure.style import save_figure
from ..measure.tables import Table
from ..progress import track
from ..train import Run
from .bench import Bench
from .rows import (
    COMPUTED,
    FAILS,
    FAILS_SO_FAR,
    HOLDS,
    HOLDS_SO_FAR,
    MEASURED,
    MISSING,
    NO_CASE,
    NOT_RUN,
    OPEN,
    PARTIAL,
    SHOWN,
    Claim,
    Item,
    Result,
    Verdict,
    data_table,
    judge,
    table_of,
    values,
)
from .sections import CLAIMS, ITEMS, needs_of

WORDS = {"computed": "computed, needs no run", "partly": "partly measured"}


@dataclass(frozen=True)
class Report:
    """Everything that was found on one bench."""

    bench: Bench
    results: list[tuple[Item, Result]]
    judged: list[tuple[Claim, Verdict]]


def make_report(bench: Bench) -> Report:
    """Every item and every claim."""
    results = [(item, item.compute(bench)) for item in track(ITEMS, "items")]
    return Report(bench, results, [(claim, judge(claim, bench)) for claim in CLAIMS])


PAGE = "reproduction.html"


def write_item(item: Item, result: Result, folder: Path) -> list[Path]:
    """``ITEM.csv``, further tables, and each picture as SVG and CSV; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{item.name}.csv"]
    data_table(result.rows).write_csv(written[0])
    for title, table in result.tables:
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        written.append(folder / f"{item.name}-{slug}.csv")
        table.write_csv(written[-1])
    for picture in result.pictures:
        written.append(save_figure(picture.draw(), folder / picture.name, picture.caption))
        if picture.table is not None:
            written.append(folder / f"{picture.name}-data.csv")
            picture.table.write_csv(written[-1])
    return written


def write_claims(judged: Sequence[tuple[Claim, Verdict]], folder: Path, scale: str = "paper") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "claims.csv"
    columns = ("claim", "where", "the paper says", "about", "verdict", "evidence", "scale")
    rows = [(c.name, c.where, c.says, c.about, v.state, v.evidence, scale) for c, v in judged]
    table_of(columns, rows).write_csv(path)
    return path


# -- Markdown ----------------------------------------------------------------------------------------------


def item_markdown(item: Item, result: Result, pictures: str) -> str:
    """One item as Markdown; ``pictures`` is the folder its figures are in, as a link.

    Only what is known is shown; the rest is counted, and stands in the CSV file.
    """
    lines = [
        f"## {item.title}",
        "",
        f"*{item.where}. {WORDS.get(result.state, result.state).capitalize()}.* {item.about}",
        "",
    ]
    known = [row for row in result.rows if row.state != MISSING]
    for group, rows in itertools.groupby(known, key=lambda row: row.group):
        lines += [f"**{group}**", ""] if group else []
        lines += [table_of(SHOWN, [row.cells for row in rows]).to_markdown()]
    if len(known) < len(result.rows):
        lines += [f"{len(result.rows) - len(known)} of {len(result.rows)} rows wait for runs.", ""]
    for picture in result.pictures:
        lines += [f"![{picture.caption}]({pictures}/{picture.name}.svg)", "", f"*{picture.caption}*", ""]
    for title, table in result.tables:
        lines += [f"<details><summary>{title}</summary>", "", table.to_markdown(), "</details>", ""]
    lines += [f"{note}\n" for note in result.notes]
    return "\n".join(lines)


def claim_words(claim: Claim) -> str:
    """The sentence, and what to know about it."""
    return claim.says + (f" ({claim.about})" if claim.about else "")


def claims_markdown(judged: Sequence[tuple[Claim, Verdict]]) -> str:
    """Those with a verdict as a table; those without one folded away below it."""
    columns = ("where", "the paper says", "verdict", "evidence")

    def table(some: Sequence[tuple[Claim, Verdict]]) -> str:
        lines = [(c.where, claim_words(c), f"**{v.state}**", v.evidence) for c, v in some]
        return table_of(columns, lines).to_markdown()

    known = [(claim, verdict) for claim, verdict in judged if verdict.state != NOT_RUN]
    rest = [(claim, verdict) for claim, verdict in judged if verdict.state == NOT_RUN]
    fold = f"<details><summary>{len(rest)} that have not been run yet</summary>\n\n{table(rest)}</details>\n"
    return table(known) + ("\n" + fold if rest else "")


def runs_table(runs: Sequence[Run]) -> Table:
    """Which runs were used, and what they ran on."""
    rows = []
    for run in runs:
        about = run.environment
        versions = f"{about.get('fsn', '?')}, torch {(about.get('packages') or {}).get('torch', '?')}"
        commit = str(about.get("commit") or "")[:10] + ("+" if about.get("modified") else "")
        precision = run.config["recipe"].get("precision")
        about_it = (precision, validated_in(run), about.get("device"), versions, commit)
        rows.append((run.name, len(run.epochs), *about_it))
    return table_of(("run", "epochs", "precision", "validated in", "device", "fsn", "commit"), rows)


WRITTEN = (
    "Written by `fsn reproduce --all`; do not edit. The same with interactive curves is "
    f"`{PAGE}`, which that command writes beside this page."
)


def counts(report: Report) -> Table:
    """The state of the whole: rows and claims by what they rest on."""
    rows = Counter(row.state for _, result in report.results for row in result.rows)
    claims = Counter((verdict.state, bool(claim.needs)) for claim, verdict in report.judged)

    def line(name: str, state: str, *verdicts: tuple[str, bool]) -> tuple[Any, ...]:
        return name, rows[state], *(claims[verdict] for verdict in verdicts)

    lines = [
        line("computed, without a run", COMPUTED, (HOLDS, False), (FAILS, False), (NO_CASE, False)),
        line("on every run asked for", MEASURED, (HOLDS, True), (FAILS, True), (NO_CASE, True)),
        line("so far, on fewer seeds", PARTIAL, (HOLDS_SO_FAR, True), (FAILS_SO_FAR, True)),
        line("waiting for runs", MISSING),
    ]
    lines[2] += (claims[OPEN, True],)
    lines[3] += (0, 0, claims[NOT_RUN, True] + claims[NOT_RUN, False])
    return table_of(("", "rows", "claims that hold", "that fail", "open, or no such event"), lines)


def top_markdown(report: Report, written: str = "") -> str:
    """What the page is, and the state of the whole; ``written`` says how it came about."""
    notes = list(report.bench.notes)
    if any(map(rounded, report.bench.found)):
        notes.append(
            f"{ROUNDED} A difference of two such curves has no mark. A best value is that of the stored weights in "
            "float32, where they were evaluated."
        )
    lines = [
        "# Reproduction",
        "",
        f"Every table and figure of {values()['source']}, with the paper's value, ours, the difference and the number "
        f"of seeds in the same row (found/asked). {written}".rstrip(),
        "",
        counts(report).to_markdown(),
        "What has no run is left out, never filled in: the end lists the missing runs.",
        "",
        *(f"- {note}" for note in notes),
        "",
    ]
    return "\n".join(lines)


def end_markdown(report: Report) -> str:
    """Missing runs, runs used, runs left out."""
    lines, bench, needs = [], report.bench, needs_of()
    if missing := bench.standing(needs).absent():
        how = "`fsn reproduce --all --run` trains them, `fsn reproduce --sweep FILE` lists them for `fsn sweep`."
        lines += ["## Missing runs", "", how, "", *(f"- {one}" for one in missing.split("; ")), ""]
    if bench.found:
        lines += ["## Runs used", "", runs_table(bench.found).to_markdown()]
    if bench.refused:
        lines += ["## Runs left out", "", *(f"- {reason}" for reason in bench.refused), ""]
    return "\n".join(lines)


def write_report(report: Report, out: Path) -> list[Path]:
    """``reproduction.md``, ``reproduction.html`` and the folder ``reproduction/`` with CSV and figures."""
    from .page import build_page

    folder = out / "reproduction"
    for item, result in report.results:
        write_item(item, result, folder)
    write_claims(report.judged, folder, report.bench.scale.name)
    markdown, page = out / "reproduction.md", out / PAGE
    items = [item_markdown(item, result, "reproduction") for item, result in report.results]
    claims = ["## Claims", "", "Sentences of the paper that a run can confirm or refute.", ""]
    parts = [
        top_markdown(report, WRITTEN),
        *items,
        *claims,
        claims_markdown(report.judged),
        end_markdown(report),
    ]
    write_text_atomic(markdown, "\n".join(parts).rstrip() + "\n")
    write_text_atomic(page, build_page(report, folder))
    return [markdown, page]
