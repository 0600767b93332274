"""The README's results table, made from what is committed in ``results/``."""

from __future__ import annotations

import re
from pathlib import Path

from fsn.errors import UserError
from fsn.io import write_text_atomic
from fsn.measure import Table
from fsn.paper.bench import Bench
from fsn.paper.items.so_far import progress
from fsn.paper.library import Library
from fsn.paper.rows import number
from fsn.paper.scales import scale_named

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NOTHING = "No finished runs yet."


def results_block(results: Path) -> str:
    """What stands between the markers: a table of the runs in ``results``, or that there are none.

    It is made from metrics alone, so that it comes out the same on every machine.
    """
    bench = Bench(Library.open(scale_named("paper"), [results]))
    rows = progress(bench)
    if not rows:
        return NOTHING
    columns = ("model and epoch", "text", "bits per character", "paper", "seeds")
    lines = []
    for row in rows:
        paper = "" if row.paper is None else number(row.paper.value, row.form, row.paper.spread)
        ours = number(row.ours, row.form, row.spread)
        lines.append(dict(zip(columns, (row.quantity, row.group, ours, paper, row.seeds), strict=True)))
    devices = sorted({str(run.environment.get("device")) for run in bench.library.runs})
    return "\n".join(
        [
            Table(columns, lines).to_markdown(),
            f"Validation loss of the runs in `results/`, trained on {', '.join(devices)}. The paper's value stands "
            "where model, text and epoch are the same, though its models have dropout 0.1 and run in float32; its "
            "budget is 30 epochs, 50 for converged runs. "
            "`fsn reproduce` lists every table, figure and claim, with the runs it still needs.",
        ]
    )


def fill(text: str, block: str) -> str:
    """The README with the block between its markers replaced."""
    pattern = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        raise UserError(f"the README has no {BEGIN} and {END}; put them where the table should stand")
    return pattern.sub(lambda _: f"{BEGIN}\n{block.strip()}\n{END}", text, count=1)


def write_readme(readme: Path, results: Path) -> bool:
    """Bring the README up to date; whether anything changed."""
    try:
        before = readme.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no {readme}; call this in the root of the repository") from None
    after = fill(before, results_block(results))
    if after != before:
        write_text_atomic(readme, after)
    return after != before
