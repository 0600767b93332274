"""One process and two give the same curve at the same global batch."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsn.data import Windows
from fsn.errors import UserError
from fsn.train import load_run, train
from fsn.train.world import World, open_world
from tests.train.tiny import (
    MODELS,
    ROOT,
    TINY_FLAGS,
    corpus,
    environment,
    fsn_command,
    kill,
    lines,
    recipe,
    text,
    wait_for,
)

ODD: dict[str, Any] = {"batch_size": 67, "drop_last": False, "epochs": 6, "max_steps": 18, "log_steps": 1}
ODD["warmup_steps"] = 7
"""67 windows do not divide by two, and 202 of them leave one window for the last batch of an epoch: nothing
at all for one of two processes."""


def test_the_shares_cover_the_batch_once() -> None:
    for size in (1, 2, 3, 7):
        for batch in (1, 2, 7, 64):
            rows = [row for rank in range(size) for row in World(rank, size).rows(batch)]
            assert rows == list(range(batch))


def test_two_processes_follow_one(tmp_path: Path) -> None:
    """FSN and transformer, dropout on, batches that do not divide, resumed half way: losses to 1e-5.

    The two compute their shares in four parts each, the one all at once.
    """
    r = recipe(**ODD)
    whole = corpus()
    n = len(Windows(whole.train, r.length, r.train_stride))
    assert n % r.batch_size == 1 and r.steps_per_epoch(n) * 2 < ODD["max_steps"] // 2
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, str(ROOT / "tests" / "train" / "two_processes.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[:4000]
    assert (tmp_path / "refused-0").exists() and (tmp_path / "refused-1").exists()
    for preset, overrides in MODELS.items():
        one = train(preset, whole, tmp_path / f"{preset}-one", r, overrides=overrides, quiet=True)
        two = load_run(tmp_path / f"{preset}-two")
        assert two.finished and two.environment["processes"] == 2
        assert len(two.environment["earlier"]) == 1
        a, b = (lines(run.folder, "step") for run in (one, two))
        assert [x["step"] for x in a] == [x["step"] for x in b] == list(range(1, ODD["max_steps"] + 1))
        assert [x["loss_bits"] for x in b] == pytest.approx([x["loss_bits"] for x in a], rel=1e-5)
        assert [x["grad_norm"] for x in b] == pytest.approx([x["grad_norm"] for x in a], rel=1e-3)
        for x, y in zip(one.epochs, two.epochs, strict=True):
            assert x["step"] == y["step"]
            for name in ("train_loss_bits", "valid_bits", "valid_bits_second_half"):
                assert y[name] == pytest.approx(x[name], rel=1e-5), (preset, x["epoch"], name)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"RANK": "abc"}, "the environment variable RANK is 'abc'; it takes a whole number"),
        ({"WORLD_SIZE": "-1"}, "the environment variable WORLD_SIZE is '-1'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2 and WORLD_SIZE 2"),
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            "the processes do not find each other .* start them with torchrun",
        ),
    ],
)
def test_an_environment_that_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], sentence: str
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=sentence), open_world("cpu"):
        raise AssertionError("there is no such world")


def test_a_killed_process_is_one_sentence_in_the_other(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["train", "fsn-1m", "--corpus", tmp_path / "text.txt", *TINY_FLAGS, "--epochs", "5000"]
    words += ["--model", "k=8", "layers=1", "--out", tmp_path / "run"]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first, second = (
        subprocess.Popen(
            fsn_command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), **group, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in ("0", "1")
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, first, 120)
    kill(second)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 2 and "Traceback" not in said, said
    assert "another process of this run has ended" in said.splitlines()[-1]
    assert load_run(tmp_path / "run").step > 0
