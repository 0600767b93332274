"""A run folder knows what belongs to it: what was edited, damaged or put there is named, on every way in."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fsn.errors import UserError
from fsn.hub import export_run
from fsn.train import hashes, load_run, train
from fsn.train.commands import evaluate, generate
from fsn.train.run import RunFolder
from tests.train.tiny import MODELS, lines, recipe, text, unhashed

MODEL = MODELS["fsn-1m"]
SAME = ("config.yaml", "metrics.jsonl", "best.safetensors", "kernel/epoch-0001.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "text.txt").write_bytes(text())
    go(folder / "run", max_steps=3)
    return folder / "run"


@pytest.fixture
def run(tmp_path: Path, whole: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def go(out: Path, **changes: Any) -> Any:
    call = {k: changes.pop(k) for k in ("extend", "log") if k in changes}
    source = out.parent / "text.txt"
    source.write_bytes(text())
    return train("fsn-1m", str(source), out, recipe(**changes), overrides=MODEL, quiet=True, **call)


def test_identical_runs_are_identical_to_the_byte(tmp_path: Path) -> None:
    first, again = (go(tmp_path / name, max_steps=3).folder for name in "ab")
    for name in SAME:
        assert (first / name).read_bytes() == (again / name).read_bytes(), name


@pytest.mark.parametrize("name", SAME)
def test_an_edited_file_is_named(run: Path, name: str) -> None:
    data = (run / name).read_bytes()
    (run / name).write_bytes(data.replace(b"0", b"1", 1))
    assert (run / name).read_bytes() != data
    with pytest.raises(UserError, match=rf"{name} is not what the run wrote .*; restore the right file"):
        found = load_run(run)
        found.load_model()
        list(found.kernels())


def test_a_file_of_another_is_named(run: Path) -> None:
    shutil.copy(run / "kernel" / "epoch-0001.safetensors", run / "kernel" / "epoch-0000.safetensors")
    with pytest.raises(UserError, match=r"epoch-0000\.safetensors was not written by the run"):
        list(load_run(run).kernels())


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"files": {}, "sha256": "0"}', b"\xff"])
def test_damaged_hashes_are_named(run: Path, damage: bytes) -> None:
    (run / "hashes.json").write_bytes(damage)
    with pytest.raises(UserError, match=r"hashes\.json was changed or damaged; restore it, or delete it"):
        load_run(run)


def from_before(run: Path) -> None:
    """Make a run folder what it was before there were hashes: times within the metrics, their size in the state."""
    whole = load_run(run).metrics
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in whole))
    for name in ("hashes.json", "timings.jsonl"):
        (run / name).unlink()
    for file in run.glob("last/*/state.json"):
        state = json.loads(file.read_bytes())
        state |= {"metrics_bytes": (run / "metrics.jsonl").stat().st_size}
        del state["lines"]
        file.write_text(json.dumps(state))
        (file.parent / "state.sha256").write_text(f"{hashes.sha256(file.read_bytes())}  state.json\n")


def test_a_folder_from_before_is_read_with_one_warning_and_signed_when_it_goes_on(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = load_run(run).epochs[0]["train_s"]
    from_before(run)
    for _ in range(2):
        assert load_run(run).epochs[0]["train_s"] == times and load_run(run).load_model() is not None
    assert capsys.readouterr().err.count("has no hashes.json") == 1
    assert go(run, max_steps=4, extend=True).epochs[0]["step"] == 4
    assert load_run(run).metrics[0]["step"] == 3 and "train_s" not in lines(run)[-1]
    assert "has no hashes.json" not in capsys.readouterr().err
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "\n")
    with pytest.raises(UserError, match=r"config\.yaml is not what the run wrote"):
        load_run(run)


def test_a_copy_can_be_signed(run: Path) -> None:
    hashes.hash_files(unhashed(run))
    assert load_run(run).load_model() is not None
    (run / "environment.json").write_text("{}")
    with pytest.raises(UserError, match=r"environment\.json is not what the run wrote"):
        _ = load_run(run).environment


def test_weights_and_config_of_two_models_do_not_go_together(run: Path) -> None:
    """Without hashes too: the weights say which model and windows they are for."""
    config = (unhashed(run) / "config.yaml").read_text()
    for before, after, name in (
        ("frame: co-rotating", "frame: rest", "coupling.frame"),
        ("eval_stride: 16", "eval_stride: 8", "eval_stride"),
        ("length: 32", "length: 64", "length"),
    ):
        assert before in config
        (run / "config.yaml").write_text(config.replace(before, after))
        with pytest.raises(UserError, match=rf"do not belong together \(they differ in {name}\)"):
            load_run(run).load_model()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_with_nan_are_refused_by_every_command(run: Path, value: float) -> None:
    weights = safetensors.torch.load_file(run / "best.safetensors")
    weights["tau"] = torch.full_like(weights["tau"], value)
    safetensors.torch.save_file(weights, unhashed(run) / "best.safetensors")
    for command in (evaluate, generate, lambda run: export_run(run, run.parent / "out")):
        with pytest.raises(UserError, match="hold NaN or Inf in tau"):
            command(run)


def test_metrics_that_were_edited_are_not_gone_on_with(run: Path) -> None:
    data = (run / "metrics.jsonl").read_bytes()
    (unhashed(run) / "metrics.jsonl").write_bytes(data.replace(b"0", b"1", 1))
    with pytest.raises(UserError, match=r"metrics\.jsonl has changed since the checkpoint was written"):
        go(run, max_steps=4, extend=True)


def test_what_a_killed_process_left_is_removed(run: Path) -> None:
    for place in (run, run / "kernel", run / "last"):
        (place / ".best.safetensors.abc.tmp").write_bytes(b"half")
    go(run, max_steps=4, extend=True)
    assert not list(run.rglob(".*.tmp"))


def test_killed_between_the_hash_and_the_file_or_after_both(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(run, quiet=True)
    folder.open()

    def dies(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            hashes, "write_bytes_atomic", lambda p, d: write(p, d) if p.name == "hashes.json" else dies(p, d)
        )
        with pytest.raises(KeyboardInterrupt):
            folder.hashes.write("environment.json", b"{}")
    folder.close()
    assert load_run(run).environment, "the old file is still the right one"
    again = RunFolder(run, quiet=True)
    again.open()
    again.write_environment({"time": "now"})
    again.close()
    assert load_run(run).environment["time"] == "now"


write = hashes.write_bytes_atomic


# -- what must never cost a run ----------------------------------------------------------------------------


def test_a_logger_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.utils.tensorboard as module

    def fails(*args: object, **named: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(module.SummaryWriter, "add_scalar", fails)
    run = go(tmp_path / "run", max_steps=6)
    assert run.finished
    log = (run.folder / "log.txt").read_text()
    assert (
        log.count("warning: tensorboard failed ([Errno 5] Input/output error) and gets no more curves") == 1
    )
    monkeypatch.setattr(module.SummaryWriter, "__init__", fails)
    assert go(tmp_path / "other", max_steps=2).finished


def test_a_thread_of_a_logger_that_fails_prints_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard writes in a thread and raises what went wrong there at a later call."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    def fails(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    printed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    monkeypatch.setattr(RecordWriter, "write", fails)
    assert go(tmp_path / "run", max_steps=6).finished and not printed
    ours = threading.Thread(target=fails)
    ours.start()
    ours.join()
    assert len(printed) == 1, "other threads are heard as before"
