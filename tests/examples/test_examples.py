"""Examples and notebooks run as they are, in seconds, and say what their texts promise."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsn.cli import main
from tests.examples import notebook
from tests.test_readme import commands, run_code

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What an example prints, run as a script from another folder (in this process, which has PyTorch already)."""

    def run(name: str, *words: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_intervention(printed: Callable[..., str]) -> None:
    said = printed("intervention.py")
    whole, unseeing, unfrustrated, _ = (float(x) for x in re.findall(r"(\d\.\d\d)$", said, re.MULTILINE))
    assert whole < 1.2 and unseeing > whole + 1.5 and unfrustrated > whole + 1.5


def test_fine_tuning(tmp_path: Path, printed: Callable[..., str]) -> None:
    import fsn

    said = printed("fine_tuning.py", "--steps", "3", "--out", "tuned.safetensors")
    before, after = (float(x) for x in re.findall(r"(\d\.\d{3}) bits", said))
    assert after < before - 0.02
    from safetensors.torch import load_model

    model = fsn.load("fsn-1m")
    assert load_model(model, tmp_path / "tuned.safetensors") == (set(), [])


def test_own_text(tmp_path: Path, printed: Callable[..., str]) -> None:
    said = printed("own_text.py", "--steps", "2")
    assert "bits per symbol" in said and "\nThe " in said
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_subwords(tmp_path: Path, printed: Callable[..., str]) -> None:
    pytest.importorskip("tokenizers")
    said = printed("subwords.py", "--steps", "2")
    assert re.search(r"byte pairs: 1000 tokens, [\d.]+ bits per token, [\d.]+ bits per byte\n\nThe", said)
    assert not list(tmp_path.iterdir())


def test_the_commands_of_the_page_on_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its code, which makes the files they read."""
    pytest.importorskip("tokenizers")
    page = ROOT / "docs" / "data.md"
    monkeypatch.chdir(tmp_path)
    run_code(page)
    found = commands(page)
    assert len(found) == 6
    for command in found:
        words = shlex.split(command)
        assert words[0] == "fsn"
        main(words[1:])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    found = notebook.read(path)
    kept = [[o["output_type"] for o in c["outputs"]] for c in found["cells"] if c["cell_type"] == "code"]
    namespace = notebook.run(found, path.name)
    made = [[o["output_type"] for o in c["outputs"]] for c in found["cells"] if c["cell_type"] == "code"]
    assert kept == made and any("display_data" in o for o in kept)  # what is shown is what comes out
    if path.stem == "copy_depth":
        table = namespace["table"]
        copied = slice(2, 4)
        whole, cut = table["fsn-1m"][copied], table["fsn-1m, successor field off"][copied]
        assert all(b > a + 0.5 for a, b in zip(whole, cut, strict=True))


def test_there_are_two_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["copy_depth", "the_layer"]
