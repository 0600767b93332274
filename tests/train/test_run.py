"""The run folder, and what happens when something is in the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import yaml

import fsn
from fsn.cli import main
from fsn.data import Corpus, Windows
from fsn.errors import UserError
from fsn.models import config as config_module
from fsn.models import config_from_dict
from fsn.models.config import FSNConfig
from fsn.train import NonFinite, Recipe, Run, evaluate, load_run, train
from fsn.train import checkpoint as checkpoint_module
from fsn.train.commands import train as command
from fsn.train.run import RunFolder, check_out, identity, read_metrics, same_but_seed
from tests.train.tiny import MODELS, corpus, lines, recipe, text, timeless


def go(out: Path, preset: str = "fsn-1m", **changes: Any) -> Run:
    call = {k: changes.pop(k) for k in ("resume", "extend", "log", "budget_minutes") if k in changes}
    overrides = changes.pop("overrides", MODELS.get(preset))
    return train(preset, corpus(), out, recipe(**changes), overrides=overrides, quiet=True, **call)


def test_weights_that_are_not_there_are_told_from_those_to_come(tmp_path: Path) -> None:
    folder = go(tmp_path / "run", max_steps=2).folder
    (folder / "best.safetensors").unlink()
    with pytest.raises(UserError, match="was kept without its weights: train it again"):
        load_run(folder).load_model()
    (folder / "DONE").unlink()
    with pytest.raises(UserError, match="wait for an epoch"):
        load_run(folder).load_model()
    shutil.rmtree(folder / "last")  # as before the first checkpoint
    with pytest.raises(UserError, match="wait for an epoch"):
        load_run(folder).load_model()
    (folder / "lock").unlink()  # as in an archive of a run that ended early
    with pytest.raises(UserError, match="was kept without its weights"):
        load_run(folder).load_model()


# -- what a run leaves behind ------------------------------------------------------------------------------


def test_the_folder_holds_what_the_others_read(tmp_path: Path) -> None:
    run = go(tmp_path / "run", eval_at_steps=(4, 30))
    folder = tmp_path / "run"
    names = {p.name for p in folder.iterdir()}
    assert names >= {
        "config.yaml",
        "metrics.jsonl",
        "environment.json",
        "best.safetensors",
        "last",
        "log.txt",
    }
    assert names >= {"tensorboard", "DONE", "hashes.json", "timings.jsonl"}
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["format"] == 1 and config["fsn_version"] == fsn.__version__
    assert config["model"]["kind"] == "fsn" and config["model"]["k"] == 16
    assert config["recipe"]["precision"] == "fp32" and config["recipe"]["engine"] == "eager"
    assert config["corpus"]["sha256"] == corpus().sha256
    assert bytes.fromhex(config["corpus"]["symbols"]) == corpus().symbols
    assert run.finished and run.config == config
    assert run.model_config == config_from_dict(config["model"])
    fields = {
        "epoch",
        "step",
        "train_loss_bits",
        "valid_bits",
        "valid_bits_second_half",
        "tokens_per_s",
        "best",
    }
    fields |= {"eval_tokens_per_s", "train_s", "valid_s", "cumulative_s", "peak_memory_gb", "complete"}
    assert [e["epoch"] for e in run.epochs] == [1, 2]
    assert all(fields <= set(e) and e["complete"] for e in run.epochs)
    assert run.epochs[1]["valid_bits"] < run.epochs[0]["valid_bits"]
    assert [v["step"] for v in run.validations] == [4, 25, 30, 50]
    assert [x["step"] for x in lines(folder, "step")] == list(range(5, 51, 5))
    assert run.best is not None and run.best["epoch"] == 2
    with safetensors.safe_open(folder / "best.safetensors", "pt") as file:
        about = file.metadata()
    assert about["epoch"] == "2" and float(about["valid_bits"]) == run.epochs[1]["valid_bits"]
    assert json.loads(about["config"]) == config["model"]
    assert run.environment["packages"]["torch"] == torch.__version__
    assert any(p.name.startswith("events") for p in (folder / "tensorboard").iterdir())


def test_the_weights_kept_are_the_weights_measured(tmp_path: Path) -> None:
    run = go(tmp_path / "run", "transformer-1m")
    windows = Windows(corpus().valid, 32, 16)
    assert evaluate(run.load_model("best"), windows).bits == run.best["valid_bits"]  # type: ignore[index]
    assert evaluate(run.load_model("last"), windows).bits == run.epochs[-1]["valid_bits"]
    assert not run.load_model().training
    assert run.encoding.decode(run.encoding.encode("the phase")) == "the phase"


def test_best_is_the_best_not_the_last(tmp_path: Path) -> None:
    """A learning rate that ruins the model later: best.safetensors stays with the epoch that was best."""
    run = go(tmp_path / "run", lr=0.3, epochs=4, clip=0.0)
    bits = [e["valid_bits"] for e in run.epochs]
    best = bits.index(min(bits)) + 1
    assert run.best is not None and run.best["epoch"] == best
    assert [e["best"] for e in run.epochs] == [b == min(bits[: i + 1]) for i, b in enumerate(bits)]
    assert evaluate(run.load_model(), Windows(corpus().valid, 32, 16)).bits == min(bits)


def test_extra_validations_do_not_change_the_run(tmp_path: Path) -> None:
    a = go(tmp_path / "a")
    b = go(tmp_path / "b", eval_at_steps=(1, 7, 25))
    assert timeless(a.epochs) == timeless(b.epochs)


def test_a_run_that_ends_within_an_epoch_says_so(tmp_path: Path) -> None:
    run = go(tmp_path / "run", max_steps=7)
    assert [(e["epoch"], e["step"], e["complete"]) for e in run.epochs] == [(1, 7, False)]
    assert run.finished and run.step == 7


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"kind": "step", "step": 1}\n{"kind": "st')
    assert read_metrics(tmp_path) == [{"kind": "step", "step": 1}]
    (tmp_path / "metrics.jsonl").write_bytes(b'{"kind"\n{"kind": "step", "step": 1}\n')
    with pytest.raises(UserError, match="line 1"):
        read_metrics(tmp_path)


def test_load_run_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        load_run(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"no config\.yaml"):
        load_run(tmp_path)
    (tmp_path / "config.yaml").write_text("a: 1")
    with pytest.raises(UserError, match="not the config"):
        load_run(tmp_path)
    (tmp_path / "config.yaml").write_text("{model: {}, recipe: {}, corpus: {}, format: 99}")
    with pytest.raises(UserError, match="format 99"):
        load_run(tmp_path)


# -- what may be in the way --------------------------------------------------------------------------------


def test_a_finished_run_says_so_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path / "run", max_steps=3)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    train("fsn-1m", corpus(), tmp_path / "run", recipe(max_steps=3), overrides=MODELS["fsn-1m"])
    assert "is finished" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_another_config_is_refused_by_the_names_of_its_fields(tmp_path: Path) -> None:
    go(tmp_path / "run", max_steps=3)
    kept = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(
        UserError, match=r"recipe\.lr \(0\.001 there, 0\.002 asked\), recipe\.seed \(0 there, 1 asked\)"
    ):
        go(tmp_path / "run", max_steps=3, lr=0.002, seed=1)
    with pytest.raises(UserError, match=r"model\.k .*16 there, 12 asked"):
        go(tmp_path / "run", max_steps=3, overrides={**MODELS["fsn-1m"], "k": 12})
    with pytest.raises(UserError, match=r"recipe\.max_steps.*--extend"):
        go(tmp_path / "run", max_steps=4)
    other = Corpus.from_bytes("tiny", text(700, seed=1))
    with pytest.raises(UserError, match=r"corpus\.sha256"):
        train("fsn-1m", other, tmp_path / "run", recipe(max_steps=3), overrides=MODELS["fsn-1m"], quiet=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == kept
    assert go(tmp_path / "run", max_steps=3, checkpoint_minutes=1.0, log_steps=7).finished


def test_resume_never_and_must(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to resume"):
        go(tmp_path / "run", resume="must")
    assert not (tmp_path / "run").exists()
    go(tmp_path / "run", max_steps=3, resume="never")
    with pytest.raises(UserError, match="already holds a run"):
        go(tmp_path / "run", max_steps=3, resume="never")
    with pytest.raises(UserError, match="auto, never or must"):
        go(tmp_path / "run", resume="perhaps")


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_a_budget_of_no_time_is_refused(tmp_path: Path, minutes: float) -> None:
    with pytest.raises(UserError, match="the time budget must be positive"):
        go(tmp_path / "run", budget_minutes=minutes)


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", quiet=True)
    folder.open()
    with pytest.raises(UserError, match=r"another process \(process \d+\) is writing to"):
        go(tmp_path / "run")
    folder.close()
    assert go(tmp_path / "run", max_steps=2).finished


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match=r"run cannot be written \(Not a directory\); choose another --out"):
        go(tmp_path / "run")


def test_a_text_shorter_than_a_window_leaves_no_folder(tmp_path: Path) -> None:
    short = Corpus.from_bytes("short", text(20))
    with pytest.raises(UserError, match="fewer than one window"):
        train("fsn-1m", short, tmp_path / "run", recipe(), overrides=MODELS["fsn-1m"], quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_logger_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install trackio"):
        go(tmp_path / "run", log=("trackio",))
    with pytest.raises(UserError, match="no logger"):
        go(tmp_path / "run", log=("abacus",))
    assert not (tmp_path / "run").exists()


def test_without_tensorboard_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    run = train("fsn-1m", corpus(), tmp_path / "run", recipe(max_steps=2), overrides=MODELS["fsn-1m"])
    assert run.finished
    assert "pip install tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "run" / "tensorboard").exists()


class FakeTracker:
    """Stands in for wandb and trackio: keeps what it is given."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = 0

    def init(self, **options: Any) -> FakeTracker:
        self.begun.append(options)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((values, step))

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_curves_go_to_the_trackers_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tracker = FakeTracker()
    monkeypatch.setitem(__import__("sys").modules, name, tracker)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    run = go(tmp_path / "run", max_steps=6, log=(name,))
    assert tracker.begun[0]["project"] == "fsn" and tracker.begun[0]["resume"] == "allow"
    assert tracker.begun[0]["config"]["recipe"]["max_steps"] == 6
    assert [step for _, step in tracker.logged] == [5, 6]
    assert tracker.logged[1][0]["loss/valid_bits"] == run.epochs[0]["valid_bits"]
    assert tracker.finished == 1


def test_a_full_disk_is_one_sentence_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = go(tmp_path / "a")
    honest = checkpoint_module.write_bytes_atomic

    def full(path: Path, data: bytes) -> None:
        if "step-00000012" in str(path) and path.name == "optimizer.safetensors":
            path.write_bytes(data[:10])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        honest(path, data)

    monkeypatch.setattr(checkpoint_module, "write_bytes_atomic", full)
    with pytest.raises(
        UserError, match=r"cannot be written \(No space left on device\); fix that and run the same command"
    ):
        go(tmp_path / "b", checkpoint_steps=4)
    assert sorted(p.name for p in (tmp_path / "b" / "last").iterdir()) == [
        "CURRENT",
        "step-00000004",
        "step-00000008",
    ]
    monkeypatch.undo()
    b = go(tmp_path / "b", checkpoint_steps=4)
    assert timeless(b.epochs) == timeless(a.epochs)


# -- when the model goes wrong -----------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """A step of length 10³⁰ ruins a transformer; the state before the ruin is kept and the tensor named."""
    with pytest.raises(NonFinite) as caught:
        go(tmp_path / "run", "transformer-1m", lr=1e30, clip=0.0)
    sentence = str(caught.value)
    assert "the loss of step 2 (epoch 1) is not finite" in sentence
    assert "the first tensor that is not finite is layers.0." in sentence
    assert "the state after step 1, the last good one" in sentence
    run = load_run(tmp_path / "run")
    assert not run.finished
    warning = run.warnings[0]
    assert (warning["what"], warning["step"]) == ("non-finite", 2)
    assert warning["tensor"].startswith("layers.0.")
    weights = run.load_model("last").state_dict()
    assert all(torch.isfinite(w).all() for w in weights.values())
    assert (tmp_path / "run" / "last" / "CURRENT").read_text().strip() == "step-00000001"
    with pytest.raises(NonFinite, match="step 2"):  # going on meets the same step again
        go(tmp_path / "run", "transformer-1m", lr=1e30, clip=0.0)


@pytest.mark.parametrize("when", [{}, {"max_steps": 1}, {"checkpoint_steps": 1}])
def test_weights_that_are_not_finite_are_never_kept(tmp_path: Path, when: dict[str, int]) -> None:
    """The loss of the step that ruins the weights is still a number."""
    with pytest.raises(
        NonFinite, match=r"after step 1 the weight .* is not finite; the last good state is saved"
    ):
        go(tmp_path / "run", lr=1e39, **when)
    run = load_run(tmp_path / "run")
    assert not run.finished and (run.folder / "last" / "CURRENT").read_text() == "step-00000000\n"
    assert all(torch.isfinite(w).all() for w in run.load_model("last").state_dict().values())


def test_a_gradient_that_is_not_finite_stops_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = fsn.models.FSN.loss

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return g * float("inf")

    def loss(self: Any, tokens: Any, targets: Any, **context: Any) -> torch.Tensor:
        value = honest(self, tokens, targets, **context)
        return Spike.apply(value) if self.training else value  # type: ignore[no-untyped-call, no-any-return]

    monkeypatch.setattr(fsn.models.FSN, "loss", loss)
    with pytest.raises(NonFinite, match=r"the gradient of step 1 .* is gradient of "):
        go(tmp_path / "run")


def test_siblings_share_all_but_the_seed() -> None:
    a = {
        "model": {"k": 16},
        "recipe": {"seed": 0, "lr": 1e-3, "epochs": 2},
        "corpus": {"sha256": "x", "name": "n"},
    }
    assert same_but_seed(a, {**a, "recipe": {"seed": 1, "lr": 1e-3, "epochs": 30}})
    assert not same_but_seed(a, {**a, "recipe": {"seed": 1, "lr": 2e-3, "epochs": 2}})
    assert not same_but_seed(a, {**a, "model": {"k": 17}})


def test_a_field_added_later_leaves_the_identity_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class LaterRecipe(Recipe):
        added: int = 3

    @dataclass(frozen=True)
    class LaterModel(FSNConfig):
        added: int = 3

    run = go(tmp_path / "run", max_steps=1)
    before = identity(run.config)
    monkeypatch.setattr("fsn.train.run.Recipe", LaterRecipe)
    monkeypatch.setitem(config_module._KINDS, "fsn", LaterModel)
    later = load_run(run.folder).config
    for part in ("recipe", "model"):
        assert later[part]["added"] == 3 and identity(later) == before
        assert identity({**later, part: {**later[part], "added": 4}}) != before


def test_the_identity_of_a_run_is_that_of_its_model_recipe_and_text(tmp_path: Path) -> None:
    config = go(tmp_path / "run", max_steps=1).config
    model, recipe = config["model"], config["recipe"]
    same = [
        {"recipe": {**recipe, "max_steps": 9, "log_steps": 7, "schedule": "linear"}},
        {"preset": "another"},
        {"corpus": {**config["corpus"], "name": "another"}},
    ]
    other = [
        {"recipe": {**recipe, "seed": 1}},
        {"model": {**model, "k": 18}},
        {"model": {**model, "vocab_size": 30}},
        {"model": {**model, "coupling": {**model["coupling"], "delay": False}}},
        {"model": fsn.models.config_to_dict(fsn.models.TransformerConfig(model["vocab_size"]))},
        {"corpus": {**config["corpus"], "sha256": "another"}},
    ]
    assert {identity({**config, **change}) for change in same} == {identity(config)}
    assert len({identity({**config, **change}) for change in [*other, {}]}) == 1 + len(other)


def test_the_kernel_of_every_epoch_is_kept(tmp_path: Path) -> None:
    run = train(
        "fsn-1m", corpus(), tmp_path / "run", recipe(epochs=2), overrides=MODELS["fsn-1m"], quiet=True
    )
    kept = dict(run.kernels())
    assert sorted(kept) == [1, 2]
    first, last = (kept[e].layers[0].kernel.coefficients()["w1"] for e in (1, 2))
    assert not torch.equal(first, last)
    trained = run.load_model("last")
    assert torch.equal(last, trained.layers[0].kernel.coefficients()["w1"])
    assert torch.equal(kept[2].tau, trained.tau)


def test_a_transformer_has_no_kernel_to_keep(tmp_path: Path) -> None:
    name = "transformer-1m"
    run = train(name, corpus(), tmp_path / "run", recipe(epochs=1), overrides=MODELS[name], quiet=True)
    assert list(run.kernels()) == []


# -- where a run may be written ---------------------------------------------------------------------------


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--out is empty; give it the name of a folder"):
        train("fsn-1m", corpus(), "", recipe(), overrides=MODELS["fsn-1m"], quiet=True)
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
            begin = tmp_path if begun else None
            command("fsn-1m", out=str(out), corpus="no such text", begin_with=begin, recipe=Recipe())


def test_a_run_is_not_written_into_its_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_bytes(text())
    monkeypatch.chdir(notes)
    for out in ("run", "deep/er", ".", str(notes / "run"), "../notes/run"):
        for where in (".", str(notes)):
            with pytest.raises(UserError, match=r"is in the corpus .*; choose an --out outside of it"):
                train("fsn-1m", where, out, recipe(max_steps=1), overrides=MODELS["fsn-1m"], quiet=True)
    assert os.listdir(notes) == ["a.txt"]
    for out in ("../run", ".hidden/run"):  # files with such names are no part of the text
        run = train("fsn-1m", ".", out, recipe(max_steps=1), overrides=MODELS["fsn-1m"], quiet=True)
        assert run.load_corpus().sha256 == run.config["corpus"]["sha256"]
    check_out(notes / "run", str(notes / "a.txt"))
    check_out(notes / "run")


def test_names_that_are_not_utf8(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9 \x1b[31m")
    odd.mkdir()
    (odd / "text.txt").write_bytes(text())
    run = train("fsn-1m", str(odd / "text.txt"), odd / "run", recipe(max_steps=1), overrides=MODELS["fsn-1m"])
    again = train(
        "fsn-1m", str(odd / "text.txt"), odd / "run", recipe(max_steps=1), overrides=MODELS["fsn-1m"]
    )
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
    run = train("fsn-1m", notes, tmp_path / "run", recipe(max_steps=1), overrides=MODELS["fsn-1m"])
    sentence = f"warning: {notes}: 1 of 2 files is not UTF-8 text and was left out: b.txt\n"
    assert capsys.readouterr().err.count(sentence) == 1
    assert (run.folder / "log.txt").read_text().count(sentence) == 1
