"""The layer's speed: measured after a check, and not at all where the check fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import layer


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "choose_device", lambda name: torch.device("cpu"))


def test_both_blocks_are_checked_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layer.json"
    assert layer.main(["--lengths", "16", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert [row["block"] for row in found["rows"]] == ["fsn", "attention"]
    for row in found["rows"]:
        assert row["ok"] and row["forward"] > 0 and row["training"] > 0
    assert "1.00" in capsys.readouterr().out


def test_a_wrong_path_gets_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = layer.Attention.forward

    def wrong(self: layer.Attention, x: Tensor) -> Tensor:
        return exact(self, x) * (1.0 if x.dtype == torch.float64 else 1.01)

    monkeypatch.setattr(layer.Attention, "forward", wrong)
    path = tmp_path / "layer.json"
    assert layer.main(["--lengths", "16", "--json", str(path)]) == 1
    ours, other = json.loads(path.read_text())["rows"]
    assert ours["ok"] and not other["ok"] and "training" not in other
    said = capsys.readouterr()
    assert "no time" in said.out and "attention at T = 16" in said.err
