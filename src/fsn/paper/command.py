"""The commands ``fsn reproduce`` and ``fsn archive``."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ..errors import UserError
from ..io import check_writable, write_text_atomic, writing
from ..progress import print_table, say
from ..text import printable
from ..train.commands import RunPath

if TYPE_CHECKING:
    from .bench import Bench
    from .needs import Need

Name = Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="ITEM")]
All = Annotated[bool, tyro.conf.arg(name="all")]

ELSEWHERE = "choose another --out"
WHERE = (Path("runs"), Path("results"))


def reproduce(
    item: Name = None,
    /,
    *,
    everything: All = False,
    run: bool = False,
    sweep: Path | None = None,
    where: tuple[Path, ...] = WHERE,
    out: Path | None = None,
    fetch: bool = False,
    code: Literal["codeparrot", "pypi-python"] | None = None,
    device: str = "auto",
) -> None:
    """Put our values beside the paper's: every table, figure and claim, from the runs that are there.

    For example:
      fsn reproduce                        what there is, and which runs are missing
      fsn reproduce main                   one item: its table
      fsn reproduce main --out docs        the same, and its files in docs/reproduction
      fsn reproduce claims                 the paper's sentences, each with its verdict
      fsn reproduce --all                  docs/reproduction.md and docs/reproduction.html
      fsn reproduce main --sweep new.yaml  the missing runs as a list for `fsn sweep`

    Runs are recognised by their config, wherever they lie below the folders searched. What is missing is
    said, never filled in.

    Args:
        item: One item, or claims; without it the list of items.
        everything: All items and claims, as Markdown and as one HTML page.
        run: Train the missing runs first, as `fsn sweep` would.
        sweep: Write the missing runs into this file for `fsn sweep`, and nothing else.
        where: Folders that hold runs; new ones go into the first that is not an archive (results), else into runs.
        out: Where to write; with --all docs, else nothing is written.
        fetch: Fetch a corpus that is not in the cache.
        code: The code corpus; by default the one that has runs, or the paper's own.
        device: Where losses are measured: auto, cpu, cuda.
    """
    from .bench import Bench, sweep_text
    from .sections import needs_of
    from .writing import counts, make_report, write_report

    if item is not None and everything:
        raise UserError("give an item or --all, not both")
    absent = [folder for folder in where if not folder.is_dir()]
    if absent and where != WHERE and not (run or sweep):
        raise UserError(f"there is no folder {absent[0]}; --where takes folders that hold runs")
    runs = next((folder for folder in where if folder.name != "results"), Path("runs"))
    prefer = {"code": code} if code is not None else {}

    open_bench = functools.partial(Bench.open, where, prefer=prefer, device=device, fetch=fetch)
    bench = open_bench()
    if sweep is not None:
        jobs = bench.standing(needs_of(item)).jobs(runs)
        about = f"What `fsn reproduce {item or '--all'}` still needs."
        with writing(sweep, "choose another --sweep"):
            write_text_atomic(sweep, sweep_text(jobs, about, runs))
        print(f"written: {sweep}, {len(jobs)} runs for `fsn sweep`")
        return
    if item is None and not everything and not run:
        show_list(bench)
        return
    folder = out or (Path("docs") if everything else None)
    if folder is not None:
        check_writable(folder, ELSEWHERE)
    if run and train(bench, needs_of(item), runs):
        bench = open_bench()
    if everything:
        assert folder is not None
        report = make_report(bench)
        with writing(folder, ELSEWHERE):
            written = write_report(report, folder)
        table = counts(report)
        print_table(table.columns, [[table.cell(row, name) for name in table.columns] for row in table.rows])
        print("written: " + ", ".join(map(str, written)))
    elif item is not None:
        show_item(bench, item, None if folder is None else folder / "reproduction", runs)


def archive(
    run: RunPath,
    /,
    *,
    name: str | None = None,
    results: Path = Path("results"),
    weights: bool = False,
    resume_state: bool = False,
    measure: bool = False,
    evaluate: bool = False,
    device: str = "auto",
) -> None:
    """Copy what is worth keeping of a run into results/, where `fsn reproduce` finds it: about a megabyte.

    For example:
      fsn archive runs/fsn-seed0 --measure --evaluate
      fsn archive runs/fsn-seed0 --name fsn-1m-enwik8-seed0 --measure --evaluate --weights

    Args:
        run: The run folder.
        name: The name in results/; by default the folder's own.
        results: The folder of archived runs.
        weights: Keep the weights of the best epoch too (4 MB at one million parameters).
        resume_state: Keep the checkpoint too, so that the run can be taken further.
        measure: Measure what the page shows of the weights (losses by copy depth, states, attention) and keep it,
            so that it needs neither weights nor a GPU.
        evaluate: Put its losses into results/evaluations.jsonl: on the validation and test split, and in windows four
            times as long (seconds on a GPU, an hour and more on a CPU).
        device: Where that is measured: auto, cpu, cuda.
    """
    from .archive import add_evaluations, add_measurements, archive_run

    target = archive_run(run, results, name, resume_state, weights)
    print(f"archived: {target}")
    if measure:
        written = add_measurements(target, run, device=device)
        print(
            f"measured: {', '.join(written) or 'nothing, no table shows a run of this text and window length'}"
        )
    if evaluate:
        print(f"evaluated: {add_evaluations(target, run, device)}")


# -- inside ------------------------------------------------------------------------------------------------


def train(bench: Bench, needs: Sequence[Need], runs: Path) -> int:
    """Train what is missing, as a sweep does; a run that diverges is a result. Returns how many there were."""
    from ..train.commands import slots
    from ..train.sweep import exit_if_stopped, run_here

    standing = bench.standing(needs)
    jobs = standing.jobs(runs)
    if jobs:
        check_writable(runs, "name another folder first in --where")
        standing.bring(runs)
        _, stopped = run_here(jobs, slots(None), say)
        exit_if_stopped(stopped)
    return len(jobs)


def show_list(bench: Bench) -> None:
    """Every item with the state of its runs."""
    from .sections import CLAIMS, ITEMS, needs_of

    rows = []
    for item in ITEMS:
        standing = bench.standing(item.needs)
        runs = "needs none" if not item.needs else f"{len(standing.there)} of {standing.total}"
        if standing.begun:
            runs += f", {len(standing.begun)} begun"
        rows.append((item.name, item.title, item.where, runs))
    standing = bench.standing(needs_of("claims"))
    there = f"{len(standing.there)} of {standing.total}"
    rows.append(("claims", f"{len(CLAIMS)} sentences and their verdicts", "throughout", there))
    print_table(("item", "what it is", "in the paper", "runs"), rows)
    used = len(bench.found)
    print(
        f"{used} run{'s' if used != 1 else ''} found on the paper's texts. `fsn reproduce ITEM` shows one "
        "item."
    )
    show_notes(bench)


def show_notes(bench: Bench) -> None:
    for note in bench.notes:
        print(printable(note, "lines"))
    for reason in bench.refused:
        say(f"left out: {reason}")


def show_item(bench: Bench, name: str, folder: Path | None, runs: Path) -> None:
    """One item on the terminal, and in files if there is a folder for them."""
    from rich.console import Console
    from rich.markdown import Markdown

    from .rows import judge
    from .sections import CLAIMS, item_named
    from .writing import claims_markdown, item_markdown, write_claims, write_item

    if name == "claims":
        judged = [(claim, judge(claim, bench)) for claim in CLAIMS]
        text = f"{claims_markdown(judged)}\n{len(judged)} claims."
    else:
        item = item_named(name)
        result = item.compute(bench)
        standing = bench.standing(item.needs)
        text = item_markdown(item, result, "reproduction")
        if item.needs:
            text += f"\n{len(standing.there)} of {standing.total} runs are there."
    Console().print(Markdown(printable(text, "lines")))
    if name != "claims" and (jobs := standing.jobs(runs)):
        print("missing runs (--run trains them here, --sweep FILE lists them):")
        print("\n".join("  fsn train " + shlex.join(job.arguments()) for job in jobs))
    if folder is not None:
        with writing(folder, ELSEWHERE):
            paths = [write_claims(judged, folder)] if name == "claims" else write_item(item, result, folder)
        print("written: " + ", ".join(map(str, paths)))
    show_notes(bench)
