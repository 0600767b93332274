"""Carrying out a sweep: one run per GPU on this machine, or one job per run through submitit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import UserError
from .sweep import Job

POLL_S = 0.2


def command(job: Job) -> list[str]:
    return [sys.executable, "-m", "fsn", "train", *job.arguments()]


def last_line(file: Path) -> str:
    """The last line a run printed: on failure, its reason."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def run_here(jobs: list[Job], slots: list[str | None], say: Callable[[str], None]) -> dict[str, str]:
    """Run the unfinished ``jobs``, each in a process of its own, as many at a time as there are ``slots``.

    A slot is the number of a GPU, which the process then sees alone, or None for the CPU. A signal is passed
    on to the runs, which write a checkpoint and end. Returns the states that the folders do not show.
    """
    waiting = [job for job in jobs if job.state() != "finished"]
    free = list(slots)
    running: list[tuple[Job, str | None, subprocess.Popen[bytes]]] = []
    notes: dict[str, str] = {}
    stopped = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = number
        for _, _, process in running:
            process.send_signal(signal.SIGTERM)

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        while running or (waiting and not stopped):
            while waiting and free and not stopped:
                job, slot = waiting.pop(0), free.pop(0)
                where = f" on GPU {slot}" if slot is not None else ""
                say(f"{'goes on' if job.state() == 'begun' else 'starts'}: {job.name}{where}")
                running.append((job, slot, _start(job, slot)))
            for entry in list(running):
                job, slot, process = entry
                code = process.poll()
                if code is None:
                    continue
                running.remove(entry)
                free.append(slot)
                if job.state() == "finished":
                    say(f"finished: {job.name}")
                elif stopped:
                    notes[job.name] = "stopped"
                else:
                    notes[job.name] = "failed"
                    say(f"failed: {job.name} (exit code {code}): {last_line(job.out / 'output.txt')}")
            time.sleep(POLL_S)
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    if stopped:
        notes["*"] = str(stopped)
    return notes


def _start(job: Job, slot: str | None) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if slot is not None:
        environment["CUDA_VISIBLE_DEVICES"] = slot
    job.out.mkdir(parents=True, exist_ok=True)
    with open(job.out / "output.txt", "ab") as output:
        # A session of its own: Ctrl-C in the terminal reaches the sweep, which passes it on once.
        return subprocess.Popen(
            command(job),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


class SubmittedRun:
    """What a submitit job does: run ``fsn train`` in a process of its own.

    When the job's time is nearly up, or it is preempted, submitit calls :meth:`checkpoint`: the run is asked
    to write a checkpoint and end, and the job is queued again, where ``fsn train`` goes on from it.
    """

    def __init__(self, words: list[str], output: str) -> None:
        self.words, self.output = words, output
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        Path(self.output).parent.mkdir(parents=True, exist_ok=True)
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                self.words, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
            code = self.process.wait()
        if code:
            raise RuntimeError(f"exit code {code}: {last_line(Path(self.output))}")
        return code

    def checkpoint(self) -> Any:
        import submitit

        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()
        return submitit.helpers.DelayedSubmission(SubmittedRun(self.words, self.output))


def submit(
    jobs: list[Job],
    cluster: str,
    folder: Path,
    parameters: Mapping[str, Any],
    wait: bool,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Hand the unfinished ``jobs`` to submitit, one job each; ``cluster`` is ``slurm`` or ``local``."""
    try:
        import submitit
    except ImportError:
        raise UserError(
            "this executor needs submitit, which is not installed: pip install submitit"
        ) from None
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(name="fsn", **parameters)
    except (RuntimeError, TypeError, NameError, ValueError) as error:
        raise UserError(f"submitit cannot use {cluster}: {str(error).splitlines()[0]}") from None
    waiting = [job for job in jobs if job.state() != "finished"]
    handles = []
    for job in waiting:
        words = command(job)
        handles.append(executor.submit(SubmittedRun(words, str(job.out.resolve() / "output.txt"))))
        say(f"submitted: {job.name} as job {handles[-1].job_id}")
    if not wait:
        return {job.name: "submitted" for job in waiting}
    notes: dict[str, str] = {}
    for job, handle in zip(waiting, handles, strict=True):
        if handle.exception() is None and job.state() == "finished":
            say(f"finished: {job.name}")
        else:
            notes[job.name] = "failed"
            say(f"failed: {job.name}: {last_line(job.out / 'output.txt')}")
    return notes
