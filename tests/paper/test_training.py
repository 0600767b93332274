"""Training what is missing: once, further where it was begun, and a divergence is a result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsn.cli import main
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.needs import Need
from fsn.paper.sections import item_named
from fsn.train import load_run
from fsn.train.sweep import Job
from tests.paper.made_up import bench_of, write_losses, write_run
from tests.paper.tiny import TINY, tiny_bench, train_all

EARLY = Need("transformer", (0,), epochs=1)


def test_a_begun_run_goes_on_and_a_finished_one_is_left(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert train_all(tiny_bench(runs), runs, [EARLY]) == ["transformer-1m-python-stdlib-text-seed0"]
    folder = runs / "transformer-1m-python-stdlib-text-seed0"
    first = load_run(folder)
    assert first.finished and len(first.epochs) == 1
    assert train_all(tiny_bench(runs), runs, [EARLY]) == []
    assert train_all(tiny_bench(runs), runs, [EARLY.after(2)]) == [folder.name]
    further = load_run(folder)
    assert len(further.epochs) == 2 and further.epochs[0]["valid_bits"] == first.epochs[0]["valid_bits"]
    # The same from an archive: the run goes on as a copy, what is archived stays as it is.
    results, again = tmp_path / "results", tmp_path / "again"
    shutil.copytree(folder, results / "kept")
    bench = Bench.open([again, results], TINY, device="cpu")
    bench.standing([EARLY.after(30)]).bring(again)
    assert train_all(bench, again, [EARLY.after(30)]) == [folder.name]
    assert len(load_run(again / folder.name).epochs) == 3 and len(load_run(results / "kept").epochs) == 2


def test_the_command_hands_what_is_missing_to_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Job] = []

    def fake(jobs: list[Job], slots: list[str | None], tell: Any) -> tuple[dict[str, str], int]:
        made.extend(jobs)
        for job in jobs:
            write_run(job.out.parent, needs.NO_BOUND, [10.2], name=job.name)
        return {}, 0

    monkeypatch.setattr("fsn.train.sweep.run_here", fake)
    write_run(tmp_path / "runs", needs.FSN, [1.7])
    monkeypatch.setattr("fsn.paper.sections.needs_of", lambda item: [needs.NO_BOUND])
    main(["reproduce", "ablations", "--run"])
    assert [job.name for job in made] == ["fsn-nobound-1m-enwik8-seed0"]
    assert "10.20" in capsys.readouterr().out, "what was trained is measured"
    main(["reproduce", "ablations", "--run"])
    assert len(made) == 1, "nothing is trained twice"


def test_tiny_texts_are_two_and_their_windows_suffice() -> None:
    tiny = TINY
    text, code = (tiny.load(tiny.corpora[role][0], None) for role in ("text", "code"))
    assert text.sha256 != code.sha256 and text.symbols == code.symbols
    assert tiny.role_of({"name": text.name, "sha256": text.sha256}) == "text"
    assert tiny.role_of({"name": text.name, "sha256": code.sha256}) is None
    assert tiny.role_of({"name": "enwik8", "sha256": "x"}) is None


@pytest.mark.parametrize("fsn", [10, 9])
def test_copy_depth_at_matched_epochs(tmp_path: Path, fsn: int) -> None:
    """The transformer has weights of epoch 10; a model with those of epoch 9 stands beside it, one with 8 does not."""
    bench = bench_of(tmp_path, TINY)
    item = item_named("copy-depth-so-far")
    assert item.compute(bench).state == "missing"
    shapes: dict[str, tuple[Need, int, Callable[[np.ndarray], np.ndarray]]] = {
        "transformer": (needs.REFERENCE, 10, np.ones_like),
        "fsn": (needs.FSN, fsn, lambda d: 1.0 - 0.2 * (d >= 4)),
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
    name = "FSN" if fsn == 10 else "FSN (epoch 9)"
    assert set(found) == {f"{one}, depth {b}" for one in (name, "No phases (epoch 9)") for b in bins}
    assert found[f"{name}, depth 24–32"] == pytest.approx(-0.2, abs=0.02)
    assert found[f"{name}, depth 0–1"] == pytest.approx(0.0, abs=0.02)
    assert result.rows[0].group.startswith("Against epoch 10 of transformer") and len(result.pictures) == 1
    levels = {line["depth"]: line for line in result.tables[0][1].rows}
    margin = levels["24–32"][name] - levels["24–32"]["transformer"]
    assert margin == pytest.approx(found[f"{name}, depth 24–32"])
    assert levels["0–1"]["targets"] == bench.battery("text").counts()[0]
