"""The decoding benchmark runs, checks what it times, and says what was kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import decode


def test_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert decode.main(["--cases", "1", "--seconds", "0.05", "--json", str(tmp_path / "d.json")]) == 0
    finally:
        torch.set_num_threads(threads)
    (row,) = json.loads((tmp_path / "d.json").read_text())["rows"]
    assert row["kept"] == {"fsn": 9 * 176, "fsn, lean": 2 * 176, "transformer": 2 * 120}
    assert all(value > 0 for value in row["ms"].values()) and "transformer" in capsys.readouterr().out


def test_wrong_logits_get_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "CLOSE", -1.0)
    with pytest.raises(SystemExit, match="logits differ"):
        decode.main(["--cases", "1", "--seconds", "0"])
