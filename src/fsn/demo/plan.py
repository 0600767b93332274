"""What the demo trains, and how: an FSN, the Kuramoto layer it grew out of, and a transformer of the same size, twice.

First as single layers on an exercise in copying alone, then as small models on real text. Within an act all three see
the same windows in the same order for the same number of steps. The number of steps is fixed in advance, not by
a clock, so two runs on one machine give the same numbers.

The exercise is passages of letters in random order, each repeated once:

    qmzfkacwe qmzfkacwe btxhagpokn btxhagpokn …            (without the blanks)

Nothing can be known of a new passage, and everything of its repetition, by a model that finds the letter it has just
read in the first passage and goes on with what came after it. Lengths vary, so counting does not help.

Models this small gain little from a second thread, so each gets a process and a core of its own. The runs are
those of ``fsn train``, carried out as ``fsn sweep`` does it; their ``metrics.jsonl`` says how far they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from ..data import Corpus, Windows
from ..errors import UserError
from ..io import write_text_atomic
from ..models import TransformerConfig, count_parameters, match_width, preset
from ..progress import Bar, say
from ..train import Recipe, Run, load_run
from ..train.sweep import Job, last_line, run_here

SHORTEST, LONGEST = 8, 20
"""Letters of a passage of the exercise."""
PASSAGES = 40_000
EXERCISE_STEPS = 400
EXERCISE_SIZE = {"k": 48, "layers": 1}
EXERCISE_RECIPE = Recipe(lr=5e-3, batch_size=64, length=64, train_stride=64, eval_stride=128, epochs=1000)

TEXT_SIZE = {"k": 48, "layers": 3}
TEXT_RECIPE = Recipe(lr=5e-3, batch_size=8, length=128, eval_stride=1024, epochs=1000)
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
"""The exercise, starting up, measuring, letting the models write."""


@dataclass(frozen=True)
class Entry:
    """One model of an act."""

    key: str
    name: str
    about: str
    job: Job
    parameters: int


@dataclass(frozen=True)
class Act:
    """Three models trained alike on one text."""

    key: str
    corpus: Corpus
    entries: tuple[Entry, ...]

    @property
    def recipe(self) -> Recipe:
        return self.entries[0].job.recipe

    @property
    def steps(self) -> int:
        return self.recipe.max_steps or 0


@dataclass(frozen=True)
class Plan:
    """The two acts and the folder of their runs."""

    exercise: Act
    text: Act
    folder: Path

    @property
    def acts(self) -> tuple[Act, Act]:
        return (self.exercise, self.text)

    @property
    def jobs(self) -> list[Job]:
        return [entry.job for act in self.acts for entry in act.entries]

    def prepare(self) -> None:
        """Write the exercise where its runs look for it."""
        path = Path(self.exercise.entries[0].job.corpus)
        if not path.exists():
            write_text_atomic(path, exercise_text())


def exercise_text(passages: int = PASSAGES) -> str:
    """The whole exercise, the same on every machine; no letter comes twice within a passage."""
    source = random.Random(0)
    sizes = (source.randint(SHORTEST, LONGEST) for _ in range(passages))
    return "".join(2 * "".join(source.sample(ascii_lowercase, size)) for size in sizes)


def fresh_passage() -> str:
    """A passage of the greatest length that the exercise does not contain (but for a miracle)."""
    return "".join(random.Random(1).sample(ascii_lowercase, LONGEST))


def steps_for(minutes: float) -> int:
    """Steps on the text that make the whole demo take about so many minutes on two cores; a multiple of ten."""
    if not minutes > 0:
        raise UserError(f"--minutes must be positive, not {minutes}")
    training = max(minutes - OTHER_MINUTES, 0.2 * minutes)
    return max(10, round(training * STEPS_PER_MINUTE / 10) * 10)


def make_plan(corpus: Corpus, name: str, out: Path, steps: int, seed: int = 0) -> Plan:
    """The six runs; ``name`` is what ``fsn train`` knows the corpus by.

    Their folder's name holds a fingerprint of all choices and of the text: a demo with other options never
    meets the runs of this one, and the same demo goes on where it stopped.
    """
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    for part in (corpus.train, corpus.valid):  # too short a text is found out now, not after the exercise
        Windows(part, TEXT_RECIPE.length)
    letters = Corpus.from_bytes("letters", exercise_text().encode("ascii"))
    first = _recipe(EXERCISE_RECIPE, min(EXERCISE_STEPS, steps), seed)
    second = _recipe(TEXT_RECIPE, steps, seed)
    choices = [letters.sha256, first.to_dict(), EXERCISE_SIZE, corpus.sha256, second.to_dict(), TEXT_SIZE]
    mark = hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:6]
    folder = out / f"{steps}-steps-{mark}"
    return Plan(
        _act("exercise", letters, str(folder / "letters.txt"), first, EXERCISE_SIZE, folder),
        _act("text", corpus, name, second, TEXT_SIZE, folder),
        folder,
    )


def _recipe(base: Recipe, steps: int, seed: int) -> Recipe:
    early = tuple(steps * i // VALIDATIONS for i in range(1, VALIDATIONS)) if steps >= 60 else ()
    return dataclasses.replace(
        base, max_steps=steps, seed=seed, log_steps=max(1, steps // LINES), eval_at_steps=early
    )


def _act(key: str, corpus: Corpus, name: str, recipe: Recipe, size: dict[str, int], folder: Path) -> Act:
    """Three models of ``size``; the transformer has the even width whose total lands nearest the FSN's."""
    layers, vocab_size = size["layers"], corpus.vocab_size
    parameters = count_parameters(preset("fsn-1m", vocab_size, **size))
    width = match_width(parameters, lambda w: TransformerConfig(vocab_size, w, layers=layers), step=2)
    entries = []
    for model, (shown, about) in MODELS.items():
        fields = {"width": width, "layers": layers} if model == "transformer" else size
        out = folder / f"{key}-{model}"
        job = Job(out.name, f"{model}-1m", name, out, recipe, dict(fields))
        total = count_parameters(preset(job.preset, vocab_size, **fields))
        entries.append(Entry(model, shown, about, job, total))
    return Act(key, corpus, tuple(entries))


# -- training -------------------------------------------------------------------------------------------------

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
