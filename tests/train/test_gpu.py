"""The step as a CUDA graph: the same numbers as eager, nothing moved by warm-up, resumable to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

import fsn
from fsn.data import Windows, epoch_order
from fsn.train import Recipe, train
from fsn.train.step import MANY, Stepper
from fsn.train.world import World, choose_engine, choose_precision, numerics
from tests.train.tiny import MODELS, corpus, lines, recipe

pytestmark = pytest.mark.gpu


def make(preset: str, r: Recipe) -> Stepper:
    device = torch.device("cuda", torch.cuda.current_device())
    text = corpus()
    torch.manual_seed(r.seed)
    model = fsn.build(preset, text.vocab_size, **MODELS[preset]).to(device).train()
    windows = Windows(text.train.to(device), r.length, r.train_stride)
    stepper = Stepper(model, windows, r, World(device=device))
    stepper.set_order(epoch_order(len(windows), r.seed, 1))
    stepper.seek(0, 0)
    return stepper


def test_the_choices_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    assert choose_engine("auto", device) == "graph"
    assert choose_precision("auto", device) in ("bf16", "fp32")


@pytest.mark.parametrize("preset", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_graph_equals_eager(preset: str, precision: str) -> None:
    losses = {}
    for engine in ("eager", "graph"):
        r = recipe(engine=engine, precision=precision)
        with numerics(r, torch.device("cuda")):
            stepper = make(preset, r)
            stepper.run(20, 0)
            losses[engine] = stepper.read(0, 20)[0]
            assert stepper.engine == engine
            assert float(stepper.optimizer.steps) == 20
    assert losses["graph"] == pytest.approx(losses["eager"], rel=1e-4 if precision == "fp32" else 1e-2)


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_warm_up_and_capture_move_nothing(engine: str) -> None:
    stepper = make("fsn-1m", recipe(engine=engine, precision="fp32"))
    watched = [*stepper.optimizer.tensors(), stepper.counters, stepper.ring]
    before = [t.clone() for t in watched]
    assert stepper.prepare() > 0
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))
    assert bool(stepper._graphs) == (stepper._many is not None) == (engine == "graph")


@pytest.mark.parametrize("preset", MODELS)
def test_many_steps_in_one_graph_are_those_of_single_ones(preset: str) -> None:
    """All at once, where most go through the graph of many, and one by one: the same bits."""
    ends = []
    n = 2 * MANY + 3
    for at_once in (n, 1):
        r = recipe(engine="graph", precision="bf16", deterministic=True)
        with numerics(r, torch.device("cuda")):
            stepper = make(preset, r)
            for i in range(0, n, at_once):
                stepper.run(at_once, i)
            ends.append([*stepper.optimizer.tensors(), stepper.counters, stepper.ring])
    assert int(ends[0][-2][2]) == n
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_bad_step_freezes_the_graph() -> None:
    """With a weight set to infinity between replays, no later replay changes weights or moments."""
    stepper = make("transformer-1m", recipe(engine="graph", precision="fp32"))
    stepper.run(2, 0)
    stepper.flat.values[0] = float("inf")
    kept = [t.clone() for t in stepper.optimizer.tensors()[:4]]
    stepper.run(3, 2)
    _, norms = stepper.read(2, 3)
    assert not torch.isfinite(torch.tensor(norms)).any() or float(stepper.optimizer.broken) == 1
    if float(stepper.optimizer.broken) == 1:
        assert all(torch.equal(a, b) for a, b in zip(stepper.optimizer.tensors()[:4], kept, strict=True))


@pytest.mark.parametrize("preset", MODELS)
def test_resume_is_bit_equal_in_deterministic_mode(tmp_path: Path, preset: str) -> None:
    """An incomplete last batch, two epochs, dropout; in one go and in two parts."""
    r = {"deterministic": True, "engine": "graph", "drop_last": False, "batch_size": 24}
    text = corpus()
    for out, parts in (("a", (None,)), ("b", (11, None))):
        for steps in parts:
            train(
                preset,
                text,
                tmp_path / out,
                recipe(**r, max_steps=steps),
                overrides=MODELS[preset],
                device="cuda",
                extend=True,
                quiet=True,
            )
    ends = []
    for out in ("a", "b"):
        last = tmp_path / out / "last"
        ends.append(
            safetensors.torch.load_file(last / (last / "CURRENT").read_text().strip() / "weights.safetensors")
        )
    assert all(torch.equal(ends[0][n], ends[1][n]) for n in ends[0])


def test_more_steps_than_the_ring_holds(tmp_path: Path) -> None:
    run = train(
        "fsn-1m",
        corpus(),
        tmp_path / "run",
        recipe(epochs=60, log_steps=1),
        overrides=MODELS["fsn-1m"],
        device="cuda",
        quiet=True,
    )
    steps = [line["step"] for line in lines(run.folder, "step")]
    assert steps == list(range(1, 60 * 25 + 1))
    assert run.epochs[-1]["train_loss_bits"] < run.epochs[0]["train_loss_bits"]
