"""Sweeps: what a file means, and that finished runs are skipped and half-done ones resumed."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml

import fsn
from fsn import data
from fsn.cli import bound, gathered
from fsn.errors import UserError
from fsn.train import Recipe, load_run, train
from fsn.train.commands import Preset, parse_fields, slots, sweep
from fsn.train.sweep import Job, read_sweep, run_here, submit, table
from tests.train.tiny import environment, text

TINY = {"length": 32, "train_stride": 16, "eval_stride": 16, "batch_size": 8, "epochs": 1}


def plan(tmp_path: Path, **sections: object) -> Path:
    (tmp_path / "text.txt").write_bytes(text())
    file = tmp_path / "sweep.yaml"
    defaults = {"corpus": str(tmp_path / "text.txt"), "model": {"k": 8, "layers": 1}, **TINY}
    file.write_text(
        yaml.safe_dump({"out": str(tmp_path / "runs"), "defaults": defaults, **sections}, sort_keys=False)
    )
    return file


def test_a_grid_and_a_list(tmp_path: Path) -> None:
    jobs = read_sweep(
        plan(
            tmp_path,
            grid={"preset": ["fsn-1m", "kuramoto-1m"], "seed": [0, 1], "model.k": [8, 16], "lr": 0.002},
            runs=[
                {"name": "deep", "preset": "fsn-1m", "model": {"layers": 3}, "epochs": 5, "drop_last": False}
            ],
        )
    )
    assert len(jobs) == 9
    assert jobs[0].name == "fsn-1m-seed0-k8" and jobs[7].name == "kuramoto-1m-seed1-k16"
    assert jobs[7].recipe == Recipe(lr=0.002, seed=1, **TINY)  # type: ignore[arg-type]
    assert jobs[7].model == {"k": 16, "layers": 1}
    deep = jobs[8]
    assert deep.model == {"k": 8, "layers": 3} and deep.recipe.epochs == 5 and not deep.recipe.drop_last
    assert deep.out == tmp_path / "runs" / "deep"
    assert read_sweep(tmp_path / "sweep.yaml", tmp_path / "else")[0].out.parent == tmp_path / "else"


def test_a_run_keeps_its_name_when_a_list_grows(tmp_path: Path) -> None:
    """A finished run is found again by its folder."""
    for seeds in ([0], [0, 1]):
        jobs = read_sweep(plan(tmp_path, grid={"preset": "fsn-1m", "seed": seeds, "lr": 0.002}))
        assert jobs[0].name == "fsn-1m-seed0"


@pytest.mark.parametrize(
    "windows", [{}, {"length": 32}, {"length": 32, "train_stride": 64, "eval_stride": 128}]
)
def test_arguments_are_what_fsn_train_reads(windows: dict[str, int]) -> None:
    recipe = Recipe(
        **windows, lr=3e-4, drop_last=False, deterministic=True, eval_at_steps=(5, 9), max_steps=7, eps=1e-7
    )
    job = Job(
        "x", "fsn-1m", "python-stdlib", Path("runs/x"), recipe, {"k": 8, "dropout": 0.1, "bound": "none"}
    )
    seen: dict[str, object] = {}

    def capture(preset: Preset, /, *, out: Path, corpus: str, model: tuple[str, ...] = (),
                recipe: tyro.conf.OmitArgPrefixes[Recipe]) -> None:  # fmt: skip
        seen.update(preset=preset, out=out, corpus=corpus, model=parse_fields(model), recipe=recipe)

    tyro.cli(bound(capture), args=gathered(job.arguments(), capture))()
    assert seen == {
        "preset": "fsn-1m",
        "out": job.out,
        "corpus": job.corpus,
        "model": job.model,
        "recipe": recipe,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1", "mapping with 'runs', 'grid' or both"),
        ("{runs: [{preset: fsn-1m}], extra: 1}", "no section 'extra'"),
        ("runs: [{preset: fsn-1m, learning: 1}]", "no field 'learning'"),
        ("runs: [{seed: 1}]", "no preset"),
        (
            "runs: [{preset: fsn-1m}, {preset: fsn-1n}]",
            "run fsn-1n: there is no preset 'fsn-1n'; did you mean",
        ),
        ("grid: {preset: fsn-1m, model.layres: [2, 3]}", "fsn-1m has no field 'layres'"),
        ("grid: {preset: fsn-1m, k: [8, 16]}", r"no field 'k'.*\(a field of the model is model\.k\)"),
        ("runs: [{preset: fsn-1m, model: {k: 0}}]", "run fsn-1m: k is 0; take at least 1"),
        ("runs: [{preset: a}, {preset: a}]", "two runs are called 'a'"),
        ("runs: [{preset: a, name: ../a}]", "not a good name"),
        ("runs: [{preset: a, name: ..}]", "not a good name"),
        ("runs: []", "no runs"),
        ("runs: 3", "runs: a list is needed, not 3"),
        ("runs: {preset: fsn-1m}", "runs: a list is needed"),
        ("grid: 3", "grid: a mapping of names to values is needed, not 3"),
        ("{runs: [{preset: fsn-1m}], out: 3}", "out must be the name of a folder, not 3"),
        ("{runs: [{preset: fsn-1m}], out: }", "out must be the name of a folder, not None"),
        ("{runs: [{preset: fsn-1m}], out: ''}", "out must be the name of a folder, not ''"),
        ("{runs: [{preset: fsn-1m}], 3: 1, extra: 1}", "no section '3'"),
        ("runs: [fsn-1m]", "mapping of names to values"),
        ("a: [", "cannot be read as YAML"),
        ("runs: [{preset: fsn-1m, seed: 1, seed: 2}]", "'seed' is given twice; give it once"),
        ("runs: [{preset: fsn-1m, seed: 2020-01-01}]", "it has a date; put that in quotes"),
        ("[" * 5000, "nested too deeply"),
        ("runs: [{preset: fsn-1m}, {preset: fsn-3m}]", "run fsn-3m: there is no preset"),
        ("runs: [{preset: transformer-1m, model: {d: 32}}]", "run transformer-1m: .* has no field 'd'"),
        ("{defaults: {preset: fsn-1m}, grid: {model.k: [8, -8]}}", "run k-8: .*k is -8"),
        (
            "grid: {preset: a, seed: &s [1,2,3,4,5,6,7,8,9,0], a: *s, b: *s, c: *s, d: *s}",
            "more than 10,000 runs",
        ),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "sweep.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        read_sweep(tmp_path / "sweep.yaml")
    with pytest.raises(UserError, match="no sweep file"):
        read_sweep(tmp_path / "nothing.yaml")


def test_numbers_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        "{grid: {preset: fsn-1m, lr: [1e-3, 3e-4]}, defaults: {weight_decay: 1e-2, model: {dropout: 2e-1}}}"
    )
    jobs = read_sweep(tmp_path / "sweep.yaml")
    assert [job.recipe.lr for job in jobs] == [1e-3, 3e-4] and jobs[0].recipe.weight_decay == 0.01
    assert jobs[0].model == {"dropout": 0.2} == parse_fields(("dropout=2e-1",))
    assert [job.name for job in jobs] == ["fsn-1m-lr1e-3", "fsn-1m-lr3e-4"]


def test_a_text_gives_a_run_its_name_without_its_folders(tmp_path: Path) -> None:
    paths = ["some/where/a.txt", "notes/", "enwik8"]
    jobs = read_sweep(plan(tmp_path, grid={"preset": "fsn-1m", "corpus": paths}))
    assert [job.name for job in jobs] == ["fsn-1m-corpusa.txt", "fsn-1m-corpusnotes", "fsn-1m-corpusenwik8"]
    assert [job.corpus for job in jobs] == paths
    with pytest.raises(UserError, match=r"two runs are called 'fsn-1m-corpusa\.txt'"):
        read_sweep(plan(tmp_path, grid={"preset": "fsn-1m", "corpus": ["x/a.txt", "y/a.txt"]}))


def test_runs_inside_their_own_text_are_refused_before_any_starts(tmp_path: Path) -> None:
    file = plan(tmp_path, grid={"preset": "fsn-1m", "corpus": str(tmp_path)})
    with pytest.raises(UserError, match="choose an --out outside of it"):
        sweep(file)
    assert not (tmp_path / "runs").exists()
    assert read_sweep(file, tmp_path.parent / "elsewhere")


def carry_out(job: Job, budget: float | None = None) -> None:
    train(
        job.preset,
        job.corpus,
        job.out,
        job.recipe,
        overrides=job.model,
        begin_with=job.begin_with,
        budget_minutes=budget,
        quiet=True,
    )


def finished_job(tmp_path: Path) -> Job:
    job = read_sweep(plan(tmp_path, runs=[{"name": "x", "preset": "fsn-1m", "max_steps": 2}]))[0]
    carry_out(job)
    assert job.state() == "finished"
    return job


def test_a_finished_run_of_other_settings_is_not_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finished_job(tmp_path)
    (tmp_path / "same.txt").write_bytes(text())
    (tmp_path / "other.txt").write_bytes(text(seed=1))

    def state(**changes: Any) -> str:
        return dataclasses.replace(job, **changes).state()

    assert state(recipe=dataclasses.replace(job.recipe, log_steps=7, checkpoint_minutes=1.0)) == "finished"
    assert state(recipe=dataclasses.replace(job.recipe, precision="fp32", engine="eager")) == "finished"
    assert state(corpus=str(tmp_path / "same.txt")) == "finished", "the same text in another place"
    assert state(recipe=dataclasses.replace(job.recipe, max_steps=3)) == "other settings"
    assert state(recipe=dataclasses.replace(job.recipe, precision="bf16")) == "other settings"
    assert state(model={**job.model, "k": 12}) == "other settings"
    assert state(preset="kuramoto-1m") == "other settings"
    assert state(preset="no-such-model") == "other settings"
    assert state(corpus=str(tmp_path / "other.txt")) == "other settings"
    monkeypatch.setattr(data, "load", refuse)
    assert state(corpus="enwik8") == "other settings", "nothing is fetched to see that"
    monkeypatch.undo()
    assert state(begin_with=str(job.out)) == "other settings"
    (tmp_path / "text.txt").unlink()
    assert state() == "finished", "a text that is gone says nothing against it"
    (tmp_path / "text.txt").write_bytes(text(seed=1))
    assert state() == "other settings"
    (job.out / "config.yaml").write_text("a: 1")
    assert state() == "other settings"


def test_a_run_that_began_with_another_stays_finished(tmp_path: Path) -> None:
    source = finished_job(tmp_path)
    job = dataclasses.replace(source, out=tmp_path / "tuned", begin_with=str(source.out))
    carry_out(job)
    assert job.state() == "finished"
    assert dataclasses.replace(job, begin_with=None).state() == "other settings"


def test_a_finished_run_that_went_on_longer_is_finished_and_more_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    job = finished_job(tmp_path)
    runs = [{"name": "x", "preset": "fsn-1m", "max_steps": 4}]
    with pytest.raises(SystemExit):
        sweep(plan(tmp_path, runs=runs))
    assert "--extend lets it train longer" in capsys.readouterr().err
    sweep(plan(tmp_path, runs=runs), extend=True)
    assert load_run(job.out).epochs[-1]["step"] == 4
    assert job.state() == "finished", "two steps were asked for, and four are there"
    assert (
        dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, epochs=31)).state()
        == "other settings"
    )
    assert (
        dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, max_steps=None)).state()
        == "other settings"
    )


def test_looking_at_a_sweep_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_job(tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    runs = [{"name": "x", "preset": "fsn-1m", "max_steps": 2}]
    sweep(plan(tmp_path, runs=runs), dry_run=True)
    sweep(plan(tmp_path, runs=runs))
    with pytest.raises(AssertionError, match="not this"):
        sweep(plan(tmp_path, runs=[*runs, {"name": "new", "preset": "fsn-1m"}]))


def refuse(*args: object, **named: object) -> None:
    raise AssertionError("not this")


def test_a_sweep_whose_file_was_edited_says_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    before = (finished_job(tmp_path).out / "metrics.jsonl").read_bytes()
    runs = [{"name": "x", "preset": "fsn-1m", "max_steps": 2, "model": {"k": 12}}]
    with pytest.raises(SystemExit) as ended:
        sweep(plan(tmp_path, runs=runs))
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert "holds a run of another config: model.k (8 there, 12 asked)" in shown.err
    assert "failed" in shown.out and "finished" not in shown.out
    assert (tmp_path / "runs" / "x" / "metrics.jsonl").read_bytes() == before
    sweep(plan(tmp_path, runs=runs), dry_run=True)
    shown = capsys.readouterr()
    assert "other settings" in shown.out and "finished" not in shown.out


def test_finished_skipped_half_done_resumed_bad_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs: one finished before, one begun before, one that cannot work."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    file = plan(
        tmp_path,
        grid={"preset": "fsn-1m", "seed": [0, 1]},
        runs=[{"name": "bad", "preset": "fsn-1m", "corpus": str(tmp_path / "gone.txt")}],
    )
    done, begun, bad = read_sweep(file)
    for job, budget in ((done, None), (begun, 1e-5)):
        carry_out(job, budget)
    assert [job.state() for job in (done, begun, bad)] == ["finished", "begun", "new"]
    before = (done.out / "log.txt").read_bytes()
    said: list[str] = []
    notes, stopped = run_here([done, begun, bad], [None, None], said.append)
    assert notes == {"bad": "failed"} and not stopped
    assert "resumes: fsn-1m-seed1" in said and "finished: fsn-1m-seed1" in said
    assert any(line.startswith("failed: bad (exit code 2): fsn: there is no corpus") for line in said)
    assert not any("seed0" in line for line in said)
    assert (done.out / "log.txt").read_bytes() == before
    assert load_run(begun.out).finished
    rows = table([done, begun, bad], notes)
    assert [row[1] for row in rows] == ["finished", "finished", "failed"]
    assert rows[0][2] == "1 of 1" and float(rows[0][4]) > 0


def test_a_run_that_cannot_be_started_leaves_none_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full, or no memory for one process more, when the second of two runs is to begin."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    good, bad = read_sweep(plan(tmp_path, grid={"preset": "fsn-1m", "seed": [0, 1]}, runs=[]))
    bad = dataclasses.replace(bad, out=tmp_path / "text.txt" / "run")
    said: list[str] = []
    assert run_here([good, bad], [None, None], said.append) == ({bad.name: "failed"}, 0)
    assert good.state() == "finished"
    assert f"failed: {bad.name}: it cannot be started ([Errno 20] Not a directory: " in " ".join(said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """SIGTERM, or a closed terminal: the run writes a checkpoint, the sweep ends and says how to resume."""
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)  # as without nohup
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    file = plan(tmp_path, runs=[{"name": "long", "preset": "fsn-1m", "epochs": 5000, "log_steps": 5}])
    metrics = tmp_path / "runs" / "long" / "metrics.jsonl"

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size > 0):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        sweep(file)
    assert ended.value.code == 128 + number
    shown = capsys.readouterr()
    assert "stopped" in shown.out and "run the same command again" in shown.err
    assert "SIGTERM" in (tmp_path / "runs" / "long" / "log.txt").read_text()
    assert read_sweep(file)[0].state() == "begun"


def test_submitit_runs_the_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    file = plan(tmp_path, grid={"preset": ["fsn-1m"], "seed": [0, 1]})
    done, other = read_sweep(file)
    carry_out(done)
    said: list[str] = []
    notes = submit([done, other], "local", tmp_path / "submitit", {"timeout_min": 5}, True, said.append)
    assert notes == {} and len(said) == 2
    assert said[0].startswith("submitted: fsn-1m-seed1 as job") and said[1] == "finished: fsn-1m-seed1"
    assert load_run(other.out).finished


def test_submitit_without_slurm_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    file = plan(tmp_path, runs=[{"preset": "fsn-1m"}])
    with pytest.raises(UserError, match="submitit cannot use slurm"):
        sweep(file, executor="slurm")


def test_dry_run_shows_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(plan(tmp_path, grid={"preset": "fsn-1m", "seed": [0, 1]}), dry_run=True)
    shown = capsys.readouterr().out
    assert "fsn-1m-seed1" in shown and "new" in shown
    assert not (tmp_path / "runs").exists()


def test_slots_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert slots(None) == [None] and slots(3) == [None] * 3
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert slots(None) == ["0", "1"] and slots(3) == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert slots(None) == ["4", "6"]
    with pytest.raises(UserError, match="--jobs"):
        slots(0)


SWEEPS = Path(__file__).parents[2] / "sweeps"


@pytest.mark.parametrize("file", sorted(SWEEPS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_sweeps_that_come_with_the_project_mean_models_that_exist(file: Path) -> None:
    jobs = read_sweep(file)
    assert len({job.name for job in jobs}) == len(jobs) > 0
    for job in jobs:
        assert job.corpus in dict(data.available())
        assert fsn.build(job.preset, vocab_size=205, layers=1, **job.model).config


def test_a_run_to_begin_with_needs_no_preset(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("runs: [{begin_with: runs/few, lr: 0.01}]")
    (job,) = read_sweep(tmp_path / "sweep.yaml", tmp_path)
    assert job.preset is None and job.name == "few"
    assert job.arguments()[0] == "--corpus" and job.arguments()[-2:] == ["--begin-with", "runs/few"]
    (tmp_path / "sweep.yaml").write_text("runs: [{name: a}]")
    with pytest.raises(UserError, match="a run has no preset"):
        read_sweep(tmp_path / "sweep.yaml", tmp_path)
