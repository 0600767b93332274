"""``fsn compare``: models over seeds, on the terminal and as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ..checks import check
from ..io import check_writable, writing
from ..measure.metrics import check_metrics
from ..measure.seeds import compare as compare_runs
from ..measure.style import require_matplotlib
from ..progress import print_table
from ..train.run import find_run, folders_below, load_run
from .inspection import write_findings

Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]


def compare(
    runs: Runs,
    /,
    *,
    against: Path | None = None,
    epoch: int | None = None,
    out: Path | None = None,
) -> None:
    """Put models beside each other: mean and spread over seeds, and differences paired by seed.

    For example:
      fsn compare runs/transformer-seed* runs/fsn-seed*
      fsn compare results --against results/transformer-1m-nodrop-seed0 --epoch 2
      fsn compare runs/seeds --out comparison        comparison.html, with curves and differences

    Runs that differ in nothing but the seed are one model, whatever their folders are called.

    Args:
        runs: Run folders, or folders that hold some, on one text with windows of one length.
        against: The run that stands for its model and seed, with which the others are compared; by default the first.
            Otherwise of two runs of one seed the one that went further counts.
        epoch: Compare after so many epochs; by default each run at its best, without those that diverged.
        out: Write a page, its tables and its figures into this folder.
    """
    check(epoch is None or epoch >= 1, f"--epoch must be at least 1, not {epoch}")
    found = [load_run(folder) for place in runs for folder in folders_below(find_run(place)) or [place]]
    check(bool(found), "name at least one run folder, or a folder that holds some")
    reference = found[0] if against is None else load_run(find_run(against))
    begun = [run for run in found if run.validations]
    for run in [reference, *begun]:
        check_metrics(run)
    if out is not None:
        require_matplotlib()
        check_writable(out, "choose another --out")
    finding = compare_runs(begun, reference, epoch)
    print(finding.sentence)
    table = finding.tables["comparison"]
    lines = []
    for row in table.rows:
        cells = {name: table.cell(row, name) for name in table.columns}
        mean, difference = (
            cells[value] + (f" ± {cells[about]}" if cells[about] != "—" else "")
            for value, about in (("bits", "spread"), ("difference", "half"))
        )
        known = [seed for seed in row["seeds"].split(", ") if seed not in (row["left_out"] or "").split(", ")]
        some = row["pairs"] and row["pairs"] < len(known)
        notes = [f"{row['pairs']} of {len(known)} seeds"] * bool(some) + ["not told apart"] * (
            row["apart"] is False
        )
        difference += f" ({', '.join(notes)})" if notes else ""
        lost = f" (no loss: {row['left_out']})" if row["left_out"] else ""
        lines.append((mean, difference, ", ".join(known) + lost, cells["trained"], cells["model"]))
    print_table(("bits", "difference", "seeds", "trained", "model"), lines)
    if len(begun) < len(found):
        print(
            f"\nleft out, because they have no validation yet: {', '.join(r.name for r in found if r not in begun)}"
        )
    if out is not None:
        lede = f"{len(begun)} runs on {reference.config['corpus']['name']}, windows of {reference.recipe.length}."
        with writing(out, "choose another --out"):
            written = write_findings("Comparison", "Models over seeds", lede, {"comparison": finding}, out)
        print(f"\nwritten: {written[0]}, with {len(written) - 1} tables and figures beside it")
