"""Validation against a naive computation, window by window."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fsn
from fsn.data import Windows
from fsn.errors import UserError
from fsn.train import evaluate, train
from fsn.train.evaluate import Stopped, append_evaluation, read_evaluations, second_half
from fsn.train.world import World, numerics
from tests.train.tiny import MODELS, corpus, recipe


@pytest.mark.parametrize("preset", MODELS)
@pytest.mark.parametrize("length", [32, 33])
def test_numbers_equal_a_naive_computation(preset: str, length: int) -> None:
    text = corpus()
    model = fsn.build(preset, text.vocab_size, **MODELS[preset]).train()
    everything, late = [], []
    model.eval()
    for start in range(0, len(text.valid) - length + 1, 16):
        window = text.valid[start : start + length].long()
        logits = model(window[None, :-1])[0]
        for i in range(length - 1):
            bits = float(F.cross_entropy(logits[i].detach(), window[i + 1])) / math.log(2)
            everything.append(bits)
            if i + 1 >= length / 2:  # the target's own place in the window
                late.append(bits)
    model.train()
    result = evaluate(model, Windows(text.valid, length, 16), batch_size=5)
    assert result.bits == pytest.approx(sum(everything) / len(everything), rel=1e-6)
    assert result.bits_second_half == pytest.approx(sum(late) / len(late), rel=1e-6)
    assert result.predictions == len(everything)
    assert model.training, "the model is handed back in the mode it came in"


def test_second_half_of_256_has_128_predictions_each_with_128_symbols_behind_it() -> None:
    first = second_half(256)
    assert first + 1 == 128  # symbols behind the first of them: 0 .. 127
    assert 255 - first == 128


def test_the_same_number_every_time_and_for_every_batch_size() -> None:
    text = corpus()
    model = fsn.build("fsn-1m", text.vocab_size, **MODELS["fsn-1m"])
    windows = Windows(text.valid, 32, 16)
    assert evaluate(model, windows).bits == evaluate(model, windows).bits
    assert evaluate(model, windows, batch_size=3).bits == pytest.approx(
        evaluate(model, windows).bits, rel=1e-7
    )


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_holds_at_least_one_window(size: int) -> None:
    text = corpus()
    model = fsn.build("fsn-1m", text.vocab_size, **MODELS["fsn-1m"])
    with pytest.raises(UserError, match=f"the batch size must be at least 1, not {size}"):
        evaluate(model, Windows(text.valid, 32, 16), batch_size=size)


def test_it_can_be_stopped() -> None:
    text = corpus()
    model = fsn.build("fsn-1m", text.vocab_size, **MODELS["fsn-1m"]).train()
    with pytest.raises(Stopped):
        evaluate(model, Windows(text.valid, 32, 16), stop=lambda: True)
    assert model.training


def test_an_untrained_model_knows_nothing() -> None:
    text = corpus()
    torch.manual_seed(0)
    model = fsn.build("fsn-1m", text.vocab_size, **MODELS["fsn-1m"])
    assert evaluate(model, Windows(text.valid, 32, 16)).bits == pytest.approx(
        math.log2(text.vocab_size), rel=0.05
    )


def test_validation_is_in_float32_whatever_the_training_precision(tmp_path: Path) -> None:
    """Rounded coherences would add bits to an oscillator model's loss and hardly any to a transformer's."""
    text = corpus()
    sizes = {"k": 64, "layers": 2}
    run = train(
        "fsn-1m", text, tmp_path / "run", recipe(precision="bf16", epochs=1), overrides=sizes, quiet=True
    )
    line = run.epochs[-1]
    windows = Windows(text.valid, 32, 16)
    model = run.load_model("best")
    assert line["valid_precision"] == "fp32"
    assert line["valid_bits"] == pytest.approx(evaluate(model, windows, precision="fp32").bits, abs=1e-6)
    assert abs(line["valid_bits"] - evaluate(model, windows, precision="bf16").bits) > 1e-5


def test_products_of_an_evaluation_are_those_asked_for() -> None:
    """A bf16 run allows TensorFloat-32; its validation does not, and leaves the switch as it was."""
    text = corpus()
    model = fsn.build("fsn-1m", text.vocab_size, **MODELS["fsn-1m"])
    seen: list[str] = []
    model.register_forward_pre_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    model.loss = lambda *batch, documents: model(batch[0], targets=batch[1])[1]  # type: ignore[method-assign]
    with numerics(recipe(precision="bf16"), torch.device("cpu")):
        evaluate(model, Windows(text.valid, 32, 64))
        assert torch.get_float32_matmul_precision() == "high"
    assert set(seen) == {"highest"}


def test_the_loss_at_each_position_has_the_mean_over_all_of_them() -> None:
    text = corpus()
    model = fsn.build("fsn-1m", text.vocab_size, **MODELS["fsn-1m"])
    windows = Windows(text.valid, 32, 16)
    result = evaluate(model, windows, batch_size=5)
    assert len(result.by_position) == 31
    assert sum(result.by_position) / 31 == pytest.approx(result.bits, rel=1e-12)
    batch = windows.gather(torch.arange(len(windows)))
    with torch.no_grad():
        last = model.eval().loss(batch[:, :-1], batch[:, 1:])[:, -1].double().mean() / math.log(2)
    assert result.by_position[-1] == pytest.approx(float(last), rel=1e-5)


def test_evaluations_of_runs_collect_in_a_file(tmp_path: Path) -> None:
    """One line for each run, split and windows: a second evaluation takes the place of the first."""
    run = train(
        "fsn-1m", corpus(), tmp_path / "run", recipe(max_steps=2), overrides=MODELS["fsn-1m"], quiet=True
    )
    file, world = tmp_path / "evaluations.jsonl", World(device=torch.device("cpu"))
    line = {"which": "best", "split": "valid", "length": 32, "stride": 16, "precision": "fp32"}
    for bits, changes in ((3.0, {}), (2.0, {}), (4.0, {"split": "test"})):
        append_evaluation(
            file, "kept", run, world, {**line, **changes, "bits": bits, "by_position": [bits / 3]}
        )
    kept = read_evaluations(file)
    assert [(one["split"], one["bits"], one["run"]) for one in kept] == [
        ("valid", 2.0, "kept"),
        ("test", 4.0, "kept"),
    ]
    assert (
        kept[0]["weights_sha256"]
        == hashlib.sha256((run.folder / "best.safetensors").read_bytes()).hexdigest()
    )
    assert kept[0]["by_position"] == [0.66667] and "torch" in kept[0]["packages"]
    file.write_text("3\n")
    with pytest.raises(UserError, match="not JSON objects"):
        read_evaluations(file)
