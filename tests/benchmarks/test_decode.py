"""The decoding benchmark runs, checks what it times, and says what was kept."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import fsn
from benchmarks import decode, floor
from fsn.models import FSNConfig

ROOT = Path(__file__).resolve().parents[2]


def test_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert decode.main(["--cases", "1", "--seconds", "0.05", "--json", str(tmp_path / "d.json")]) == 0
    finally:
        torch.set_num_threads(threads)
    (row,) = json.loads((tmp_path / "d.json").read_text())["rows"]
    assert row["kept"] == {"fsn": 9 * 176, "fsn, lean": 2 * 176, "transformer": 2 * 120}
    assert 1.7 < row["products"] < 1.8
    said = capsys.readouterr().out
    assert all(value > 0 for value in row["ms"].values()) and "products: the ratio" in said


def test_the_pages_table_is_the_logs() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "site" / "decode_table.py"))
    page = made["PAGE"].read_text("utf-8")
    rows = json.loads(made["NUMBERS"].read_text("utf-8"))["rows"]
    remedy = "python docs/site/decode_table.py brings docs/hub.md up to date"
    assert made["fill"](page, rows).splitlines() == page.splitlines(), remedy
    log = made["NUMBERS"].with_suffix(".txt").read_text("utf-8")
    for row in rows:
        times = (f"{row['ms'][way]:.3f}" for way in ("fsn", "fsn, lean", "transformer"))
        assert f"{row['batch']:>5}{row['read']:>6}" + "".join(f"{t:>14}" for t in times) in log


def test_wrong_logits_get_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "CLOSE", -1.0)
    with pytest.raises(SystemExit, match="logits differ"):
        decode.main(["--cases", "1", "--seconds", "0"])


@pytest.mark.parametrize("family", ["fsn", "fsn-noharmonics", "transformer"])
def test_products_of_a_symbol_are_those_that_are_made(family: str) -> None:
    model = fsn.build(f"{family}-1m", vocab_size=205).eval()
    config = model.config
    tokens = torch.zeros(1, 20, dtype=torch.long)
    cache = model.new_cache()
    with torch.no_grad():
        model.extend(tokens[:, :-1], cache)
        with FlopCounterMode(display=False) as counter:
            model.extend(tokens[:, -1:], cache)
    itself = 4 * config.layers * config.coupling.harmonics * config.k if isinstance(config, FSNConfig) else 0
    assert counter.get_total_flops() == floor.symbol_flops(config, 19) - itself  # nobody is pulled by itself
