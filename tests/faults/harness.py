"""What the fault tests share: a tiny run, the worker that makes it, and what must be the same at its end."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.train.tiny import ROOT, environment, flags, text

FLAGS = flags(
    length=16,
    train_stride=64,
    eval_stride=64,
    batch_size=16,
    epochs=2,
    log_steps=1,
    checkpoint_steps=2,
)
MODEL = ["--model", "k=4", "layers=1"]


class Worker:
    """tests/faults/worker.py in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.corpus = folder / "text.txt"
        self.corpus.write_bytes(text(500))
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "faults" / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), "FSN_COMMIT": "none"},  # git would take longer than the run
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def call(self, words: list[str], folder: Path, at: int = -1, error: int = 0) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"words": words, "folder": str(folder), "at": at, "error": error}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def train(self, out: Path, at: int = -1, error: int = 0, *more: str) -> dict[str, Any]:
        words = ["train", "fsn-1m", "--corpus", str(self.corpus), "--out", str(out), *FLAGS, *more, *MODEL]
        return self.call(words, out, at, error)


def is_one_sentence(said: str) -> bool:
    """Whether the output of a command that failed ends with one line for its user, and has no traceback."""
    lines = said.strip().splitlines()
    return bool(lines) and lines[-1].startswith("fsn: ") and "Traceback" not in said


def end_of(run: Path) -> dict[str, str]:
    """The bytes that two runs of one config have in common, by their hash."""
    newest = max((run / "last").glob("step-*"))
    files = [run / "config.yaml", run / "metrics.jsonl", run / "best.safetensors", *run.glob("kernel/*")]
    files += [newest / "weights.safetensors", newest / "optimizer.safetensors"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files} | {"at": newest.name}
