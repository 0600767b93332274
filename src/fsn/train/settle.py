"""What a run folder already holds, and whether a new call may go on with it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ..errors import UserError
from ..io import write_bytes_atomic
from ..models import Config, config_from_dict
from .checkpoint import Checkpoint, Checkpoints
from .folder import LABELS, RunFolder, flatten
from .recipe import BOOKKEEPING, DURATION, Engine, Recipe
from .world import World, choose_engine, choose_precision

Resume = Literal["auto", "never", "must"]


def settle(
    folder: RunFolder, whole: dict[str, Any], world: World, resume: Resume, extend: bool
) -> tuple[dict[str, Any], Literal["new", "old", "done"]]:
    """Settle the config with what the folder holds; auto choices of a run are made once and kept."""
    before = folder.read_config()
    model = config_from_dict(whole["model"])
    asked = Recipe.from_dict(whole["recipe"])
    if before is None:
        if resume == "must":
            raise UserError(f"{folder.path} holds no run to resume; check the name, or use --resume auto")
        settled = dataclasses.replace(
            asked,
            precision=choose_precision(asked.precision, world.device),
            engine=choose_engine(asked.engine, world.device, model),
        )
        whole = {**whole, "recipe": settled.to_dict()}
        folder.write_config(whole)
        return whole, "new"
    if resume == "never":
        raise UserError(
            f"{folder.path} already holds a run; choose another --out, or --resume auto to go on with it"
        )
    kept = Recipe.from_dict(before["recipe"])
    settled = dataclasses.replace(
        asked,
        precision=choose_precision(
            kept.precision if asked.precision == "auto" else asked.precision, world.device
        ),
        engine=_engine_again(kept, asked, world, model),
    )
    whole = {**whole, "recipe": settled.to_dict()}
    free = LABELS | {f"recipe.{n}" for n in BOOKKEEPING}
    if asked.engine == "auto":
        free |= {"recipe.engine"}
    if extend:
        free |= {f"recipe.{n}" for n in DURATION}
    old, new = flatten({**before, "recipe": kept.to_dict()}), flatten(whole)
    different = [n for n in sorted(old.keys() | new.keys()) if old.get(n) != new.get(n)]
    blocking = [n for n in different if n not in free]
    if blocking:
        listed = ", ".join(f"{n} ({_short(old.get(n))} there, {_short(new.get(n))} asked)" for n in blocking)
        only_longer = set(blocking) <= {f"recipe.{n}" for n in DURATION}
        hint = (
            "--extend lets it go on longer"
            if only_longer
            else "give the same options, or choose another --out"
        )
        raise UserError(f"{folder.path} holds a run of another config: {listed}; {hint}")
    longer = any(f"recipe.{n}" in different for n in DURATION)
    if folder.done_file.exists():
        if not longer:
            return before, "done"
        folder.done_file.unlink()
    if different:
        folder.write_config(whole)
    return whole, "old"


def _engine_again(kept: Recipe, asked: Recipe, world: World, model: Config) -> Engine:
    """The engine the run began with where this device has it; a run may move from a GPU to a CPU."""
    if asked.engine != "auto":
        return choose_engine(asked.engine, world.device)
    try:
        return choose_engine(kept.engine, world.device)
    except UserError:
        return choose_engine("auto", world.device, model)


def reopen(
    folder: RunFolder, checkpoints: Checkpoints, found: Literal["new", "old", "done"], resume: Resume
) -> Checkpoint | None:
    """The checkpoint to go on from; metrics and best weights are put back to where it left them."""
    checkpoint = checkpoints.load() if found == "old" else None
    if checkpoint is None:
        if resume == "must":
            raise UserError(
                f"{folder.path} holds no checkpoint to resume from; use --resume auto to start it"
            )
        folder.open_metrics(0)
        return None
    for warning in checkpoint.warnings:
        folder.say(f"warning: {warning}")
    folder.open_metrics(checkpoint.state["metrics_bytes"])
    if checkpoint.best is not None:
        if not folder.best_file.exists() or folder.best_file.read_bytes() != checkpoint.best:
            write_bytes_atomic(folder.best_file, checkpoint.best)
    else:
        folder.best_file.unlink(missing_ok=True)
    return checkpoint


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:8] + "…"
