"""Training what is missing: once, further where it was begun, and a divergence is a result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fsn.paper.training as training
from fsn.paper import needs
from fsn.paper.items import item_named
from fsn.paper.needs import Need
from fsn.paper.registry import open_bench
from fsn.paper.scales import scale_named
from fsn.paper.training import train_missing
from fsn.train import NonFinite, load_run
from tests.paper.made_up import TINY, bench_of, write_losses, write_run

EARLY = Need("transformer", (0,), epochs=1)


def test_a_begun_run_goes_on_and_a_finished_one_is_left(tmp_path: Path) -> None:
    runs, said = tmp_path / "runs", list[str]()
    assert train_missing(open_bench("tiny", [runs], "cpu"), [EARLY], runs, said.append) == 1
    folder = runs / "transformer-1m-python-stdlib-text-seed0"
    first = load_run(folder)
    assert first.finished and len(first.epochs) == 1
    assert train_missing(open_bench("tiny", [runs], "cpu"), [EARLY], runs, said.append) == 0
    assert train_missing(open_bench("tiny", [runs], "cpu"), [EARLY.after(2)], runs, said.append) == 1
    further = load_run(folder)
    assert len(further.epochs) == 2 and further.epochs[0]["valid_bits"] == first.epochs[0]["valid_bits"]
    # The same from an archive: the run goes on as a copy, what is archived stays as it is.
    results, again = tmp_path / "results", tmp_path / "again"
    shutil.copytree(folder, results / "kept")
    bench = open_bench("tiny", [again, results], "cpu")
    assert train_missing(bench, [EARLY.after(30)], again, said.append) == 1
    assert len(load_run(again / folder.name).epochs) == 3 and len(load_run(results / "kept").epochs) == 2
    assert not said


def test_a_divergence_is_said_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def fake(model: str, corpus: Any, out: Path, recipe: Any, **more: Any) -> None:
        made.append(model)
        if "nobound" in model:
            raise NonFinite("the loss of step 3 is not finite")

    monkeypatch.setattr(training, "train", fake)
    said: list[str] = []
    bench = open_bench("tiny", [tmp_path], "cpu")
    assert train_missing(bench, [needs.NO_BOUND, EARLY], tmp_path, said.append) == 2
    assert made == ["fsn-nobound-1m", "transformer-1m"]
    assert len(said) == 1 and "diverged" in said[0] and "step 3" in said[0]


def test_folders_say_what_was_replaced() -> None:
    assert training.Missing(needs.DROPOUT, 0, 10).name("enwik8") == "fsn-1m-dropout-0.1-enwik8-seed0"
    assert training.Missing(needs.LONG_FSN, 1, 30).name("x", 512) == "fsn-1m-x-length512-seed1"


def test_tiny_texts_are_two_and_their_windows_suffice() -> None:
    tiny = scale_named("tiny")
    text, code = (tiny.load(tiny.corpora[role][0], None) for role in ("text", "code"))
    assert text.sha256 != code.sha256 and text.symbols == code.symbols
    assert tiny.role_of({"name": text.name, "sha256": text.sha256}) == "text"
    assert tiny.role_of({"name": text.name, "sha256": code.sha256}) is None
    assert tiny.role_of({"name": "enwik8", "sha256": "x"}) is None


def test_copy_depth_at_matched_epochs(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, TINY)
    item = item_named("copy-depth-so-far")
    assert item.compute(bench).state == "missing"
    shapes: dict[str, tuple[Need, int, Callable[[np.ndarray], np.ndarray]]] = {
        "transformer": (needs.REFERENCE, 10, np.ones_like),
        "fsn": (needs.FSN, 10, lambda d: 1.0 - 0.2 * (d >= 4)),
        "fsn-nophase": (needs.NO_PHASES, 9, np.ones_like),
        "kuramoto": (needs.KURAMOTO, 8, np.ones_like),
    }
    for need, best, shape in shapes.values():  # two epochs after the best
        losses = [*(5.0 - 0.1 * epoch for epoch in range(best)), 5.0, 5.0]
        run = write_run(tmp_path, need, losses, scale=TINY, weights=need.family.encode())
        write_losses(run, "text", bench, shape)
    result = item.compute(bench_of(tmp_path, TINY))
    found = {row.quantity: row.ours for row in result.rows}
    bins = ("0–1", "2–3", "4–7", "8–15", "16–23", "24–32")
    assert set(found) == {f"{name}, depth {b}" for name in ("FSN", "No phases (epoch 9)") for b in bins}
    assert found["FSN, depth 24–32"] == pytest.approx(-0.2, abs=0.02)
    assert found["FSN, depth 0–1"] == pytest.approx(0.0, abs=0.02)
    assert result.rows[0].group.startswith("Epoch 10, against transformer") and len(result.pictures) == 1
    levels = {line["depth"]: line for line in result.tables[0][1].rows}
    assert levels["24–32"]["FSN"] - levels["24–32"]["transformer"] == pytest.approx(found["FSN, depth 24–32"])
    assert levels["0–1"]["targets"] == bench.battery("text").counts()[0]
