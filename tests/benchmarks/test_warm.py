"""Warming the caches: who does what, what the measuring process then finds, and what may go wrong."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks import step, warm
from fsn.models import fused_stack
from tests.benchmarks.cases import Compiled, Deadly, fsn, transformer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch._inductor.config as inductor

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")
    before = inductor.autotune_local_cache
    yield
    inductor.autotune_local_cache = before


def test_every_part_of_every_row_has_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_stack, "supports", lambda config, device: True)
    cases = [fsn(256), transformer(Compiled, 256), fsn(512), transformer(Compiled, 512), fsn(256, "8m")]
    jobs = warm.plan_jobs(cases, CPU)
    assert [(job.name, job.checks, job.parts) for job in jobs] == [
        ("transformer-1m at T = 256, training", (), ("training",)),
        ("transformer-1m at T = 512, training", (), ("training",)),
        ("fsn-1m at T = 256, 512, steps", ("bf16",), ("training", "evaluation")),
        ("fsn-1m at T = 256, 512, check in fp32", ("fp32",), ()),
        ("fsn-8m at T = 256, steps", ("bf16",), ("training", "evaluation")),
        ("fsn-8m at T = 256, check in fp32", ("fp32",), ()),
        ("transformer-1m at T = 256, evaluation", (), ("evaluation",)),
        ("transformer-1m at T = 512, evaluation", (), ("evaluation",)),
    ]


def test_a_warm_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    arguments = ["--models", "fsn", "transformer", "--lengths", "32", "--warm-jobs", "2"]
    assert step.main([*arguments, "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2 jobs in 2 processes" in shown and "caches are warm after" in shown
    results = json.loads(path.read_text())
    assert set(results["warm_up"]["done"]) == {
        "fsn-1m at T = 32, steps",
        "transformer-1m at T = 32, steps",
    }
    assert not results["warm_up"]["missed"] and not results["warm_up"]["cold"]
    assert [row["model"] for row in results["rows"]] == ["fsn", "transformer"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_what_one_process_compiled_another_finds() -> None:
    warm.share_caches()
    jobs = warm.plan_jobs([transformer(Compiled)], CPU)
    assert [job.parts for job in jobs] == [("training",), ("evaluation",)]
    found = warm.warm(jobs[1:], 1, CPU)
    assert list(found["done"]) == ["transformer-1m at T = 8, evaluation"]
    counters.clear()
    warm.rehearse(jobs[1], CPU)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert not counters["aot_autograd"]["autograd_cache_miss"]
    assert not counters["inductor"]["fxgraph_cache_miss"]


def test_out_of_time() -> None:
    """Processes are ended, and what they were to do is named."""
    found = warm.warm(warm.plan_jobs([fsn(8), fsn(9)], CPU), 1, CPU, seconds=0.0)
    assert found["missed"] == {"fsn-1m at T = 8, 9, steps": "out of time"}
    assert found["cold"] == ["fsn-1m at T = 8", "fsn-1m at T = 9"]
    assert not found["done"] and not multiprocessing.active_children()


def test_a_process_that_dies_is_no_end() -> None:
    job = warm.Job("deadly", (transformer(Deadly),), parts=("training",))
    found = warm.warm([job], 1, CPU)
    assert found["missed"] == {"deadly": "a process died"}
    assert found["cold"] == ["transformer-1m at T = 8"]
