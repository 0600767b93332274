"""Pages in one file: all that a browser needs is inside, so a report can be mailed, archived, opened offline.

    from fsn import report

    text = report.page("My runs", body, data={"runs": [...]}, scripts=[my_javascript])

- :mod:`~fsn.report.html`: the page around a body, tables, and text made safe for HTML
- ``style.css``: type and colours, in light and dark
- ``charts.js``: line and bar charts drawn from the page's data (``Charts.line``, ``Charts.bars``)
"""

from __future__ import annotations

from fsn.report.html import asset, embed, escape, page, table

__all__ = ["asset", "embed", "escape", "page", "table"]
