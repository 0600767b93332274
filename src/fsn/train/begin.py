"""Beginning with the weights of another run: fine-tuning, or going on under another recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..data import Alphabet
from ..errors import UserError
from ..models import Config, config_to_dict
from .folder import flatten
from .run import load_run, put_weights
from .state import first_not_finite

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
    weights: dict[str, Tensor] | None = None
    """None where the new run has begun already, and has a checkpoint."""

    def give(self, model: nn.Module) -> None:
        """Put the weights into a new model."""
        weights = self.weights
        if weights is None:
            weights, found = load_run(self.folder).best_weights()
            if found != self.record["sha256"]:
                raise UserError(
                    f"{self.folder} does not hold the weights any more that this run began with, and it has no "
                    "checkpoint that can be read; begin a new one in another folder"
                )
        put_weights(model, weights, f"the best weights in {self.folder}")

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
    name = folder.resolve().name
    if (out / "last" / "CURRENT").exists() or (out / "DONE").exists():
        begun = load_run(out)
        noted = begun.config.get("begin_with")
        if noted is not None and noted["run"] == name:
            return Beginning(folder, begun.config["model"], begun.alphabet, noted)
    run = load_run(folder)
    weights, found = run.best_weights()
    bad = first_not_finite(weights.items())
    if bad is not None:
        raise UserError(f"the weight {bad} of {folder} is not finite; begin with another run")
    best = run.best
    reached = f", epoch {best['epoch']}, {best['valid_bits']:.4f} bits" if best else ""
    record = {"run": name, "sha256": found}
    return Beginning(folder, run.config["model"], run.alphabet, record, reached, weights)
