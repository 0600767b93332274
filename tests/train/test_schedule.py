"""Learning-rate schedules: their values, resuming within them, and ending a run in another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.optim import lr_scheduler

from fsn.errors import UserError
from fsn.train import Recipe, Run, load_run, train
from fsn.train.evaluate import Stopped
from fsn.train.loop import Training
from fsn.train.schedule import Schedule
from tests.train.test_resume import assert_same_end
from tests.train.tiny import MODELS, corpus, lines, recipe

WINDOWS = 640  # ten steps an epoch
MODEL = MODELS["fsn-1m"]


def rates(**fields: Any) -> list[float]:
    schedule = Schedule.of(Recipe(**fields), WINDOWS)
    return [schedule.rate(step) for step in range(schedule.total)]


def test_closed_forms() -> None:
    assert rates(epochs=1) == [1e-3] * 10
    assert rates(epochs=1, lr=1.0, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, *[1.0] * 6]
    assert rates(epochs=1, lr=1.0, schedule="linear") == pytest.approx([1 - i / 10 for i in range(10)])
    assert rates(epochs=1, lr=1.0, schedule="wsd", cooldown=0.4) == [*[1.0] * 6, 1.0, 0.75, 0.5, 0.25]
    assert rates(epochs=1, lr=1.0, schedule="wsd") == [*[1.0] * 9, 0.5]
    assert rates(epochs=3, lr=1.0, schedule="wsd", cooldown_epochs=0.5)[-5:] == pytest.approx(
        [1.0, 0.8, 0.6, 0.4, 0.2]
    )
    floor = rates(epochs=1, lr=1.0, lr_floor=0.5, schedule="wsd", cooldown=0.2, warmup_steps=2)
    assert floor == [0.5, 1.0, *[1.0] * 7, 0.75]
    assert rates(epochs=9, max_steps=4, lr=1.0, schedule="linear", warmup_steps=2) == [0.5, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_they_are_pytorchs(schedule: Any) -> None:
    warm, total, floor = 5, 40, 1e-4
    falling = 12 if schedule == "wsd" else total - warm
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    parts: list[Any] = [lr_scheduler.LinearLR(optimizer, 1 / warm, 1.0, warm - 1)]
    if schedule == "cosine":
        parts.append(lr_scheduler.CosineAnnealingLR(optimizer, falling, floor))
    else:
        parts.append(lr_scheduler.LinearLR(optimizer, 1.0, floor / 1e-3, falling))
    theirs = lr_scheduler.SequentialLR(optimizer, parts, [total - falling])
    expected = []
    for _ in range(total):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    fields: dict[str, Any] = {"cooldown": 0.3} if schedule == "wsd" else {}
    found = rates(schedule=schedule, epochs=4, warmup_steps=warm, lr_floor=floor, **fields)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "fields",
    [
        {"warmup_steps": 11},
        {"warmup_steps": 10, "schedule": "linear"},
        {"warmup_steps": 10, "schedule": "cosine"},
        {"warmup_steps": 9, "schedule": "wsd"},
        {"schedule": "wsd", "cooldown_epochs": 1.1},
        {"schedule": "wsd", "cooldown_epochs": 0.04},
        {"schedule": "wsd", "cooldown_epochs": 1e300},
        {"schedule": "wsd", "cooldown": 0.01},
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="the schedule does not fit the run"):
        rates(epochs=1, **fields)


def test_what_made_the_run_short_is_named() -> None:
    short = r"run: 9 steps of warm-up in the 4 steps that --max-steps gives; change --warmup-steps, or --max-steps$"
    with pytest.raises(UserError, match=short):
        rates(epochs=1, max_steps=4, warmup_steps=9)
    with pytest.raises(UserError, match="less than one of cool-down in the 10 steps that --epochs gives"):
        rates(epochs=1, schedule="wsd", cooldown=0.01)


def test_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    r = recipe(schedule="wsd", cooldown_epochs=3)
    with pytest.raises(
        UserError, match=r"0 steps of warm-up and 75 of cool-down in the 50 steps that --epochs gives"
    ):
        train("fsn-1m", corpus(), tmp_path / "run", r, overrides=MODEL, quiet=True)
    assert not (tmp_path / "run").exists()


def go(out: Path, extend: bool = False, **changes: Any) -> Run:
    r = recipe(log_steps=1, **changes)
    return train("fsn-1m", corpus(), out, r, overrides=MODEL, extend=extend, quiet=True)


def test_the_weights_move_at_the_rates_that_are_logged(tmp_path: Path) -> None:
    """With an eps that leaves nothing of the gradient, weight decay alone moves weights: by the product of 1 - lr λ."""
    fields: dict[str, Any] = {
        "schedule": "cosine",
        "warmup_steps": 5,
        "epochs": 1,
        "lr": 0.1,
        "weight_decay": 0.3,
    }
    still = go(tmp_path / "still", **{**fields, "weight_decay": 0.0, "eps": 1e30})
    run = go(tmp_path / "run", **fields, eps=1e30)
    kept = 1.0
    logged = [line["lr"] for line in lines(run.folder, "step")]
    assert (
        len(logged) == len(set(logged)) + 1 == 25
    )  # the last of the warm-up and the first of the cosine are both lr
    for lr in logged:
        kept *= 1 - 0.3 * lr
    for name, weight in run.load_model("last").state_dict().items():
        torch.testing.assert_close(weight, still.load_model("last").state_dict()[name] * kept)


WSD: dict[str, Any] = {"schedule": "wsd", "warmup_steps": 10, "cooldown": 0.5, "accumulate": 2}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go(tmp_path_factory.mktemp("straight") / "run", **WSD).folder


@pytest.mark.parametrize("at", [4, 40])
def test_stopped_in_the_warm_up_and_in_the_cool_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Path, at: int
) -> None:
    """Accumulation and dropout on; the same bits as a run that is left alone."""
    original = Training._checkpoint_or_stop

    def stop(training: Training) -> None:
        original(training)
        if training.state.step >= at:
            raise Stopped

    monkeypatch.setattr(Training, "_checkpoint_or_stop", stop)
    stopped = go(tmp_path / "stopped", checkpoint_steps=4, **WSD)
    assert not stopped.finished and stopped.step == at
    monkeypatch.undo()
    go(tmp_path / "stopped", **WSD)
    assert_same_end(straight, tmp_path / "stopped")


@pytest.fixture(scope="module")
def constant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run at a constant rate, two epochs of 25 steps."""
    return go(tmp_path_factory.mktemp("constant") / "run").folder


def test_a_constant_run_ends_in_a_cool_down(tmp_path: Path, constant: Path) -> None:
    """The same files as those of a run that had the cool-down in its recipe from the start."""
    wsd: dict[str, Any] = {"epochs": 3, "schedule": "wsd", "cooldown_epochs": 1}
    whole = go(tmp_path / "whole", **wsd)
    branch = Path(shutil.copytree(constant, tmp_path / "branch"))
    with pytest.raises(UserError, match=r"recipe\.schedule.*--extend lets it end in another schedule"):
        go(branch, **wsd)
    go(branch, extend=True, **wsd)
    for name in ("metrics.jsonl", "config.yaml", "best.safetensors", "kernel/epoch-0003.safetensors"):
        assert (branch / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert_same_end(branch, whole.folder)
    assert go(branch, **wsd).finished  # and the same call finds it so
    with pytest.raises(UserError, match=r"falling since step 50, to end at step 75.*--begin-with"):
        go(branch, extend=True, **{**wsd, "epochs": 4})
    assert load_run(branch).finished


def test_endings_that_would_change_steps_already_done(tmp_path: Path, constant: Path) -> None:
    branch = Path(shutil.copytree(constant, tmp_path / "branch"))
    for fields in (
        {"schedule": "cosine", "epochs": 3},
        {"schedule": "wsd", "epochs": 3, "cooldown_epochs": 1.2},
    ):
        with pytest.raises(UserError, match=r"has done 50 steps, and .* falls from step"):
            go(branch, extend=True, **fields)
    with pytest.raises(UserError, match=r"recipe\.warmup_steps"):
        go(branch, extend=True, epochs=3, warmup_steps=5)
    with pytest.raises(UserError, match=r"recipe\.schedule.*--extend lets it end in another schedule"):
        go(branch, schedule="cosine")
    assert go(branch).finished


def test_a_config_from_before_there_were_schedules(tmp_path: Path, constant: Path) -> None:
    """It is that of a constant rate and of whole batches, and its run goes on."""
    old = Path(shutil.copytree(constant, tmp_path / "old"))
    config = yaml.safe_load((old / "config.yaml").read_text())
    for name in ("schedule", "warmup_steps", "cooldown", "cooldown_epochs", "lr_floor", "accumulate"):
        del config["recipe"][name]
    (old / "config.yaml").write_text(yaml.safe_dump(config))
    (old / "hashes.json").unlink()
    assert load_run(old).recipe == load_run(constant).recipe
    go(old, extend=True, epochs=3)
    assert_same_end(old, go(Path(shutil.copytree(constant, tmp_path / "new")), extend=True, epochs=3).folder)
