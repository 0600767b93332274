"""The paper's tables, figures and claims, each beside what was measured here.

    from fsn.paper import open_bench, compute_item, claims_of

    bench = open_bench("paper", [Path("runs"), Path("results")])
    item, result = compute_item(bench, "main")
    for claim, verdict in claims_of(bench): ...

- :mod:`~fsn.paper.needs`: which runs a statement rests on; :mod:`~fsn.paper.library` finds them
- :mod:`~fsn.paper.items`: one module per table and figure; :mod:`~fsn.paper.claims`: one check per sentence
- :mod:`~fsn.paper.scales`: the paper's sizes, or tiny ones that test the machinery
- :mod:`~fsn.paper.values`: the paper's numbers
"""

from __future__ import annotations

from fsn.paper.archive import archive_run
from fsn.paper.bench import Bench, NotRun
from fsn.paper.claims import CLAIMS
from fsn.paper.items import ITEMS
from fsn.paper.library import Library
from fsn.paper.registry import claims_of, compute_item, make_report, needs_of, open_bench
from fsn.paper.training import train_missing
from fsn.paper.writing import write_item, write_report

__all__ = [
    "CLAIMS",
    "ITEMS",
    "Bench",
    "Library",
    "NotRun",
    "archive_run",
    "claims_of",
    "compute_item",
    "make_report",
    "needs_of",
    "open_bench",
    "train_missing",
    "write_item",
    "write_report",
]
