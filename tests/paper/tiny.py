"""The paper in miniature: every run takes about a second on one core.

Text and code are two halves of the running Python's standard library. The runs learn next to nothing; what is shown
is that every table, figure and claim can be made from run folders.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from fsn import data
from fsn.data import Corpus
from fsn.paper.bench import Bench
from fsn.paper.needs import Need, Scale
from fsn.paper.sections import needs_of
from fsn.paper.writing import make_report, write_report
from fsn.train import NonFinite, Recipe, train


class TinyScale(Scale):
    name = "tiny"
    corpora: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("python-stdlib-text",),
        "code": ("python-stdlib-code",),
    }
    standard, enriched = 96, 32

    WIDTHS: ClassVar[dict[str, tuple[int, int]]] = {
        "1m": (12, 8),
        "2m": (16, 12),
        "4m": (20, 16),
        "8m": (24, 20),
    }
    """Phases of the FSN and width of the transformer."""
    LAYERS = 2
    TRAIN, VALID = 1_400, 96_000
    """Symbols of the training and validation parts."""

    def epochs(self, epochs: int) -> int:
        return 3 if epochs > 14 else min(epochs, 2)

    def overrides(self, need: Need) -> dict[str, Any]:
        k, width = self.WIDTHS[need.size]
        size = {"width": width} if need.family.startswith("transformer") else {"k": k}
        return {**size, "layers": self.LAYERS, **dict(need.overrides)}

    @functools.cache  # noqa: B019 (there is one object of this class)
    def recipe(self, need: Need, seed: int) -> Recipe:
        return Recipe(
            lr=4e-3,
            length=need.length,
            train_stride=64,
            eval_stride=6000,
            batch_size=8,
            epochs=self.epochs(need.epochs),
            seed=seed,
            log_steps=10,
            precision="fp32",
            engine="eager",
        )

    def role_of(self, corpus: Mapping[str, Any]) -> str | None:
        for role, names in self.corpora.items():
            if corpus.get("name") in names and corpus.get("sha256") == self.load(names[0], None).sha256:
                return role
        return None

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


TINY = TinyScale()


def tiny_bench(runs: Path, cache: Path | None = None) -> Bench:
    return Bench.open([runs], TINY, device="cpu", cache=cache, fetch=True)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_all(bench: Bench, runs: Path, needs: list[Need]) -> list[str]:
    """Make the jobs that ``fsn reproduce --run`` would hand to a sweep, in this process; returns their names."""
    jobs = bench.standing(needs).jobs(runs)
    for job in jobs:
        with one_thread(), contextlib.suppress(NonFinite):
            train(
                job.preset,
                TINY.load(job.corpus, None),
                job.out,
                job.recipe,
                overrides=job.model,
                extend=job.extend,
                device="cpu",
                quiet=True,
            )
    return [job.name for job in jobs]


def reproduce(folder: Path) -> None:
    """Every run, table, figure and claim, in ``folder``."""
    runs = folder / "runs"
    train_all(tiny_bench(runs), runs, needs_of())
    bench = tiny_bench(runs, folder / "cache")
    bench.notes.append(
        "A test of the machinery: tiny models, a few dozen steps, the Python library as text. "
        "Its values and verdicts say nothing about the paper."
    )
    write_report(make_report(bench), folder)
