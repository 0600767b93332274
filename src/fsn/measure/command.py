"""The command ``fsn inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from fsn.measure.inspection import PARTS, Part
from fsn.measure.tables import Table

RunPath = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]


def inspect(
    run: RunPath,
    /,
    *,
    against: Path | None = None,
    parts: tuple[Part, ...] = PARTS,
    windows: int = 256,
    which: Literal["best", "last"] = "best",
    corpus: str | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Look inside a run: its coupling functions, its loss by copy depth, what each field does, its states.

    For example:
      fsn inspect runs/fsn-seed0
      fsn inspect runs/fsn-seed0 --against runs/transformer-seed0
      fsn inspect runs/fsn-seed0 --parts coupling

    Writes inspection.md with figures and tables. A model without coupling is asked for the rest.

    Args:
        run: The run folder, finished or not.
        against: Another run on the same text; then also where the first is ahead of it.
        parts: What to look at: coupling, depth, lesions, states.
        windows: How many validation windows to read.
        which: The weights of the best epoch, or the last ones saved.
        corpus: Where the text is now, if the run's corpus was a path that has moved.
        out: Where to write; by default the folder inspection in the run's own.
        device: auto, cpu, cuda or cuda:1.
    """
    from fsn import data
    from fsn.measure.inspection import applicable, by_depth, inspect_run, write_findings
    from fsn.train.run import load_run
    from fsn.train.world import choose_device

    seen = load_run(run)
    chosen = applicable(seen, parts)
    other = None if against is None else load_run(against)
    text = data.load(corpus or seen.config["corpus"]["name"])
    found = inspect_run(
        seen, text, against=other, which=which, parts=chosen, windows=windows, device=choose_device(device)
    )
    for finding in found:
        for name in ("depth", "lesions"):
            if name in finding.tables:
                table = finding.tables[name]
                print(
                    f"\n{finding.title}\n\n{(by_depth(table) if name == 'lesions' else table).to_markdown()}",
                    end="",
                )
    left = [part for part in parts if part not in chosen]
    if left:
        print(f"\n{seen.name} is a transformer: it has no {' and no '.join(left)} to look at")
    written = write_findings(seen, found, out or seen.folder / "inspection")
    print(f"\nwritten: {written[0]}, with {len(written) - 1} tables and figures beside it")


def _show(title: str, table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as View

    view = View(title=title, box=box.SIMPLE_HEAVY)
    for column in table.columns:
        numbers = any(isinstance(value, int | float) for value in table.column(column))
        view.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    for row in table.rows:
        view.add_row(*(table.cell(row, column) for column in table.columns))
    Console().print(view)
