"""The command line: help that teaches, results on standard output, mistakes in one line with exit code 2."""

from __future__ import annotations

import errno
import importlib
import inspect
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import tyro

from fsn.cli import COMMANDS, bound, gathered, main, sentence_of
from fsn.data import Windows
from fsn.models import preset
from fsn.train import evaluate, load_run
from tests.train.tiny import TINY_FLAGS, call, text


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_bytes(text())
    return tmp_path / "text.txt"


def fails(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run a command that must fail as a user's mistake; its one line."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.err.startswith("fsn: ") and captured.err.count("\n") == 1, captured.err
    assert captured.out == ""
    return captured.err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    for name, (_, _, about) in COMMANDS.items():
        assert re.search(rf"{name} +{re.escape(about)}", shown)
    assert "fsn train fsn-1m" in shown
    main([])
    assert capsys.readouterr().out == shown
    main(["--version"])
    assert capsys.readouterr().out.startswith("fsn ")


def test_help_does_without_pytorch() -> None:
    script = "import sys; from fsn.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for words in (["--help"], ["--version"]):
        ended = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
        assert ended.returncode == 0 and "fsn" in ended.stdout, ended.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, function, _ = COMMANDS[name]
    called = getattr(importlib.import_module(f"fsn.{module}"), function)
    first = (inspect.getdoc(called) or "").splitlines()[0]
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert first and first in shown and f"usage: fsn {name}" in shown


def test_models_shows_the_papers_counts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models"])
    shown = capsys.readouterr().out
    assert "1,011,834" in shown and "974,845" in shown and "kuramoto-1m" in shown
    assert "no size '3m'" in fails(capsys, "models", "--sizes", "3m")


@pytest.mark.parametrize(
    "words",
    [
        ["--sizes", "1m", "2m"],
        ["--sizes", "1m", "--sizes", "2m"],
        ["--sizes=1m", "--vocab-size", "97", "--sizes=2m"],
    ],
)
def test_an_option_given_again_adds_its_values(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", *words])
    shown = capsys.readouterr().out
    assert shown.count("kuramoto-1m") == shown.count("kuramoto-2m") == 1


def test_a_list_keeps_its_default_and_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []

    def command(*, names: tuple[str, ...] = ("a", "b"), steps: tuple[int, ...] = (), one: str = "x") -> None:
        seen.append((names, steps, one))

    for words in ([], ["--names", "c", "--one", "d", "--names", "e", "f", "--steps", "3"]):
        call = tyro.cli(bound(command), args=gathered(words, command))
        call()
    assert seen == [(("a", "b"), (), "x"), (("c", "e", "f"), (3,), "d")]


@pytest.mark.parametrize(
    "steps", [["5", "9"], ["5", "--eval-at-steps", "9"], ["5", "--seed", "1", "--eval_at_steps=9"]]
)
def test_a_list_in_the_recipe_is_like_any_other(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr("fsn.train.train", lambda *given, **named: seen.append(given[3].eval_at_steps))
    main(["train", "fsn-1m", "--eval-at-steps", *steps, "--out", "x"])
    assert seen == [(5, 9)]


def test_corpora(capsys: pytest.CaptureFixture[str]) -> None:
    main(["corpora"])
    shown = capsys.readouterr().out
    assert "enwik8" in shown and "python-stdlib" in shown and "PATH" in shown


def test_train_eval_generate(tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    words = ["train", "transformer-1m", "--corpus", str(corpus_file), "--out", out, *TINY_FLAGS]
    main([*words, "--model", "width=16", "--device", "cpu", "--model", "layers=1"])
    assert load_run(Path(out)).model_config == preset("transformer-1m", 18, width=16, layers=1)
    said = capsys.readouterr().err
    for line in (
        "model     transformer-1m",
        "device ",
        "precision fp32",
        "engine    eager",
        "optimizer",
        "finished",
    ):
        assert line in said
    main(["eval", out, "--device", "cpu", "--as-json"])
    result = json.loads(capsys.readouterr().out)
    epochs = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = min(e["valid_bits"] for e in epochs if e["kind"] == "epoch")
    assert result["bits"] == best
    main(["eval", out, "--device", "cpu", "--as-json", "--windows", "3"])
    few = json.loads(capsys.readouterr().out)
    run = load_run(Path(out))
    cut = Windows(run.load_corpus().valid, 32, 16)
    chosen = cut.gather(torch.arange(3))
    with torch.no_grad():
        losses = run.load_model().eval().loss(chosen[:, :-1], chosen[:, 1:])
    assert few["windows"] == 3 < len(cut)
    assert few["bits"] == pytest.approx(losses.mean().item() / math.log(2), rel=1e-6)
    main(["eval", out, "--device", "cpu", "--as-json", "--windows", "9999"])
    assert json.loads(capsys.readouterr().out)["bits"] == best, "there are no more than all"
    assert "--windows must be at least 1, not 0" in fails(capsys, "eval", out, "--windows", "0")
    kept = str(tmp_path / "kept.jsonl")
    assert "leave out --windows" in fails(capsys, "eval", out, "--windows", "3", "--append", kept)
    main(["eval", out, "--device", "cpu", "--split", "test"])
    assert "test split" in capsys.readouterr().out
    main(["generate", out, "--prompt", "the phase", "--symbols", "20", "--device", "cpu", "--top-k", "5"])
    written = capsys.readouterr().out
    assert written.startswith("the phase") and len(written) == len("the phase") + 20 + 1
    main(["generate", out, "--symbols", "9", "--device", "cpu", "--temperature", "0"])
    first = capsys.readouterr().out
    main(["generate", out, "--symbols", "9", "--device", "cpu", "--temperature", "0", "--seed", "3"])
    assert capsys.readouterr().out == first
    assert "not among" in fails(capsys, "generate", out, "--prompt", "€", "--device", "cpu")
    assert "not among" in fails(capsys, "generate", out, "--prompt", "\udcff", "--device", "cpu")
    assert "batch size must be at least 1, not 0" in fails(capsys, "eval", out, "--batch-size", "0")
    assert "batch size must be at least 1, not -1" in fails(capsys, "eval", out, "--batch-size", "-1")
    corpus_file.write_bytes(text(seed=9))
    assert "sha256 differs" in fails(capsys, "eval", out, "--device", "cpu")


def test_eval_on_another_text(tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other = str(tmp_path / "run"), tmp_path / "other.txt"
    words = ["train", "fsn-1m", "--corpus", str(corpus_file), "--out", out, *TINY_FLAGS, "--device", "cpu"]
    main([*words, "--max-steps", "4", "--model", "k=8", "layers=1"])
    capsys.readouterr()
    other.write_bytes(text(300, seed=5))
    assert "evaluate on another one with `fsn eval RUN --text PATH`" in fails(
        capsys, "eval", out, "--corpus", other
    )
    main(["eval", out, "--text", str(other), "--device", "cpu", "--as-json"])
    found = json.loads(capsys.readouterr().out)
    run = load_run(out)
    tokens = run.encoding.encode(other.read_bytes())
    windows = Windows(tokens, 32, found["stride"])
    assert found["bits"] == evaluate(run.load_model(), windows).bits == found["bits_per_byte"]
    assert (found["symbols"], found["split"], found["text"]) == (len(tokens), None, str(other))
    main(["eval", out, "--text", str(other), "--device", "cpu"])
    shown = capsys.readouterr().out
    assert (
        f"other.txt ({len(tokens):,} symbols), fp32" in shown
        and f"{found['bits']:.4f} bits per byte" in shown
    )

    for extra in (0, 1, 15, 16, 17, 40, 333):  # read to the end, whatever the stride
        tokens = run.encoding.encode(text(300, seed=5)[: 32 + extra])
        other.write_bytes(text(300, seed=5)[: 32 + extra])
        main(["eval", out, "--text", str(other), "--device", "cpu", "--as-json"])
        found = json.loads(capsys.readouterr().out)
        unread = extra % found["stride"]
        assert found["stride"] <= 16 and unread < found["windows"] - (extra > 0), (extra, found["stride"])

    (tmp_path / "short.txt").write_bytes(b"the phase")
    main(["eval", out, "--text", str(tmp_path / "short.txt"), "--device", "cpu"])
    assert "8 predictions in 1 windows" in capsys.readouterr().out
    (tmp_path / "foreign.txt").write_bytes(text() + "€ and €".encode())
    said = fails(capsys, "eval", out, "--text", tmp_path / "foreign.txt", "--device", "cpu")
    assert r"6 of its" in said and r"b'\xe2' (2×)" in said and "leave them out of the text" in said
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"body": "the phase"}\n' * 40)
    assert "give the column of the text with --text-column" in fails(capsys, "eval", out, "--text", rows)
    said = fails(capsys, "eval", out, "--text", rows, "--text-column", "body")
    assert "the model has no symbol for the end of one" in said
    for more in (["--corpus", str(other)], ["--append", str(tmp_path / "x.jsonl")], ["--split", "test"]):
        assert "--text" in fails(capsys, "eval", out, "--text", other, *more)
    assert "go with --text" in fails(capsys, "eval", out, "--text-column", "body")


def test_an_exported_folder_is_no_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    for words in (["eval"], ["inspect"], ["generate"], ["export"], ["train", "--out", "x", "--begin-with"]):
        said = fails(capsys, *words, tmp_path, *([tmp_path / "y"] if words == ["export"] else []))
        assert "for fsn.load and `fsn explore`; name the run it was exported from" in said


def test_a_prompt_may_hold_any_byte_of_the_corpus(
    tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus_file.write_bytes(text() + b"\xff")
    out = str(tmp_path / "run")
    words = ["train", "fsn-1m", "--corpus", str(corpus_file), "--out", out, *TINY_FLAGS, "--device", "cpu"]
    main([*words, "--max-steps", "1", "--model", "k=8", "layers=1"])
    main(["generate", out, "--prompt", "the \udcff", "--symbols", "3", "--device", "cpu"])
    assert capsys.readouterr().out.startswith("the \ufffd")


def test_mistakes_are_one_line(tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    base = ["train", "fsn-1m", "--corpus", corpus_file, "--out", out]
    assert "did you mean train" in fails(capsys, "trian")
    assert "there is no size ''; the sizes are 1m" in fails(capsys, "models", "--sizes")
    assert "no preset 'fsn-3m'" in fails(capsys, "train", "fsn-3m", "--out", out)
    assert "no corpus or file" in fails(capsys, "train", "fsn-1m", "--corpus", "nothing", "--out", out)
    assert "fewer than one window" in fails(capsys, *base, "--length", "100000")
    assert "lr must be at least 0, not -1.0" in fails(capsys, *base, "--lr", "-1")
    assert "not of the form" in fails(capsys, *base, "--model", "k")
    assert "has no field 'kk'" in fails(capsys, *base, "--model", "kk=3")
    assert "in its coupling harmonics, present" in fails(capsys, *base, "--model", "harmonic=3")
    assert "has no field 'name'" in fails(capsys, *base, "--model", "name=3")
    assert "leave it out" in fails(capsys, *base, "--model", "vocab_size=3")
    base += ["--length", "32"]
    assert "no device 'tpu9'" in fails(capsys, *base, "--device", "tpu9")
    assert "needs a CUDA GPU" in fails(capsys, *base, "--device", "cpu", "--engine", "graph")
    assert "needs a CUDA GPU" in fails(capsys, *base, "--device", "cpu", "--precision", "tf32")
    assert "budget must be positive" in fails(capsys, *base, "--budget-minutes", "0")
    assert "seed is 18446744073709551616; it takes a whole number below 2^64" in fails(
        capsys, *base, "--seed", str(2**64)
    )
    assert "eps must be at least 1e-37" in fails(capsys, *base, "--eps", "0")
    assert "not nan" in fails(capsys, "generate", tmp_path / "nothing", "--temperature", "nan")
    assert "no run folder" in fails(capsys, "eval", tmp_path / "nothing")
    assert "not a run folder" in fails(capsys, "generate", tmp_path)
    assert "no sweep file" in fails(capsys, "sweep", tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train"], "--out is missing"),
        (["train", "--out", "x"], "no preset is given: `fsn models` lists them"),
        (["train", "fsn-1m", "--out"], "--out needs a value"),
        (
            ["train", "fsn-1m", "--out", "x", "--lr", "quick"],
            "--lr: could not convert string to float: 'quick'",
        ),
        (
            ["train", "fsn-1m", "--out", "x", "--seed", "1.5"],
            "--seed: a whole number is needed, not '1.5'; `fsn",
        ),
        (["train", "fsn-1m", "--out", "x", "--learning", "3"], "'--learning' is not an option or value"),
        (["generate", "fsn-1m", "--temperatur", "0"], "this command knows; did you mean --temperature? `fsn"),
        (["train", "fsn-1m", "--out", "x", "--learning_rate", "3"], "did you mean --lr? `fsn train"),
        (["train", "fsn-1m", "--out", "x", "--block-size=64"], "did you mean --length? `fsn train"),
        (["train", "fsn-1m", "--out", "x", "--warm_steps", "3"], "did you mean --warmup-steps?"),
        (
            ["train", "fsn-1m", "--out", "x", "--resume", "no"],
            "--resume is 'no'; choose one of auto, never, must",
        ),
        (["train", "fsn-1m", "--out", "x", "--corpus", "~nosuchuser/text"], "a user that is not known here"),
        (["train", "fsn-1m", "--out", "x", "--corpus", "/dev/zero"], "/dev/zero is not a regular file"),
        (["models", "--sizes", "\x1b[31mred\udcff"], r"no size '\x1b[31mred\udcff'"),
    ],
)
def test_bad_words_are_told_in_one_line(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in fails(capsys, *words)


def test_what_the_parser_says_in_words_unknown_here_is_left_to_it() -> None:
    assert sentence_of(object()) == ""


def test_rank_may_hold_anything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "abc")
    assert "no command" in fails(capsys, "trian")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        main(["trian"])
    assert capsys.readouterr().err == ""


def test_an_error_of_the_disk_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(words: list[str]) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "runs/x")

    monkeypatch.setattr("fsn.cli.run", broken)
    assert "runs/x cannot be used (Input/output error)" in fails(capsys, "models")


@pytest.mark.skipif(os.name == "nt", reason="no shell")
def test_closed_streams_are_no_error() -> None:
    ended = subprocess.run(["sh", "-c", f'"{sys.executable}" -m fsn --help 2>&- >&-'])
    assert ended.returncode == 0


def test_as_a_module_in_a_process_of_its_own(tmp_path: Path) -> None:
    ended = call("train", "fsn-1m", "--corpus", "nothing", "--out", tmp_path / "run")
    assert ended.returncode == 2
    assert ended.stderr.startswith("fsn: ") and ended.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
