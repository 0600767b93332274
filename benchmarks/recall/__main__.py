"""Recall on tests that others wrote: small models, synthetic tasks, one table and one figure.

    python -m benchmarks.recall --quick                                # one task, on a CPU (minutes)
    python -m benchmarks.recall --small --layers 1                     # every task, small, on a CPU (an hour)
    python -m benchmarks.recall --headline --device cuda --workers 6 --minutes 25   # zoology's four settings, on a GPU
    python -m benchmarks.recall --device cuda --workers 6 --minutes 25   # the grid, the same way, again and again
    python -m benchmarks.recall --tasks mqar-64-4-random --models fsn transformer --layers 1
    python -m benchmarks.recall --report-only                          # table and figure of what is finished

A cell (task, model, layers, width, learning rate, seed, warm-up) that is finished has a JSON file and is not run again,
so a command that was stopped goes on where it was. Every learning rate is tried on every seed. What there was no time
for is named in the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from benchmarks.recall import models, report
from benchmarks.recall.tasks import SETTINGS, SMALL, tasks
from benchmarks.recall.train import Cell, prepare, run_cell, work
from fsn.errors import UserError
from fsn.io import check_writable
from fsn.train.world import choose_device

RESULTS = Path(__file__).parent.parent / "results" / "recall"
QUICK = "mqar-v256-64-4-random"
WIDTHS = (64, 128)
"""Of multi-query recall; zoology's figure 2 goes on to 256 and 512. Other tasks take the widest of those given."""
STEPS = 4_000
SEEDS = (0, 1, 2)
HEADLINE = ("transformer", "transformer-kvshift", "fsn", "fsn-score")
"""On the settings of zoology's figure 2, one and two layers of width 64, at the two higher of its learning rates."""
HEADLINE_STEPS = 1_500


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__.split("\n")[0])
    grid = parser.add_mutually_exclusive_group()
    grid.add_argument(
        "--quick",
        action="store_true",
        help=f"only {QUICK}, width 64: one layer of every model, two of the transformer",
    )
    grid.add_argument(
        "--small",
        action="store_true",
        help="every task at a size for one CPU core, width 64, the seven models",
    )
    grid.add_argument(
        "--headline",
        action="store_true",
        help=f"multi-query recall in zoology's four settings, width 64: {', '.join(HEADLINE)}",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="runs at once, also on one GPU, which they share",
    )
    parser.add_argument(
        "--minutes", type=float, default=None, help="no new cell after this; what is left is named"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help=f"folder of results (default: below {RESULTS})"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "fsn-recall",
        help="folder for generated rows",
    )
    parser.add_argument("--tasks", nargs="+", default=None, help=f"of {' '.join(tasks())}")
    parser.add_argument("--models", nargs="+", default=None, help="default: all that can run here")
    parser.add_argument("--layers", nargs="+", type=int, default=None, help="default: 1 2")
    parser.add_argument("--widths", nargs="+", type=int, default=None, help="default: 64 128")
    parser.add_argument(
        "--rates", nargs="+", type=float, default=None, help="default: those of each task's source"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument(
        "--steps",
        type=int,
        default=None,
        help=f"at most, in each cell (default {STEPS:,}, --headline {HEADLINE_STEPS:,})",
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=None,
        help="steps in which the learning rate rises in a line (default: a tenth; none with --quick and --small)",
    )
    parser.add_argument(
        "--report-only", action="store_true", help="write table and figure of what is finished"
    )
    options = parser.parse_args(arguments)
    if options.steps is None:
        options.steps = HEADLINE_STEPS if options.headline else STEPS
    return options


def plan(options: argparse.Namespace, device: torch.device) -> list[Cell]:
    """Every cell, a task after the other: where time runs out, whole tasks are missing and not seeds of each."""
    known = tasks()
    cpu = options.quick or options.small
    of_grid = [name for name in known if name != QUICK and name.endswith(SMALL) == options.small]
    if options.quick:
        of_grid = [QUICK]
    elif options.headline:
        of_grid = [f"mqar-{length}-{pairs}" for length, pairs in SETTINGS]
    chosen = options.tasks or of_grid
    for name in chosen:
        if name not in known:
            raise UserError(f"there is no task {name!r}; choose of {', '.join(known)}")
    available = models.known_names()
    for name in options.models or ():
        if name not in available:
            raise UserError(f"there is no model {name!r}; choose of {', '.join(available)}")
    layers = options.layers or ([1] if options.quick else [1, 2])
    widths = options.widths or ([64] if cpu or options.headline else list(WIDTHS))
    all_models = [name for name in models.names(device) if not options.small or name != models.LAYER]
    if options.headline:
        all_models = list(HEADLINE)

    def rates(task: str) -> tuple[float, ...]:
        return tuple(options.rates or (known[task].rates[-2:] if options.headline else known[task].rates))

    def warmup(task: str) -> int:
        given: int | None = options.warmup
        if given is None:
            return 0 if cpu else known[task].steps(options.steps) // 10
        return given

    cells = [
        Cell(task, model, depth, width, rate, seed, warmup(task))
        for depth in layers
        for task in chosen
        for width in (widths if task.startswith("mqar") else [max(widths)])
        for seed in options.seeds
        for rate in rates(task)
        for model in (options.models or all_models)
    ]
    if options.quick and not options.layers:  # what attention needs for the same: a second layer
        one_layer = [cell for cell in cells if cell.model == "transformer"]
        cells += [dataclasses.replace(cell, layers=2) for cell in one_layer]
    return cells


def finished(folder: Path, cells: Iterable[Cell], most: int) -> dict[str, dict[str, Any]]:
    """The results that are there, all of them of as many steps as asked for."""
    found = {}
    for cell in cells:
        path = folder / "cells" / f"{cell.name}.json"
        if path.exists():
            found[cell.name] = json.loads(path.read_text())
            steps, asked = found[cell.name]["task"]["steps"], tasks()[cell.task].steps(most)
            if steps != asked:
                raise UserError(
                    f"{cell.name} is there with {steps:,} steps, not {asked:,}; choose another folder with --out"
                )
    return found


def run(options: argparse.Namespace) -> int:
    device = choose_device(options.device)
    grids = {"quick": options.quick, "small": options.small, "headline": options.headline, "grid": True}
    out = options.out or RESULTS / next(name for name, chosen in grids.items() if chosen)
    check_writable(out, "choose another folder with --out")
    cells = plan(options, device)
    left_out: list[str] = []
    if not options.report_only:
        deadline = time.time() + 60 * options.minutes if options.minutes else float("inf")
        done = execute(cells, options, device, out, deadline)
        left_out = [cell.name for cell in cells if cell.name not in done]
        if left_out:
            print(f"{len(left_out):,} cells were left out: there was no time for them, or they failed")
    for path in report.write(out, left_out):
        print(path)
    return 0


def execute(
    cells: list[Cell], options: argparse.Namespace, device: torch.device, out: Path, deadline: float
) -> dict[str, dict[str, Any]]:
    """Run the cells that are not finished; the results of all that now are."""
    done = finished(out, cells, options.steps)
    todo = [cell for cell in cells if cell.name not in done]
    if done:
        print(f"{len(done):,} of {len(cells):,} cells are finished already")
    known = tasks()
    if options.workers <= 1:
        for i, cell in enumerate(todo):
            if time.time() > deadline:
                break
            try:
                found = run_cell(
                    cell, known[cell.task], str(device), out / "cells", options.data, options.steps, deadline
                )
            except (RuntimeError, ImportError) as error:
                print(f"{cell.name} failed: {error}", file=sys.stderr)
                continue
            note(done, cell, found, i + 1, len(todo))
        return done
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        needed = dict.fromkeys((cell.task, cell.seed) for cell in todo)
        for future in [pool.submit(prepare, task, seed, options.data) for task, seed in needed]:
            future.result()
        waiting = {
            pool.submit(work, cell, str(device), out / "cells", options.data, options.steps, deadline): cell
            for cell in todo
        }
        for i, ended in enumerate(as_completed(waiting)):
            cell = waiting[ended]
            failure = ended.exception()
            if failure is not None:
                print(f"{cell.name} failed: {failure}", file=sys.stderr)
                continue
            note(done, cell, ended.result(), i + 1, len(todo))
    return done


def note(
    done: dict[str, dict[str, Any]], cell: Cell, found: dict[str, Any] | None, count: int, total: int
) -> None:
    """Remember a finished cell and print a line about it."""
    if found is None:
        return
    done[cell.name] = found
    last = found["history"][-1]
    print(
        f"{count:>5}/{total} {cell.name:<60} accuracy {found['accuracy']['test']:.3f} after {last['step']:,} steps, "
        f"{last['seconds']:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
