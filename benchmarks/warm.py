"""Fill the compile caches before anything is measured: many processes at once, each with a part of the work.

Nearly all of a benchmark's time is compilation, and compilation is one core's work. Processes that make the
same steps ready leave their kernels in caches on the disk (``TRITON_CACHE_DIR``, ``TORCHINDUCTOR_CACHE_DIR``),
where the process that measures finds them. They share the GPU, so they time nothing. In particular the choice
between two forms of a compiled kernel, which is made with a clock, is not taken over from them: the process
that measures makes it again, alone on the GPU.
"""

from __future__ import annotations

import contextlib
import copyreg
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from benchmarks import gate
from benchmarks.measure import PARTS, Case, Part, fresh, make_ready
from fsn.data.cache import cache_folder
from fsn.models import fused_stack
from fsn.train.world import numerics

MOST = 14
"""Processes at most: each holds a CUDA context and some gigabytes of the host's memory."""


@dataclass(frozen=True)
class Job:
    """What one process makes ready without a pause: checks in some precisions, then steps."""

    name: str
    cases: tuple[Case, ...]
    checks: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()


def share_caches() -> Path:
    """Name the caches, for this process and those it starts, unless the environment does; where they are."""
    folder = cache_folder() / "compiled"
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")
    agree_on_keys()
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])


def agree_on_keys() -> None:
    """Make what a process compiles and how it names it the same in all processes.

    PyTorch names a compiled graph by a hash of its pickled inputs. A memory format among them is pickled as an
    attribute of whichever loaded module comes first that has imported ``torch``, which may differ between a
    process and its parent; so its pickled form is given here. Kernels that exist in several forms are timed
    in every process instead of chosen once for all.
    """
    import torch._inductor.config as inductor

    copyreg.pickle(torch.memory_format, _by_name)
    inductor.autotune_local_cache = False


def _by_name(value: torch.memory_format) -> tuple[Callable[[str], torch.memory_format], tuple[str]]:
    return _memory_format, (str(value).removeprefix("torch."),)


def _memory_format(name: str) -> torch.memory_format:
    found: torch.memory_format = getattr(torch, name)
    return found


def default_workers(device: torch.device) -> int:
    """All cores but two; none on a CPU, where nothing is compiled."""
    if device.type != "cuda":
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores - 2, MOST))


def plan_jobs(cases: Sequence[Case], device: torch.device) -> list[Job]:
    """Jobs of similar length, the longest first.

    A compiled model is traced and compiled anew for every length and part: a job each. Fused kernels hardly
    depend on the length, so a model's lengths follow each other in one job; the kernels of the check in
    float32 are others, hence another job.
    """
    long: list[Job] = []
    middle: list[Job] = []
    short: list[Job] = []
    together: dict[str, list[Case]] = {}
    for case in cases:
        if case.recipe(device).engine.startswith("compile"):
            for part, bucket in zip(PARTS, (long, short), strict=True):
                bucket.append(Job(f"{case}, {part}", (case,), parts=(part,)))
        else:
            together.setdefault(case.name, []).append(case)
    for name, mine in together.items():
        group = tuple(mine)
        lengths = ", ".join(str(case.length) for case in group)
        middle.append(Job(f"{name} at T = {lengths}, steps", group, ("bf16",), PARTS))
        if fused_stack.supports(group[0].config, device):
            middle.append(Job(f"{name} at T = {lengths}, check in fp32", group, ("fp32",)))
    return long + middle + short


def rehearse(job: Job, device: torch.device) -> float:
    """Make everything of a job ready, and let it go; the seconds it took."""
    start = time.perf_counter()
    for case in job.cases:
        fresh(device)
        if job.checks:
            gate.check_fused(case.config, case.length - 1, device, precisions=job.checks)
        recipe = case.recipe(device)
        with numerics(recipe, device):
            for part in job.parts:
                make_ready(case.config, recipe, part, device).check()
    fresh(device)
    return time.perf_counter() - start


def warm(
    jobs: Sequence[Job],
    workers: int,
    device: torch.device,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Do the jobs in ``workers`` processes and come back after ``seconds`` at the latest.

    Nothing here is needed for a measurement to be right: what was not made ready in time is compiled later.
    Returns the seconds of each job that was done, why the others were not, and the rows this leaves cold.
    """
    started = time.perf_counter()
    done: dict[str, float] = {}
    missed: dict[str, str] = {}
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=begin)
    with one_compiler():
        waiting = {pool.submit(rehearse, job, device): job.name for job in jobs}
        try:
            for future in as_completed(waiting, timeout=seconds):
                name, now = waiting[future], time.perf_counter() - started
                try:
                    done[name] = future.result()
                    say(f"  {now:4.0f} s: {name}, in {done[name]:.1f} s")
                except BrokenProcessPool:
                    missed[name] = "a process died"
                except Exception as error:
                    missed[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                    say(f"  {now:4.0f} s: {name}, not done ({missed[name]})")
        except TimeoutError:
            for future, name in waiting.items():
                if not future.done():
                    missed[name] = "out of time"
        finally:
            if len(done) + len(missed) < len(jobs) or "out of time" in missed.values():
                for process in set(multiprocessing.active_children()) - before:
                    process.terminate()
            pool.shutdown(cancel_futures=True)
    cold = {str(case) for job in jobs if job.name in missed for case in job.cases}
    spent = time.perf_counter() - started
    return {"workers": workers, "seconds": spent, "done": done, "missed": missed, "cold": sorted(cold)}


@contextlib.contextmanager
def one_compiler() -> Iterator[None]:
    """Processes that are started meanwhile compile with one thread: there are as many of them as cores."""
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def begin() -> None:
    """The start of a process: one thread, and an end when the process that measures ends, however it does."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    torch.set_num_threads(1)
    agree_on_keys()
