"""Runs that begin with the weights of another: the right weights, the right tokens, and still the same bits twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from fsn.cli import main
from fsn.data import Corpus
from fsn.errors import UserError
from fsn.paper import needs
from fsn.paper.archive import add_measurements
from fsn.paper.bench import Bench
from fsn.train import Run, load_run, train
from fsn.train.run import same_but_seed
from fsn.train.sweep import read_sweep
from tests.paper.tiny import TINY
from tests.train.tiny import MODELS, corpus, lines, recipe, text, timeless, unsigned

MODEL = MODELS["fsn-1m"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("source") / "source"
    return train("fsn-1m", corpus(), out, recipe(epochs=6, lr=1e-2), overrides=MODEL, quiet=True)


def go(out: Path, source: Run, text: Corpus | None = None, **changes: Any) -> Run:
    overrides = changes.pop("overrides", MODEL)
    call = {k: changes.pop(k) for k in ("extend", "resume") if k in changes}
    folder = changes.pop("begin_with", source.folder)
    return train(
        "fsn-1m",
        text or corpus(),
        out,
        recipe(**changes),
        overrides=overrides,
        begin_with=folder,
        quiet=True,
        **call,
    )


def first_weights(run: Run) -> dict[str, torch.Tensor]:
    """The weights before the first step: the checkpoint that every run begins with."""
    return safetensors.torch.load_file(run.folder / "last" / "step-00000000" / "weights.safetensors")


def test_it_begins_with_the_best_weights_of_the_other(tmp_path: Path, source: Run) -> None:
    run = go(tmp_path / "run", source, max_steps=1)
    theirs = safetensors.torch.load_file(source.folder / "best.safetensors")
    mine = first_weights(run)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
    assert run.config["begin_with"]["run"] == "source" and len(run.config["begin_with"]["sha256"]) == 64
    before = lines(run.folder, "valid")
    assert [line["step"] for line in before] == [0], "what they are worth is measured first"
    assert before[0]["valid_bits"] == pytest.approx(source.best["valid_bits"], abs=1e-6)
    fresh = train("fsn-1m", corpus(), tmp_path / "fresh", recipe(max_steps=1), overrides=MODEL, quiet=True)
    assert "begin_with" not in fresh.config and not lines(fresh.folder, "valid")
    assert run.epochs[0]["train_loss_bits"] < fresh.epochs[0]["train_loss_bits"] - 1
    log = (run.folder / "log.txt").read_text()
    assert f"begins    with the best weights of {source.folder}, epoch {source.best['epoch']}, " in log


def test_what_needs_no_weights_may_differ(tmp_path: Path, source: Run) -> None:
    changes = {"dropout": 0.0, "rounding": "none", "noise": 0.1}
    run = go(tmp_path / "run", source, max_steps=1, overrides={**MODEL, **changes})
    assert run.model_config.dropout == 0.0 and source.model_config.dropout == 0.1


@pytest.mark.parametrize("first", [7, 25])
def test_interrupted_and_resumed_it_ends_with_the_same_bits(tmp_path: Path, source: Run, first: int) -> None:
    a = go(tmp_path / "a", source)
    go(tmp_path / "b", source, max_steps=first)
    moved = tmp_path / "moved"
    shutil.copytree(source.folder, moved)  # where the other run lies does not matter, what is in it does
    b = go(tmp_path / "b", source, extend=True, begin_with=moved)
    x, y = (torch.cat([p.flatten() for p in run.load_model("last").parameters()]) for run in (a, b))
    assert torch.equal(x, y)
    assert b.config["begin_with"]["run"] == "moved" and same_but_seed(a.config, b.config)
    assert timeless(lines(a.folder, "epoch"))[-1] == timeless(lines(b.folder, "epoch"))[-1]
    assert timeless(lines(a.folder, "valid")) == timeless(lines(b.folder, "valid"))


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_has_begun_needs_the_other_no_more(tmp_path: Path, source: Run, gone: bool) -> None:
    other = tmp_path / "other"
    shutil.copytree(source.folder, other)
    a = go(tmp_path / "a", source, begin_with=other)
    go(tmp_path / "b", source, begin_with=other, max_steps=7)
    if gone:
        shutil.rmtree(other)
    else:  # it has found better weights since
        shutil.copy(a.folder / "best.safetensors", unsigned(other) / "best.safetensors")
    b = go(tmp_path / "b", source, begin_with=other, extend=True)
    x, y = (torch.cat([p.flatten() for p in run.load_model("last").parameters()]) for run in (a, b))
    assert torch.equal(x, y) and a.config["begin_with"] == b.config["begin_with"]
    assert go(tmp_path / "b", source, begin_with=other).finished, "asked once more it is finished"
    shutil.rmtree(tmp_path / "b" / "last")  # but without a checkpoint it would have to begin again
    (tmp_path / "b" / "DONE").unlink()
    with pytest.raises(UserError, match="no run folder" if gone else r"begin_with\.sha256"):
        go(tmp_path / "b", source, begin_with=other)


def test_neither_weights_nor_checkpoint(tmp_path: Path, source: Run) -> None:
    other = tmp_path / "other"
    shutil.copytree(source.folder, other)
    run = go(tmp_path / "run", source, begin_with=other, max_steps=3)
    shutil.copy(run.folder / "best.safetensors", unsigned(other) / "best.safetensors")
    for step in (run.folder / "last").glob("step-*"):
        shutil.rmtree(step)
    with pytest.raises(UserError, match="holds the results of a run but no checkpoint"):
        go(tmp_path / "run", source, begin_with=other, max_steps=4, extend=True)
    for name in ("DONE", "best.safetensors", "metrics.jsonl"):  # as if it had been stopped in its first epoch
        (run.folder / name).unlink()
    unsigned(run.folder)
    with pytest.raises(UserError, match="does not hold the weights any more"):
        go(tmp_path / "run", source, begin_with=other, max_steps=4, extend=True)


def test_weights_that_are_not_finite_are_no_beginning(tmp_path: Path, source: Run) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(source.folder, spoilt)
    weights = safetensors.torch.load_file(spoilt / "best.safetensors")
    weights["tau"] = torch.full_like(weights["tau"], float("nan"))
    safetensors.torch.save_file(weights, unsigned(spoilt) / "best.safetensors")
    with pytest.raises(UserError, match=r"the weight tau of .*spoilt is NaN or Inf; begin with another run"):
        go(tmp_path / "run", source, begin_with=spoilt)
    assert not (tmp_path / "run").exists()


def test_another_beginning_is_another_run(tmp_path: Path, source: Run) -> None:
    go(tmp_path / "run", source, max_steps=3)
    with pytest.raises(UserError, match=r"begin_with\.sha256"):
        train("fsn-1m", corpus(), tmp_path / "run", recipe(max_steps=3), overrides=MODEL, quiet=True)
    other = train("fsn-1m", corpus(), tmp_path / "other", recipe(seed=1), overrides=MODEL, quiet=True)
    with pytest.raises(UserError, match=r"begin_with\.sha256"):
        go(tmp_path / "run", source, max_steps=3, begin_with=other.folder)


def test_another_text_is_read_in_the_symbols_of_the_weights(
    tmp_path: Path, source: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text without some of the letters would number the others anew."""
    raw = text(seed=1).replace(b"w", b"").replace(b"phase", b"")
    fewer = Corpus.from_bytes("fewer", raw)
    assert fewer.vocab_size < corpus().vocab_size and fewer.symbols != corpus().symbols
    path = tmp_path / "fewer.txt"
    path.write_bytes(raw)
    run = train(
        "fsn-1m",
        str(path),
        tmp_path / "run",
        recipe(max_steps=20),
        overrides=MODEL,
        begin_with=source.folder,
        quiet=True,
    )
    assert run.alphabet == source.alphabet and run.model_config.vocab_size == corpus().vocab_size
    its = run.load_corpus()
    assert its.decode(its.train) == fewer.decode(fewer.train) and its.decode(its.test) == fewer.decode(
        fewer.test
    )
    assert its.train.dtype == torch.uint8 and its.sha256 == fewer.sha256
    assert run.epochs[0]["valid_bits"] < source.epochs[0]["valid_bits"], "the words are those it knows"
    capsys.readouterr()
    main(["eval", str(run.folder)])
    said = capsys.readouterr().out
    assert f"{run.epochs[0]['valid_bits']:.4f} bits" in said, "measured in the same tokens"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": Corpus.from_bytes("greek", text() + "φάση".encode())}, "symbols of the corpus greek"),
        ({"overrides": {**MODEL, "k": 24}}, r"k \(16 there, 24 asked\)"),
        ({"overrides": {**MODEL, "layers": 1}}, r"layers \(2 there, 1 asked\)"),
        ({"overrides": {**MODEL, "frame": "rest"}}, r"coupling.frame \(co-rotating there, rest asked\)"),
        ({"begin_with": "nowhere"}, "no run folder nowhere"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(
    tmp_path: Path, source: Run, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        go(tmp_path / "run", source, **change)
    assert not (tmp_path / "run").exists()


def test_a_damaged_or_missing_file_of_weights(tmp_path: Path, source: Run) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(source.folder, broken)
    (unsigned(broken) / "best.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(UserError, match="cannot be read"):
        go(tmp_path / "run", source, begin_with=broken)
    (broken / "best.safetensors").unlink()
    with pytest.raises(UserError, match=r"no best\.safetensors"):
        go(tmp_path / "run", source, begin_with=broken)


def test_it_is_no_run_of_the_paper(tmp_path: Path) -> None:
    need = needs.NO_BOUND
    text, overrides = TINY.load("python-stdlib-text", None), TINY.overrides(need)
    first = train(
        "fsn-nobound-1m",
        text,
        tmp_path / "runs" / "first",
        TINY.recipe(need, 0),
        overrides=overrides,
        quiet=True,
        device="cpu",
    )
    unsigned(Path(shutil.copytree(first.folder, tmp_path / "tuned" / "second")))
    config = tmp_path / "tuned" / "second" / "config.yaml"
    config.write_text(
        yaml.safe_dump(yaml.safe_load(config.read_text()) | {"begin_with": {"run": "first", "sha256": "0"}})
    )
    assert Bench.open([tmp_path / "runs"], TINY).find(need, 0) is not None
    tuned = Bench.open([tmp_path / "tuned"], TINY)
    assert tuned.find(need, 0) is None and not tuned.found, "nor has it a say in anything else"
    second = tmp_path / "tuned" / "second"
    assert not add_measurements(second, second, TINY, "cpu", tmp_path / "cache")


def test_a_sweep_passes_it_on(tmp_path: Path, source: Run) -> None:
    (tmp_path / "text.txt").write_bytes(text())
    runs = [{"name": "tuned", "preset": "fsn-1m", "begin_with": str(source.folder)}, {"preset": "fsn-1m"}]
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({"runs": runs}))
    tuned, plain = read_sweep(file)
    words = tuned.arguments()
    assert words[words.index("--begin-with") + 1] == str(source.folder)
    assert "--begin-with" not in plain.arguments()
    several = {"preset": "fsn-1m", "begin_with": [str(source.folder), "runs/b"]}
    file.write_text(yaml.safe_dump({"grid": several}, sort_keys=False))
    assert [job.name for job in read_sweep(file)] == ["fsn-1m-source", "fsn-1m-b"]
    fields = [f"{k}={v}" for k, v in MODEL.items()]
    flags = [
        "--length",
        "32",
        "--batch-size",
        "8",
        "--train-stride",
        "16",
        "--eval-stride",
        "16",
        "--max-steps",
        "2",
    ]
    places = ["--corpus", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")]
    main(["train", "fsn-1m", *places, *flags, "--begin-with", str(source.folder), "--model", *fields])
    assert load_run(tmp_path / "out").config["begin_with"]["run"] == "source"
