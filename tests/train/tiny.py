"""A small text and small models, for tests that train."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsn.data import Corpus
from fsn.train import Recipe
from fsn.train.optimizer import FlatParameters

ROOT = Path(__file__).resolve().parents[2]

MODELS: dict[str, dict[str, Any]] = {
    "fsn-1m": {"k": 16, "layers": 2, "dropout": 0.1},
    "transformer-1m": {"width": 16, "layers": 2, "dropout": 0.1},
}


def text(words: int = 700, seed: int = 0) -> bytes:
    source = random.Random(seed)
    vocabulary = ["phase", "gate", "lag", "field", "omega", "theta", "kernel", "winding", "the", "a", "of"]
    return " ".join(source.choice(vocabulary) for _ in range(words)).encode()


def corpus(words: int = 700) -> Corpus:
    return Corpus.from_bytes("tiny", text(words))


def recipe(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "length": 32,
        "train_stride": 16,
        "eval_stride": 16,
        "batch_size": 8,
        "epochs": 2,
        "log_steps": 5,
    }
    return Recipe(**{**fields, **changes})


def flags(**fields: Any) -> list[str]:
    """Recipe fields as options of ``fsn train``."""
    words: list[str] = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


TINY_FLAGS = flags(length=32, train_stride=16, eval_stride=16, batch_size=8, epochs=2, log_steps=5)


def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def fsn_command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "fsn", *map(str, words)]


def call(*words: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run ``fsn`` in a process of its own."""
    return subprocess.run(
        fsn_command(*words), capture_output=True, text=True, env=environment(), timeout=timeout, check=False
    )


def start(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        fsn_command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    """Wait until ``condition`` holds while ``process`` runs."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"the process ended early: {process.communicate()}")
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError("nothing happened in time")
        time.sleep(0.002)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def lines(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if kind is None or line["kind"] == kind]


def unhashed(folder: Path) -> Path:
    """A run folder as it was made before there were hashes."""
    (folder / "hashes.json").unlink()
    return folder


TIMES = ("tokens_per_s", "eval_tokens_per_s", "train_s", "valid_s", "cumulative_s", "peak_memory_gb")


def timeless(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines without the fields that say how long something took."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in found]


def still_flat(flat: FlatParameters) -> bool:
    """Whether every parameter and gradient is still a view into its vector (nobody replaced one)."""
    return all(
        p.data_ptr() == flat.view(flat.values, n).data_ptr()
        and p.grad is not None
        and p.grad.data_ptr() == flat.view(flat.gradient, n).data_ptr()
        for n, p in flat.parameters.items()
    )
