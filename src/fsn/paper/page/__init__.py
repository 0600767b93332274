"""The registry as one self-contained page: the Markdown page with its figures inside, claims to filter, a kernel to
play with."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

from markdown_it import MarkdownIt

from ...report import asset, data_table, escape, page
from ..rows import Item, Result
from ..writing import Report, claim_words, end_markdown, item_markdown, top_markdown

PACKAGE = "fsn.paper.page"


def to_html(markdown: str) -> str:
    """Markdown as HTML; what looks like HTML in it is shown as text. Wide tables scroll sideways."""
    text = str(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown))
    text = text.replace("<table>", '<div class="card"><div class="scroll rows"><table>')
    return text.replace("</table>", "</table></div></div>")


def build_page(report: Report, pictures: Path) -> str:
    """The page; ``pictures`` is where the figures were written as SVG."""
    live = {name: value for _, result in report.results for name, value in result.live.items()}
    contents = "".join(
        f'<li><a href="#{item.name}">{escape(item.title)}</a></li>' for item, _ in report.results
    )
    nav = f'<nav><ol class="contents"><li><a href="#claims">Claims</a></li>{contents}</ol></nav>'
    items = [_item(item, result, pictures) for item, result in report.results]
    body = [
        f'<header class="top">{to_html(top_markdown(report))}{nav}</header><main>',
        *(_claims(report), *items, to_html(end_markdown(report)), "</main>"),
    ]
    return page(
        "Attention as frustrated synchronization: reproduction",
        "\n".join(body),
        data={"live": live},
        styles=[asset(PACKAGE, "page.css")],
        scripts=[asset(PACKAGE, "claims.js"), asset("fsn.report", "kernel.js"), asset(PACKAGE, "kernel.js")],
        description="Every table, figure and claim of the paper beside what was measured here.",
    )


def _claims(report: Report) -> str:
    lines = []
    for claim, verdict in report.judged:
        kind = verdict.state.replace(" ", "-")
        lines.append(
            f'<tr data-verdict="{kind}"><td><span class="pill {kind}">{verdict.state}</span></td>'
            f'<td>{escape(claim_words(claim))} <span class="where">{escape(claim.where)}</span></td>'
            f"<td>{escape(verdict.evidence)}</td></tr>"
        )
    return (
        '<section id="claims"><h2>Claims</h2><p>Sentences of the paper that a run can confirm or refute, '
        'each with what was measured.</p><div class="card"><div class="controls"><span id="claims-filter">'
        '</span><output id="claims-count"></output></div><div class="scroll tall"><table class="claims">'
        "<thead><tr><th>verdict</th><th>the paper says</th><th>evidence</th></tr></thead><tbody>"
        f"{''.join(lines)}</tbody></table></div></div></section>"
    )


def _item(item: Item, result: Result, pictures: Path) -> str:
    """The item's Markdown, its figures inside; its further tables are folded away below it."""
    text = to_html(item_markdown(item, replace(result, tables=[]), "."))
    for one in result.pictures:
        data = base64.b64encode((pictures / f"{one.name}.svg").read_bytes()).decode("ascii")
        text = text.replace(f'src="./{one.name}.svg"', f'src="data:image/svg+xml;base64,{data}"')
    kernel = asset(PACKAGE, "kernel.html") if "kernel" in result.live else ""
    tables = "".join(
        f'<details class="extra"><summary>{escape(title)}</summary>{data_table(table)}</details>'
        for title, table in result.tables
    )
    return f'<section id="{item.name}">{text}{kernel}{tables}</section>'
