"""Train the demo's models side by side, one per core.

Models this small gain little from a second thread, so each gets a process and a core of its own. The runs are
those of ``fsn train``, carried out as ``fsn sweep`` does it; their ``metrics.jsonl`` says how far they are.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from ..errors import UserError
from ..progress import Bar, say
from ..train import Run, load_run
from ..train.sweep import Job, last_line, run_here
from .plan import Plan

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
        with _settings(), _progress(plan):
            notes = run_here(jobs, slots, lambda line: None)
        if "*" in notes:
            say("stopped: run the same command again to go on")
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


def standing(job: Job) -> tuple[int, float | None]:
    """Steps that a run has done and its last training loss in bits, from its folder, which may not exist yet."""
    try:
        lines = load_run(job.out).metrics
    except UserError:
        return 0, None
    losses = [line["loss_bits"] for line in lines if line.get("kind") == "step"]
    return max((line.get("step", 0) for line in lines), default=0), losses[-1] if losses else None


@contextlib.contextmanager
def _progress(plan: Plan) -> Iterator[None]:
    """Watch the runs from a thread: one bar over the steps of all, with the losses of those under way."""
    over = threading.Event()

    def watch() -> None:
        total = sum(act.steps * len(act.entries) for act in plan.acts)
        with Bar("training, steps", total) as bar:
            while True:
                last = over.wait(LOOK_S)
                found = [(job, *standing(job)) for job in plan.jobs]
                now = [
                    f"{job.name} {bits:.2f} bits"
                    for job, _, bits in found
                    if bits and job.state() != "finished"
                ]
                bar.update(sum(step for _, step, _ in found) - bar.done, now=", ".join(now))
                if last:
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
