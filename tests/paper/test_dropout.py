"""What dropout does to copying: our margins and the paper's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fsn.measure import Table
from fsn.paper import needs
from fsn.paper.bench import BIN_NAMES
from fsn.paper.needs import Need
from fsn.paper.sections import beyond, item_named
from tests.paper.made_up import bench_of, write_losses, write_run
from tests.paper.tiny import TINY


def test_dropout_beside_the_papers_margins(tmp_path: Path) -> None:
    item = item_named("dropout")
    bench = bench_of(tmp_path, TINY)
    shapes: dict[Need, Callable[[np.ndarray], np.ndarray]] = {
        needs.TRANSFORMER.seed(0): np.ones_like,
        needs.TRANSFORMER_DROPOUT: lambda d: 1.0 + 0.5 * (d >= 2),
        beyond.DROPOUT_FSN[1]: lambda d: 1.0 - 0.1 * (d < 2),
        beyond.DROPOUT_FSN[2]: lambda d: 1.0 - 0.2 * (d >= 4),
        beyond.DROPOUT_KURAMOTO[1]: lambda d: 1.0 + 0.3 * (d >= 4),
        beyond.DROPOUT_KURAMOTO[2]: lambda d: 1.0 + 0.1 * (d >= 4),
    }
    drawn: list[int] = []
    for need, shape in shapes.items():
        before = item.compute(bench_of(tmp_path, TINY))
        assert before.state != "measured"
        drawn.append(len(before.pictures))
        run = write_run(
            tmp_path,
            need,
            [5.0, 4.9, 4.8][: TINY.epochs(need.epochs)],
            scale=TINY,
            weights=repr(need).encode(),
            valid_precision="bf16",
        )
        write_losses(run, "text", bench, shape)
    assert drawn == [0, 0, 0, 0, 1, 1], (
        "a picture as soon as both runs of a pair are there, and the transformers"
    )
    bench = bench_of(tmp_path, TINY)
    result = item.compute(bench)
    found = {row.quantity: row for row in result.rows}
    assert len(found) == 36 and result.state == "measured" and len(result.pictures) == 2
    expected = {
        "FSN, no dropout": (-0.1, 0.0),
        "FSN, no dropout, transformer of 50 epochs": (-0.1, 0.0),  # at this scale the same run
        "FSN, dropout 0.1": (0.0, -0.7),
        "Kuramoto attention, no dropout": (0.0, 0.3),
        "Kuramoto attention, dropout 0.1": (0.0, -0.4),
    }
    assert not any(row.rounded for row in found.values()), "margins are of weights, in float32"
    for name, (new, copied) in expected.items():
        assert found[f"{name}, depth 0–1"].ours == pytest.approx(new, abs=0.02)
        assert found[f"{name}, depth 24–32"].ours == pytest.approx(copied, abs=0.02)


@pytest.mark.parametrize(
    ("pair", "mean", "least", "most"),
    [(beyond.DROPOUT_FSN, -0.0720, -0.0799, -0.0617), (beyond.DROPOUT_KURAMOTO, 0.0349, 0.0013, 0.0895)],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_the_papers_seeds_stand_beside_ours(
    pair: beyond.Pair, mean: float, least: float, most: float
) -> None:
    line = {"run": "ours", "tokens": 10, "margin": 0.5, "loss": 1.0}
    ours = Table((*line, "bin"), [line | {"bin": name} for name in BIN_NAMES])
    drawn = beyond.beside_the_paper(ours, pair)
    paper = drawn.where(family=f"{pair[0]} in the paper", bin="4–7").rows[0]
    assert (paper["seeds"], paper["min"], paper["max"]) == (3, least, most)
    assert paper["mean"] == pytest.approx(mean, abs=1e-4), "the seeds are those of the mean"
    assert len(drawn) == 12
