"""The paper's runs: what they are, and what makes a run one of them.

A :class:`Need` names runs by what they are: a model of the family, a corpus by its role (``text`` is enwik8,
``code`` is codeparrot or what stands in for it), a window length, seeds, and the epochs they must have behind
them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from .. import data
from ..data import Corpus, enwik8
from ..measure.metrics import finished_epochs
from ..models import Config, preset
from ..train import Recipe, Run


@dataclass(frozen=True)
class Need:
    """Runs of one model that differ in their seeds alone.

    A run with more epochs than asked serves too, since the learning rate is constant. Of its curve the epochs asked
    for are read. Weights must be those of the best of just these epochs: a run that went on and got better is then no
    longer this one. A speed is that of all the epochs there are.
    """

    family: str
    seeds: tuple[int, ...] = (0,)
    epochs: int = 30
    size: str = "1m"
    role: str = "text"
    length: int = 256
    overrides: tuple[tuple[str, Any], ...] = ()
    reads: Literal["curve", "weights", "speed"] = "curve"

    def seed(self, *seeds: int) -> Need:
        """The same with these seeds."""
        return replace(self, seeds=seeds)

    def after(self, epochs: int) -> Need:
        """The same, needed for this many epochs."""
        return replace(self, epochs=epochs)

    @property
    def best(self) -> Need:
        """The same, for the weights of its best epoch."""
        return replace(self, reads="weights")

    @property
    def speed(self) -> Need:
        """The same, for its speed: one epoch will do."""
        return replace(self, reads="speed", epochs=1)

    @property
    def preset(self) -> str:
        return f"{self.family}-{self.size}"

    @property
    def model(self) -> str:
        """``fsn-1m``, or ``fsn-1m (feedforward=none)``."""
        changed = ", ".join(f"{name}={value}" for name, value in self.overrides)
        return self.preset + (f" ({changed})" if changed else "")

    def words(self, corpus: str) -> str:
        """The runs in words, for lists of what is missing."""
        which = f"seed{'s' if len(self.seeds) != 1 else ''} {', '.join(map(str, self.seeds))}"
        long = f", windows of {self.length}" if self.length != 256 else ""
        return (
            f"{self.model} on {corpus}, {which}, {self.epochs} epoch{'s' if self.epochs != 1 else ''}{long}"
        )


# -- the runs of the paper ---------------------------------------------------------------------------------

THREE, FIVE = (0, 1, 2), (0, 1, 2, 3, 4)

# enwik8, one million parameters
FSN = Need("fsn", FIVE)
FSN_CONVERGED = Need("fsn", THREE, epochs=50)
TRANSFORMER = Need("transformer", THREE)
TRANSFORMER_FIVE = Need("transformer", FIVE)
TRANSFORMER_CONVERGED = Need("transformer", FIVE, epochs=50)
REFERENCE = Need("transformer", (0,), epochs=50)
"""The converged transformer that every copy-depth margin on text is measured against."""
NO_PHASES = Need("fsn-nophase", THREE)
KURAMOTO = Need("kuramoto", THREE, epochs=50)
MEAN_FIELD = Need("fsn-mf", THREE)
WINDING = Need("fsn-mf-winding", THREE)
LEAN = Need("fsn-lean", (0,), epochs=11)
KV_SHIFT = Need("transformer-kvshift", THREE)
"""The transformer's twin of coupling to successors."""

# the same with the dropout that the paper lists, on the feed-forward output; the recipe has none (docs/findings.md)
FSN_DROPOUT = Need("fsn", (0,), overrides=(("dropout", 0.1),))
TRANSFORMER_DROPOUT = Need("transformer", (0,), overrides=FSN_DROPOUT.overrides)
LITERAL_DROPOUT = Need("fsn-literal", (0,), overrides=FSN_DROPOUT.overrides)
KURAMOTO_DROPOUT = Need("kuramoto", (0,), epochs=7, overrides=FSN_DROPOUT.overrides)
"""Seven epochs: they show as much."""

# ablations
NO_DELAY = Need("fsn-nodelay", (0,), epochs=2)
TORUS = Need("fsn-torus-swiglu", (0,), epochs=2)
NO_BOUND = Need("fsn-nobound", (0,), epochs=1)
NO_HARMONICS = Need("fsn-noharmonics").speed
"""What the efficiency appendix calls no-phase: the kernel taken out, the rest of the stack left."""
NO_FEEDFORWARD = Need("fsn", (0,), epochs=10, overrides=(("feedforward", "none"),))
"""Not run in the paper, which still says that the mean field recovers most of the block's contribution: ten epochs show
whether it does."""

# the ladder
RUNGS: dict[str, tuple[Need, Need]] = {
    "1M": (FSN, TRANSFORMER_FIVE),
    "2M": (Need("fsn", (0, 1), size="2m"), Need("transformer", (0, 1), size="2m")),
    "4M": (Need("fsn", (0, 1), size="4m"), Need("transformer", (0, 1), size="4m")),
    "8M": (Need("fsn", (0,), epochs=14, size="8m"), Need("transformer", (0,), size="8m")),
}

# code
CODE_FSN = Need("fsn", THREE, role="code")
CODE_TRANSFORMER = Need("transformer", THREE, role="code")
CODE_NO_PHASES = Need("fsn-nophase", (0,), role="code")
LONG_FSN = Need("fsn", (0,), role="code", length=512)
LONG_TRANSFORMER = Need("transformer", (0,), role="code", length=512)
LONG_SEEDS = Need("fsn", THREE, epochs=1, role="code", length=512)
"""The replication arm at length 512, of which the paper reports the first epoch."""

FIRST = (
    *(FSN.seed(*THREE), TRANSFORMER, KV_SHIFT.seed(0)),
    *(TORUS, LEAN, WINDING.seed(0), NO_FEEDFORWARD),
    *(CODE_FSN.seed(0), CODE_TRANSFORMER.seed(0), *RUNGS["8M"]),
    *(KV_SHIFT, NO_PHASES, FSN_CONVERGED, TRANSFORMER_CONVERGED, KURAMOTO, MEAN_FIELD, WINDING),
)
"""What is trained first of what is missing."""


# -- their sizes -------------------------------------------------------------------------------------------

SAME_RECIPE = (
    *("lr", "schedule", "warmup_steps", "beta1", "beta2", "eps", "weight_decay", "clip"),
    *("batch_size", "length", "train_stride", "eval_stride", "drop_last"),
)
"""What makes two runs the same experiment. Precision, engine and what is written down when may differ."""


_preset = functools.cache(preset)


class Scale:
    """The paper's corpora, models, seeds, epochs and slices as they are. The tests make all of it smaller."""

    name = "paper"
    corpora: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("enwik8",),
        "code": ("codeparrot", "pypi-python"),
    }
    """Which corpora serve as text and as code; the first is the paper's own."""
    standard, enriched = 1024, 192
    """Windows of the two copy-depth slices."""

    def epochs(self, epochs: int) -> int:
        """How many epochs stand for this many of the paper's."""
        return epochs

    def overrides(self, need: Need) -> dict[str, Any]:
        """What of the preset is replaced."""
        return dict(need.overrides)

    def config(self, need: Need, vocab_size: int) -> Config:
        """The model of a need."""
        return _preset(need.preset, vocab_size, **self.overrides(need))

    def recipe(self, need: Need, seed: int) -> Recipe:
        return Recipe(length=need.length, epochs=self.epochs(need.epochs), seed=seed)

    def role_of(self, corpus: Mapping[str, Any]) -> str | None:
        """The role of a run's corpus, from the corpus section of its config."""
        if corpus.get("sha256") == enwik8.SHA256:
            return "text"
        return next((role for role, names in self.corpora.items() if corpus.get("name") in names), None)

    def load(self, name: str, cache: Path | None) -> Corpus:
        return data.load(name, cache)


PAPER = Scale()


# -- those that are there ----------------------------------------------------------------------------------


def epochs_of(run: Run) -> int:
    """Epochs that ran to their end."""
    return len(finished_epochs(run))


def setting_of(run: Run) -> str:
    """Device, precision and how a step is run: what a timing depends on besides the model.

    A step replayed whole is one setting, whoever made its kernels: ours for an FSN, the compiler for a
    transformer.
    """
    recipe = run.config["recipe"]
    engine = recipe.get("engine")
    engine = "one CUDA graph" if engine in ("graph", "compile-graph") else engine
    return f"{run.environment.get('device') or 'unknown device'}, {recipe.get('precision')}, {engine}"


def commits_of(runs: Iterable[Run]) -> str:
    """Which commits the runs of our own kernels are of, with those they were resumed from, in words, where these are
    several."""
    ours = [run.environment for run in runs if run.config["model"].get("kind") != "transformer"]
    sittings = [sitting for last in ours for sitting in (*last.get("earlier", ()), last)]
    commits = sorted({str(sitting.get("commit") or "unknown")[:7] for sitting in sittings})
    return f"kernels of commits {', '.join(commits)}" if len(commits) > 1 else ""
