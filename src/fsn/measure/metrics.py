"""Run folders as the instruments see them: logged values, checks that keep a comparison honest, and seconds.

A run may share its device with other jobs for a while, and the seconds of such an epoch say nothing about the model. An
epoch that took clearly longer than the run's median epoch counts as slowed by other jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..data import Corpus
from ..errors import UserError
from ..train.run import Run


def check_metrics(run: Run) -> None:
    """Stop if a run's metrics.jsonl is missing, ends in the middle of a line, or skips an epoch: a table made from part
    of a run would look like one made from all of it."""
    file = run.folder / "metrics.jsonl"
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{run.folder} has no metrics.jsonl; copy the whole run folder") from None
    if raw and not raw.endswith(b"\n"):
        raise UserError(
            f"{file} ends in the middle of a line, so it was cut off; copy it again, or resume the run"
        )
    numbers = [int(row["epoch"]) for row in run.epochs]
    if numbers != list(range(1, len(numbers) + 1)):
        raise UserError(
            f"{file} has the epochs {numbers}, with holes; copy it again from where the run was made"
        )


def finished_epochs(run: Run) -> list[Mapping[str, Any]]:
    """The lines of epochs that ran to their end; one cut short says nothing at its number."""
    return [row for row in run.epochs if row.get("complete", True)]


def first_epochs(run: Run, epochs: int) -> Run:
    """A run as it stood after so many epochs: what came later changes no table that asks for fewer."""
    return replace(run, metrics=[line for line in run.metrics if int(line.get("epoch", 0)) <= epochs])


def diverged_at(run: Run) -> int | None:
    """The epoch in which a run's loss or gradient stopped being finite, or ``None``.

    Either an epoch's loss was written as null, or the trainer stopped with a warning and nothing after it
    shows that a resumed run got past that step.
    """
    for row in run.epochs:
        for key in ("train_loss_bits", "valid_bits"):
            if key in row and not math.isfinite(epoch_value(row, key)):
                return int(row["epoch"])
    lines = run.metrics
    reached = max((int(line.get("step", 0)) for line in lines if line.get("kind") != "warning"), default=0)
    for line in lines:
        if line.get("what") == "non-finite" and int(line["step"]) > reached:
            return int(line["epoch"])
    return None


def check_comparable(runs: Sequence[Run]) -> None:
    """Stop a comparison of runs on different corpora, vocabularies or windows with one sentence."""
    if not runs:
        raise UserError("there is no run to measure; give at least one run folder")
    first = runs[0]
    for run in runs[1:]:
        one, other = first.config["corpus"], run.config["corpus"]
        symbols = [r.model_config.vocab_size for r in (first, run)]
        lengths = [r.recipe.length for r in (first, run)]
        if symbols[0] != symbols[1] or any(one.get(x) != other.get(x) for x in ("symbols", "tokenizer")):
            sizes = "" if symbols[0] == symbols[1] else f" ({symbols[0]} and {symbols[1]} symbols)"
            why = f"have different vocabularies{sizes}"
        elif one["sha256"] != other["sha256"]:
            names = f"{one['name']} and {other['name']}, or two versions of one"
            why = f"were trained on different corpora ({names})"
        elif lengths[0] != lengths[1]:
            why = f"use windows of {lengths[0]} and {lengths[1]} tokens"
        elif first.recipe.eval_stride != run.recipe.eval_stride:
            strides = f"{first.recipe.eval_stride} and {run.recipe.eval_stride}"
            why = f"were validated on different windows (--eval-stride {strides})"
        else:
            continue
        raise UserError(
            f"{first.name} and {run.name} {why}, so their losses cannot be compared; compare runs trained on one "
            "corpus and validated on the same windows"
        )


def check_corpus(run: Run, corpus: Corpus) -> None:
    """Stop if a run is to be measured on another text than the one it was trained on."""
    made, means = run.config["corpus"], corpus.encoding.record()
    if any(made.get(name) != means[name] for name in means) or made["sha256"] != corpus.sha256:
        raise UserError(
            f"{run.name} was trained on {made['name']} ({run.model_config.vocab_size} symbols), not on this "
            f"{corpus.name} ({corpus.vocab_size} symbols); measure it on its own corpus"
        )


def epoch_value(row: Mapping[str, Any], key: str) -> float:
    """A logged number; ``nan`` where it is missing or was written as null because it was not finite."""
    value = row.get(key)
    if value is None or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def epoch_values(epochs: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """One number per epoch, ``nan`` where it was not logged."""
    return [epoch_value(row, key) for row in epochs]


def valid_bits(run: Run) -> list[float]:
    """Validation loss after every finished epoch, in bits."""
    return epoch_values(finished_epochs(run), "valid_bits")


def validated_in(run: Run) -> str:
    """The precision of a run's validation: float32 since it is written down, before that the training's."""
    logged = {row.get("valid_precision") for row in finished_epochs(run)}
    return "fp32" if logged == {"fp32"} else str(run.config["recipe"].get("precision"))


def require_epochs(runs: Sequence[Run], epochs: int) -> None:
    """Stop if a run has fewer finished epochs than a measurement needs."""
    for run in runs:
        finished = len(finished_epochs(run))
        if finished < epochs:
            raise UserError(
                f"{run.name} has {finished} finished epochs and this measurement needs {epochs}; "
                "train it further or ask for fewer epochs"
            )


SLOW = 0.9
"""Below this share of the median epoch's speed an epoch counts as slowed."""


def epoch_seconds(run: Run) -> list[float]:
    """Seconds of training and validation of every finished epoch."""
    ends = epoch_values(finished_epochs(run), "cumulative_s")
    return [end - start for start, end in zip([0.0, *ends[:-1]], ends, strict=True)]


def median_epoch(run: Run) -> float:
    """Seconds of the median epoch; ``nan`` where none were logged."""
    known = [s for s in epoch_seconds(run) if math.isfinite(s)]
    return float(np.median(known)) if known else math.nan


def slow_epochs(run: Run) -> list[int]:
    """The epochs (from 1) that were slowed."""
    usual = median_epoch(run)
    return [i + 1 for i, s in enumerate(epoch_seconds(run)) if s * SLOW > usual]


def steady_seconds(run: Run) -> list[float]:
    """Cumulative seconds at the end of every epoch, as if slowed epochs had taken the median."""
    slow, usual = set(slow_epochs(run)), median_epoch(run)
    seconds = [usual if i in slow else s for i, s in enumerate(epoch_seconds(run), 1)]
    return [float(end) for end in np.cumsum(seconds)]


def pace_notes(runs: Iterable[Run]) -> list[str]:
    """One sentence for each run with slowed epochs."""
    notes = []
    for run in runs:
        slow = slow_epochs(run)
        if slow:
            spans = np.split(slow, np.flatnonzero(np.diff(slow) > 1) + 1)
            which = ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)
            which = f"epoch{'s' if len(slow) > 1 else ''} {which}"
            notes.append(
                f"{run.name}: {which} took over {1 / SLOW:.2f} times its median epoch ({median_epoch(run):,.1f} s), "
                "as when something else uses the device; in times and speeds here the median stands for "
                f"{'it' if len(slow) == 1 else 'them'}."
            )
    return notes
