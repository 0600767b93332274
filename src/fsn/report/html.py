"""One self-contained page: style, scripts and data inside, nothing fetched from anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape as _escape
from importlib import resources
from typing import Any

from fsn.measure.plots.style import COLOURS

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
    text = json.dumps(_plain(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table of ready-made HTML cells; the first column names the row, the others are right-aligned."""
    top = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    lines = [
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    ]
    text = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{text}<thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
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
    script = "\n".join(['"use strict";', read, asset("fsn.report", "charts.js"), *scripts])
    return SKELETON.format(
        policy=policy,
        description=escape(description or title),
        title=escape(title),
        style=style,
        body=body,
        data=embed(data or {}),
        script=script,
    )
