"""Unusual but legitimate: runs extended within an epoch, folders named with ~, evaluations that must not be lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fsn import data
from fsn.cli import main
from fsn.data import Corpus, ReadOptions
from fsn.errors import UserError
from fsn.paper.archive import archive_run
from fsn.train import load_run, train
from fsn.train.evaluate import read_evaluations
from fsn.train.sweep import read_sweep
from tests.test_cli import fails
from tests.train.tiny import MODELS, TINY_FLAGS, corpus, recipe, text

GO = {"overrides": MODELS["fsn-1m"], "device": "cpu", "quiet": True}


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_bytes(text())
    return tmp_path / "text.txt"


def command(corpus: Path, out: Path | str, *more: str) -> list[str]:
    words = ["train", "fsn-1m", "--corpus", str(corpus), "--out", str(out), *TINY_FLAGS, "--device", "cpu"]
    return [*words, "--model", "k=8", "layers=1", *more]


def test_the_best_line_is_that_of_the_weights_that_were_kept(tmp_path: Path) -> None:
    """Extended within an epoch: the loss after the first part may stay the lowest."""
    for steps in (1, 2):
        train("fsn-1m", corpus(), tmp_path / "r", recipe(max_steps=steps, lr=3.0), extend=True, **GO)  # type: ignore[arg-type]
    run = load_run(tmp_path / "r")
    bits = {line["step"]: line["valid_bits"] for line in run.metrics if line["kind"] == "epoch"}
    assert list(bits) == [1, 2] and bits[1] < bits[2] and run.best is not None
    assert run.best["step"] == 1
    done = json.loads((tmp_path / "r" / "DONE").read_text())
    assert done["best_bits"] == run.best["valid_bits"]


def test_a_tilde_is_the_home_folder(
    tmp_path: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the shell does not say so: behind a = and in a sweep file."""
    home = tmp_path / "home"
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path / "here")
    main(command(corpus_file, "~/r", "--max-steps", "1"))
    assert (home / "r" / "DONE").is_file()
    main(["eval", "~/r", "--device", "cpu"])
    Path("s.yaml").write_text("out: ~/runs\nruns: [{preset: fsn-1m}]\n")
    assert read_sweep("s.yaml")[0].out == home / "runs" / "fsn-1m"
    capsys.readouterr()
    assert "would be a folder named ~" in fails(capsys, "inspect", "~/r", "--out", "~/x", "--device", "cpu")
    assert [path.name for path in Path().iterdir()] == ["s.yaml"]


def test_an_evaluation_is_not_lost(
    tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, seed in (("a", 0), ("b", 1)):
        main(command(corpus_file, tmp_path / folder / "s", "--max-steps", "2", "--seed", str(seed)))
    capsys.readouterr()
    run, file = tmp_path / "a" / "s", tmp_path / "e.jsonl"
    for bad, said in (
        (corpus_file, "JSON"),
        (tmp_path, "e.jsonl|directory|folder"),
        (tmp_path / "text.txt" / "e", ""),
    ):
        error = fails(capsys, "eval", run, "--device", "cpu", "--append", bad)
        assert not said or any(word in error for word in said.split("|"))
    assert "leave out --which last" in fails(capsys, "eval", run, "--which", "last", "--append", file)
    for folder in ("a", "b", "a"):  # runs of one name, in two folders
        main(["eval", str(tmp_path / folder / "s"), "--device", "cpu", "--append", str(file)])
    lines = read_evaluations(file)
    assert len(lines) == 2 and {line["run"] for line in lines} == {"s"}
    main(command(corpus_file, run, "--max-steps", "3", "--extend"))
    main(["eval", str(run), "--device", "cpu", "--append", str(file)])  # the same run, further on
    assert len(read_evaluations(file)) == 2
    capsys.readouterr()
    assert "a window needs length >= 2" in fails(capsys, "eval", run, "--length", "0", "--device", "cpu")


def test_instruments_that_have_nothing_to_measure(
    tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(corpus_file, tmp_path / "r", "--max-steps", "2", "--length", "16")
    main(words)
    main(["inspect", str(tmp_path / "r"), "--windows", "8", "--device", "cpu"])
    assert "has no data for them: looks" in capsys.readouterr().out
    assert "has no data for looks" in fails(capsys, "inspect", tmp_path / "r", "--parts", "looks")


def test_many_symbols_in_two_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, 3_000).astype(np.uint16)
    np.save(tmp_path / "tokens.npy", tokens)
    more = ["--max-steps", "1", "--vocab-size", "50000"]
    main(command(tmp_path / "tokens.npy", tmp_path / "r", *more))
    main(["inspect", str(tmp_path / "r"), "--parts", "depth", "--windows", "4", "--device", "cpu"])
    assert (tmp_path / "r" / "inspection" / "inspection.html").is_file()
    np.savez(tmp_path / "several.npz", tokens)
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    with pytest.raises(UserError, match="holds several arrays"):
        data.load(tmp_path / "several.npy", reading=ReadOptions(vocab_size=50_000))
    (tmp_path / "folder").mkdir()
    for split in ("train", "val"):
        tokens.tofile(tmp_path / "folder" / f"{split}.bin")
    more = ["--max-steps", "1", "--vocab-size", "50000", "--token-dtype", "uint16"]
    main(command(tmp_path / "folder", tmp_path / "t", *more))
    capsys.readouterr()
    assert "has no test split" in fails(capsys, "eval", tmp_path / "t", "--split", "test", "--device", "cpu")


def test_a_model_of_one_text_and_documents(tmp_path: Path) -> None:
    documents = Corpus.from_documents("rows", [text(40, seed).decode() for seed in range(40)])
    with pytest.raises(UserError, match="has no symbol for the end of one"):
        documents.within(corpus().encoding)
    few = Corpus.from_documents("rows", [text(900, seed).decode() for seed in range(4)])
    with pytest.raises(
        UserError, match=r"the validation part of rows holds 1 symbol, fewer than .* more documents"
    ):
        train("fsn-1m", few, tmp_path / "r", recipe(), **GO)  # type: ignore[arg-type]


def test_an_archive_keeps_what_it_had(tmp_path: Path) -> None:
    train("fsn-1m", corpus(), tmp_path / "r", recipe(), **GO)  # type: ignore[arg-type]
    kept = archive_run(tmp_path / "r", tmp_path / "results", weights=True, resume_state=True)
    assert archive_run(tmp_path / "r", tmp_path / "results") == kept
    assert (kept / "best.safetensors").is_file() and (kept / "last").is_dir()
