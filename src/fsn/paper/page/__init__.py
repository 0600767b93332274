"""The registry as one self-contained page: tables, figures, claims to filter, a kernel to play with."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from ...measure import Table
from ...report import asset, escape, page, table
from ..rows import MISSING, SHOWN, STATES, Item, Result, Row, source
from ..writing import (
    MISSING_RUNS,
    WORDS,
    Report,
    claim_words,
    groups,
    runs_table,
    summary,
    verdict_heading,
)

PACKAGE = "fsn.paper.page"
LONG_ITEM, LONG_GROUP = 40, 8
"""Groups of more rows than this are folded in items of more rows than that."""

HEADINGS = ("", *SHOWN[1:])
KINDS = {state: state.replace(" ", "-") for state in STATES}


def build_page(report: Report, pictures: Path) -> str:
    """The page; ``pictures`` is where the figures were written as SVG."""
    live: dict[str, object] = {}
    for _, result in report.results:
        live.update(result.live)
    body = "\n".join(
        [_top(report), "<main>", _claims(report), *_items(report, pictures), _end(report), "</main>"]
    )
    return page(
        "Attention as frustrated synchronization: reproduction",
        body,
        data={"live": live},
        styles=[asset(PACKAGE, "page.css")],
        scripts=[asset(PACKAGE, "claims.js"), asset("fsn.report", "kernel.js"), asset(PACKAGE, "kernel.js")],
        description="Every table, figure and claim of the paper beside what was measured here.",
    )


def pill(state: str, words: str) -> str:
    return f'<span class="pill {escape(state)}">{escape(words)}</span>'


def _top(report: Report) -> str:
    banner = f'<p class="banner">{escape(report.note)}</p>' if report.note else ""
    contents = "".join(
        f'<li><a href="#{item.name}">{escape(item.title)}</a> {pill(result.state, WORDS[result.state])}</li>'
        for item, result in report.results
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    return (
        '<header class="top"><p class="eyebrow">Reproduction</p>'
        "<h1>The paper beside what was measured</h1>"
        f'<p class="lede">{escape(summary(report))}</p>'
        '<p class="controls"><label><input type="checkbox" id="show-missing"> show what is missing</label></p>'
        f'{banner}<p class="note">The paper: {escape(source())}.</p>{notes}'
        f'<nav><ol class="contents"><li><a href="#claims">Claims</a></li>{contents}</ol></nav></header>'
    )


def _claims(report: Report) -> str:
    lines = []
    for one, verdict in report.judged:
        kind = KINDS[verdict.state]
        lines.append(
            f'<tr data-verdict="{kind}"><td>{pill(kind, verdict.state)}</td>'
            f'<td>{escape(claim_words(one))} <span class="where">{escape(one.where)}</span></td>'
            f"<td>{escape(verdict.evidence)}</td></tr>"
        )
    return (
        '<section id="claims"><h2>Claims</h2><p>Sentences of the paper that a run can confirm or refute, '
        "each with what was measured.</p>"
        '<div class="card"><div class="controls"><span id="claims-filter"></span><output id="claims-count">'
        '</output></div><div class="scroll tall"><table class="claims"><thead><tr>'
        f"<th>{verdict_heading(report.scale)}</th><th>the paper "
        "says</th><th>evidence</th></tr></thead><tbody>"
        f"{''.join(lines)}</tbody></table></div></div></section>"
    )


def _items(report: Report, pictures: Path) -> list[str]:
    return [_item(item, result, pictures) for item, result in report.results]


def _item(item: Item, result: Result, pictures: Path) -> str:
    parts = [
        f'<section id="{item.name}"><p class="eyebrow">{escape(item.where)}</p><h2>{escape(item.title)}</h2>',
        f"<p>{escape(item.about)} {pill(result.state, WORDS[result.state])}</p>",
    ]
    for one in result.pictures:
        data = base64.b64encode((pictures / f"{one.name}.svg").read_bytes()).decode("ascii")
        parts.append(
            f'<figure class="card"><img alt="{escape(one.caption)}" src="data:image/svg+xml;base64,{data}">'
            f'<figcaption class="note">{escape(one.caption)}</figcaption></figure>'
        )
    if "kernel" in result.live:
        parts.append(asset(PACKAGE, "kernel.html"))
    none = " missing" if result.state == "missing" else ""
    parts.append(f'<div class="card{none}">{_grouped(result.rows)}</div>')
    for title, extra in result.tables:
        parts.append(f'<details class="extra"><summary>{escape(title)}</summary>{_plain(extra)}</details>')
    parts += [f'<p class="note">{escape(note)}</p>' for note in result.notes]
    return "\n".join([*parts, "</section>"])


def _grouped(rows: Sequence[Row]) -> str:
    """One table with a heading for each group; in long items the long groups are folded away."""
    fold = len(rows) > LONG_ITEM
    parts: list[str] = []
    open_groups: list[tuple[str, list[Row]]] = []

    def close() -> None:
        if open_groups:
            parts.append(_rows(open_groups))
            open_groups.clear()

    for group, some in groups(rows):
        if fold and len(some) > LONG_GROUP:
            close()
            known = sum(row.ours is not None for row in some)
            label = f"{escape(group)} <small>{known} of {len(some)} rows</small>"
            hidden = "" if known else ' class="missing"'
            parts.append(f"<details{hidden}><summary>{label}</summary>{_rows([('', some)])}</details>")
        else:
            open_groups.append((group, some))
    close()
    return "".join(parts)


def _rows(found: Sequence[tuple[str, Sequence[Row]]]) -> str:
    lines = []
    for group, rows in found:
        if group:
            kind = "group" if any(row.state != MISSING for row in rows) else "group missing"
            span = f'<th scope="rowgroup" colspan="{len(HEADINGS)}">{escape(group)}</th>'
            lines.append(f'<tr class="{kind}">{span}</tr>')
        for row in rows:
            quantity, paper, ours, difference, seeds, remark = map(escape, row.cells)
            shown = pill("missing", "missing") if row.state == MISSING else ours
            kind = ' class="missing"' if row.state == MISSING else ""
            values = f'<td>{paper}</td><td class="ours">{shown}</td><td>{difference}</td><td>{seeds}</td>'
            lines.append(
                f'<tr{kind}><th scope="row">{quantity}</th>{values}<td class="remark">{remark}</td></tr>'
            )
    top = "".join(
        f'<th scope="col"{" class=ours" if heading == "ours" else ""}>{heading}</th>' for heading in HEADINGS
    )
    none = all(row.state == MISSING for _, rows in found for row in rows)
    body = f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll rows{" missing" if none else ""}">{body}</div>'


def _plain(found: Table) -> str:
    lines = [[escape(found.cell(row, name)) for name in found.columns] for row in found.rows]
    return table([escape(name.replace("_", " ")) for name in found.columns], lines)


def _end(report: Report) -> str:
    parts = []
    if report.missing:
        runs = "".join(f"<li>{escape(words)}</li>" for words in report.missing)
        said = escape(MISSING_RUNS).replace("`", "")
        parts.append(
            f'<section id="missing-runs"><h2>Missing runs</h2><p>{said}</p><ul>{runs}</ul></section>'
        )
    if report.runs:
        used = _plain(runs_table(report.runs))
        parts.append(f'<section id="runs"><h2>Runs used</h2><div class="card">{used}</div></section>')
    if report.refused:
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in report.refused)
        parts.append(f'<section id="refused"><h2>Runs left out</h2><ul>{reasons}</ul></section>')
    return "\n".join(parts)
