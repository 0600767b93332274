"""How large everything is: the paper's own sizes, or tiny ones that test the machinery on any CPU."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from fsn import data
from fsn.data import Corpus, enwik8
from fsn.data.cache import cache_folder
from fsn.errors import UserError
from fsn.models import Config, preset
from fsn.paper.needs import Need
from fsn.train import Recipe

SAME_RECIPE = (
    "lr",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "clip",
    "batch_size",
    "length",
    "train_stride",
    "eval_stride",
    "drop_last",
)
"""What makes two runs the same experiment. Precision, engine and what is written down when may differ."""


@functools.cache
def _preset(name: str, vocab_size: int, overrides: tuple[tuple[str, Any], ...]) -> Config:
    return preset(name, vocab_size, **dict(overrides))


class Scale:
    """The paper's scale: its corpora, models, seeds, epochs and slices as they are."""

    name = "paper"
    corpora: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("enwik8",),
        "code": ("codeparrot", "pypi-python"),
    }
    """Which corpora serve as text and as code; the first is the paper's own."""
    standard, enriched = 1024, 192
    """Windows of the two copy-depth slices."""
    depth_stride = 128
    cluster_resamples, position_resamples = 4000, 2000
    note = ""
    shared_text = False
    """Whether text and code are cut from one corpus, so that their difference means nothing."""

    def seeds(self, need: Need) -> tuple[int, ...]:
        return need.seeds

    def epochs(self, epochs: int) -> int:
        """How many epochs stand for this many of the paper's."""
        return epochs

    def length(self, length: int) -> int:
        return length

    def config(self, need: Need, vocab_size: int) -> Config:
        """The model of a need."""
        return _preset(f"{need.family}-{need.size}", vocab_size, need.overrides)

    def overrides(self, need: Need) -> dict[str, Any]:
        """What of the preset is replaced."""
        return dict(need.overrides)

    def recipe(self, need: Need, seed: int) -> Recipe:
        return Recipe(length=self.length(need.length), epochs=self.epochs(need.epochs), seed=seed)

    def role_of(self, corpus: dict[str, Any]) -> str | None:
        """The role of a run's corpus, from the corpus section of its config."""
        if corpus.get("sha256") == enwik8.HASHES["sha256"]:
            return "text"
        return next((role for role, names in self.corpora.items() if corpus.get("name") in names), None)

    def at_hand(self, name: str, cache: Path | None) -> bool:
        """Whether a corpus can be read without fetching it."""
        return any(cache_folder(cache).glob(f"{name}*"))

    def load(self, name: str, cache: Path | None) -> Corpus:
        return data.load(name, cache)


class TinyScale(Scale):
    """Small enough that every run of the paper takes about a second on one core.

    Text and code are two halves of the running Python's standard library. The runs learn next to nothing;
    what is shown is that every table, figure and claim can be made from run folders.
    """

    name = "tiny"
    corpora: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("python-stdlib-text",),
        "code": ("python-stdlib-code",),
    }
    standard, enriched = 96, 32
    depth_stride = 32
    cluster_resamples, position_resamples = 400, 200
    note = (
        "A test of the machinery: tiny models, a few dozen steps, the Python library as text. "
        "Its values and verdicts say nothing about the paper."
    )
    shared_text = True

    EPOCHS: ClassVar[dict[int, int]] = {50: 4, 30: 3, 14: 2, 11: 2, 10: 2, 7: 2, 2: 2, 1: 1}
    WIDTHS: ClassVar[dict[str, tuple[int, int]]] = {
        "1m": (12, 8),
        "2m": (16, 12),
        "4m": (20, 16),
        "8m": (24, 20),
    }
    """Phases of the FSN and width of the transformer."""
    LAYERS = 2
    TRAIN, VALID = 4_800, 96_000
    """Symbols of the training and validation parts."""

    def seeds(self, need: Need) -> tuple[int, ...]:
        return need.seeds[:2]

    def epochs(self, epochs: int) -> int:
        return self.EPOCHS[epochs]

    def length(self, length: int) -> int:
        return length // 4

    def overrides(self, need: Need) -> dict[str, Any]:
        k, width = self.WIDTHS[need.size]
        size = {"width": width} if need.family == "transformer" else {"k": k}
        return {**size, "layers": self.LAYERS, **dict(need.overrides)}

    def config(self, need: Need, vocab_size: int) -> Config:
        return _preset(f"{need.family}-{need.size}", vocab_size, tuple(self.overrides(need).items()))

    def recipe(self, need: Need, seed: int) -> Recipe:
        return Recipe(
            lr=4e-3,
            length=self.length(need.length),
            train_stride=32,
            eval_stride=1500,
            batch_size=8,
            epochs=self.epochs(need.epochs),
            seed=seed,
            log_steps=10,
            precision="fp32",
            engine="eager",
        )

    def role_of(self, corpus: dict[str, Any]) -> str | None:
        for role, names in self.corpora.items():
            if corpus.get("name") in names and corpus.get("sha256") == self.load(names[0], None).sha256:
                return role
        return None

    def at_hand(self, name: str, cache: Path | None) -> bool:
        return True

    @functools.lru_cache(maxsize=8)  # noqa: B019 (there is one object of this class)
    def load(self, name: str, cache: Path | None) -> Corpus:
        whole = data.load("python-stdlib", cache)
        second = name == self.corpora["code"][0]

        def half(tokens: torch.Tensor, length: int) -> torch.Tensor:
            start = len(tokens) // 2 if second else 0
            return tokens[start : start + min(length, len(tokens) // 2)].clone()

        parts = [half(whole.train, self.TRAIN), half(whole.valid, self.VALID), half(whole.test, self.TRAIN)]
        raw = bytes(whole.symbols[i] for part in parts for i in part.tolist())
        return Corpus(name, whole.alphabet, hashlib.sha256(raw).hexdigest(), *parts)


SCALES: dict[str, Scale] = {"paper": Scale(), "tiny": TinyScale()}


def scale_named(name: str) -> Scale:
    if name not in SCALES:
        raise UserError(f"there is no scale {name!r}; choose {' or '.join(SCALES)}")
    return SCALES[name]


@dataclass(frozen=True)
class Label:
    """A run in words, for lists of what is there and what is missing."""

    model: str
    corpus: str
    seed: int
    epochs: int
    length: int

    def words(self, seeds: Sequence[int]) -> str:
        """The run in words, for one seed or several."""
        which = f"seed {seeds[0]}" if len(seeds) == 1 else "seeds " + ", ".join(map(str, seeds))
        long = f", windows of {self.length}" if self.length not in (256, 64) else ""
        epochs = f"{self.epochs} epoch{'s' if self.epochs != 1 else ''}"
        return f"{self.model} on {self.corpus}, {which}, {epochs}{long}"

    def __str__(self) -> str:
        return self.words([self.seed])
