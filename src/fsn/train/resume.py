"""What a run starts from: the checkpoint in its folder, the weights of a run to fine-tune, or neither."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..checks import check
from ..data import Encoding
from ..errors import UserError
from ..models import Config, config_from_dict, config_to_dict, preset_with
from ..models.family import with_fields
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
    read_config,
    read_metrics,
)
from .schedule import Schedule
from .world import choose_engine, choose_precision

Resume = Literal["auto", "never", "must"]

FREE = {"rounding", "init", "readout_start", "tau_start", "alpha_start", "modes_start", "coupling.noise"}
"""Fields of a model's config, besides dropout, that may differ from those its weights were trained with: how it rounds,
and its initial values."""


@dataclass(frozen=True, eq=False)
class Start:
    """All that a run starts from: :meth:`of` finds the run to fine-tune, :meth:`open` adds what the folder holds."""

    source: Path | None = None
    """The folder of the run to fine-tune (``--begin-with``)."""
    about: str = ""
    """Its weights in words; empty without a source."""
    preset: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    """The preset and config of the model they belong to."""
    encoding: Encoding | None = None
    """The tokens they were trained on, whatever text comes next."""
    record: dict[str, dict[str, str]] = field(default_factory=dict)
    """What the new run's config says of them: ``begin_with``, the other run's name and their sha256."""
    config: dict[str, Any] = field(default_factory=dict)
    """The new run's, with every ``auto`` choice made."""
    state: dict[str, Any] = field(default_factory=dict)
    """state.json of the checkpoint; empty where there is none."""
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Those of the checkpoint, else the ``weights`` to fine-tune; empty where the run has neither."""

    @staticmethod
    def of(begin_with: str | os.PathLike[str] | None, out: Path) -> Start:
        """The best weights of the run ``begin_with``, finished or not, which a run in ``out`` fine-tunes.

        Once the new run has a checkpoint it no longer needs the other one, which may have been trained further, or be
        gone: its own config then says what the source was.
        """
        if begin_with is None:
            return Start()
        folder = find_run(begin_with)
        name, about = folder.resolve().name, f"the best weights of {folder}"
        if (out / "last" / "CURRENT").exists() or (out / "DONE").exists():
            begun = load_run(out)
            noted = begun.config.get("begin_with")
            if noted is not None and noted["run"] == name:
                source = begun.config
                with contextlib.suppress(UserError):  # it may be gone
                    source = read_config(folder)
                model = (source.get("preset"), source["model"])
                return Start(folder, about, *model, begun.encoding, {"begin_with": noted})
        run = load_run(folder)
        weights, sha256 = run.best_weights()
        bad = first_not_finite(weights.items())
        check(bad is None, f"the weight {bad} of {folder} is NaN or Inf; begin with another run")
        if run.best:
            about += f", epoch {run.best['epoch']}, {run.best['valid_bits']:.4f} bits"
        record = {"begin_with": {"run": name, "sha256": sha256}}
        tensors = {"weights": weights}
        model = (run.config.get("preset"), run.config["model"])
        return Start(folder, about, *model, run.encoding, record, tensors=tensors)

    def configure(self, model: str | Config | None, symbols: int, fields: Mapping[str, Any]) -> Config:
        """The config of the model asked for: that of the weights where no preset is given, or theirs without fields."""
        if self.source is not None and (model is None or (model == self.preset and not fields)):
            return with_fields(config_from_dict(self.model), fields, f"the model of {self.source}")
        if model is None:
            raise UserError("no preset is given: `fsn models` lists them")
        if isinstance(model, str):
            return preset_with(model, symbols, fields)
        config = dataclasses.replace(model, **fields)
        both = f"the model has {config.vocab_size} symbols, the corpus {symbols}"
        check(config.vocab_size == symbols, f"{both}; make them equal")
        return config

    def check(self, config: Config) -> None:
        """Stop if the weights are those of another model. What :data:`FREE` names, and dropout, may differ."""
        asked = config_to_dict(config)
        different = differing_entries(self.model, asked, FREE) if self.source else {}
        if "kind" in different:
            different = {"kind": different["kind"]}
        listed = [
            f"{n} ({a} there, {b} asked)" for n, (a, b) in different.items() if not n.startswith("dropout")
        ]
        check(
            not listed,
            f"the weights of {self.source} are those of another model: {', '.join(listed)}; "
            "give neither preset nor --model to take theirs",
        )

    def open(
        self,
        folder: RunFolder,
        asked: dict[str, Any],
        n_windows: int,
        device: torch.device,
        resume: Resume = "auto",
        extend: bool = False,
    ) -> Start | None:
        """Open the folder, check that the run ``asked`` for may start or resume there, and restore the files of its
        last checkpoint. None where it is finished.

        Nothing in the folder changes before all checks have passed.
        """
        path = folder.path
        there = (path / "config.yaml").exists()
        check(
            there or resume != "must", f"{path} holds no run to resume; check the name, or use --resume auto"
        )
        folder.open()
        if not (path / "config.yaml").exists():
            check(
                not folder.checkpoints.names() and not _has_results(folder),
                f"{path} holds a run without its config.yaml; restore that file, or choose another --out",
            )
            config, tensors = _with_choices(asked, None, device), self._initial_tensors()
            folder.write_config(config)
            folder.open_metrics()
            return dataclasses.replace(self, config=config, tensors=tensors)
        check(resume != "never", f"{path} already holds a run; choose another --out, or use --resume auto")
        before = read_config(path)
        different = differences(before, asked)
        recipes = [Recipe.from_dict(c["recipe"]) for c in (before, asked)]
        blocking = {name: d for name, d in different.items() if not (extend and name in ENDING)}
        steps, wanted = (r.total_steps(n_windows) for r in recipes)
        _check_same(folder, blocking, steps, wanted)
        if (path / "DONE").exists() and different.keys() <= DURATION and wanted == steps:
            return None
        config, state = _with_choices(asked, before, device), {}
        checkpoint = folder.checkpoints.load()
        if checkpoint is None:
            check(
                not _has_results(folder),
                f"{path} holds the results of a run but no checkpoint to resume from, and starting again would "
                f"overwrite them; {_fine_tune_hint(folder)}",
            )
            check(
                resume != "must", f"{path} holds no checkpoint to resume from; use --resume auto to start it"
            )
            tensors = self._initial_tensors()
            folder.open_metrics()
        else:
            state, tensors = checkpoint.state, checkpoint.tensors
            for kernel in (path / "kernel").glob("epoch-*.safetensors"):
                hashes.read(path, f"kernel/{kernel.name}")  # of epochs that are not trained again
            _check_ending(folder, state["step"], *(Schedule.of(r, n_windows) for r in recipes))
            _restore_files(folder, checkpoint)
        folder.hashes.remove("DONE")
        if config != before:
            folder.write_config(config)
        return dataclasses.replace(self, config=config, state=state, tensors=tensors)

    def _initial_tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a run without a checkpoint: the source's weights, if it has a source."""
        if self.source is None or self.tensors:
            return self.tensors
        weights, sha256 = load_run(self.source).best_weights()
        check(
            sha256 == self.record["begin_with"]["sha256"],
            f"{self.source} does not hold the weights any more that this run began with, and it has no "
            "checkpoint that can be read; begin a new one in another folder",
        )
        return {"weights": weights}


def _with_choices(
    asked: dict[str, Any], before: dict[str, Any] | None, device: torch.device
) -> dict[str, Any]:
    """The config asked for with its auto choices made: as at the run's start, where this device supports them."""
    recipe, model = Recipe.from_dict(asked["recipe"]), config_from_dict(asked["model"])
    precision, engine = recipe.precision, recipe.engine
    if before is not None:
        chosen = Recipe.from_dict(before["recipe"])
        precision = chosen.precision if precision == "auto" else precision
        if engine == "auto" and not (chosen.engine.endswith("graph") and device.type != "cuda"):
            engine = chosen.engine  # a run may move from a GPU to a CPU, which has no graphs
    precision = choose_precision(precision, device)
    engine = choose_engine(engine, device, model, precision, recipe.predictions)
    recipe = dataclasses.replace(recipe, precision=precision, engine=engine)
    return {**asked, "recipe": recipe.to_dict()}


def _check_same(folder: RunFolder, different: dict[str, tuple[Any, Any]], steps: int, asked: int) -> None:
    """Stop if the folder holds another run than the one asked for."""
    hint = "give the same options, or choose another --out"
    if different.keys() <= DURATION and asked > steps:
        hint = "--extend lets it train longer"
    elif different.keys() <= ENDING and not different.keys() <= DURATION:
        hint = "--extend lets it end in another schedule"
    shown = {"model.kind": different["model.kind"]} if "model.kind" in different else different
    listed = [
        f"{name} ({printable(old, limit=24)} there, {printable(new, limit=24)} asked)"
        for name, (old, new) in shown.items()
    ]
    check(not different, f"{folder.path} holds a run of another config: {', '.join(listed)}; {hint}")


def _has_results(folder: RunFolder) -> bool:
    if folder.best_file.exists() or not (folder.path / "metrics.jsonl").exists():
        return folder.best_file.exists()
    return any(line["kind"] == "epoch" for line in read_metrics(folder.path))


def _fine_tune_hint(folder: RunFolder) -> str:
    """The remedy for a run that has no checkpoint."""
    if folder.best_file.exists():
        return f"give another --out, and --begin-with {folder.path} to begin with its best weights"
    return "give another --out"


def how_to_train_longer(folder: RunFolder) -> str:
    """The remedy for a finished run that should train longer."""
    recipe = read_config(folder.path)["recipe"]
    if recipe["schedule"] != "constant":
        return f"its learning rate has decayed: to train it longer {_fine_tune_hint(folder)}"
    if folder.checkpoints.names():
        more = "more --epochs" if recipe["max_steps"] is None else f"--max-steps above {recipe['max_steps']}"
        return f"to train it longer give {more} and --extend"
    return f"it has no checkpoint to resume from: to train it longer {_fine_tune_hint(folder)}"


def _check_ending(folder: RunFolder, done: int, there: Schedule, asked: Schedule) -> None:
    """Stop if the run has done more steps than asked for, or steps with another learning rate than asked for."""
    check(
        done <= asked.total,
        f"{folder.path} has done {done:,} steps, and only {asked.total:,} are asked for; "
        "ask for more --epochs or --max-steps, or choose another --out",
    )
    same = there.agrees(asked, done)
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
        folder.say(f"warning: {warning}; resuming from {checkpoint.name}, the one before it")
    folder.open_metrics(lines_of(checkpoint.state))
    if checkpoint.best is None:
        folder.hashes.remove("best.safetensors")
    else:
        folder.hashes.write("best.safetensors", checkpoint.best)
