"""The examples on training run as they stand, with fewer steps."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fsn.cli import main
from tests.test_readme import commands, run_code

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("own_text.py", ["--steps", "3"], ["bits per symbol", "The "]),
        ("subwords.py", ["--steps", "3"], ["bytes: ", "byte pairs: 1000 tokens", "bits per byte", "The "]),
    ],
)
def test_example(name: str, words: list[str], said: list[str], tmp_path: Path) -> None:
    if name == "subwords.py":
        pytest.importorskip("tokenizers")
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert ended.returncode == 0, ended.stderr
    for part in said:
        assert part in ended.stdout
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_the_commands_of_the_page_on_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its code, which makes the files they read."""
    pytest.importorskip("tokenizers")
    page = ROOT / "docs" / "data.md"
    monkeypatch.chdir(tmp_path)
    run_code(page)
    found = commands(page)
    assert len(found) == 3
    for command in found:
        words = shlex.split(command)
        assert words[0] == "fsn"
        main(words[1:])
