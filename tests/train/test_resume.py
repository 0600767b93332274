"""A run that is killed and resumed ends where one that is left alone ends, to the last bit."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fsn.errors import UserError
from fsn.train import Recipe, load_run, train
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
    wait_for,
)


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
    assert (broken / "log.txt").read_text().count("goes on at step") == 2
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
    assert word in errors and "run the same command again to go on" in errors
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
