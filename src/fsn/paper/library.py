"""The runs that are there, found by what they are.

Run folders are searched for below ``runs/`` and ``results/`` and recognised by their ``config.yaml``: model,
recipe, corpus and seed. Their names mean nothing here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsn.errors import UserError
from fsn.measure.runs import check_metrics, diverged_at, finished_epochs
from fsn.models import Config
from fsn.paper.needs import Need
from fsn.paper.scales import SAME_RECIPE, Scale
from fsn.train import Run, load_run

ROOTS = (Path("runs"), Path("results"))
"""Where runs are looked for; what is committed in ``results`` wins over an equal run in ``runs``."""


def epochs_of(run: Run) -> int:
    """Epochs that ran to their end."""
    return len(finished_epochs(run))


def device_of(run: Run) -> str:
    return str(run.environment.get("device") or "unknown device")


CAPTURED = ("graph", "compile-graph")
"""A step replayed whole is one setting, whoever made its kernels: ours for an FSN, the compiler for a transformer."""


def setting_of(run: Run) -> str:
    """Device, precision and how a step is run: what a timing depends on besides the model."""
    recipe = run.config["recipe"]
    engine = "one CUDA graph" if recipe.get("engine") in CAPTURED else recipe.get("engine")
    return f"{device_of(run)}, {recipe.get('precision')}, {engine}"


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
    _role: dict[Path, str] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        scale: Scale,
        roots: Sequence[str | os.PathLike[str]] = ROOTS,
        prefer: Mapping[str, str] | None = None,
    ) -> Library:
        """Read every run folder below ``roots``; ``prefer`` names the corpus of a role where several serve."""
        library = cls(scale, corpus=dict(prefer or {}))
        candidates: dict[str, list[Run]] = {}
        for root in roots:
            for folder in folders_below(Path(root)):
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

        def rank(sha256: str) -> tuple[bool, int, int]:
            name = next(r.config["corpus"]["name"] for r in runs if r.config["corpus"]["sha256"] == sha256)
            return name == asked, counts[sha256], -(order.index(name) if name in order else len(order))

        counts = Counter(str(run.config["corpus"]["sha256"]) for run in runs)
        chosen = max(counts, key=rank) if asked is None or rank(max(counts, key=rank))[0] else ""
        kept = [run for run in runs if run.config["corpus"]["sha256"] == chosen]
        self.runs += kept
        self._role |= {run.folder: role for run in kept}
        if kept:
            name = kept[0].config["corpus"]["name"]
            self.corpus[role] = name if name in order else order[0]
        if self.stands_in(role):
            self.notes.append(
                f"Code is {self.corpus[role]}, which stands in for the paper's {order[0]}: "
                "levels of loss differ with the text, comparisons between models remain."
            )
        for run in runs:
            if run.config["corpus"]["sha256"] != chosen:
                self.refused.append(
                    f"{run.folder} was trained on another text ({run.config['corpus']['name']}, sha256 "
                    f"{str(run.config['corpus']['sha256'])[:8]}) than the other {role} runs; it is left out"
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
        if need.exact and run.recipe.epochs != wanted.epochs:
            return False
        if any(getattr(run.recipe, name) != getattr(wanted, name) for name in SAME_RECIPE):
            return False
        return run.model_config == self._config(need, run.model_config)

    def _config(self, need: Need, like: Config) -> Config:
        return self.scale.config(need, like.vocab_size)

    def find(self, need: Need, seed: int) -> Run | None:
        """The best run for one seed, whether or not it has got far enough."""
        return next(iter(self.matching(need, seed)), None)

    def reached(self, need: Need, seed: int) -> Run | None:
        """A run that has the epochs asked for, or that diverged on the way there."""
        wanted = self.scale.epochs(need.epochs)
        for run in self.matching(need, seed):
            if epochs_of(run) >= wanted or diverged_at(run) is not None:
                return run
        return None

    def used(self, needs: Iterable[Need]) -> list[Run]:
        """Every run that serves one of the needs, once."""
        found: dict[Any, Run] = {}
        for need in needs:
            for seed in self.scale.seeds(need):
                run = self.reached(need, seed)
                if run is not None:
                    found[run.folder] = run
        return list(found.values())
