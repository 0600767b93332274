"""Pages in one file: all that a browser needs is inside, so a report can be mailed, archived, opened offline.

    from fsn import report

    text = report.page("My runs", body, data={"runs": [...]}, scripts=[my_javascript])

- :mod:`~fsn.report.html`: the page around a body, tables, figures, and text made safe for HTML
- :mod:`~fsn.report.inspection`: ``fsn inspect``
- ``style.css``: type and colours, in light and dark
- ``charts.js``: line and bar charts drawn from the page's data (``Charts.line``, ``Charts.bars``)
- ``kernel.js``: coupling functions to play with (``Kernel.draw``)
"""

from __future__ import annotations

from .html import asset, data_table, embed, escape, figure, page, table

__all__ = ["asset", "data_table", "embed", "escape", "figure", "page", "table"]
