"""One cell of the grid: a task, a model, a size, a learning rate and a seed; trained, tested, written as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.recall.models import Learner
from benchmarks.recall.tasks import Split, Task, tasks
from fsn.io import atomic_file, write_text_atomic
from fsn.models.base import IGNORED
from fsn.train.world import World, environment

GENERATORS = 3
"""To be raised when a generator gives other splits or rows, so that none are taken from an older one."""
WARM = 3
"""Steps before a CUDA graph is captured; they train like any other."""


@dataclasses.dataclass(frozen=True)
class Cell:
    task: str
    model: str
    layers: int
    width: int
    rate: float
    seed: int
    warmup: int = 0
    """Steps in which the learning rate rises in a line; cells of before it existed had none."""

    @property
    def name(self) -> str:
        name = f"{self.task}_{self.model}_L{self.layers}_d{self.width}_lr{self.rate:.3g}_s{self.seed}"
        return name + (f"_w{self.warmup}" if self.warmup else "")


class OutOfTime(Exception):
    """The deadline has passed; the cell is left out."""


class Rows(NamedTuple):
    """A split on the device, with the places of its queries: tokens (n, T), places and targets (n, Q)."""

    tokens: Tensor
    places: Tensor
    targets: Tensor
    legal: Tensor | None


def rows_of(split: Split, device: torch.device) -> Rows:
    """Places of queries by row, filled up with place 0 and an ignored target where a row has fewer."""
    asked = split.targets != IGNORED
    if split.legal is not None:
        asked &= split.legal.any(-1)
    most = int(asked.sum(1).max())
    places = np.argsort(~asked, axis=1, kind="stable")[:, :most]
    there = np.take_along_axis(asked, places, 1)
    places = np.where(there, places, 0)
    targets = np.where(there, np.take_along_axis(split.targets, places, 1), IGNORED)
    legal = None
    if split.legal is not None:
        legal = torch.from_numpy(np.take_along_axis(split.legal, places[..., None], 1)).to(device)
    arrays = (split.tokens, places, targets)
    tokens, places_, targets_ = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays)
    return Rows(tokens, places_, targets_, legal)


def load(task: Task, seed: int, folder: Path) -> dict[str, Split]:
    """The splits of a task, made once for each seed and kept in ``folder``."""
    path = folder / f"{task.name}-v{task.vocab}-n{task.rows[0]}-{task.rows[1]}-s{seed}-{GENERATORS}.npz"
    if not path.exists():
        splits = task.make(seed)
        arrays: dict[str, Any] = {}
        for name, split in splits.items():
            arrays[f"{name}/tokens"] = split.tokens.astype(np.int16)
            arrays[f"{name}/targets"] = split.targets.astype(np.int16)
            if split.legal is not None:
                arrays[f"{name}/legal"] = split.legal
        with atomic_file(path) as file:
            np.savez(file, allow_pickle=False, **arrays)
        return splits
    with np.load(path, allow_pickle=False) as stored:
        names = dict.fromkeys(key.partition("/")[0] for key in stored)
        return {
            name: Split(
                stored[f"{name}/tokens"].astype(np.int64),
                stored[f"{name}/targets"].astype(np.int64),
                stored.get(f"{name}/legal"),
            )
            for name in names
        }


@torch.no_grad()
def accuracy(learner: Learner, rows: Rows, score: str, batch: int) -> float:
    """By the task's score; see :class:`benchmarks.recall.tasks.Task`."""
    right, total = 0.0, 0
    for start in range(0, len(rows.tokens), batch):
        part = slice(start, start + batch)
        guess = learner.answers(rows.tokens[part], rows.places[part]).argmax(-1)
        asked = rows.targets[part] != IGNORED
        if score == "legal" and rows.legal is not None:
            good = rows.legal[part].gather(-1, guess[..., None])[..., 0]
        else:
            good = guess == rows.targets[part]
        if score == "rows":
            right, total = right + float((good | ~asked).all(1).sum()), total + len(asked)
        else:
            right, total = right + float((good & asked).sum()), total + int(asked.sum())
    return right / total


class Step:
    """A training step on the rows of ``index``; on a GPU replayed as a CUDA graph where it can be captured."""

    def __init__(self, learner: Learner, rows: Rows, batch: int, weight_decay: float) -> None:
        device = rows.tokens.device
        gpu = device.type == "cuda"
        self.learner, self.rows = learner, rows
        self.rate = torch.tensor(0.0, device=device)
        options: dict[str, Any] = {"lr": self.rate, "capturable": True} if gpu else {"lr": 0.0}
        self.optimizer = torch.optim.AdamW(learner.parameters(), weight_decay=weight_decay, **options)
        self.index = torch.zeros(batch, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        self.steps, self.gpu = 0, gpu
        self.graph: torch.cuda.CUDAGraph | None = None
        self.note = "eager"

    def _body(self) -> None:
        places, targets = self.rows.places[self.index], self.rows.targets[self.index]
        logits = self.learner.answers(self.rows.tokens[self.index], places)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def __call__(self, index: Tensor, rate: float) -> None:
        self.index.copy_(index)
        if self.gpu:
            self.rate.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        if self.graph is not None:
            self.graph.replay()
        else:
            if self.gpu:
                self._on_a_stream_of_its_own(self._body)
            else:
                self._body()
            self.optimizer.zero_grad(set_to_none=True)
            self.steps += 1
            if self.gpu and self.steps == WARM:
                self._capture()

    def _on_a_stream_of_its_own(self, action: Callable[[], None]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            action()
        torch.cuda.current_stream().wait_stream(stream)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._body()
        except RuntimeError as error:
            self.note = f"eager: not captured ({str(error).splitlines()[0]})"
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
        else:
            self.graph, self.note = graph, "CUDA graph"


def rate_at(task: Task, cell: Cell, step: int, steps: int) -> float:
    """The learning rate of a step, from 0 on: the task's schedule, over the warm-up multiplied by a line."""
    rate = cell.rate * min(1.0, (step + 1) / max(1, cell.warmup))
    if task.schedule == "constant":
        return rate
    return 0.5 * rate * (1 + math.cos(math.pi * step / steps))


def train(
    cell: Cell, task: Task, splits: dict[str, Split], device: torch.device, most: int, deadline: float
) -> dict[str, Any]:
    """Train until the test accuracy passes ``task.stop``, or for ``most`` steps; what was found as a plain dict."""
    torch.manual_seed(cell.seed)
    learner = Learner(cell.model, task.vocab, cell.width, cell.layers, task.feedforward).to(device)
    parts = {name: rows_of(split, device) for name, split in splits.items()}
    state_size = learner.state_size(task.length, device)
    count = len(parts["train"].tokens)
    batch = min(task.batch, count)
    epoch, steps = count // batch, task.steps(most)
    every = max(1, min(epoch, 200, steps // 8))
    step = Step(learner, parts["train"], batch, task.weight_decay)
    order = np.random.default_rng(cell.seed)
    history: list[dict[str, Any]] = []
    shuffled = torch.empty(0)
    began, losses, found = time.perf_counter(), torch.zeros((), device=device), 0.0
    for done in range(1, steps + 1):
        at = (done - 1) % epoch
        if at == 0:
            shuffled = torch.from_numpy(order.permutation(count)).to(device)
        step(shuffled[at * batch : (at + 1) * batch], rate_at(task, cell, done - 1, steps))
        losses += step.loss
        if done % every == 0 or done == steps:
            found = accuracy(learner, parts["test"], task.score, batch)
            seconds = time.perf_counter() - began
            since = done - (history[-1]["step"] if history else 0)
            loss = round(float(losses) / since, 6)
            history.append({"step": done, "loss": loss, "accuracy": found, "seconds": round(seconds, 2)})
            losses.zero_()
            if found > task.stop or not math.isfinite(loss):
                break
            if time.time() > deadline:
                raise OutOfTime
    results = {"test": found}
    for name in parts:
        if name not in ("train", "test") and bool((parts[name].targets != IGNORED).any()):
            results[name] = accuracy(learner, parts[name], task.score, batch)
    return {
        "cell": dataclasses.asdict(cell),
        "task": {
            "vocab": task.vocab, "length": task.length, "rows": task.rows, "batch": batch, "score": task.score,
            "weight_decay": task.weight_decay, "schedule": task.schedule, "stop": task.stop, "steps": steps,
            "feedforward": task.feedforward, "source": task.source,
        },
        "model": learner.described(),
        "parameters": learner.parameter_count(),
        "state_size": state_size,
        "path": learner.path(device),
        "step": step.note,
        "accuracy": results,
        "best": max(line["accuracy"] for line in history),
        "history": history,
        "environment": environment(World(device=device)),
    }  # fmt: skip


def run_cell(
    cell: Cell, task: Task, device: str, out: Path, data: Path, most: int, deadline: float
) -> dict[str, Any] | None:
    """Train a cell and write its JSON; None if there was no time left."""
    torch.set_num_threads(1)
    try:
        found = train(cell, task, load(task, cell.seed, data), torch.device(device), most, deadline)
    except OutOfTime:
        return None
    write_text_atomic(out / f"{cell.name}.json", json.dumps(found, separators=(",", ":")) + "\n")
    return found


def prepare(task: str, seed: int, data: Path) -> None:
    """What a worker process does first. Here and not beside the command, whose module a new process cannot import."""
    load(tasks()[task], seed, data)


def work(
    cell: Cell, device: str, out: Path, data: Path, steps: int, deadline: float
) -> dict[str, Any] | None:
    """What a worker process does: look the task up, train, unless the deadline has passed."""
    if time.time() > deadline:
        return None
    task: Task = tasks()[cell.task]
    return run_cell(cell, task, device, out, data, steps, deadline)
