"""codeparrot, from a small stream in place of the hub's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsn.data import CODE_SYMBOLS, load, python_code
from fsn.errors import UserError


class Hub:
    """Stands in for the package ``datasets``: counts the rows it was asked for."""

    def __init__(self, texts: list[str], error: Exception | None = None) -> None:
        self.texts, self.error, self.rows = texts, error, 0

    def load_dataset(self, name: str, split: str, streaming: bool) -> Iterator[dict[str, str]]:
        assert (name, split, streaming) == ("codeparrot/codeparrot-clean", "train", True)
        for text in self.texts:
            self.rows += 1
            yield {"repo_name": "x", "path": "x.py", "content": text}
        if self.error is not None:
            raise self.error


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_code, "CODEPARROT_SIZE", 40)


def connect(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Hub:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=hub.load_dataset))
    return hub


def test_the_first_characters_of_the_stream(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = connect(monkeypatch, Hub(["\nimport os\r\n", "", "café = 1", "x" * 50, "never asked for"]))
    corpus = load("codeparrot", cache=tmp_path)
    expected = "import os\ncafe = 1\n" + "x" * 21
    assert (tmp_path / "codeparrot").read_text() == expected
    assert corpus.symbols == CODE_SYMBOLS and len(corpus) == 40 and hub.rows == 4
    assert (tmp_path / "codeparrot.sha256").read_text().strip() == corpus.sha256
    assert load("codeparrot", cache=tmp_path).sha256 == corpus.sha256 and hub.rows == 4


def test_a_corrupt_text_is_streamed_again(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(monkeypatch, Hub(["y = 2\n" * 20]))
    good = load("codeparrot", cache=tmp_path).sha256
    (tmp_path / "codeparrot").write_text("half")
    assert load("codeparrot", cache=tmp_path).sha256 == good
    assert "is corrupt (4 bytes" in capsys.readouterr().err


def test_without_datasets_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets, or use the stand-in pypi-python"):
        load("codeparrot", cache=tmp_path)


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach the hub\ndetails"), OSError()])
def test_a_closed_hub_is_one_sentence(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    connect(monkeypatch, Hub(["a = 1\n"], error))
    with pytest.raises(UserError, match=r"did not deliver .* \((Couldn't reach the hub|OSError)\)"):
        load("codeparrot", cache=tmp_path)
    assert not (tmp_path / "codeparrot").exists()


def test_a_stream_that_ends_early_is_refused(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, Hub(["a = 1\n"]))
    with pytest.raises(UserError, match="ended after 6 of 40 characters"):
        load("codeparrot", cache=tmp_path)
