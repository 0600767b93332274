"""What the demo trains, and how: an FSN, the Kuramoto layer it grew out of, and a transformer of the same size.

All three see the same windows in the same order for the same number of steps. The number of steps is fixed in advance,
not by a clock, so two runs on one machine give the same numbers. Models this small gain little from a second thread, so
each gets a process and a core of its own. The runs are those of ``fsn train``, carried out as ``fsn sweep`` does it;
their ``metrics.jsonl`` says how far they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from ..data import Corpus, Windows
from ..errors import UserError
from ..models import TransformerConfig, count_parameters, match_width, preset
from ..progress import Bar
from ..train import Recipe, Run, load_run
from ..train.run import read_metrics
from ..train.sweep import Job, exit_if_stopped, last_line, run_here

SIZE = {"k": 48, "layers": 3}
RECIPE = Recipe(lr=5e-3, batch_size=8, length=128, eval_stride=1024, epochs=1000)
"""The paper's recipe but for smaller, shorter batches and a faster learning rate: there are only minutes."""
MODELS = {
    "fsn": ("FSN", "pulled towards the successors of what it attends to"),
    "kuramoto": ("Kuramoto", "pulled towards what it attends to"),
    "transformer": ("transformer", "adds up what it attends to"),
}
"""Their names on the page, and what a token does in each."""

VALIDATIONS = 8
LINES = 60
"""Points of a training curve."""

STEPS_PER_MINUTE = 900
"""Steps on the text that two cores of an ordinary server manage, all three models trained."""
OTHER_MINUTES = 1.1
"""Recall, starting up, measuring, letting the models write."""

SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""One thread for each process, and the CPU even where there is a GPU: the demo is the same everywhere."""


@dataclass(frozen=True)
class Plan:
    """Models trained alike on one text, and the folder of their runs."""

    corpus: Corpus
    recipe: Recipe
    folder: Path
    jobs: list[Job]
    """One for each of :data:`MODELS`, by that name."""

    @property
    def steps(self) -> int:
        return self.recipe.max_steps or 0

    @property
    def parameters(self) -> dict[str, int]:
        sizes = {job.name: preset(str(job.preset), self.corpus.vocab_size, **job.model) for job in self.jobs}
        return {name: count_parameters(config) for name, config in sizes.items()}


def steps_for(minutes: float) -> int:
    """Steps on the text that make the whole demo take about so many minutes on two cores; a multiple of ten."""
    if not minutes > 0:
        raise UserError(f"--minutes must be positive, not {minutes}")
    training = max(minutes - OTHER_MINUTES, 0.2 * minutes)
    return max(10, round(training * STEPS_PER_MINUTE / 10) * 10)


def make_plan(corpus: Corpus, name: str, out: Path, steps: int, seed: int = 0) -> Plan:
    """The three runs; ``name`` is what ``fsn train`` knows the corpus by.

    Their folder's name holds a fingerprint of all choices and of the text: a demo with other options never
    meets the runs of this one, and the same demo resumes. The transformer has the even width whose
    total lands nearest the FSN's.
    """
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    for part in (corpus.train, corpus.valid):  # too short a text is found out now, not after other work
        Windows(part, RECIPE.length)
    early = tuple(steps * i // VALIDATIONS for i in range(1, VALIDATIONS)) if steps >= 60 else ()
    recipe = dataclasses.replace(
        RECIPE, max_steps=steps, seed=seed, log_steps=max(1, steps // LINES), eval_at_steps=early
    )
    choices = json.dumps([corpus.sha256, recipe.to_dict(), SIZE], sort_keys=True)
    folder = out / f"{steps}-steps-{hashlib.sha256(choices.encode()).hexdigest()[:6]}"
    layers, vocab_size = SIZE["layers"], corpus.vocab_size
    parameters = count_parameters(preset("fsn-1m", vocab_size, **SIZE))
    width = match_width(parameters, lambda w: TransformerConfig(vocab_size, w, layers=layers), step=2)
    fields = {key: {"width": width, "layers": layers} if key == "transformer" else SIZE for key in MODELS}
    jobs = [Job(key, f"{key}-1m", name, folder / key, recipe, dict(fields[key])) for key in MODELS]
    return Plan(corpus, recipe, folder, jobs)


# -- training --------------------------------------------------------------------------------------------------


def cores() -> int:
    """Cores this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def train_all(plan: Plan) -> dict[str, Run]:
    """The runs of the plan, each trained to its end; finished ones are kept, half-done ones resume."""
    jobs = plan.jobs
    if any(job.state() != "finished" for job in jobs):
        slots: list[str | None] = [None] * min(cores(), len(jobs))
        with Bar("training, steps", plan.steps * len(jobs)) as bar:

            def look() -> None:
                """One bar over the steps of all, with the losses of those under way."""
                found = {job.name: standing(job) for job in jobs}
                now = [
                    f"{name} {bits:.2f} bits" for name, (n, bits) in found.items() if bits and n < plan.steps
                ]
                bar.update(sum(n for n, _ in found.values()) - bar.done, now=", ".join(now))

            _, stopped = run_here(jobs, slots, lambda line: None, SETTINGS, look)
        exit_if_stopped(stopped)
        for job in jobs:
            if job.state() != "finished":
                reason = last_line(job.output).removeprefix("fsn: ")
                raise UserError(f"training {job.name} failed: {reason or 'see ' + str(job.out)}")
    return {job.name: load_run(job.out) for job in jobs}


def standing(job: Job) -> tuple[int, float | None]:
    """Steps that a run has done and its last training loss in bits, from its folder, which may not exist yet."""
    lines = []
    with contextlib.suppress(UserError):
        lines = read_metrics(job.out)
    losses = [line["loss_bits"] for line in lines if line["kind"] == "step"]
    return max((line.get("step", 0) for line in lines), default=0), losses[-1] if losses else None
