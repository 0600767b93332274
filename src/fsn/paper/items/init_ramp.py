"""The init ramp: how the feed-forward block's raw output grows with depth before any training."""

from __future__ import annotations

import torch

import fsn
from fsn.data import Windows
from fsn.measure import SeedSummary, seed_summary
from fsn.measure.losses import evaluating
from fsn.nn import record
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.rows import compute
from fsn.paper.values import Cited, cite, macro

SEEDS = (0, 1, 2)
WINDOWS = 16


def ramps(bench: Bench) -> list[tuple[float, float]]:
    """RMS of the raw feed-forward output in the first and last layer of a fresh model, per seed."""
    corpus = bench.corpus("text")
    windows = Windows(corpus.train, 256, 256)
    tokens = windows.gather(torch.arange(min(WINDOWS, len(windows))))[:, :-1]
    found = []
    for seed in SEEDS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = fsn.build("fsn-nophase-1m", vocab_size=corpus.vocab_size)
        with evaluating(model), record(model, "layers.*.feedforward.raw") as points:
            model(tokens)
        last = len(model.layers) - 1  # type: ignore[arg-type]
        first_rms, last_rms = (
            points[f"layers.{i}.feedforward.raw"].double().pow(2).mean().sqrt().item() for i in (0, last)
        )
        found.append((first_rms, last_rms))
    return found


def growth(bench: Bench) -> SeedSummary:
    """Last layer over first layer."""
    found = bench.memo("ramp", lambda: ramps(bench))
    return seed_summary([b / a for a, b in found])


def compute_item(bench: Bench) -> Result:
    def layer(index: int) -> SeedSummary:
        return seed_summary([pair[index] for pair in bench.memo("ramp", lambda: ramps(bench))])

    paper: tuple[Cited, Cited] = cite("init_ramp", "layer0"), cite("init_ramp", "layer3")
    return Result(
        rows=[
            compute(
                bench, "RMS of the raw feed-forward output, first layer", paper[0], lambda: layer(0), ".6f"
            ),
            compute(
                bench, "RMS of the raw feed-forward output, last layer", paper[1], lambda: layer(1), ".6f"
            ),
            compute(bench, "growth from first to last layer", macro("rmsRamp"), lambda: growth(bench), ".1f"),
        ],
        notes=[
            "The paper's text speaks of the state the block reads; a note in its source gives these values "
            "for the block's raw output, which is what is measured here: fsn-nophase-1m, untrained, seeds "
            f"{', '.join(map(str, SEEDS))}, {WINDOWS} windows of 255 tokens of "
            f"{bench.library.corpus_name('text')}."
        ],
    )


ITEM = Item(
    "init-ramp",
    "The init ramp",
    "Section 2.4",
    "Scale of the feed-forward block's raw output through depth at initialization. Needs a text, no run.",
    compute_item,
    roles=("text",),
)
