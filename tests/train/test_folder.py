"""Where a run may be written: names that cannot be one, and folders that are the run's own text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsn.cli import main
from fsn.errors import UserError
from fsn.train import train
from fsn.train.commands import train as command
from fsn.train.run import check_out
from tests.train.tiny import MODELS, corpus, recipe, text

MODEL = MODELS["fsn-1m"]


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--out is empty; give it the name of a folder"):
        train("fsn-1m", corpus(), "", recipe(), overrides=MODEL, quiet=True)
    (tmp_path / "text.txt").write_bytes(text())
    with pytest.raises(SystemExit) as ended:
        main(["train", "fsn-1m", "--corpus", "text.txt", "--out", ""])
    assert ended.value.code == 2
    assert os.listdir() == ["text.txt"]


@pytest.mark.parametrize("begun", [False, True])
def test_names_that_cannot_be_a_folder_are_refused_before_the_text_is_read(
    tmp_path: Path, begun: bool
) -> None:
    (tmp_path / "file").touch()
    for out, sentence in (
        (tmp_path / "file", r"cannot be written \(Not a directory\); choose another --out"),
        (tmp_path / "file" / "x" / "y", r"cannot be written \(Not a directory\); choose another --out"),
        (tmp_path / ("x" * 300), r"cannot be written \(File name too long\); choose another --out"),
    ):
        with pytest.raises(UserError, match=sentence):
            command("fsn-1m", out=str(out), corpus="no such text", begin_with=tmp_path if begun else None)


def test_a_run_is_not_written_into_its_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_bytes(text())
    monkeypatch.chdir(notes)
    for out in ("run", "deep/er", ".", str(notes / "run"), "../notes/run"):
        for where in (".", str(notes)):
            with pytest.raises(UserError, match=r"lies in the corpus .*; choose an --out outside of it"):
                train("fsn-1m", where, out, recipe(max_steps=1), overrides=MODEL, quiet=True)
    assert os.listdir(notes) == ["a.txt"]
    for out in ("../run", ".hidden/run"):  # files with such names are no part of the text
        run = train("fsn-1m", ".", out, recipe(max_steps=1), overrides=MODEL, quiet=True)
        assert run.load_corpus().sha256 == run.config["corpus"]["sha256"]
    check_out(notes / "run", str(notes / "a.txt"))
    check_out(notes / "run")


def test_names_that_are_not_utf8(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9 \x1b[31m")
    odd.mkdir()
    (odd / "text.txt").write_bytes(text())
    run = train("fsn-1m", str(odd / "text.txt"), odd / "run", recipe(max_steps=1), overrides=MODEL)
    again = train("fsn-1m", str(odd / "text.txt"), odd / "run", recipe(max_steps=1), overrides=MODEL)
    assert run.finished and again.config["corpus"]["name"] == str(odd / "text.txt")
    main(["eval", str(odd / "run"), "--device", "cpu"])
    assert "bits per symbol" in capfd.readouterr().out


def test_files_that_were_left_out_are_said_once_and_kept_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_bytes(text())
    (tmp_path / "notes" / "b.txt").write_bytes(b"caf\xe9")
    notes = str(tmp_path / "notes")
    run = train("fsn-1m", notes, tmp_path / "run", recipe(max_steps=1), overrides=MODEL)
    sentence = f"warning: {notes}: 1 of 2 files is not UTF-8 text and was left out: b.txt\n"
    assert capsys.readouterr().err.count(sentence) == 1
    assert (run.folder / "log.txt").read_text().count(sentence) == 1
