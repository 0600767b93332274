"""The command ``fsn demo``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io import check_writable, write_text_atomic, writing
from ..progress import print_table, say


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

    Interrupt it as you like; the same command resumes.

    Args:
        minutes: About how long it may take on two cores. This sets the number of steps beforehand, so that
            results do not depend on how busy the computer is.
        steps: Exactly so many steps instead.
        corpus: Which text: a name from `fsn corpora`, or the path of a file or folder.
        report: Where to write the page.
        out: The folder for the runs.
        seed: Sets initial values and data order.
        results: Where finished runs of full size lie; the page shows them too, or those that come with fsn.
    """
    from .. import data
    from ..data.registry import check_outside
    from ..train.run import check_out
    from .findings import measure
    from .page import build_page
    from .plan import MODELS, cores, make_plan, steps_for, train_all

    begun = time.monotonic()
    if report.is_dir():
        raise UserError(f"{report} is a folder; give --report a file name, e.g. {report / 'report.html'}")
    check_writable(report.parent, "choose another --report")
    check_outside(report, corpus, "a --report")
    check_out(out, corpus)
    text = data.load(corpus)
    plan = make_plan(text, corpus, out, steps if steps is not None else steps_for(minutes), seed=seed)
    say(f"text      {text.name}: {len(text):,} characters, {text.vocab_size} symbols")
    if text.left_out:
        say(f"warning: {text.name}: {text.left_out}")
    sizes = ", ".join(f"{MODELS[key][0]} {n:,}" for key, n in plan.parameters.items())
    say(f"models    {plan.steps:,} steps: {sizes} parameters")
    finished = sum(job.state() == "finished" for job in plan.jobs)
    state = f" ({finished} of {len(plan.jobs)} runs are there already)" if finished else ""
    say(f"training  in {plan.folder}, {min(cores(), len(plan.jobs))} runs at a time{state}")
    runs = train_all(plan)
    findings = measure(plan, runs, results)
    show(findings)
    with writing(report, "choose another --report"):
        write_text_atomic(report, build_page(findings))
    print(
        f"\nwrote {report} in {time.monotonic() - begun:.0f} s; open it in a browser: {report.resolve().as_uri()}"
    )


def show(findings: dict[str, Any]) -> None:
    """Print the table and the samples."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console()
    recall, about = findings["recall"], findings["about"]
    rows = [(m["name"], f"{m['parameters']:,}", f"{100 * m['accuracy']:.1f} %") for m in recall["models"]]
    print_table(("one layer", "parameters", "right answers"), rows, f"Recall after {recall['steps']:,} steps")
    rows = []
    for model in findings["models"]:
        bits = ("—" if x is None else f"{x:.3f}" for x in (model["valid_bits"], model["copied_bits"]))
        rows.append((model["name"], f"{model['parameters']:,}", *bits, f"{model['tokens_per_s']:,.0f}"))
    columns = ("model", "parameters", "validation bits", f"depth ≥ {findings['depth']['from']}", "tokens/s")
    print_table(columns, rows, f"Bits per character: {about['corpus']}, {about['steps']:,} steps")
    writers = [(model["name"], findings["prompt"], model["sample"]) for model in findings["models"]]
    full = findings["full_size"]
    if full is not None:
        writers.append((f"FSN at full size ({full['text']}, trained before)", full["prompt"], full["sample"]))
    for name, prompt, sample in writers:
        written = Text(prompt, style="bold") + Text(sample, style="not bold")
        console.print(Panel(written, title=f"{name} writes", title_align="left", border_style="dim"))
