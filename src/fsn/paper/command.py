"""The commands ``fsn reproduce`` and ``fsn archive``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fsn.errors import UserError
from fsn.io import check_writable, writing
from fsn.train.commands import RunPath

if TYPE_CHECKING:
    from fsn.paper.bench import Bench
    from fsn.paper.claims import Claim, Verdict
    from fsn.paper.item import Result

Name = Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="ITEM")]
All = Annotated[bool, tyro.conf.arg(name="all")]

TINY = Path("runs") / "tiny-reproduction"
ELSEWHERE = "choose another --out"


def reproduce(
    item: Name = None,
    /,
    *,
    everything: All = False,
    run: bool = False,
    scale: Literal["paper", "tiny"] = "paper",
    readme: bool = False,
    where: tuple[Path, ...] = (Path("runs"), Path("results")),
    out: Path | None = None,
    fetch: bool = False,
    code: Literal["codeparrot", "pypi-python"] | None = None,
    device: str = "auto",
) -> None:
    """Put our values beside the paper's: every table, figure and claim, from the runs that are there.

    For example:
      fsn reproduce                        what there is, and which runs are missing
      fsn reproduce main                   one item: its table here, its files in docs/reproduction
      fsn reproduce claims                 the paper's sentences, each with its verdict
      fsn reproduce --all                  docs/reproduction.md and docs/reproduction.html
      fsn reproduce --all --scale tiny     the whole machinery with tiny models on a CPU, in a few minutes

    Runs are recognised by their config, wherever they lie below the folders searched. What is missing is
    said, never filled in.

    Args:
        item: One item, or claims; without it the list of items.
        everything: All items and claims, as Markdown and as one HTML page.
        run: Train the missing runs first, one after the other (at the tiny scale that is always done).
        scale: The paper's sizes, or tiny ones that only test the machinery.
        readme: Bring the results table of README.md up to date from results/.
        where: Folders that hold runs.
        out: Where to write; docs, or runs/tiny-reproduction at the tiny scale.
        fetch: Fetch a corpus that is not in the cache.
        code: The code corpus; by default the one that has runs, or the paper's own.
        device: Where losses are measured and missing runs trained: auto, cpu, cuda.
    """
    from fsn.paper.readme import write_readme
    from fsn.paper.registry import make_report, needs_of, open_bench
    from fsn.paper.training import train_missing

    if readme:
        changed = write_readme(Path("README.md"), Path("results"))
        print("README.md: results " + ("brought up to date" if changed else "are up to date"))
        if item is None and not everything:
            return
    if item is not None and everything:
        raise UserError("give an item or --all, not both")
    tiny = scale == "tiny"
    folder = out or (TINY if tiny else Path("docs"))
    runs = folder / "runs" if tiny else where[0] if where else Path("runs")
    roots = [runs] if tiny else list(where)
    bench = open_bench(scale, roots, device, fetch, code=code)
    if item is None and not everything:
        show_list(bench)
        return
    check_writable(folder, ELSEWHERE)
    if (run or tiny) and train_missing(bench, needs_of(item), runs, say):
        bench = open_bench(scale, roots, device, fetch, code=code)
    if everything:
        from fsn.paper.writing import summary, write_report

        report = make_report(bench)
        with writing(folder, ELSEWHERE):
            written = write_report(report, folder)
        print(summary(report))
        print("written: " + ", ".join(map(str, written)))
        return
    assert item is not None
    show_item(bench, item, folder / "reproduction", runs)


def archive(
    run: RunPath,
    /,
    *,
    name: str | None = None,
    results: Path = Path("results"),
    resume_state: bool = False,
    losses: bool = False,
    device: str = "auto",
) -> None:
    """Copy what is worth keeping of a run into results/, where `fsn reproduce` finds it.

    For example:
      fsn archive runs/fsn-seed0
      fsn archive runs/fsn-seed0 --name fsn-1m-enwik8-seed0 --losses

    Args:
        run: The run folder.
        name: The name in results/; by default the folder's own.
        results: The folder of archived runs.
        resume_state: Keep the checkpoint too, so that the run can be taken further.
        losses: Measure the loss of every copy-depth target and keep it, so that tables need no GPU.
        device: Where losses are measured: auto, cpu, cuda.
    """
    from fsn.paper.archive import add_losses, archive_run

    target = archive_run(run, results, name, resume_state)
    print(f"archived: {target}")
    if losses and not add_losses(target, device=device):
        print("no token losses: this run's text or window length has no copy-depth table")


# -- inside ------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show_list(bench: Bench) -> None:
    """Every item with the state of its runs."""
    from rich.console import Console
    from rich.table import Table

    from fsn.paper.claims import CLAIMS
    from fsn.paper.items import ITEMS

    view = Table("item", "what it is", "in the paper", "runs")
    for item in ITEMS:
        standing = bench.standing(item.needs)
        runs = "needs none" if not item.needs else f"{len(standing.there)} of {standing.total}"
        if standing.begun:
            runs += f", {len(standing.begun)} begun"
        view.add_row(item.name, item.title, item.where, runs)
    standing = bench.standing([need for one in CLAIMS for need in one.needs])
    view.add_row(
        "claims",
        f"{len(CLAIMS)} sentences and their verdicts",
        "throughout",
        f"{len(standing.there)} of {standing.total}",
    )
    Console().print(view)
    used = len(bench.library.runs)
    print(
        f"{used} run{'s' if used != 1 else ''} found on the paper's texts. `fsn reproduce ITEM` shows one "
        "item."
    )
    _show_notes(bench)


def _show_notes(bench: Bench) -> None:
    for note in bench.library.notes:
        print(note)
    for reason in bench.library.refused:
        say(f"left out: {reason}")


def show_item(bench: Bench, name: str, folder: Path, runs: Path) -> None:
    """One item on the terminal and in files."""
    from fsn.paper.registry import claims_of, compute_item
    from fsn.paper.training import command, missing_runs
    from fsn.paper.writing import write_claims, write_item

    if name == "claims":
        judged = claims_of(bench)
        _show_claims(judged)
        print(bench.scale.note or f"{len(judged)} claims.")
        with writing(folder, ELSEWHERE):
            path = write_claims(judged, folder, bench.scale.name)
        print(f"written: {path}")
        _show_notes(bench)
        return
    item, result = compute_item(bench, name)
    standing = bench.standing(item.needs)
    if item.needs:
        print(f"{item.title}: {len(standing.there)} of {standing.total} runs are there.")
    _show_rows(result)
    missing = missing_runs(bench, item.needs)
    if missing:
        print("missing runs (--run trains them here):")
        for one in missing:
            print("  " + command(bench, one, runs))
    if bench.scale.note:
        print(bench.scale.note)
    for note in result.notes:
        print(note)
    with writing(folder, ELSEWHERE):
        paths = write_item(item, result, folder)
    print("written: " + ", ".join(map(str, paths)))
    _show_notes(bench)


def _show_rows(result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    from fsn.paper.rows import cells
    from fsn.paper.writing import groups

    view = Table("quantity", "paper", "ours", "difference", "seeds", "remark")
    for column in view.columns[1:4]:
        column.justify, column.no_wrap = "right", True
    for group, rows in groups(result.rows):
        if group:
            view.add_row(f"[bold]{group}[/bold]")
        for row in rows:
            view.add_row(*(cell.replace("[", r"\[") for cell in cells(row)))
    Console().print(view)


def _show_claims(judged: Sequence[tuple[Claim, Verdict]]) -> None:
    from rich.console import Console
    from rich.table import Table

    colours = {"holds": "green", "fails": "red"}
    view = Table("verdict", "the paper says", "evidence")
    for one, verdict in judged:
        shade = colours.get(verdict.state, "dim")
        view.add_row(
            f"[{shade}]{verdict.state}[/]", f"{one.says} ({one.where})", verdict.evidence.replace("[", r"\[")
        )
    Console().print(view)
