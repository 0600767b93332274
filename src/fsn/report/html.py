"""One self-contained page: style, scripts and data inside, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from html import escape as _escape
from importlib import resources
from typing import Any

import numpy as np

from ..measure.style import COLOURS
from ..measure.tables import Table

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The browser itself is told to load nothing: a page that needs the network would visibly break."""

SKELETON = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<meta name="description" content="{description}">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""


def escape(text: object) -> str:
    """Text that is safe between tags and inside quoted attributes."""
    return _escape(str(text), quote=True)


def asset(package: str, name: str) -> str:
    """A text file that lies beside the modules of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def embed(data: object) -> str:
    """JSON that may stand inside a script element.

    Numbers that are not finite become null: JSON has none, and a chart leaves such points out. ``<`` is
    written as an escape, so that no text of a corpus can end the element.
    """
    text = json.dumps(plain(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def plain(value: Any) -> Any:
    """Dataclasses, arrays and numbers as JSON has them: what is not finite becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", kind: str = "scroll"
) -> str:
    """A table of ready-made HTML cells; the first column names the row, the others are right-aligned.

    On a narrow screen a table of ``kind`` ``scroll`` scrolls sideways and may break its cells, one of kind
    ``scroll whole`` keeps them on one line, and one of kind ``stacked`` shows its rows one below the other.
    """
    top = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    lines = []
    for row in rows:
        pairs = zip(headings[1:], row[1:], strict=True)
        cells = "".join(
            f'<td data-heading="{heading}">{cell}</td>' if kind == "stacked" else f"<td>{cell}</td>"
            for heading, cell in pairs
        )
        lines.append(f'<tr><th scope="row">{row[0]}</th>{cells}</tr>')
    text = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="{kind}"><table>{text}<thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def data_table(found: Table) -> str:
    """A table of an instrument; each column's sentence stands in its heading and below the table."""
    top = [
        f'<span title="{escape(found.about.get(name, ""))}">{escape(name.replace("_", " "))}</span>'
        for name in found.columns
    ]
    rows = [[escape(found.cell(row, name)) for name in found.columns] for row in found.rows]
    said = [
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(found.about[name])}</dd>"
        for name in found.columns
        if name in found.about
    ]
    columns = f'<dl class="columns">{"".join(said)}</dl>' if said else ""
    return table(top, rows, escape(found.caption), "scroll whole") + columns


def figure(svg: bytes, caption: str) -> str:
    """An SVG inside the page, with a text for those who do not see it; on a narrow screen it scrolls sideways."""
    data = base64.b64encode(svg).decode("ascii")
    return (
        '<figure class="card"><div class="scroll">'
        f'<img alt="{escape(caption)}" src="data:image/svg+xml;base64,{data}"></div></figure>'
    )


def page(
    title: str,
    body: str,
    *,
    data: Mapping[str, Any] | None = None,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    description: str = "",
    policy: str = POLICY,
) -> str:
    """The whole page. ``body`` is HTML; ``data`` is what scripts find as ``reportData``.

    The colours of the model families are those of the figures, as CSS variables: ``--fsn``, ``--kuramoto``,
    ``--transformer`` and so on.
    """
    colours = ":root{" + "".join(f"--{name}:{shade};" for name, shade in COLOURS.items()) + "}"
    style = "\n".join([colours, asset("fsn.report", "style.css"), *styles])
    read = 'const reportData = JSON.parse(document.getElementById("data").textContent);'
    shared = (asset("fsn.report", name) for name in ("charts.js", "copy.js"))
    script = "\n".join(['"use strict";', read, *shared, *scripts])
    return SKELETON.format(
        policy=policy,
        description=escape(description or title),
        title=escape(title),
        style=style,
        body=body,
        data=embed(data or {}),
        script=script,
    )
