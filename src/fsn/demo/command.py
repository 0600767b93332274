"""The command ``fsn demo``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsn.errors import UserError
from fsn.io import check_writable, writing

if TYPE_CHECKING:
    from rich.table import Table


def demo(
    *,
    minutes: float = 3.0,
    steps: int | None = None,
    corpus: str = "python-stdlib",
    report: Path = Path("report.html"),
    out: Path = Path("runs/demo"),
    seed: int = 0,
    results: Path = Path("results"),
) -> None:
    """Train an FSN, the Kuramoto layer and a transformer on the CPU for a few minutes, and write a page on them.

    For example:
      fsn demo
      fsn demo --minutes 20
      fsn demo --corpus path/to/folder

    Interrupt it as you like; the same command goes on where it stopped.

    Args:
        minutes: About how long it may take on two cores. This sets the number of steps beforehand, so that
            results do not depend on how busy the computer is.
        steps: Exactly so many steps instead.
        corpus: Which text: a name from `fsn corpora`, or the path of a file or folder.
        report: Where to write the page.
        out: The folder for the runs.
        seed: Sets initial values and data order.
        results: Where finished runs of full size lie, as in the repository; the page shows them too.
    """
    from fsn import data
    from fsn.demo.findings import measure
    from fsn.demo.plan import make_plan, steps_for
    from fsn.demo.story import write_page
    from fsn.demo.training import cores, train_all
    from fsn.train.run import check_out, check_outside

    begun = time.monotonic()
    if report.is_dir():
        raise UserError(f"{report} is a folder; give --report a file name, e.g. {report / 'report.html'}")
    check_writable(report.parent, "choose another --report")
    check_outside(report, corpus, "a --report")
    check_out(out, corpus)
    text = data.load(corpus)
    plan = make_plan(text, corpus, out, steps if steps is not None else steps_for(minutes), seed=seed)
    _say(f"text      {text.name}: {len(text):,} characters, {text.vocab_size} symbols")
    if text.left_out:
        _say(f"warning: {text.name}: {text.left_out}")
    for act in plan.acts:
        sizes = ", ".join(f"{entry.name} {entry.parameters:,}" for entry in act.entries)
        _say(f"{act.key:<9} {act.steps:,} steps on {act.title}: {sizes} parameters")
    finished = sum(job.state() == "finished" for job in plan.jobs)
    state = f" ({finished} of {len(plan.jobs)} runs are there already)" if finished else ""
    _say(f"training  in {plan.folder}, {min(cores(), len(plan.jobs))} runs at a time{state}")
    findings = measure(plan, train_all(plan), results)
    show(findings)
    with writing(report, "choose another --report"):
        page = write_page(findings, report)
    print(
        f"\nwrote {page} in {time.monotonic() - begun:.0f} s; open it in a browser: {page.resolve().as_uri()}"
    )


def show(findings: dict[str, Any]) -> None:
    """Print the table and the samples."""
    from rich import box
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from fsn.demo import words

    console = Console()
    exercise, depth = findings["exercise"], findings["depth"]
    table = Table(title=f"Bits per letter: one layer each, {exercise['steps']:,} steps", box=box.SIMPLE_HEAVY)
    table.add_column("model", no_wrap=True)
    for heading in ("parameters", "new letters", "copied letters", "tokens/s"):
        table.add_column(heading, justify="right")
    _rows(table, exercise["models"], ("new_bits", "copied_bits"))
    console.print(table)
    about = findings["about"]
    table = Table(
        title=f"Bits per character: {about['corpus']}, {about['steps']:,} steps", box=box.SIMPLE_HEAVY
    )
    table.add_column("model", no_wrap=True)
    for heading in ("parameters", "validation bits", f"depth ≥ {depth['from']}", "tokens/s"):
        table.add_column(heading, justify="right")
    _rows(table, findings["models"], ("valid_bits", "copied_bits"))
    console.print(table)
    for model in findings["models"]:
        written = Text(findings["prompt"], style="bold") + Text(model["sample"], style="not bold")
        console.print(Panel(written, title=f"{model['name']} writes", title_align="left", border_style="dim"))
    grown = findings["grown"]
    if grown is not None:
        written = Text(grown["prompt"], style="bold") + Text(grown["sample"], style="not bold")
        title = f"FSN at full size ({grown['text']}, trained before) writes"
        console.print(Panel(written, title=title, title_align="left", border_style="dim"))
        console.print(words.ends(grown), words.cut(grown), words.where(grown))


def _rows(table: Table, models: list[dict[str, Any]], fields: tuple[str, ...]) -> None:
    """A row for each model; the lowest loss of each column is bold."""
    best = {field: min((m[field] for m in models if m[field] is not None), default=None) for field in fields}
    for model in models:
        cells = [_cell(model[field], best[field]) for field in fields]
        table.add_row(model["name"], f"{model['parameters']:,}", *cells, f"{model['tokens_per_s']:,.0f}")


def _cell(value: float | None, best: float | None) -> str:
    if value is None:
        return "—"
    return f"[bold]{value:.3f}[/]" if value == best else f"{value:.3f}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
