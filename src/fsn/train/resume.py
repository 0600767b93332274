"""What a new run starts from: the checkpoint in its folder, or the weights of another run to fine-tune."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..checks import check
from ..data import Encoding
from ..models import Config, config_from_dict, config_to_dict
from ..text import printable
from . import hashes
from .checkpoint import Checkpoint, first_not_finite, lines_of
from .recipe import Recipe
from .run import (
    DURATION,
    ENDING,
    RunFolder,
    differences,
    differing_entries,
    find_run,
    load_run,
    load_weights,
    read_config,
    read_metrics,
)
from .schedule import Schedule
from .world import choose_engine, choose_precision

Resume = Literal["auto", "never", "must"]


def open_run(
    folder: RunFolder,
    asked: dict[str, Any],
    n_windows: int,
    device: torch.device,
    resume: Resume = "auto",
    extend: bool = False,
) -> tuple[dict[str, Any], Checkpoint | None] | None:
    """Open the folder, decide whether the run ``asked`` for may go on there, and restore its last checkpoint's files.

    Auto choices of a run are made once and kept. Nothing in the folder changes before it is clear that the run may
    go on. Returns its whole config and the checkpoint to go on from, if there is one; None where it is finished.
    """
    folder.open()
    if not (folder.path / "config.yaml").exists():
        check(resume != "must", f"{folder.path} holds no run to resume; check the name, or use --resume auto")
        check(
            not folder.checkpoints.names() and not _has_results(folder),
            f"{folder.path} holds a run without its config.yaml; put that file back, or choose another --out",
        )
        config = _with_choices(asked, None, device)
        folder.write_config(config)
        folder.open_metrics()
        return config, None
    check(
        resume != "never",
        f"{folder.path} already holds a run; choose another --out, or --resume auto to go on with it",
    )
    before = read_config(folder.path)
    different = differences(before, asked)
    recipes = [Recipe.from_dict(c["recipe"]) for c in (before, asked)]
    blocking = {name: d for name, d in different.items() if not (extend and name in ENDING)}
    _check_same(folder, blocking, *(r.total_steps(n_windows) for r in recipes))
    if (folder.path / "DONE").exists() and not different:
        return None
    config = _with_choices(asked, before, device)
    checkpoint = folder.checkpoints.load()
    if checkpoint is None:
        check(
            not _has_results(folder),
            f"{folder.path} holds the results of a run but no checkpoint to go on from, and starting again would "
            f"write over them; {_fine_tune_hint(folder)}",
        )
        check(
            resume != "must",
            f"{folder.path} holds no checkpoint to resume from; use --resume auto to start it",
        )
        folder.open_metrics()
    else:
        for path in (folder.path / "kernel").glob("epoch-*.safetensors"):
            hashes.read(folder.path, f"kernel/{path.name}")  # of epochs that are not trained again
        _check_ending(folder, checkpoint.state["step"], *(Schedule.of(r, n_windows) for r in recipes))
        _restore_files(folder, checkpoint)
    folder.hashes.remove("DONE")
    if config != before:
        folder.write_config(config)
    return config, checkpoint


def _with_choices(
    asked: dict[str, Any], before: dict[str, Any] | None, device: torch.device
) -> dict[str, Any]:
    """The config asked for with its auto choices made: as the run began, where this device can do that."""
    recipe, model = Recipe.from_dict(asked["recipe"]), config_from_dict(asked["model"])
    precision, engine = recipe.precision, recipe.engine
    if before is not None:
        kept = Recipe.from_dict(before["recipe"])
        precision = kept.precision if precision == "auto" else precision
        if engine == "auto" and not (kept.engine.endswith("graph") and device.type != "cuda"):
            engine = kept.engine  # a run may move from a GPU to a CPU, which has no graphs
    precision = choose_precision(precision, device)
    engine = choose_engine(engine, device, model, precision, recipe.predictions)
    recipe = dataclasses.replace(recipe, precision=precision, engine=engine)
    return {**asked, "recipe": recipe.to_dict()}


def _check_same(folder: RunFolder, different: dict[str, tuple[Any, Any]], steps: int, asked: int) -> None:
    """Stop if the folder holds another run than the one asked for."""
    hint = "give the same options, or choose another --out"
    if different.keys() <= DURATION and asked > steps:
        hint = "--extend lets it go on longer"
    elif different.keys() <= ENDING and not different.keys() <= DURATION:
        hint = "--extend lets it end in another schedule"
    listed = [
        f"{name} ({printable(old, limit=24)} there, {printable(new, limit=24)} asked)"
        for name, (old, new) in different.items()
    ]
    check(not different, f"{folder.path} holds a run of another config: {', '.join(listed)}; {hint}")


def _has_results(folder: RunFolder) -> bool:
    if folder.best_file.exists() or not (folder.path / "metrics.jsonl").exists():
        return folder.best_file.exists()
    return any(line["kind"] == "epoch" for line in read_metrics(folder.path))


def _fine_tune_hint(folder: RunFolder) -> str:
    """What can be done with a run that has no checkpoint."""
    if folder.best_file.exists():
        return f"give another --out, and --begin-with {folder.path} to begin with its best weights"
    return "give another --out"


def how_to_go_on(folder: RunFolder) -> str:
    """What to do for more training of a finished run."""
    if read_config(folder.path)["recipe"]["schedule"] != "constant":
        return f"its learning rate has fallen: to train it longer {_fine_tune_hint(folder)}"
    if folder.checkpoints.names():
        return "to train it longer give more --epochs and --extend"
    return f"it has no checkpoint to go on from: to train it longer {_fine_tune_hint(folder)}"


def _check_ending(folder: RunFolder, done: int, there: Schedule, asked: Schedule) -> None:
    """Stop if the run has done more steps than are asked for, or steps that would have had another learning rate."""
    check(
        done <= asked.total,
        f"{folder.path} has done {done:,} steps, and only {asked.total:,} are asked for; "
        "ask for more --epochs or --max-steps, or choose another --out",
    )
    same = there.shares(asked, done)
    check(
        same or done <= there.falls_at,
        f"the learning rate of {folder.path} has been falling since step {there.falls_at:,}, to end at step "
        f"{there.total:,}, so that it cannot end elsewhere; {_fine_tune_hint(folder)}",
    )
    check(
        same,
        f"{folder.path} has done {done:,} steps, and in the run asked for the learning rate falls from step "
        f"{asked.falls_at:,} on; ask for more --epochs or a shorter cool-down, or choose another --out",
    )


def _restore_files(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Metrics and best weights as they were when the checkpoint was written."""
    for warning in checkpoint.warnings:
        folder.say(f"warning: {warning}; going on from {checkpoint.name}, the one before it")
    folder.open_metrics(lines_of(checkpoint.state))
    if checkpoint.best is None:
        folder.hashes.remove("best.safetensors")
    else:
        folder.hashes.write("best.safetensors", checkpoint.best)


# -- fine-tuning -------------------------------------------------------------------------------------------

FREE = {"rounding", "init", "readout_start", "tau_start", "alpha_start", "modes_start", "coupling.noise"}
"""Fields of a model's config, besides dropout, that may differ from those its weights were trained with: how it rounds,
and how it would have begun."""


@dataclass(frozen=True, eq=False)
class Source:
    """The run whose best weights a new run fine-tunes (``--begin-with``)."""

    folder: Path
    model: dict[str, Any]
    """The config of the model they are for."""
    encoding: Encoding
    """The tokens they mean, whatever text comes next."""
    record: dict[str, str]
    """What the new run's config says of them: the other run's name and their sha256."""
    about: str
    weights: dict[str, Tensor] | None = None
    """None where the new run has begun already, and has a checkpoint."""

    def load_into(self, model: nn.Module) -> None:
        weights = self.weights
        if weights is None:
            weights, found = load_run(self.folder).best_weights()
            check(
                found == self.record["sha256"],
                f"{self.folder} does not hold the weights any more that this run began with, and it has no "
                "checkpoint that can be read; begin a new one in another folder",
            )
        load_weights(model, weights, f"the best weights in {self.folder}")

    def check(self, config: Config) -> None:
        """Stop if the weights are those of another model. What :data:`FREE` names, and dropout, may differ."""
        different = differing_entries(self.model, config_to_dict(config), FREE)
        listed = [
            f"{n} ({a} there, {b} asked)" for n, (a, b) in different.items() if not n.startswith("dropout")
        ]
        check(
            not listed,
            f"the weights of {self.folder} are those of another model: {', '.join(listed)}; "
            "give the preset and the --model fields it was trained with",
        )


def find_source(folder: Path, out: Path) -> Source:
    """What a run in ``out`` fine-tunes: the best weights in a run folder, finished or not.

    A run that has begun has a checkpoint and needs the other run no more, which may have gone on since, or be gone.
    What it noted then stands in for it.
    """
    folder = find_run(folder)
    name, about = folder.resolve().name, f"the best weights of {folder}"
    if (out / "last" / "CURRENT").exists() or (out / "DONE").exists():
        begun = load_run(out)
        noted = begun.config.get("begin_with")
        if noted is not None and noted["run"] == name:
            return Source(folder, begun.config["model"], begun.encoding, noted, about)
    run = load_run(folder)
    weights, found = run.best_weights()
    bad = first_not_finite(weights.items())
    check(bad is None, f"the weight {bad} of {folder} is NaN or Inf; begin with another run")
    if run.best:
        about += f", epoch {run.best['epoch']}, {run.best['valid_bits']:.4f} bits"
    return Source(folder, run.config["model"], run.encoding, {"run": name, "sha256": found}, about, weights)
