"""What the demo trains: an FSN, the Kuramoto layer it grew out of, and a transformer of the same size.

All three see the same windows in the same order for the same number of steps. The number of steps is fixed in
advance, not by a clock, so two runs on one machine give the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fsn.data import Corpus
from fsn.errors import UserError
from fsn.models import TransformerConfig, count_parameters, preset
from fsn.train import Recipe
from fsn.train.sweep import Job

K = 64
LAYERS = 2
RECIPE = Recipe(lr=3e-3, batch_size=16, length=128, epochs=1000, eval_stride=1024)
"""The paper's recipe but for smaller, shorter batches and a faster learning rate: there are only minutes."""
VALIDATIONS = 6
LINES = 60
"""Points of the training curve."""

STEPS_PER_MINUTE = 560
"""What two cores of an ordinary server manage, all three models trained."""
OVERHEAD_MINUTES = 0.5
"""Starting up, validating, measuring, writing text."""


@dataclass(frozen=True)
class Entry:
    """One of the demo's models."""

    key: str
    name: str
    about: str
    job: Job
    parameters: int


@dataclass(frozen=True)
class Plan:
    """The demo's models and where they are trained."""

    entries: tuple[Entry, ...]
    steps: int
    folder: Path

    @property
    def recipe(self) -> Recipe:
        return self.entries[0].job.recipe


def steps_for(minutes: float) -> int:
    """Steps that make the whole demo take about so many minutes on two cores; a multiple of ten."""
    if not minutes > 0:
        raise UserError(f"--minutes must be positive, not {minutes}")
    training = max(minutes - OVERHEAD_MINUTES, 0.2 * minutes)
    return max(10, round(training * STEPS_PER_MINUTE / 10) * 10)


def matched_width(parameters: int, vocab_size: int, layers: int) -> int:
    """The transformer's width, in steps of 4, whose total lands nearest ``parameters``."""

    def total(width: int) -> int:
        return count_parameters(TransformerConfig(vocab_size, width, layers=layers))

    width = 4
    while total(width + 4) <= parameters:
        width += 4
    return min((width, width + 4), key=lambda w: abs(total(w) - parameters))


def make_plan(
    corpus: Corpus, name: str, out: Path, steps: int, k: int = K, layers: int = LAYERS, seed: int = 0
) -> Plan:
    """The three runs.

    Their folder's name holds a fingerprint of all choices and of the text: a demo with other options never
    meets the runs of this one, and the same demo goes on where it stopped.
    """
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    fields = asdict(RECIPE) | {
        "max_steps": steps,
        "seed": seed,
        "log_steps": max(1, steps // LINES),
        "eval_at_steps": tuple(steps * i // VALIDATIONS for i in range(1, VALIDATIONS) if steps >= 60),
    }
    recipe = Recipe(**fields)
    vocabulary = corpus.vocab_size
    oscillators: dict[str, Any] = {"k": k, "layers": layers}
    size = count_parameters(preset("fsn-1m", vocabulary, **oscillators))
    width = {"width": matched_width(size, vocabulary, layers), "layers": layers}
    chosen = (
        ("fsn", "FSN", "pulled towards the successors of what it attends to", "fsn-1m", oscillators),
        ("kuramoto", "Kuramoto", "pulled towards what it attends to", "kuramoto-1m", oscillators),
        ("transformer", "transformer", "adds up what it attends to", "transformer-1m", width),
    )
    choices = [corpus.sha256, recipe.to_dict(), [(c[3], c[4]) for c in chosen]]
    mark = hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:6]
    folder = out / f"{steps}-steps-{mark}"
    return Plan(
        tuple(
            Entry(
                key,
                title,
                about,
                Job(key, family, name, folder / key, recipe, dict(fields)),
                count_parameters(preset(family, vocabulary, **fields)),
            )
            for key, title, about, family, fields in chosen
        ),
        steps,
        folder,
    )
