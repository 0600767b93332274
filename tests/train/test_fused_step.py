"""The trainer's own kernels around a model: the same run as without them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fsn.data import Windows, epoch_order
from fsn.models import LanguageModel
from fsn.train import Recipe
from fsn.train import step as module
from fsn.train.step import Stepper
from fsn.train.world import World
from tests.ops.fused.interpreter import shared
from tests.train.tiny import recipe, still_flat

RING = 8  # in these tests: fewer slots than steps


class Bigrams(LanguageModel):
    """A table of logits, and a parameter nobody uses."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(symbols, symbols))
        self.unused = nn.Parameter(torch.ones(5))

    def loss(self, tokens: Tensor, targets: Tensor, *context: Any, **more: Any) -> Tensor:
        logits = self.probe("logits", self.table[tokens])
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


@contextmanager
def switched(on: bool) -> Iterator[None]:
    before = {"FSN_FUSED": os.environ.get("FSN_FUSED")}
    slots, module.RING = module.RING, RING
    os.environ["FSN_FUSED"] = "1" if on else "0"
    try:
        yield
    finally:
        module.RING = slots
        os.environ.pop("FSN_FUSED")
        os.environ.update({k: v for k, v in before.items() if v is not None})


def make(on: bool, r: Recipe, world: World) -> Stepper:
    torch.manual_seed(1)
    text = torch.randint(30, (700,), dtype=torch.uint8).to(world.device)
    stepper = Stepper(Bigrams(30).to(world.device), Windows(text, r.length, r.train_stride), r, world)
    assert stepper.optimizer.fused == on
    stepper.set_order(epoch_order(stepper.n_windows, 0, 1))
    stepper.seek(0, 0)
    return stepper


WARM: dict[str, Any] = {"accumulate": 2, "schedule": "wsd", "warmup_steps": 3, "cooldown": 0.3, "epochs": 1}


def distances(clip: float, engine: Any = "eager", device: str = "cpu", **fields: Any) -> dict[str, float]:
    """An epoch whose last batch is short, with and without the kernels: the largest differences."""
    ends = []
    for on in (True, False):
        r = recipe(clip=clip, precision="fp32", engine=engine, drop_last=False, batch_size=5, lr=0.02)
        r = dataclasses.replace(r, **fields)
        with switched(on):
            stepper = make(on, r, World(device=torch.device(device)))
            n = stepper.steps_per_epoch
            assert 0 < stepper.batch_at(n - 1) < 5 and n > RING
            for at in range(0, n, RING):
                stepper.run(min(RING, n - at), at)
            found = {"values": stepper.flat.values, "ring": stepper.ring} | stepper.optimizer.state_dict()
            found["lr"] = stepper.optimizer.lr.float()
            found["counters"] = stepper.counters.double()
            if not clip:  # the library writes the clipped gradient back
                found["gradient"] = stepper.flat.gradient
            assert still_flat(stepper.flat)
        ends.append(found)
    return {name: (a - ends[1][name]).abs().max().item() for name, a in ends[0].items()}


def broken_run(device: str = "cpu", engine: Any = "eager") -> dict[str, Any]:
    """Weights turn bad after two steps: what stood still, and which tensor is named."""
    with switched(True):
        r = recipe(precision="fp32", engine=engine)
        stepper = make(True, r, World(device=torch.device(device)))
        stepper.run(2, 0)
        stepper.flat.values[3] = float("nan")
        stepper.flat.values[40] = float("inf")
        kept = [t.clone() for t in stepper.optimizer.tensors()[1:4]]
        stepper.run(2, 2)
        losses, norms = stepper.read(0, 4)
        still = all(torch.equal(a, b) for a, b in zip(kept, stepper.optimizer.tensors()[1:4], strict=True))
        broken = stepper.optimizer.broken.item()
        parameter = stepper.first_bad_tensor(2, 2)
        stepper.flat.values.nan_to_num_(0.0, 0.0)
        stepper.seek(2, 2)
        fine = stepper.first_bad_tensor(2, 2)
        stepper.run(1, 2)
    finite = torch.tensor([losses, norms]).isfinite().all(0).tolist()
    return {
        "still": still,
        "broken": broken,
        "finite": finite,
        "parameter": parameter,
        "fine": fine,
        "steps": stepper.optimizer.steps.item(),
        "step": stepper.step.item(),
    }


def rows_of_three() -> list[bool]:
    """Batches cut for three processes, also the short last one: the same tokens and targets as by indexing."""
    same = []
    r = recipe(precision="fp32", drop_last=False, batch_size=9)
    for rank in range(3):
        pair = []
        for on in (True, False):
            with switched(on):
                pair.append(make(on, r, World(rank, 3)))
        last = pair[0].steps_per_epoch - 1
        assert 3 <= pair[0].batch_at(last) < 9
        for position in (0, last):
            for stepper in pair:
                stepper.seek(position, position)
            batch = pair[0].batch_at(position)
            mine, theirs = (stepper.gather(stepper.micro_batches[batch][0]) for stepper in pair)
            same.append(all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)))
    return same


def check_distances(found: dict[str, float]) -> None:
    exact = {name: found.pop(name) for name in ("steps", "counters")}
    assert not any(exact.values()), exact
    assert max(found.values()) < 2e-5, found


def check_broken(found: dict[str, Any]) -> None:
    assert found["still"] and found["broken"] == 1
    assert found["finite"] == [True, True, False, False]
    assert found["parameter"] == "parameter table" and found["fine"] is None
    assert found["steps"] == 3 and found["step"] == 3


def test_warm_up_before_a_short_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that resumes there has fewer windows ahead than a full batch, which is what warm-up runs."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    stepper = make(False, recipe(precision="fp32", engine="compile", drop_last=False, batch_size=5), World())
    last = stepper.steps_per_epoch - 1
    stepper.seek(last, last)
    before = [t.clone() for t in (*stepper.optimizer.tensors(), stepper.counters)]
    stepper.prepare()
    after = (*stepper.optimizer.tensors(), stepper.counters)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    stepper.run(1, last)
    assert stepper.counters[0] == last + 1


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_the_same_run_in_the_interpreter(clip: float) -> None:
    check_distances(shared()("tests.train.test_fused_step:distances", clip=clip))


def test_parts_of_a_batch_and_a_schedule_in_the_interpreter() -> None:
    check_distances(shared()("tests.train.test_fused_step:distances", clip=0.05, **WARM))


def test_a_broken_run_in_the_interpreter() -> None:
    check_broken(shared()("tests.train.test_fused_step:broken_run"))


def test_rows_of_several_processes_in_the_interpreter() -> None:
    assert all(shared()("tests.train.test_fused_step:rows_of_three"))


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_the_same_run_on_a_gpu(clip: float, engine: str) -> None:
    check_distances(distances(clip, engine, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_parts_of_a_batch_and_a_schedule_on_a_gpu(engine: str) -> None:
    check_distances(distances(0.05, engine, "cuda", **WARM))


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_a_broken_run_on_a_gpu(engine: str) -> None:
    check_broken(broken_run("cuda", engine))
