"""Beginning with the weights of another run: fine-tuning, or going on under another recipe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from ..data import Alphabet
from ..errors import UserError
from ..models import Config, config_to_dict
from .checkpoint import sha256
from .folder import flatten, read_config
from .run import load_run

FREE = {"rounding", "init", "readout_start", "tau_start", "coupling.noise"}
"""Fields of a model's config, besides dropout, that may differ from those its weights were trained with: how it rounds,
and how it would have begun."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """The best weights of a run, to begin another with."""

    folder: Path
    model: dict[str, Any]
    """The config of the model they are for."""
    alphabet: Alphabet
    """The tokens they mean, whatever text comes next."""
    record: dict[str, str]
    """What the new run's config says of them: the other run's name and their sha256."""
    reached: str = ""

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        raw = load_run(self.folder).best_weights()
        if sha256(raw) != self.record["sha256"]:
            raise UserError(
                f"{self.folder} does not hold the weights any more that this run began with, and it has no checkpoint "
                "that can be read; begin a new one in another folder"
            )
        return safetensors.torch.load(raw)

    def said(self) -> str:
        return f"the best weights of {self.folder}{self.reached}"

    def check(self, config: Config) -> None:
        """Stop if the weights are those of another model. What :data:`FREE` names, and dropout, may differ."""
        there, here = flatten(self.model), flatten(config_to_dict(config))
        different = [
            n
            for n in sorted(there.keys() | here.keys())
            if there.get(n) != here.get(n) and n not in FREE and not n.startswith("dropout")
        ]
        if different:
            listed = ", ".join(f"{n} ({there.get(n)} there, {here.get(n)} asked)" for n in different)
            raise UserError(
                f"the weights of {self.folder} are those of another model: {listed}; "
                "give the preset and the --model fields it was trained with"
            )


def find_beginning(folder: Path, out: Path) -> Beginning:
    """What a run in ``out`` is to begin with: the best weights in a run folder, finished or not.

    A run that has begun has a checkpoint and needs the other run no more, which may have gone on since, or be gone.
    What it noted then stands in for it.
    """
    if (out / "last" / "CURRENT").exists() or (out / "DONE").exists():
        config = read_config(out)
        noted = config.get("begin_with")
        if noted is not None and noted["run"] == folder.resolve().name:
            return Beginning(folder, config["model"], _alphabet(config), noted)
    run = load_run(folder)
    record = {"run": folder.resolve().name, "sha256": sha256(run.best_weights())}
    best = run.best
    reached = f", epoch {best['epoch']}, {best['valid_bits']:.4f} bits" if best else ""
    return Beginning(folder, run.config["model"], run.alphabet, record, reached)


def _alphabet(config: dict[str, Any]) -> Alphabet:
    return Alphabet(bytes.fromhex(config["corpus"]["symbols"]))
