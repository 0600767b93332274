"""Where a run starts: killed and resumed it ends with the same bits; folders that hold a run; weights to fine-tune."""

from __future__ import annotations

import dataclasses
import re
import shutil
import signal
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
from fsn.train import Recipe, Run, load_run, train
from fsn.train.run import same_but_seed
from fsn.train.sweep import Job, read_sweep
from tests.paper.tiny import TINY
from tests.train.tiny import (
    MODELS,
    TINY_FLAGS,
    corpus,
    kill,
    lines,
    recipe,
    start,
    text,
    timeless,
    unhashed,
    wait_for,
)

MODEL = MODELS["fsn-1m"]


# -- killed and resumed -------------------------------------------------------------------------------------


def last_tensors(folder: Path) -> dict[str, torch.Tensor]:
    current = folder / "last" / (folder / "last" / "CURRENT").read_text().strip()
    found = {}
    for part in ("weights", "optimizer"):
        found |= {
            f"{part}.{n}": t for n, t in safetensors.torch.load_file(current / f"{part}.safetensors").items()
        }
    return found


def assert_same_end(a: Path, b: Path) -> None:
    assert load_run(a).finished and load_run(b).finished
    x, y = last_tensors(a), last_tensors(b)
    assert x.keys() == y.keys()
    for name in x:
        assert torch.equal(x[name], y[name]), name
    best_a, best_b = (safetensors.torch.load_file(f / "best.safetensors") for f in (a, b))
    assert all(torch.equal(best_a[n], best_b[n]) for n in best_a)
    assert timeless(lines(a)) == timeless(lines(b))


def reached(folder: Path, step: int) -> bool:
    """Whether a checkpoint at or after ``step`` is named as the current one."""
    try:
        name = (folder / "last" / "CURRENT").read_text()
    except FileNotFoundError:
        return False
    match = re.match(r"step-(\d+)", name)
    return match is not None and int(match[1]) >= step


@pytest.mark.parametrize("preset", MODELS)
def test_kill_minus_nine_twice_then_the_same_bits(tmp_path: Path, preset: str) -> None:
    """Killed in the middle of epoch 1 and again in epoch 2; dropout on; equal to an undisturbed run."""
    path = tmp_path / "text.txt"
    path.write_bytes(text())
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    r = recipe(checkpoint_steps=3)
    train(preset, str(path), straight, r, overrides=MODELS[preset], quiet=True)
    per_epoch = lines(straight, "epoch")[0]["step"]
    assert per_epoch % 3 and per_epoch > 12
    fields = [f"{k}={v}" for k, v in MODELS[preset].items()]
    words = ["train", preset, "--corpus", path, "--out", broken, *TINY_FLAGS, "--checkpoint-steps", "3"]
    for at in (6, per_epoch + 6):
        process = start(*words, "--model", *fields)
        wait_for(lambda at=at: reached(broken, at), process)  # type: ignore[misc]
        kill(process)
        assert not (broken / "DONE").exists()
    train(preset, str(path), broken, r, overrides=MODELS[preset], resume="must", quiet=True)
    assert (broken / "log.txt").read_text().count("resumes at step") == 2
    assert_same_end(straight, broken)


@pytest.mark.parametrize("preset", MODELS)
@pytest.mark.parametrize("first", [7, 25, 30])
def test_n_steps_and_then_the_rest_are_all_the_steps(tmp_path: Path, preset: str, first: int) -> None:
    """Stopping after 7 steps (within an epoch), 25 (an epoch) or 30 and extending changes nothing."""
    text = corpus()
    per_epoch = recipe().steps_per_epoch((len(text.train) - 32) // 16 + 1)
    assert per_epoch == 25
    train(preset, text, tmp_path / "a", recipe(), overrides=MODELS[preset], quiet=True)
    train(preset, text, tmp_path / "b", recipe(max_steps=first), overrides=MODELS[preset], quiet=True)
    train(preset, text, tmp_path / "b", recipe(), overrides=MODELS[preset], extend=True, quiet=True)
    x, y = last_tensors(tmp_path / "a"), last_tensors(tmp_path / "b")
    for name in x:
        assert torch.equal(x[name], y[name]), name
    whole = load_run(tmp_path / "b").epochs
    assert timeless(whole) == timeless(load_run(tmp_path / "a").epochs)


def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path) -> None:
    text = corpus()
    overrides = MODELS["fsn-1m"]
    train("fsn-1m", text, tmp_path / "a", recipe(), overrides=overrides, quiet=True)
    b = tmp_path / "b"
    r = recipe(checkpoint_steps=4, max_steps=10)
    train("fsn-1m", text, b, r, overrides=overrides, quiet=True)
    (b / "DONE").unlink()
    newest = b / "last" / (b / "last" / "CURRENT").read_text().strip()
    weights = newest / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    train("fsn-1m", text, b, recipe(), overrides=overrides, extend=True, quiet=True)
    log = (b / "log.txt").read_text()
    assert f"{newest} is damaged (weights.safetensors does not match its sha256)" in log
    assert "the one before it" in log
    for name, tensor in last_tensors(tmp_path / "a").items():
        assert torch.equal(tensor, last_tensors(b)[name]), name


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")]
)
def test_a_signal_ends_the_step_and_leaves_a_checkpoint(
    tmp_path: Path, number: int, code: int, word: str
) -> None:
    (tmp_path / "text.txt").write_bytes(text())
    words = ["train", "fsn-1m", "--corpus", tmp_path / "text.txt", *TINY_FLAGS, "--epochs", "500"]
    words += ["--model", "k=16", "layers=1", "--out", tmp_path / "run"]
    process = start(*words)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert word in errors and "run the same command again to resume" in errors
    assert "Traceback" not in errors
    steps = re.search(r"at step ([\d,]+) of", errors)
    assert steps is not None and reached(tmp_path / "run", int(steps[1].replace(",", "")))
    assert not (tmp_path / "run" / "DONE").exists()


def test_a_time_budget_ends_cleanly_and_the_same_call_goes_on(tmp_path: Path) -> None:
    """A budget that is spent before the first step: each call takes one step, whatever the machine's speed."""
    text, short = corpus(), recipe(batch_size=32)
    run = train("fsn-1m", text, tmp_path / "a", short, overrides=MODELS["fsn-1m"], quiet=True)
    steps = run.epochs[-1]["step"]
    assert len(run.epochs) == 2
    for _ in range(steps):
        assert not (tmp_path / "b" / "DONE").exists()
        again = train(
            "fsn-1m", text, tmp_path / "b", short, overrides=MODELS["fsn-1m"], budget_minutes=1e-6, quiet=True
        )
    assert again.finished
    assert_same_end(tmp_path / "a", tmp_path / "b")


def test_best_weights_go_back_with_the_checkpoint(tmp_path: Path) -> None:
    """Best weights written after the checkpoint, by a part of the run that was lost, are put back."""
    text = corpus()
    b = tmp_path / "b"
    train("fsn-1m", text, b, recipe(max_steps=30), overrides=MODELS["fsn-1m"], quiet=True)
    honest = (b / "best.safetensors").read_bytes()
    (b / "DONE").unlink()
    (b / "best.safetensors").write_bytes(b"from a part that was lost")
    with (b / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 9999')
    train("fsn-1m", text, b, recipe(max_steps=30), overrides=MODELS["fsn-1m"], quiet=True)
    assert (b / "best.safetensors").read_bytes() == honest
    assert all(line.get("step") != 9999 for line in lines(b))


def test_seeds_decide_everything(tmp_path: Path) -> None:
    text = corpus()
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.manual_seed(hash(name) % 1000)  # the caller's generator must not matter
        r = recipe(max_steps=6, seed=seed)
        train("transformer-1m", text, tmp_path / name, r, overrides=MODELS["transformer-1m"], quiet=True)
    a, b, c = (last_tensors(tmp_path / n)["weights.head.weight"] for n in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_the_callers_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    r = Recipe.from_dict({**recipe().to_dict(), "max_steps": 2})
    train("fsn-1m", corpus(), tmp_path / "a", r, overrides=MODELS["fsn-1m"], quiet=True)
    assert torch.equal(torch.rand(3), expected)


def test_an_archived_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    """Its metrics are thinned, and the checkpoint knows how much of them is left."""
    from fsn.paper.archive import archive_run

    a, b, text, overrides = tmp_path / "a", tmp_path / "b", corpus(), MODELS["fsn-1m"]
    train("fsn-1m", text, a, recipe(), overrides=overrides, quiet=True)
    train("fsn-1m", text, b, recipe(max_steps=30), overrides=overrides, quiet=True)
    thin = archive_run(b, tmp_path / "results", resume_state=True)
    assert 0 < len(lines(thin)) < len(lines(b))
    train("fsn-1m", text, thin, recipe(), overrides=overrides, extend=True, quiet=True)
    x, y = last_tensors(a), last_tensors(thin)
    assert all(torch.equal(x[name], y[name]) for name in x)
    assert timeless(load_run(thin).epochs) == timeless(load_run(a).epochs)


def test_a_run_does_not_go_on_beside_a_damaged_record(tmp_path: Path) -> None:
    """The coupling kernels of epochs that are not trained again stay in the folder, so they are checked."""
    text, overrides = corpus(), MODELS["fsn-1m"]
    train("fsn-1m", text, tmp_path, recipe(max_steps=30), overrides=overrides, quiet=True)
    kept = tmp_path / "kernel" / "epoch-0001.safetensors"
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    with pytest.raises(UserError, match=r"epoch-0001\.safetensors is not what the run wrote"):
        train("fsn-1m", text, tmp_path, recipe(), overrides=overrides, extend=True, quiet=True)


# -- a folder that holds a run already: what is refused leaves every file as it was ----------------------------


OWN = {"lock", "log.txt"}
"""What opening a run folder writes in any case."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs, 25 steps each."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train("fsn-1m", corpus(), out, recipe(epochs=2), overrides=MODEL, quiet=True)
    return out


@pytest.fixture
def run(tmp_path: Path, finished: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def go_on(out: Path, resume: Any = "auto", extend: bool = False, quiet: bool = True, **changes: Any) -> Run:
    r = recipe(**changes)
    return train("fsn-1m", corpus(), out, r, overrides=MODEL, resume=resume, extend=extend, quiet=quiet)


def files(folder: Path) -> dict[str, bytes]:
    """What a run left behind."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in OWN]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def refused(out: Path, **call: Any) -> str:
    """The sentence of a call that must fail and change nothing."""
    before = files(out)
    with pytest.raises(UserError) as caught:
        go_on(out, **call)
    assert files(out) == before
    return str(caught.value)


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_results_without_a_checkpoint_are_never_written_over(run: Path, resume: str) -> None:
    shutil.rmtree(run / "last")
    said = refused(run, epochs=3, extend=True, resume=resume)
    assert "holds the results of a run but no checkpoint to resume from" in said
    assert f"give another --out, and --begin-with {run} to begin with its best weights" in said
    (run / "DONE").unlink()
    assert refused(run, epochs=2, resume=resume) == said
    (run / "best.safetensors").unlink()
    said = refused(run, epochs=2, resume=resume)
    assert said.endswith("give another --out"), "its epochs are results too, but nothing to begin with"


def test_results_without_a_config_are_never_written_over(run: Path) -> None:
    (run / "config.yaml").unlink()
    assert "holds a run without its config.yaml" in refused(run)
    (run / "best.safetensors").unlink()
    (run / "metrics.jsonl").unlink()
    assert "holds a run without its config.yaml" in refused(run), "its checkpoints are left"
    shutil.rmtree(run / "last")
    (run / "DONE").unlink()
    assert go_on(run, max_steps=2).step == 2


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_again(run: Path) -> None:
    shutil.rmtree(run / "last")
    for name in ("DONE", "best.safetensors", "metrics.jsonl"):
        (run / name).unlink()
    with pytest.raises(UserError, match="no checkpoint to resume from; use --resume auto to start it"):
        go_on(run, resume="must")
    assert go_on(run).finished


def test_a_finished_run_offers_only_what_works(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go_on(run, quiet=False)
    assert "to train it longer give more --epochs and --extend" in capsys.readouterr().err
    shutil.rmtree(run / "last")
    go_on(run, quiet=False)
    said = capsys.readouterr().err
    assert "is finished: best" in said and "--extend" not in said
    assert f"give another --out, and --begin-with {run} to begin with its best weights" in said
    tuned = train(
        "fsn-1m",
        corpus(),
        run.parent / "tuned",
        recipe(max_steps=1),
        overrides=MODEL,
        begin_with=run,
        quiet=True,
    )
    assert tuned.finished


def test_another_kind_of_model_is_named_by_its_kind_alone(run: Path) -> None:
    with pytest.raises(UserError) as caught:
        train("transformer-1m", corpus(), run, recipe(), overrides=MODELS["transformer-1m"], quiet=True)
    assert "another config: model.kind (fsn there, transformer asked); give" in str(caught.value)


def test_more_epochs_do_not_lengthen_a_run_that_is_limited_by_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    go_on(out, max_steps=3)
    before = files(out)
    go_on(out, quiet=False, max_steps=3, epochs=9, extend=True)
    assert "to train it longer give --max-steps above 3 and --extend" in capsys.readouterr().err
    after = files(out)
    assert {name: data for name, data in after.items() if name != "log.txt"} == {
        name: data for name, data in before.items() if name != "log.txt"
    }
    assert go_on(out, max_steps=3).finished, "the command it was started with still serves"
    assert go_on(out, max_steps=4, extend=True).step == 4


def test_metrics_that_were_lost_leave_a_finished_run_finished(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"")
    assert "is shorter" in refused(run, epochs=3, extend=True)
    (run / "metrics.jsonl").unlink()
    assert "is shorter" in refused(run, epochs=3, extend=True)


def test_a_run_is_not_made_shorter_than_it_is(run: Path) -> None:
    for shorter in ({"epochs": 1}, {"max_steps": 49}):
        said = refused(run, extend=True, **shorter)
        assert "has done 50 steps, and only" in said and "ask for more --epochs or --max-steps" in said
    assert go_on(run, epochs=3, extend=True).step == 75
    assert load_run(run).recipe.epochs == 3


def test_extend_is_offered_only_where_more_was_asked(run: Path) -> None:
    assert refused(run, epochs=3).endswith("--extend lets it train longer")
    assert refused(run, epochs=1).endswith("give the same options, or choose another --out")
    assert refused(run, max_steps=60).endswith("give the same options, or choose another --out"), (
        "50 all the same"
    )
    assert refused(run, epochs=3, lr=0.1).endswith("give the same options, or choose another --out")


def test_a_run_from_before_a_field_existed_goes_on_and_can_be_fine_tuned(run: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["model"]["rounding"], config["recipe"]["deterministic"]
    (unhashed(run) / "config.yaml").write_text(yaml.safe_dump(config))
    tuned = train(
        "fsn-1m",
        corpus(),
        tmp_path / "tuned",
        recipe(max_steps=1),
        overrides=MODEL,
        begin_with=run,
        quiet=True,
    )
    assert tuned.finished
    assert go_on(run, epochs=3, extend=True).step == 75


# -- fine-tuning --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("source") / "source"
    return train("fsn-1m", corpus(), out, recipe(epochs=6, lr=1e-2), overrides=MODEL, quiet=True)


def fine_tune(out: Path, source: Run, text: Corpus | None = None, **changes: Any) -> Run:
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
    run = fine_tune(tmp_path / "run", source, max_steps=1)
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
    run = fine_tune(tmp_path / "run", source, max_steps=1, overrides={**MODEL, **changes})
    assert run.model_config.dropout == 0.0 and source.model_config.dropout == 0.1


@pytest.mark.parametrize("first", [7, 25])
def test_interrupted_and_resumed_it_ends_with_the_same_bits(tmp_path: Path, source: Run, first: int) -> None:
    a = fine_tune(tmp_path / "a", source)
    fine_tune(tmp_path / "b", source, max_steps=first)
    moved = tmp_path / "moved"
    shutil.copytree(source.folder, moved)  # where the other run lies does not matter, what is in it does
    b = fine_tune(tmp_path / "b", source, extend=True, begin_with=moved)
    x, y = (torch.cat([p.flatten() for p in run.load_model("last").parameters()]) for run in (a, b))
    assert torch.equal(x, y)
    assert b.config["begin_with"]["run"] == "moved" and same_but_seed(a.config, b.config)
    assert timeless(lines(a.folder, "epoch"))[-1] == timeless(lines(b.folder, "epoch"))[-1]
    assert timeless(lines(a.folder, "valid")) == timeless(lines(b.folder, "valid"))


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_has_begun_needs_the_other_no_more(tmp_path: Path, source: Run, gone: bool) -> None:
    other = tmp_path / "other"
    shutil.copytree(source.folder, other)
    a = fine_tune(tmp_path / "a", source, begin_with=other)
    fine_tune(tmp_path / "b", source, begin_with=other, max_steps=7)
    if gone:
        shutil.rmtree(other)
    else:  # it has found better weights since
        shutil.copy(a.folder / "best.safetensors", unhashed(other) / "best.safetensors")
    b = fine_tune(tmp_path / "b", source, begin_with=other, extend=True)
    x, y = (torch.cat([p.flatten() for p in run.load_model("last").parameters()]) for run in (a, b))
    assert torch.equal(x, y) and a.config["begin_with"] == b.config["begin_with"]
    assert fine_tune(tmp_path / "b", source, begin_with=other).finished, "asked once more it is finished"
    shutil.rmtree(tmp_path / "b" / "last")  # but without a checkpoint it would have to begin again
    (tmp_path / "b" / "DONE").unlink()
    with pytest.raises(UserError, match="no run folder" if gone else r"begin_with\.sha256"):
        fine_tune(tmp_path / "b", source, begin_with=other)


def test_neither_weights_nor_checkpoint(tmp_path: Path, source: Run) -> None:
    other = tmp_path / "other"
    shutil.copytree(source.folder, other)
    run = fine_tune(tmp_path / "run", source, begin_with=other, max_steps=3)
    shutil.copy(run.folder / "best.safetensors", unhashed(other) / "best.safetensors")
    for step in (run.folder / "last").glob("step-*"):
        shutil.rmtree(step)
    with pytest.raises(UserError, match="holds the results of a run but no checkpoint"):
        fine_tune(tmp_path / "run", source, begin_with=other, max_steps=4, extend=True)
    for name in ("DONE", "best.safetensors", "metrics.jsonl"):  # as if it had been stopped in its first epoch
        (run.folder / name).unlink()
    unhashed(run.folder)
    with pytest.raises(UserError, match="does not hold the weights any more"):
        fine_tune(tmp_path / "run", source, begin_with=other, max_steps=4, extend=True)


def test_weights_that_are_not_finite_are_no_beginning(tmp_path: Path, source: Run) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(source.folder, spoilt)
    weights = safetensors.torch.load_file(spoilt / "best.safetensors")
    weights["tau"] = torch.full_like(weights["tau"], float("nan"))
    safetensors.torch.save_file(weights, unhashed(spoilt) / "best.safetensors")
    with pytest.raises(UserError, match=r"the weight tau of .*spoilt is NaN or Inf; begin with another run"):
        fine_tune(tmp_path / "run", source, begin_with=spoilt)
    assert not (tmp_path / "run").exists()


def test_another_beginning_is_another_run(tmp_path: Path, source: Run) -> None:
    fine_tune(tmp_path / "run", source, max_steps=3)
    with pytest.raises(UserError, match=r"begin_with\.sha256"):
        train("fsn-1m", corpus(), tmp_path / "run", recipe(max_steps=3), overrides=MODEL, quiet=True)
    other = train("fsn-1m", corpus(), tmp_path / "other", recipe(seed=1), overrides=MODEL, quiet=True)
    with pytest.raises(UserError, match=r"begin_with\.sha256"):
        fine_tune(tmp_path / "run", source, max_steps=3, begin_with=other.folder)


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
    assert run.encoding == source.encoding and run.model_config.vocab_size == corpus().vocab_size
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


def test_the_model_is_that_of_the_weights_where_none_is_named(tmp_path: Path, source: Run) -> None:
    go: dict[str, Any] = {"begin_with": source.folder, "quiet": True}
    for number, (name, fields) in enumerate([(None, {}), ("fsn-1m", {}), (None, {"dropout": 0.3})]):
        run = train(name, corpus(), tmp_path / str(number), recipe(max_steps=1), overrides=fields, **go)
        assert run.model_config == dataclasses.replace(source.model_config, **fields)
        assert run.config["preset"] == "fsn-1m"
        again = train(name, corpus(), run.folder, recipe(max_steps=1), overrides=fields, **go)
        assert again.finished
    for fields, said in (({"layers": 1}, "layers"), ({"match": "body"}, "has no field 'match'")):
        with pytest.raises(UserError, match=said):
            train(None, corpus(), tmp_path / "x", recipe(max_steps=1), overrides=fields, **go)
    with pytest.raises(UserError, match="no preset is given"):
        train(None, corpus(), tmp_path / "x", recipe(max_steps=1), quiet=True)
    job = Job(
        "1", "fsn-1m", corpus().name, tmp_path / "1", recipe(max_steps=1), begin_with=str(source.folder)
    )
    assert job.state() == "finished", "a sweep takes the model of the weights too"
    assert dataclasses.replace(job, model={"dropout": 0.3}).state() == "other settings"
    assert dataclasses.replace(job, preset=None).state() == "finished" and None not in job.arguments()
    with pytest.raises(
        UserError, match=r"model.dropout \(0.3 there, 0.1 asked\)"
    ):  # resumed without its --model
        train(None, corpus(), tmp_path / "2", recipe(max_steps=1), **go)
    with pytest.raises(
        UserError, match=r"of another model: kind \(fsn there, transformer asked\); give neither preset"
    ):
        train("transformer-1m", corpus(), tmp_path / "x", recipe(max_steps=1), **go)


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
        fine_tune(tmp_path / "run", source, **change)
    assert not (tmp_path / "run").exists()


def test_a_damaged_or_missing_file_of_weights(tmp_path: Path, source: Run) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(source.folder, broken)
    (unhashed(broken) / "best.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(UserError, match="cannot be read"):
        fine_tune(tmp_path / "run", source, begin_with=broken)
    (broken / "best.safetensors").unlink()
    with pytest.raises(UserError, match=r"no best\.safetensors"):
        fine_tune(tmp_path / "run", source, begin_with=broken)


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
    unhashed(Path(shutil.copytree(first.folder, tmp_path / "tuned" / "second")))
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
