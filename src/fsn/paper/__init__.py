"""The paper's tables, figures and claims, each beside what was measured here.

    bench = Bench(Library.open([Path("runs"), Path("results")]))
    result = item_named("main").compute(bench)
    verdicts = [(claim, judge(claim, bench)) for claim in CLAIMS]

- :mod:`~fsn.paper.needs`: which runs a statement rests on, which of them are there, how to make the others
- :mod:`~fsn.paper.bench`: those runs, the texts, and what was measured on them, once
- :mod:`~fsn.paper.rows`: the paper's numbers, rows, items, claims and verdicts
- :mod:`~fsn.paper.sections`: the paper section by section, as items and claims
- :mod:`~fsn.paper.writing`, :mod:`~fsn.paper.page`: CSV, figures, Markdown, one HTML page
- :mod:`~fsn.paper.archive`: runs kept for good in ``results/``
"""

from __future__ import annotations

from .archive import archive_run
from .bench import Bench, NotRun
from .needs import Library
from .rows import judge
from .sections import CLAIMS, ITEMS, item_named
from .writing import make_report, write_item, write_report

__all__ = [
    "CLAIMS",
    "ITEMS",
    "Bench",
    "Library",
    "NotRun",
    "archive_run",
    "item_named",
    "judge",
    "make_report",
    "write_item",
    "write_report",
]
