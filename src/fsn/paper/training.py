"""Training what is missing: the runs an item needs, made one after the other in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fsn.paper.bench import Bench
from fsn.paper.library import epochs_of
from fsn.paper.needs import Need
from fsn.progress import Bar
from fsn.train import NonFinite, Recipe, Run, train


@dataclass(frozen=True)
class Missing:
    """A run to be made, or to be taken further: ``begun`` is the folder it has so far."""

    need: Need
    seed: int
    epochs: int
    begun: Run | None = None

    def name(self, corpus: str, length: int | None = None) -> str:
        """``fsn-1m-enwik8-seed0``; ``length`` is named where it is not the usual one."""
        changed = [f"{name}-{value}" for name, value in self.need.overrides]
        long = [f"length{length}"] if length is not None else []
        short = [f"{self.epochs}epochs"] if self.need.exact else []
        parts = [self.need.family, self.need.size, *changed, corpus, *long, *short, f"seed{self.seed}"]
        return "-".join(parts)


def missing_runs(bench: Bench, needs: Sequence[Need]) -> list[Missing]:
    """What must be trained for some needs: each run once, for the most epochs any of them asks."""
    found = []
    for (need, seed), epochs in bench.distinct(needs).items():
        whole = dataclasses.replace(need, seeds=(seed,), epochs=epochs)
        if bench.library.reached(whole, seed) is None:
            found.append(Missing(whole, seed, bench.epoch(epochs), bench.library.find(whole, seed)))
    return found


def folder_of(bench: Bench, one: Missing, runs: Path) -> Path:
    """Where a run goes: on with what it has in ``runs``, else into a folder named by what it is."""
    if one.begun is not None and runs.resolve() in one.begun.folder.resolve().parents:
        return one.begun.folder
    corpus = bench.library.corpus_name(one.need.role)
    length = bench.scale.length(one.need.length) if one.need.length != 256 else None
    return runs / one.name(corpus, length)


def command(bench: Bench, one: Missing, runs: Path) -> str:
    """The ``fsn train`` command that makes a run at the paper's scale."""
    recipe, standard = bench.scale.recipe(one.need, one.seed), Recipe()
    words = ["fsn", "train", f"{one.need.family}-{one.need.size}"]
    words += ["--corpus", bench.library.corpus_name(one.need.role), "--out", str(folder_of(bench, one, runs))]
    for name in ("length", "epochs", "seed"):
        if getattr(recipe, name) != getattr(standard, name) or name == "seed":
            words += [f"--{name}", str(getattr(recipe, name))]
    if one.need.overrides:
        words += ["--model", *(f"{name}={value}" for name, value in one.need.overrides)]
    if one.begun is not None:
        words.append("--extend")
    return shlex.join(words)


def train_missing(
    bench: Bench, needs: Sequence[Need], runs: Path, say: Callable[[str], None], quiet: bool = False
) -> int:
    """Train the missing runs of some needs; returns how many there were. A run that diverges is a result."""
    jobs = missing_runs(bench, needs)
    tiny = bench.scale.name == "tiny"
    with _one_thread(tiny), Bar("runs", total=len(jobs)) if tiny else contextlib.nullcontext() as bar:
        for one in jobs:
            out = folder_of(bench, one, runs)
            _bring(one, out)
            corpus = bench.scale.load(bench.library.corpus_name(one.need.role), bench.cache)
            try:
                train(
                    f"{one.need.family}-{one.need.size}",
                    corpus,
                    out,
                    bench.scale.recipe(one.need, one.seed),
                    overrides=bench.scale.overrides(one.need),
                    extend=True,
                    device="cpu" if tiny else bench.device,
                    quiet=quiet or tiny,
                )
            except NonFinite as lost:
                say(f"{out.name} diverged: {lost}")
            if bar is not None:
                bar.update(1, run=out.name)
    return len(jobs)


def _bring(one: Missing, out: Path) -> None:
    """A half-done run that lies elsewhere, with all a resume needs, goes on as a copy in ``out``."""
    if one.begun is None or out.exists() or one.begun.folder == out:
        return
    if (one.begun.folder / "last").is_dir() and epochs_of(one.begun):
        shutil.copytree(one.begun.folder, out, ignore=shutil.ignore_patterns("lock"))


@contextlib.contextmanager
def _one_thread(wanted: bool) -> Iterator[None]:
    """Tiny models gain nothing from a second thread."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
