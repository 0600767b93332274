"""Recall on tests that others wrote: small models, synthetic tasks, one table and one figure.

    python -m benchmarks.recall --quick                                # one task, on a CPU (minutes)
    python -m benchmarks.recall --small --layers 1                     # every task, small, on a CPU (an hour)
    python -m benchmarks.recall --device cuda --workers 12 --minutes 30   # the grid, many runs sharing the GPU
    python -m benchmarks.recall --tasks mqar-64-4-random --models fsn transformer --layers 1
    python -m benchmarks.recall --report-only                          # table and figure of what is finished

A cell (task, model, layers, width, learning rate, seed) that is finished has a JSON file and is not run again, so a
command that was stopped goes on where it was. All learning rates are tried on the first seed; the other seeds take
the best. What there was no time for is named in the table.
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
from benchmarks.recall.tasks import SMALL, tasks
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
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--workers", type=int, default=1, help="runs at once; on a GPU about one for each CPU core"
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
    parser.add_argument("--steps", type=int, default=STEPS, help=f"at most, in each cell (default {STEPS:,})")
    parser.add_argument(
        "--report-only", action="store_true", help="write table and figure of what is finished"
    )
    return parser.parse_args(arguments)


def plan(options: argparse.Namespace, device: torch.device) -> list[Cell]:
    """Every cell at every learning rate, first seed first; :func:`later` decides about the other seeds."""
    known = tasks()
    cpu = options.quick or options.small
    of_grid = [name for name in known if name != QUICK and name.endswith(SMALL) == options.small]
    chosen = options.tasks or ([QUICK] if options.quick else of_grid)
    for name in chosen:
        if name not in known:
            raise UserError(f"there is no task {name!r}; choose of {', '.join(known)}")
    available = models.known_names()
    for name in options.models or ():
        if name not in available:
            raise UserError(f"there is no model {name!r}; choose of {', '.join(available)}")
    layers = options.layers or ([1] if options.quick else [1, 2])
    widths = options.widths or ([64] if cpu else list(WIDTHS))
    all_models = [name for name in models.names(device) if not options.small or name != models.LAYER]
    cells = [
        Cell(task, model, depth, width, rate, seed)
        for seed in options.seeds
        for depth in layers
        for task in chosen
        for width in (widths if task.startswith("mqar") else [max(widths)])
        for rate in (options.rates or known[task].rates)
        for model in (options.models or all_models)
    ]
    if options.quick and not options.layers:  # what attention needs for the same: a second layer
        one_layer = [cell for cell in cells if cell.model == "transformer"]
        cells += [dataclasses.replace(cell, layers=2) for cell in one_layer]
    return cells


def split_by_seed(cells: list[Cell], first: int) -> tuple[list[Cell], list[Cell]]:
    return [c for c in cells if c.seed == first], [c for c in cells if c.seed != first]


def later(cells: list[Cell], found: dict[str, dict[str, Any]], first: int) -> list[Cell]:
    """Of the other seeds' cells, those at the learning rate that did best on the first seed."""
    groups: dict[tuple[str, str, int, int], list[dict[str, Any]]] = {}
    for result in found.values():
        c = result["cell"]
        if c["seed"] == first:
            groups.setdefault((c["task"], c["model"], c["layers"], c["width"]), []).append(result)
    best = {key: report.best_rate(of) for key, of in groups.items()}
    return [c for c in cells if best.get((c.task, c.model, c.layers, c.width)) == c.rate]


def finished(folder: Path, cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
    paths = {cell.name: folder / "cells" / f"{cell.name}.json" for cell in cells}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def run(options: argparse.Namespace) -> int:
    device = choose_device(options.device)
    out = options.out or RESULTS / ("quick" if options.quick else "small" if options.small else "grid")
    check_writable(out, "choose another folder with --out")
    cells = plan(options, device)
    left_out: list[str] = []
    if not options.report_only:
        deadline = time.time() + 60 * options.minutes if options.minutes else float("inf")
        first, rest = split_by_seed(cells, options.seeds[0])
        done = execute(first, options, device, out, deadline)
        rest = later(rest, done, options.seeds[0])
        done |= execute(rest, options, device, out, deadline)
        left_out = [cell.name for cell in [*first, *rest] if cell.name not in done]
        if left_out:
            print(f"{len(left_out):,} cells were left out: there was no time for them, or they failed")
    for path in report.write(out, left_out):
        print(path)
    return 0


def execute(
    cells: list[Cell], options: argparse.Namespace, device: torch.device, out: Path, deadline: float
) -> dict[str, dict[str, Any]]:
    """Run the cells that are not finished; the results of all that now are."""
    done = finished(out, cells)
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
