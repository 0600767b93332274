"""The workbench: finds the runs an item or a claim asks for and keeps what was measured on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fsn.data import Corpus
from fsn.errors import UserError
from fsn.measure import Battery, CopyDepth, KernelReading, battery, label_corpus, read_kernel, run_losses
from fsn.measure.runs import check_comparable
from fsn.paper.library import Library, epochs_of, setting_of
from fsn.paper.needs import Need
from fsn.paper.scales import Label, Scale
from fsn.paper.tokens import stored_losses
from fsn.train import Run
from fsn.train.world import choose_device

T = TypeVar("T")


class NotRun(UserError):
    """A statement that cannot be judged yet, because runs it rests on do not exist."""


@dataclass
class Standing:
    """Where the runs of some needs stand: there, begun, or missing."""

    there: list[Label] = field(default_factory=list)
    begun: list[tuple[Label, int]] = field(default_factory=list)
    missing: list[Label] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.begun and not self.missing

    @property
    def total(self) -> int:
        return len(self.there) + len(self.begun) + len(self.missing)

    def absent(self) -> str:
        """What is not there yet, in words: seeds of one model together."""
        groups: dict[tuple[Label, str], list[int]] = {}
        absent = [(label, f" (has {epochs})") for label, epochs in self.begun]
        absent += [(label, "") for label in self.missing]
        for label, have in absent:
            groups.setdefault((replace(label, seed=-1), have), []).append(label.seed)
        return "; ".join(f"{label.words(seeds)}{have}" for (label, have), seeds in groups.items())


@dataclass
class Bench:
    """Runs, texts and measurements, each made once."""

    library: Library
    device: str = "auto"
    cache: Path | None = None
    fetch: bool = False
    """Whether a corpus that is not at hand may be fetched."""
    _kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def scale(self) -> Scale:
        return self.library.scale

    def memo(self, key: Any, make: Callable[[], T]) -> T:
        """``make()``, once for each key; an error is made once too."""
        if key not in self._kept:
            try:
                self._kept[key] = (True, make())
            except UserError as error:
                self._kept[key] = (False, error)
        fine, value = self._kept[key]
        if not fine:
            raise value
        kept: T = value
        return kept

    # -- runs ----------------------------------------------------------------------------------------------

    def epoch(self, epochs: int) -> int:
        """The paper's epoch at this scale."""
        return self.scale.epochs(epochs)

    def label(self, need: Need, seed: int) -> Label:
        corpus, length = self.library.corpus_name(need.role), self.scale.length(need.length)
        return Label(need.model, corpus, seed, self.epoch(need.epochs), length)

    def standing(self, needs: Sequence[Need]) -> Standing:
        """Which of the runs are there; a run that several needs ask for counts once, at its most epochs."""
        standing = Standing()
        for (need, seed), epochs in self.distinct(needs).items():
            whole = replace(need, seeds=(seed,), epochs=epochs)
            label, run = self.label(whole, seed), self.library.find(whole, seed)
            if self.library.reached(whole, seed) is not None:
                standing.there.append(label)
            elif run is not None:
                standing.begun.append((label, epochs_of(run)))
            else:
                standing.missing.append(label)
        return standing

    def distinct(self, needs: Sequence[Need]) -> dict[tuple[Need, int], int]:
        """Every run some needs ask for, by what it is and its seed, with the most epochs asked of it."""
        wanted: dict[tuple[Need, int], int] = {}
        for need in needs:
            for seed in self.scale.seeds(need):
                key = (replace(need, seeds=(), epochs=need.epochs if need.exact else 0), seed)
                wanted[key] = max(wanted.get(key, 0), need.epochs)
        return wanted

    def by_seed(self, need: Need) -> dict[int, Run]:
        """The runs that are there, by seed."""
        found = {seed: self.library.reached(need, seed) for seed in self.scale.seeds(need)}
        return {seed: run for seed, run in found.items() if run is not None}

    def runs(self, need: Need) -> list[Run]:
        """The runs that are there, at least one; :class:`NotRun` says what to train otherwise."""
        found = list(self.by_seed(need).values())
        if not found:
            raise NotRun(f"missing: {self.standing([need]).absent()}")
        check_comparable(found)
        return found

    def run(self, need: Need) -> Run:
        """The one run of a need with one seed."""
        return self.runs(need)[0]

    def begun(self, need: Need) -> list[Run]:
        """The runs that are there or on their way, as far as they are."""
        found = [self.library.find(need, seed) for seed in self.scale.seeds(need)]
        return [run for run in found if run is not None and epochs_of(run)]

    # -- texts ---------------------------------------------------------------------------------------------

    def corpus(self, role: str) -> Corpus:
        """The text of a role. It is fetched only if that was allowed."""
        return self.memo(("corpus", role), lambda: self._load(role))

    def _load(self, role: str) -> Corpus:
        names = [self.library.corpus[role]] if role in self.library.corpus else self.scale.corpora[role]
        for name in names:
            if self.scale.at_hand(name, self.cache):
                return self.scale.load(name, self.cache)
        if not self.fetch:
            raise NotRun(f"the text {names[0]} is not here; --fetch gets it")
        return self.scale.load(names[0], self.cache)

    def labels(self, role: str) -> CopyDepth:
        """Copy depth of every validation target of a role's text."""
        length = self.scale.length(256)
        return self.memo(
            ("labels", role),
            lambda: label_corpus(
                self.corpus(role), "valid", length, self.scale.depth_stride, cache=self.cache
            ),
        )

    def battery(self, role: str) -> Battery:
        """The standard and the enriched slice of a role's text."""
        return self.memo(
            ("battery", role),
            lambda: battery(self.labels(role), self.scale.standard, self.scale.enriched),
        )

    # -- measurements --------------------------------------------------------------------------------------

    def losses(self, run: Run, role: str) -> NDArray[np.float32]:
        """Bits of every target of the battery under a run's best weights."""

        def measure() -> NDArray[np.float32]:
            with contextlib.suppress(NotRun):
                stored = stored_losses(run, self.battery(role))
                if stored is not None:
                    return stored
            device = choose_device(self.device)
            return run_losses(run, self.corpus(role), self.battery(role), device=device, cache=self.cache)

        return self.memo(("losses", run.folder), measure)

    def model(self, run: Run) -> nn.Module:
        return self.memo(("model", run.folder), lambda: run.load_model("best"))

    def reading(self, run: Run) -> KernelReading:
        """The kernel of a run's best weights."""
        return self.memo(("kernel", run.folder), lambda: read_kernel(self.model(run), run.name))

    def same_setting(self, *groups: Sequence[Run]) -> None:
        """Stop a comparison of seconds that were not measured alike."""
        settings = sorted({setting_of(run) for group in groups for run in group})
        if len(settings) > 1:
            raise NotRun(
                f"timed in different settings ({'; '.join(settings)}), so seconds cannot be compared; "
                "train these runs on one device with one precision and engine"
            )
