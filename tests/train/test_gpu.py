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
    assert choose_engine("auto", device, fsn.preset("fsn-1m", 205), "bf16", 256) == "graph"
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


WARM = {"schedule": "wsd", "warmup_steps": 7, "cooldown_epochs": 1.2, "lr_floor": 1e-5}


@pytest.mark.parametrize("preset", MODELS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_captured_step_follows_the_schedule(preset: str, accumulate: int) -> None:
    """Through warm-up and into the cool-down, in graphs of one and of many steps: as eagerly."""
    ends = {}
    for engine in ("eager", "graph"):
        r = recipe(engine=engine, precision="fp32", accumulate=accumulate, **WARM)
        with numerics(r, torch.device("cuda")):
            stepper = make(preset, r)
            assert stepper.schedule.warmup < stepper.schedule.falls_at == 20 < stepper.steps_per_epoch
            rates = []
            for at, n in ((0, 3), (3, 2 * MANY + 1), (20, 1), (21, 4)):
                stepper.run(n, at)
                rates.append(stepper.optimizer.lr.item())
            assert rates == pytest.approx([stepper.schedule.rate(i) for i in (2, 19, 20, 24)], rel=1e-6)
            ends[engine] = stepper.read(0, 25)[0], stepper.flat.values
            assert bool(stepper._graphs) == (engine == "graph")
    assert ends["graph"][0] == pytest.approx(ends["eager"][0], rel=1e-4)
    torch.testing.assert_close(ends["graph"][1], ends["eager"][1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("preset", MODELS)
def test_parts_of_a_batch_give_its_gradient_in_a_graph(preset: str, precision: str) -> None:
    """The fused kernels on parts of 3, 3 and 2 windows against all 8 at once; dropout on."""
    found = {}
    for accumulate in (1, 3):
        r = recipe(engine="graph", precision=precision, accumulate=accumulate, clip=0.0, lr=0.0)
        with numerics(r, torch.device("cuda")):
            stepper = make(preset, r)
            stepper.run(2, 0)
            found[accumulate] = stepper.flat.gradient.clone(), stepper.read(0, 2)[0]
    whole, parts = (found[n][0] for n in (1, 3))
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    assert (parts - whole).norm() < tolerance * whole.norm()
    assert found[3][1] == pytest.approx(found[1][1], rel=tolerance)


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
    """An incomplete last batch, two epochs, dropout, accumulation and a schedule; in one go and in two parts.

    The first part does not know of the cool-down.
    """
    r = {"deterministic": True, "engine": "graph", "drop_last": False, "batch_size": 24}
    r |= {"accumulate": 2, "warmup_steps": 4}
    whole = recipe(**r, schedule="wsd", cooldown=0.3)
    text = corpus()
    for out, parts in (("a", [whole]), ("b", [recipe(**r, max_steps=11), whole])):
        for part in parts:
            train(
                preset,
                text,
                tmp_path / out,
                part,
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
