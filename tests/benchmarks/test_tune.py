"""Tuning: the best right candidate wins if it saves more than noise, and ends up in the file of shapes."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The search with made-up times: those of shapes that are on the list, one otherwise."""
    from benchmarks import tune

    listed = {
        ("COUPLE", (64, 64, 32, 4, 2)): 0.8,
        ("COUPLE", (64, 64, 16, 4, 3)): 0.5,
        ("SCORE_ROWS", 2): 0.996,
    }
    listed |= {("SCORE_ROWS", 1): 0.9, ("COUPLE", (64, 32, 32, 4, 3)): 0.7}
    asked: list[Any] = []

    def wrong(change: Any, lengths: tuple[int, ...], device: torch.device) -> str | None:
        asked.append(change)
        if change == ("COUPLE", (64, 32, 32, 4, 3)):
            raise RuntimeError("out of resource: shared memory\nand more")
        return "the update is off" if change == ("COUPLE", (64, 64, 16, 4, 3)) else None

    def times(self: Any, lengths: tuple[int, ...], change: Any) -> list[float]:
        now = dict(self.best) | dict([change] if change else [])
        share = 1.0
        for item in now.items():
            share *= listed.get(item, 1.0)
        return [share] * max(1, len(lengths))

    monkeypatch.setattr(tune, "wrong", wrong)
    monkeypatch.setattr(tune.Tuning, "times", times)
    monkeypatch.setattr(tune, "step_time", lambda *args: 1.0)
    monkeypatch.setattr(tune, "choose_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(tune.fused, "interpreting", lambda: True)

    def run(*arguments: str) -> dict[str, Any]:
        path = tmp_path / "best.json"
        assert tune.main(["--json", str(path), *arguments]) == 0
        return json.loads(path.read_text()) | {"asked": asked}

    return run


def test_the_best_right_candidate_wins_if_it_saves_more_than_noise(
    search: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search("--only", "COUPLE", "SCORE_ROWS", "FOLDED_ROWS")
    assert found["best"] == {"COUPLE": [64, 64, 32, 4, 2], "SCORE_ROWS": 1}
    assert found["left out"]["COUPLE = (64, 64, 16, 4, 3)"] == "the update is off"
    assert found["left out"]["COUPLE = (64, 32, 32, 4, 3)"] == "RuntimeError: out of resource: shared memory"
    assert "left out: COUPLE" in capsys.readouterr().out


def test_no_time_is_no_candidate(search: Any) -> None:
    found = search("--only", "SCORE_ROWS", "--seconds", "0.5")
    assert found["best"] == {} and not found["asked"]


def test_shapes_are_written_and_those_not_named_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import tune
    from fsn.ops.fused import tiles

    file, found = tmp_path / "tiles.py", tmp_path / "best.json"
    shutil.copy(tiles.__file__, file)
    monkeypatch.setattr(tiles, "NARROW", {"STRIP": tiles.Strip(16, 64, 1, 4)})
    found.write_text(
        json.dumps({"best": {"SCORE_ROWS": 8, "COUPLE": [64, 64, 32, 4, 2], "rows.update": [8, 4]}})
    )
    tune.apply(found, file)
    spec = importlib.util.spec_from_file_location("fsn.ops.fused.written", file)
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, spec.name, written)
    spec.loader.exec_module(written)
    assert written.SCORE_ROWS == 8 and written.SCORE_STEPS == tiles.SCORE_STEPS
    assert written.shape("COUPLE", 64) == written.Tile(64, 64, 32, 4, 2)
    assert written.shape("COUPLE", 176) == written.COUPLE == written.Tile(*vars(tiles.COUPLE).values())
    assert written.row_shape("update", 64) == (64, 8, 4)
    assert written.shape("STRIP", 64) == written.Strip(16, 64, 1, 4)


def test_a_file_of_another_kind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import tune

    path = tmp_path / "other.json"
    path.write_text("{}")
    assert tune.main(["--apply", str(path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
