"""Beginning with the weights of another run: fine-tuning, or going on under another recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from ..data import Alphabet
from ..errors import UserError
from ..models import Config, build_from_config, config_to_dict
from .checkpoint import sha256
from .folder import flatten
from .run import Run, load_run


@dataclass(frozen=True, eq=False)
class Beginning:
    """The best weights of a run, to begin another with."""

    run: Run
    weights: dict[str, Tensor]
    sha256: str

    @property
    def alphabet(self) -> Alphabet:
        """The tokens that the weights mean, whatever text comes next."""
        return self.run.alphabet

    @property
    def record(self) -> dict[str, Any]:
        """What the new run's config says of it: enough to know the weights again, wherever they lie."""
        return {"run": self.run.name, "sha256": self.sha256}

    def said(self) -> str:
        best = self.run.best
        reached = f", epoch {best['epoch']}, {best['valid_bits']:.4f} bits" if best else ""
        return f"the best weights of {self.run.folder}{reached}"

    def check(self, config: Config) -> None:
        """Stop if a model of this config needs other weights. What needs none, dropout or rounding, may differ."""
        with torch.random.fork_rng(devices=[]):
            asked = build_from_config(config).state_dict()
        if {n: t.shape for n, t in asked.items()} == {n: t.shape for n, t in self.weights.items()}:
            return
        there, here = flatten(self.run.config["model"]), flatten(config_to_dict(config))
        different = sorted(n for n in there.keys() | here.keys() if there.get(n) != here.get(n))
        listed = ", ".join(f"{n} ({there.get(n)} there, {here.get(n)} asked)" for n in different)
        raise UserError(
            f"the weights of {self.run.folder} are those of another model: {listed}; "
            "give the preset and the --model fields it was trained with"
        )


def read_beginning(folder: str | os.PathLike[str]) -> Beginning:
    """The best weights in a run folder, finished or not."""
    run = load_run(folder)
    raw = run.best_weights()
    return Beginning(run, safetensors.torch.load(raw), sha256(raw))
