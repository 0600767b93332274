"""The paper's runs: what they are, which of them are there, and how to make the others.

A :class:`Need` names runs by what they are: a model of the family, a corpus by its role (``text`` is enwik8,
``code`` is codeparrot or what stands in for it), a window length, seeds, and the epochs they must have behind
them. A :class:`Library` finds run folders below ``runs/`` and ``results/`` by their ``config.yaml``; their
names mean nothing. What is missing becomes jobs for ``fsn sweep``.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from .. import data
from ..data import Corpus, enwik8
from ..data.cache import cache_folder
from ..errors import UserError
from ..measure import best_epoch, check_metrics, diverged_at, finished_epochs
from ..models import Config, preset
from ..train import Recipe, Run, load_run
from ..train.sweep import Job

ROOTS = (Path("runs"), Path("results"))
"""Where runs are looked for; what is committed in ``results`` wins over an equal run in ``runs``."""


@dataclass(frozen=True)
class Need:
    """Runs of one model that differ in their seeds alone.

    A run with more epochs than asked serves too, since the learning rate is constant. Where its ``weights``
    are read, they must be those of the best of just these epochs: a run that went on and got better is then
    no longer this one.
    """

    family: str
    seeds: tuple[int, ...] = (0,)
    epochs: int = 30
    size: str = "1m"
    role: str = "text"
    length: int = 256
    overrides: tuple[tuple[str, Any], ...] = ()
    weights: bool = False

    def seed(self, *seeds: int) -> Need:
        """The same with these seeds."""
        return replace(self, seeds=seeds)

    def after(self, epochs: int) -> Need:
        """The same, needed for this many epochs."""
        return replace(self, epochs=epochs)

    @property
    def best(self) -> Need:
        """The same, for the weights of its best epoch."""
        return replace(self, weights=True)

    @property
    def plain(self) -> tuple[str, str, str, int]:
        """Family, size, text and window length: what is left when nothing is replaced."""
        return self.family, self.size, self.role, self.length

    @property
    def preset(self) -> str:
        return f"{self.family}-{self.size}"

    @property
    def model(self) -> str:
        """``fsn-1m``, or ``fsn-1m (feedforward=none)``."""
        changed = ", ".join(f"{name}={value}" for name, value in self.overrides)
        return self.preset + (f" ({changed})" if changed else "")

    def words(self, corpus: str, length: int, seeds: Sequence[int] | None = None) -> str:
        """The runs in words, for lists of what is missing."""
        chosen = self.seeds if seeds is None else seeds
        which = f"seed {chosen[0]}" if len(chosen) == 1 else "seeds " + ", ".join(map(str, chosen))
        long = f", windows of {length}" if self.length != 256 else ""
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
DROPOUT = Need("fsn", (0,), overrides=(("dropout", 0.1),))
"""The paper's dropout in our default model: it moves the margins by copy depth."""
NO_DROPOUT = Need("transformer", (0,), overrides=(("dropout", 0),))
"""The transformer without dropout: the recipe the paper may have run."""
KV_SHIFT = Need("transformer-kvshift", THREE)
"""The transformer's twin of coupling to successors."""
KURAMOTO_DROPOUT = Need("kuramoto", (0,), epochs=7, overrides=(("dropout", 0.1),))
"""The same for Kuramoto attention, of which seven epochs show as much."""

# ablations
FSN_EARLY = FSN.seed(*THREE).after(2)
NO_PHASES_EARLY = NO_PHASES.after(2)
MEAN_FIELD_EARLY = MEAN_FIELD.seed(0).after(2)
NO_DELAY = Need("fsn-nodelay", (0,), epochs=2)
TORUS = Need("fsn-torus-swiglu", (0,), epochs=2)
NO_BOUND = Need("fsn-nobound", (0,), epochs=1)
NO_HARMONICS = Need("fsn-noharmonics", (0,), epochs=1)
"""What the efficiency appendix calls no-phase: the kernel taken out, the rest of the stack left."""
NO_FEEDFORWARD = Need("fsn", (0,), epochs=30, overrides=(("feedforward", "none"),))
"""Not run in the paper, which still says how much of the block's contribution the mean field recovers."""

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


# -- their sizes -------------------------------------------------------------------------------------------

SAME_RECIPE = (
    *("lr", "schedule", "warmup_steps", "beta1", "beta2", "eps", "weight_decay", "clip"),
    *("batch_size", "length", "train_stride", "eval_stride", "drop_last"),
)
"""What makes two runs the same experiment. Precision, engine and what is written down when may differ."""


@functools.cache
def _preset(name: str, vocab_size: int, overrides: tuple[tuple[str, Any], ...]) -> Config:
    return preset(name, vocab_size, **dict(overrides))


class Scale:
    """The paper's corpora, models, seeds, epochs and slices as they are. The tests make all of it smaller."""

    name = "paper"
    note = ""
    corpora: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("enwik8",),
        "code": ("codeparrot", "pypi-python"),
    }
    """Which corpora serve as text and as code; the first is the paper's own."""
    standard, enriched = 1024, 192
    """Windows of the two copy-depth slices."""
    depth_stride = 128
    cluster_resamples, position_resamples = 4000, 2000

    def seeds(self, need: Need) -> tuple[int, ...]:
        return need.seeds

    def epochs(self, epochs: int) -> int:
        """How many epochs stand for this many of the paper's."""
        return epochs

    def length(self, length: int) -> int:
        return length

    def overrides(self, need: Need) -> dict[str, Any]:
        """What of the preset is replaced."""
        return dict(need.overrides)

    def config(self, need: Need, vocab_size: int) -> Config:
        """The model of a need."""
        return _preset(need.preset, vocab_size, tuple(self.overrides(need).items()))

    def recipe(self, need: Need, seed: int) -> Recipe:
        return Recipe(length=self.length(need.length), epochs=self.epochs(need.epochs), seed=seed)

    def role_of(self, corpus: Mapping[str, Any]) -> str | None:
        """The role of a run's corpus, from the corpus section of its config."""
        if corpus.get("sha256") == enwik8.SHA256:
            return "text"
        return next((role for role, names in self.corpora.items() if corpus.get("name") in names), None)

    def at_hand(self, name: str, cache: Path | None) -> bool:
        """Whether a corpus can be read without fetching it."""
        return any(cache_folder(cache).glob(f"{name}*"))

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


def validated_in(run: Run) -> str:
    """The precision of a run's validation: float32 since it is written down, before that the training's."""
    logged = {row.get("valid_precision") for row in finished_epochs(run)}
    return "fp32" if logged == {"fp32"} else str(run.config["recipe"].get("precision"))


def precisions_of(runs: Iterable[Run]) -> str:
    """That runs were validated in several precisions, in words, where it is so."""
    found = sorted({validated_in(run) for run in runs})
    return f"validated in {' and '.join(found)}" if len(found) > 1 else ""


def commits_of(runs: Iterable[Run]) -> str:
    """Which commits the runs of our own kernels are of, in words, where these are several."""
    ours = [run for run in runs if run.config["model"].get("kind") != "transformer"]
    commits = sorted({str(run.environment.get("commit") or "unknown")[:7] for run in ours})
    return f"kernels of commits {', '.join(commits)}" if len(commits) > 1 else ""


def folders_below(root: Path) -> list[Path]:
    """Every folder with a config.yaml at or below ``root``; what lies inside a run folder is its own."""
    found: list[Path] = []
    for here, folders, files in os.walk(root):
        if "config.yaml" in files:
            found.append(Path(here))
            folders.clear()
        folders.sort()
    return found


@dataclass
class Library:
    """The run folders of some places, read whole; those that cannot be used are ``refused`` with a reason."""

    scale: Scale
    runs: list[Run] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    corpus: dict[str, str] = field(default_factory=dict)
    """The corpus that serves in each role."""
    roots: tuple[Path, ...] = ()
    _role: dict[Path, str] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        roots: Sequence[str | os.PathLike[str]] = ROOTS,
        scale: Scale = PAPER,
        prefer: Mapping[str, str] | None = None,
    ) -> Library:
        """Read every run folder below ``roots``; ``prefer`` names the corpus of a role where several serve."""
        library = cls(scale, corpus=dict(prefer or {}), roots=tuple(map(Path, roots)))
        candidates: dict[str, list[Run]] = {}
        for folder in (folder for root in roots for folder in folders_below(Path(root))):
            try:
                run = load_run(folder)
                role = scale.role_of(run.config["corpus"])
                if role is None or "begin_with" in run.config:  # the paper's runs begin with new weights
                    continue
                check_metrics(run)
                if run.model_config is not None and run.recipe is not None:
                    candidates.setdefault(role, []).append(run)
            except UserError as error:
                library.refused.append(str(error))
            except (KeyError, TypeError, AttributeError) as error:
                library.refused.append(
                    f"{folder} cannot be read by this version of fsn ({type(error).__name__}: {error})"
                )
        for role, runs in candidates.items():
            library._settle(role, runs)
        return library

    def _settle(self, role: str, runs: list[Run]) -> None:
        """Keep the runs of one text: losses on different texts cannot stand in one table."""
        order = self.scale.corpora[role]
        asked = self.corpus.get(role)
        texts = {str(run.config["corpus"]["sha256"]): run.config["corpus"]["name"] for run in reversed(runs)}
        counts = Counter(str(run.config["corpus"]["sha256"]) for run in runs)

        def rank(sha256: str) -> tuple[bool, int, int]:
            name = texts[sha256]
            return name == asked, counts[sha256], -(order.index(name) if name in order else len(order))

        chosen = max(counts, key=rank)
        if asked is not None and texts[chosen] != asked:
            chosen = ""
        for run in runs:
            corpus = run.config["corpus"]
            if corpus["sha256"] == chosen:
                self.runs.append(run)
                self._role[run.folder] = role
                self.corpus[role] = texts[chosen] if texts[chosen] in order else order[0]
            else:
                self.refused.append(
                    f"{run.folder} was trained on another text ({corpus['name']}, sha256 "
                    f"{str(corpus['sha256'])[:8]}) than the other {role} runs; it is left out"
                )
        if self.stands_in(role):
            self.notes.append(
                f"Code is {self.corpus[role]}, which stands in for the paper's {order[0]}: "
                "levels of loss differ with the text, comparisons between models remain."
            )

    def corpus_name(self, role: str) -> str:
        """The corpus of a role, whether or not it has runs."""
        return self.corpus.get(role, self.scale.corpora[role][0])

    def stands_in(self, role: str) -> bool:
        """Whether the corpus of a role is not the paper's own."""
        return self.corpus_name(role) != self.scale.corpora[role][0]

    def corpus_said(self, role: str) -> str:
        """The corpus of a role, and what it stands in for."""
        own = f" in place of {self.scale.corpora[role][0]}" if self.stands_in(role) else ""
        return self.corpus_name(role) + own

    def matching(self, need: Need, seed: int) -> list[Run]:
        """The runs of this model, recipe, text and seed, the furthest first."""
        return sorted(
            (run for run in self.runs if self._is(run, need, seed)),
            key=lambda run: (-epochs_of(run), "results" not in run.folder.parts, run.name),
        )

    def _is(self, run: Run, need: Need, seed: int) -> bool:
        if run.recipe.seed != seed or self._role[run.folder] != need.role:
            return False
        wanted = self.scale.recipe(need, seed)
        if any(getattr(run.recipe, name) != getattr(wanted, name) for name in SAME_RECIPE):
            return False
        return bool(run.model_config == self.scale.config(need, run.model_config.vocab_size))

    def serves(self, run: Run, needs: Iterable[Need]) -> bool:
        """Whether a run is one of some needs, however far it got."""
        return any(self._is(run, need, seed) for need in needs for seed in self.scale.seeds(need))

    def find(self, need: Need, seed: int) -> Run | None:
        """The best run for one seed, whether or not it has got far enough."""
        return next(iter(self.matching(need, seed)), None)

    def reached(self, need: Need, seed: int) -> Run | None:
        """A run that has the epochs asked for, or that diverged on the way there."""
        wanted = self.scale.epochs(need.epochs)
        for run in self.matching(need, seed):
            if need.weights and epochs_of(run) > wanted and best_epoch(run).epoch > wanted:
                continue
            if epochs_of(run) >= wanted or diverged_at(run) is not None:
                return run
        return None

    def used(self, needs: Iterable[Need]) -> list[Run]:
        """Every run that serves one of the needs, once."""
        served = (self.reached(need, seed) for need in needs for seed in self.scale.seeds(need))
        return list({run.folder: run for run in served if run is not None}.values())

    def standing(self, needs: Iterable[Need]) -> Standing:
        """Which of the runs are there; a run that several needs ask for counts once, at its most epochs."""
        wanted: dict[Need, int] = {}
        for need in needs:
            for seed in self.scale.seeds(need):
                key = replace(need, seeds=(seed,), epochs=0, weights=False)
                wanted[key] = max(wanted.get(key, 0), need.epochs)
        standing = Standing(self)
        for key, epochs in wanted.items():
            need = key.after(epochs)
            if self.reached(need, need.seeds[0]) is not None:
                standing.there.append(need)
            elif (run := self.find(need, need.seeds[0])) is not None:
                standing.begun.append((need, run))
            else:
                standing.missing.append(need)
        return standing


@dataclass
class Standing:
    """Where the runs of some needs stand, each as a need of one seed: there, begun, or missing."""

    library: Library
    there: list[Need] = field(default_factory=list)
    begun: list[tuple[Need, Run]] = field(default_factory=list)
    missing: list[Need] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.begun and not self.missing

    @property
    def total(self) -> int:
        return len(self.there) + len(self.begun) + len(self.missing)

    def absent(self) -> str:
        """What is not there yet, in words: seeds of one model together."""
        scale = self.library.scale
        groups: dict[tuple[Need, str], list[int]] = {}
        absent = [(need, f" (has {epochs_of(run)})") for need, run in self.begun]
        absent += [(need, "") for need in self.missing]
        for need, have in absent:
            shown = replace(need, seeds=()).after(scale.epochs(need.epochs))
            groups.setdefault((shown, have), []).extend(need.seeds)
        return "; ".join(
            need.words(self.library.corpus_name(need.role), scale.length(need.length), seeds) + have
            for (need, have), seeds in groups.items()
        )

    def begun_words(self) -> str:
        """How far those are that were begun."""
        shown = [
            f"{run.name} has {epochs_of(run)} of {self.library.scale.epochs(need.epochs)} epochs"
            for need, run in self.begun
        ]
        return ", ".join(shown)

    def jobs(self, runs: Path) -> list[Job]:
        """What must be trained, as runs of a sweep: those begun in ``runs`` go on there."""
        found = []
        for need, begun in [*self.begun, *((need, None) for need in self.missing)]:
            job = job_of(need, self.library, runs)
            if begun is not None and runs.resolve() in begun.folder.resolve().parents:
                job = replace(job, name=begun.folder.name, out=begun.folder)
            found.append(replace(job, extend=begun is not None))
        return found

    def bring(self, runs: Path) -> None:
        """Copy what was begun elsewhere, with all a resume needs, to where :meth:`jobs` lets it go on."""
        for (_, run), job in zip(self.begun, self.jobs(runs), strict=False):
            if not job.out.exists() and (run.folder / "last").is_dir() and epochs_of(run):
                shutil.copytree(run.folder, job.out, ignore=shutil.ignore_patterns("lock"))


def job_of(need: Need, library: Library, runs: Path) -> Job:
    """The run of a need of one seed as a sweep has it, in a folder named by what it is."""
    scale, corpus = library.scale, library.corpus_name(need.role)
    recipe = scale.recipe(need, need.seeds[0])
    parts = [need.preset, *(f"{name}-{value}" for name, value in need.overrides), corpus]
    parts += [f"length{recipe.length}"] if need.length != 256 else []
    name = "-".join([*parts, f"seed{recipe.seed}"])
    return Job(name, need.preset, corpus, runs / name, recipe, scale.overrides(need))


def sweep_text(jobs: Sequence[Job], about: str, out: Path) -> str:
    """A sweep file of these jobs, for ``fsn sweep``."""
    lines = [f"# {about}", f"out: {out}", "runs:"]
    for job in jobs:
        fields = {"name": job.name, "preset": job.preset, "corpus": job.corpus, "seed": job.recipe.seed}
        fields |= {"epochs": job.recipe.epochs, "length": job.recipe.length}
        shown = [f"{key}: {value}" for key, value in fields.items()]
        if job.model:
            shown.append("model: {" + ", ".join(f"{key}: {value}" for key, value in job.model.items()) + "}")
        lines.append("  - {" + ", ".join(shown) + "}")
    return "\n".join(lines) + "\n"
