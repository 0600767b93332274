"""Train the demo's models side by side, one per core, with a bar for each.

Models this small gain little from a second thread, so each gets a process and a core of its own. The runs are
those of ``fsn train``, carried out as ``fsn sweep`` does it; their ``metrics.jsonl`` says how far they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import UserError
from ..progress import PLAIN_INTERVAL_S
from ..train import Run, load_run
from ..train.sweep import last_line, run_here
from .plan import Entry, Plan

LOOK_S = 0.4
SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""One thread for each process, and the CPU even where there is a GPU: the demo is the same everywhere."""


def cores() -> int:
    """Cores this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Runs = dict[str, dict[str, Run]]
"""Runs by act and by model."""


def train_all(plan: Plan) -> Runs:
    """The runs of the plan, each trained to its end; finished ones are kept, half-done ones go on."""
    jobs = plan.jobs
    if any(job.state() != "finished" for job in jobs):
        plan.prepare()
        slots: list[str | None] = [None] * min(cores(), len(jobs))
        with _settings(), _bars(plan):
            notes = run_here(jobs, slots, lambda line: None)
        if "*" in notes:
            print("stopped: run the same command again to go on", file=sys.stderr)
            raise SystemExit(128 + int(notes["*"]))
        for job in jobs:
            if job.state() != "finished":
                reason = last_line(job.out / "output.txt").removeprefix("fsn: ")
                raise UserError(f"training {job.name} failed: {reason or 'see ' + str(job.out)}")
    return {act.key: {entry.key: load_run(entry.job.out) for entry in act.entries} for act in plan.acts}


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """The processes started in this block get :data:`SETTINGS`."""
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class Standing:
    """How far a run is: steps done, its last training loss, symbols a second."""

    step: int = 0
    bits: float | None = None
    tokens_per_s: float | None = None

    def words(self) -> str:
        if self.bits is None or self.tokens_per_s is None:
            return ""
        return f"{self.bits:.2f} bits, {self.tokens_per_s / 1000:.1f}k symbols/s"


def standing(entry: Entry) -> Standing:
    """Read from the run's folder, which may not exist yet."""
    try:
        lines = load_run(entry.job.out).metrics
    except UserError:
        return Standing()
    steps = [line for line in lines if line.get("kind") == "step"]
    done = max((line.get("step", 0) for line in lines), default=0)
    if not steps:
        return Standing(done)
    return Standing(done, steps[-1]["loss_bits"], steps[-1]["tokens_per_s"])


@contextlib.contextmanager
def _bars(plan: Plan) -> Iterator[None]:
    """Watch the runs from a thread: a bar for each on a terminal, a line every ten seconds elsewhere."""
    over = threading.Event()
    watch = _watch_terminal if sys.stderr.isatty() else _watch_plain
    watched = [(f"{act.title}: {entry.name}", act.steps, entry) for act in plan.acts for entry in act.entries]
    thread = threading.Thread(target=watch, args=(watched, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


Watched = list[tuple[str, int, Entry]]
"""Every run with its name on the screen and its steps."""


def _watch_terminal(watched: Watched, over: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as progress:
        tasks = [progress.add_task(name, total=steps, start=False, words="") for name, steps, _ in watched]
        done: set[str] = set()
        while True:
            last = over.wait(LOOK_S)
            for task, (_, _, entry) in zip(tasks, watched, strict=True):
                if entry.job.name in done or not entry.job.out.exists():
                    continue
                progress.start_task(task)
                finished, now = entry.job.state() == "finished", standing(entry)
                progress.update(task, completed=now.step, words=now.words())
                if finished:
                    progress.stop_task(task)
                    done.add(entry.job.name)
            if last:
                return


def _watch_plain(watched: Watched, over: threading.Event) -> None:
    spoken = time.monotonic()
    while not over.wait(LOOK_S):
        if time.monotonic() - spoken < PLAIN_INTERVAL_S:
            continue
        spoken = time.monotonic()
        parts = []
        for name, steps, entry in watched:
            if entry.job.state() != "finished" and entry.job.out.exists():
                now = standing(entry)
                words = f" ({now.words()})" if now.words() else ""
                parts.append(f"{name} {now.step:,} of {steps:,}{words}")
        if parts:
            print("; ".join(parts), file=sys.stderr, flush=True)
