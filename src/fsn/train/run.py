"""A run folder, read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from .. import data
from ..data import Alphabet, Corpus
from ..errors import UserError
from ..models import Config, LanguageModel, build_from_config, config_from_dict
from .checkpoint import Checkpoints, sha256
from .folder import read_config, read_metrics
from .recipe import Recipe


@dataclass(frozen=True, eq=False)
class Run:
    """What a run left behind: its config, its curves, its weights."""

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    finished: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def model_config(self) -> Config:
        return config_from_dict(self.config["model"])

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe.from_dict(self.config["recipe"])

    @cached_property
    def alphabet(self) -> Alphabet:
        """The symbols of the run's corpus: encodes and decodes text without the corpus itself."""
        return Alphabet(bytes.fromhex(self.config["corpus"]["symbols"]))

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The lines of kind ``epoch``, one for each epoch. The last has ``complete: false`` where a run ended
        within an epoch."""
        by_number = {line["epoch"]: line for line in self.metrics if line.get("kind") == "epoch"}
        return [by_number[number] for number in sorted(by_number)]

    @cached_property
    def validations(self) -> list[dict[str, Any]]:
        """Every validation, at epochs and at the extra steps of ``eval_at_steps``, in order of step."""
        lines = [line for line in self.metrics if line.get("kind") in ("epoch", "valid")]
        return sorted(lines, key=lambda line: line["step"])

    @property
    def warnings(self) -> list[dict[str, Any]]:
        return [line for line in self.metrics if line.get("kind") == "warning"]

    @property
    def step(self) -> int:
        """The last step that metrics.jsonl speaks of."""
        return max((line.get("step", 0) for line in self.metrics), default=0)

    @property
    def best(self) -> dict[str, Any] | None:
        """The line of the epoch with the lowest validation loss."""
        lines = [line for line in self.epochs if line.get("valid_bits") is not None]
        return min(lines, key=lambda line: line["valid_bits"], default=None)

    @cached_property
    def environment(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def best_weights(self) -> tuple[dict[str, Tensor], str]:
        """What best.safetensors holds, and its sha256."""
        path = self.folder / "best.safetensors"
        try:
            raw = path.read_bytes()
            return safetensors.torch.load(raw), sha256(raw)
        except FileNotFoundError:
            raise UserError(
                f"{self.folder} has no best.safetensors yet: wait for an epoch, or load the last weights"
            ) from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read ({error})") from None

    def load_corpus(self, where: str | None = None) -> Corpus:
        """The text the run was trained on, in its tokens; ``where`` is its place now, if that has changed."""
        text = data.load(where or self.config["corpus"]["name"])
        if text.sha256 != self.config["corpus"]["sha256"]:
            raise UserError(
                f"the corpus {text.name} is not the text {self.folder} was trained on (its sha256 differs)"
            )
        return text.within(self.alphabet)

    def load_model(
        self, which: Literal["best", "last"] = "best", device: str | torch.device = "cpu"
    ) -> LanguageModel:
        """The model with the weights of its best epoch, or with the last ones saved; in evaluation mode."""
        if which == "best":
            weights, _ = self.best_weights()
        elif which == "last":
            checkpoint = Checkpoints(self.folder / "last").load()
            if checkpoint is None:
                raise UserError(f"{self.folder} has no checkpoint in last/")
            weights = checkpoint.tensors["weights"]
        else:
            raise UserError(f"which weights? {which!r} is neither best nor last")
        with torch.random.fork_rng(devices=[]):
            model = build_from_config(self.model_config)
        put_weights(model, weights, f"the {which} weights in {self.folder}")
        return model.to(device).eval()

    def kernels(self) -> Iterator[tuple[int, LanguageModel]]:
        """(epoch, model) for every epoch whose coupling kernel was kept, oldest first.

        Only the kernel and the scalars (τ, α, readout scale) of such a model are those of the epoch.
        """
        last = self.epochs[-1]["epoch"] if self.epochs else 0
        for path in sorted((self.folder / "kernel").glob("epoch-*.safetensors")):
            epoch = int(path.stem.removeprefix("epoch-"))
            if epoch > last:
                continue
            try:
                parts = safetensors.torch.load(path.read_bytes())
            except (SafetensorError, OSError) as error:
                raise UserError(
                    f"{path} cannot be read ({error}); delete it to leave that epoch out"
                ) from None
            with torch.random.fork_rng(devices=[]):
                model = build_from_config(self.model_config)
            put_weights(model, parts, f"the weights in {path}", strict=False)
            yield epoch, model.eval()


def put_weights(model: nn.Module, weights: dict[str, Tensor], what: str, strict: bool = True) -> None:
    """Put weights into the model that a config.yaml describes; ``what`` says whose they are."""
    try:
        model.load_state_dict(weights, strict=strict)
    except RuntimeError:
        raise UserError(
            f"{what} do not fit the model in its config.yaml: one of the two was changed; put the right one back"
        ) from None


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run folder, finished or not."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"there is no run folder {path}")
    return Run(path, read_config(path), read_metrics(path), (path / "DONE").exists())
