"""The CPU's step is timed beside the transformer's, and not at all where its gradients are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import step_cpu
from fsn.ops import cpu

SMALL = ["--batches", "2", "--length", "12", "--repetitions", "1"]


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert step_cpu.main([*SMALL, "--json", str(tmp_path / "s.json")]) == 0
    (row,) = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert set(row["ms"]) == set(step_cpu.WAYS) and all(value > 0 for value in row["ms"].values())
    said = capsys.readouterr().out
    assert "ratio" in said and "(products: " in said


def test_wrong_gradients_get_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = cpu._fields_backward
    monkeypatch.setattr(cpu, "_fields_backward", lambda *arguments: 1.01 * right(*arguments))
    assert step_cpu.main(SMALL) == 1
    said = capsys.readouterr()
    assert "got no time" in said.err and "ratio" not in said.out
