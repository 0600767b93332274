"""environment.json: which commit a run says it was made from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import fsn
from fsn.train.world import commit

ROOT = Path(fsn.__file__).resolve().parents[2]


def test_whoever_copied_the_tree_knows_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSN_COMMIT", "0123abc")
    assert commit() == {"commit": "0123abc", "modified": None}


def test_else_the_history_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FSN_COMMIT", raising=False)
    if not (ROOT / ".git").exists():
        assert commit() == {"commit": None, "modified": None}
        return
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert commit()["commit"] == (done.stdout.strip() if done.returncode == 0 else None)
