"""Run folders as the instruments see them, and the checks that keep a comparison honest."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fsn.data import Corpus
from fsn.errors import UserError
from fsn.train.run import Run, load_run


class RunLike(Protocol):
    """What an instrument needs of a run: ``fsn.train.load_run`` returns one."""

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def epochs(self) -> Sequence[Mapping[str, Any]]: ...


def load_runs(folders: Sequence[str | os.PathLike[str]], comparable: bool = True) -> list[Run]:
    """Read run folders whole or not at all, and make sure they may be compared (one corpus, one vocabulary).

    Beyond what :func:`fsn.train.load_run` checks, metrics that were cut off or have holes are refused: a
    table made from part of a run would look like one made from all of it.
    """
    runs = [load_run(folder) for folder in folders]
    for run in runs:
        check_metrics(run)
    if comparable:
        check_comparable(runs)
    return runs


def check_metrics(run: Run) -> None:
    """Stop if a run's metrics.jsonl is missing, ends in the middle of a line, or skips an epoch."""
    file = run.folder / "metrics.jsonl"
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{run.folder} has no metrics.jsonl; copy the whole run folder.") from None
    if raw and not raw.endswith(b"\n"):
        raise UserError(
            f"{file} ends in the middle of a line, so it was cut off; copy it again, or resume the run."
        )
    numbers = [int(row["epoch"]) for row in run.epochs]
    if numbers != list(range(1, len(numbers) + 1)):
        raise UserError(
            f"{file} has the epochs {numbers}, with holes; copy it again from where the run was made."
        )


def run_name(run: RunLike) -> str:
    """The name of the run's folder."""
    return str(getattr(run, "name", "run"))


def finished_epochs(run: RunLike) -> list[Mapping[str, Any]]:
    """The lines of epochs that ran to their end; one cut short says nothing at its number."""
    return [row for row in run.epochs if row.get("complete", True)]


def diverged_at(run: RunLike) -> int | None:
    """The epoch in which a run's loss or gradient stopped being finite, or ``None``.

    Either an epoch's loss was written as null, or the trainer stopped with a warning and nothing after it
    shows that a resumed run got past that step.
    """
    for row in run.epochs:
        for key in ("train_loss_bits", "valid_bits"):
            if key in row and not math.isfinite(epoch_value(row, key)):
                return int(row["epoch"])
    lines: Sequence[Mapping[str, Any]] = getattr(run, "metrics", [])
    reached = max((int(line.get("step", 0)) for line in lines if line.get("kind") != "warning"), default=0)
    for line in lines:
        if line.get("what") == "non-finite" and int(line["step"]) > reached:
            return int(line["epoch"])
    return None


def vocabulary_of(run: RunLike) -> int | None:
    """Number of symbols of the run's corpus, if its configuration says so."""
    symbols = (run.config.get("corpus") or {}).get("symbols")
    if isinstance(symbols, str):
        return len(symbols) // 2
    return (run.config.get("model") or {}).get("vocab_size")


def check_comparable(runs: Sequence[RunLike], windows: bool = True) -> None:
    """Stop a comparison of runs on different corpora, vocabularies or window lengths with one sentence."""
    if not runs:
        raise UserError("There is no run to measure; give at least one run folder.")
    first = runs[0]
    for run in runs[1:]:
        names = f"{run_name(first)} and {run_name(run)}"
        one, other = first.config.get("corpus") or {}, run.config.get("corpus") or {}
        if vocabulary_of(first) != vocabulary_of(run) or one.get("symbols") != other.get("symbols"):
            raise UserError(
                f"{names} have different vocabularies ({vocabulary_of(first)} and {vocabulary_of(run)} "
                "symbols), so their losses cannot be compared; compare runs trained on one corpus."
            )
        if one.get("sha256") != other.get("sha256"):
            raise UserError(
                f"{names} were trained on different corpora ({one.get('name')} and {other.get('name')}, or "
                "two versions of one); compare runs trained on one corpus."
            )
        lengths = [(r.config.get("recipe") or {}).get("length") for r in (first, run)]
        if windows and lengths[0] != lengths[1]:
            raise UserError(
                f"{names} use windows of {lengths[0]} and {lengths[1]} tokens, so their losses cannot be "
                "compared; compare runs of one window length."
            )


def check_corpus(run: RunLike, corpus: Corpus) -> None:
    """Stop if a run is to be measured on another text than the one it was trained on."""
    made = run.config.get("corpus") or {}
    if made.get("symbols") != corpus.symbols.hex() or made.get("sha256") != corpus.sha256:
        raise UserError(
            f"{run_name(run)} was trained on {made.get('name')} ({vocabulary_of(run)} symbols), not on this "
            f"{corpus.name} ({corpus.vocab_size} symbols); measure it on its own corpus."
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


def require_epochs(runs: Sequence[RunLike], epochs: int) -> None:
    """Stop if a run has fewer finished epochs than a measurement needs."""
    for run in runs:
        finished = len(finished_epochs(run))
        if finished < epochs:
            raise UserError(
                f"{run_name(run)} has {finished} finished epochs and this measurement needs {epochs}; "
                "train it further or ask for fewer epochs."
            )
