"""What a run folder already holds, and whether a new call may go on with it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError
from ..io import write_bytes_atomic
from ..models import config_from_dict
from .checkpoint import Checkpoint, Checkpoints
from .folder import LABELS, RunFolder, flatten, read_metrics
from .recipe import BOOKKEEPING, DURATION, Engine, Recipe
from .world import World, choose_engine, choose_precision

Resume = Literal["auto", "never", "must"]
DURATION_ENTRIES = {f"recipe.{name}" for name in DURATION}


@dataclass(frozen=True)
class Opened:
    """What the first process found in the run folder, and tells the others."""

    config: dict[str, Any]
    done: bool = False
    state: dict[str, Any] | None = None
    """Of the checkpoint to go on from."""


def settle(
    folder: RunFolder,
    checkpoints: Checkpoints,
    whole: dict[str, Any],
    n_windows: int,
    world: World,
    resume: Resume,
    extend: bool,
) -> Opened:
    """Settle the config with what the folder holds, and put the folder back to its last checkpoint.

    Auto choices of a run are made once and kept. Nothing in the folder changes before it is clear that the run may
    go on.
    """
    before = folder.read_config()
    if before is None:
        return _begin(folder, checkpoints, whole, world, resume)
    if resume == "never":
        raise UserError(
            f"{folder.path} already holds a run; choose another --out, or --resume auto to go on with it"
        )
    different = differences(before, whole)
    _check_same(folder, before, whole, different, n_windows, extend)
    if folder.done_file.exists() and not different:
        return Opened(before, done=True)
    whole = {**whole, "recipe": _recipe_again(before, whole, world).to_dict()}
    checkpoint = _find_checkpoint(folder, checkpoints, resume)
    if checkpoint is not None:
        _check_enough(folder, whole, checkpoint.state["step"], n_windows)
    _put_back(folder, checkpoint)
    folder.done_file.unlink(missing_ok=True)
    if whole != before:
        folder.write_config(whole)
    return Opened(whole, state=checkpoint.state if checkpoint else None)


def differences(before: dict[str, Any], asked: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Entries, flattened, in which the run asked for is not the one a config describes: (there, asked).

    What only names things or says when something is written down may differ, and ``auto`` takes what is there.
    """
    kept = Recipe.from_dict(before["recipe"]).to_dict()
    recipe = {name: kept[name] if value == "auto" else value for name, value in asked["recipe"].items()}
    old, new = flatten({**before, "recipe": kept}), flatten({**asked, "recipe": recipe})
    free = LABELS | {f"recipe.{name}" for name in BOOKKEEPING}
    names = sorted((old.keys() | new.keys()) - free)
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _begin(
    folder: RunFolder, checkpoints: Checkpoints, whole: dict[str, Any], world: World, resume: Resume
) -> Opened:
    if resume == "must":
        raise UserError(f"{folder.path} holds no run to resume; check the name, or use --resume auto")
    if checkpoints.names() or _has_results(folder):
        raise UserError(
            f"{folder.path} holds a run without its config.yaml; put that file back, or choose another --out"
        )
    asked = Recipe.from_dict(whole["recipe"])
    settled = dataclasses.replace(
        asked,
        precision=choose_precision(asked.precision, world.device),
        engine=choose_engine(asked.engine, world.device, config_from_dict(whole["model"])),
    )
    whole = {**whole, "recipe": settled.to_dict()}
    folder.write_config(whole)
    folder.open_metrics(0)
    return Opened(whole)


def _check_same(
    folder: RunFolder,
    before: dict[str, Any],
    whole: dict[str, Any],
    different: dict[str, tuple[Any, Any]],
    n_windows: int,
    extend: bool,
) -> None:
    """Stop if the folder holds another run than the one asked for."""
    blocking = different.keys() - DURATION_ENTRIES if extend else different.keys()
    if not blocking:
        return
    there, asked = (Recipe.from_dict(c["recipe"]).total_steps(n_windows) for c in (before, whole))
    hint = "give the same options, or choose another --out"
    if blocking <= DURATION_ENTRIES and asked > there:
        hint = "--extend lets it go on longer"
    listed = ", ".join(
        f"{name} ({_short(old)} there, {_short(new)} asked)"
        for name, (old, new) in different.items()
        if name in blocking
    )
    raise UserError(f"{folder.path} holds a run of another config: {listed}; {hint}")


def _recipe_again(before: dict[str, Any], whole: dict[str, Any], world: World) -> Recipe:
    """The recipe asked for, with the auto choices the run began with."""
    kept, asked = Recipe.from_dict(before["recipe"]), Recipe.from_dict(whole["recipe"])
    precision = kept.precision if asked.precision == "auto" else asked.precision
    return dataclasses.replace(
        asked,
        precision=choose_precision(precision, world.device),
        engine=_engine_again(kept, asked, world, whole["model"]),
    )


def _engine_again(kept: Recipe, asked: Recipe, world: World, model: dict[str, Any]) -> Engine:
    """The engine the run began with where this device has it; a run may move from a GPU to a CPU."""
    if asked.engine != "auto":
        return choose_engine(asked.engine, world.device)
    try:
        return choose_engine(kept.engine, world.device)
    except UserError:
        return choose_engine("auto", world.device, config_from_dict(model))


def _find_checkpoint(folder: RunFolder, checkpoints: Checkpoints, resume: Resume) -> Checkpoint | None:
    """The checkpoint to go on from, or None where the run has not got as far as its first."""
    checkpoint = checkpoints.load()
    if checkpoint is None and _has_results(folder):
        raise UserError(
            f"{folder.path} holds the results of a run but no checkpoint to go on from, and starting again would "
            f"write over them; {_begin_with(folder)}"
        )
    if checkpoint is None and resume == "must":
        raise UserError(f"{folder.path} holds no checkpoint to resume from; use --resume auto to start it")
    return checkpoint


def _has_results(folder: RunFolder) -> bool:
    return folder.best_file.exists() or any(x.get("kind") == "epoch" for x in read_metrics(folder.path))


def _begin_with(folder: RunFolder) -> str:
    """What can be done with a run that has no checkpoint."""
    if folder.best_file.exists():
        return f"give another --out, and --begin-with {folder.path} to begin with its best weights"
    return "give another --out"


def how_to_go_on(folder: RunFolder, checkpoints: Checkpoints) -> str:
    """What to do for more training of a finished run."""
    if checkpoints.names():
        return "to train it longer give more --epochs and --extend"
    return f"it has no checkpoint to go on from: to train it longer {_begin_with(folder)}"


def _check_enough(folder: RunFolder, whole: dict[str, Any], done: int, n_windows: int) -> None:
    """Stop if the run has done more steps than are asked for."""
    total = Recipe.from_dict(whole["recipe"]).total_steps(n_windows)
    if total < done:
        raise UserError(
            f"{folder.path} has done {done:,} steps, and only {total:,} are asked for; "
            "ask for more --epochs or --max-steps, or choose another --out"
        )


def _put_back(folder: RunFolder, checkpoint: Checkpoint | None) -> None:
    """Metrics and best weights as the checkpoint left them."""
    if checkpoint is None:
        folder.open_metrics(0)
        return
    for warning in checkpoint.warnings:
        folder.say(f"warning: {warning}")
    folder.open_metrics(checkpoint.state["metrics_bytes"])
    if checkpoint.best is None:
        folder.best_file.unlink(missing_ok=True)
    elif not folder.best_file.exists() or folder.best_file.read_bytes() != checkpoint.best:
        write_bytes_atomic(folder.best_file, checkpoint.best)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:8] + "…"
