"""The step against PyTorch's own pieces: per-parameter AdamW, clip_grad_norm_, a plain loop over batches."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import fsn
from fsn.data import Windows, epoch_order
from fsn.ops import DropoutKey
from fsn.train import Recipe
from fsn.train.optimizer import FlatParameters, Optimizer
from fsn.train.step import Stepper, dropout_base
from fsn.train.world import World
from tests.train.tiny import MODELS, corpus, recipe, still_flat


def make(
    preset: str, r: Recipe, dtype: torch.dtype = torch.float32, **overrides: Any
) -> tuple[nn.Module, Windows, Stepper]:
    text = corpus()
    torch.manual_seed(r.seed)
    model = fsn.build(preset, text.vocab_size, **{**MODELS[preset], **overrides}).to(dtype).train()
    windows = Windows(text.train, r.length, r.train_stride)
    stepper = Stepper(model, windows, r, World())
    stepper.set_order(epoch_order(len(windows), r.seed, 1))
    stepper.seek(0, 0)
    return model, windows, stepper


@pytest.mark.parametrize("preset", MODELS)
def test_a_step_is_the_textbook_one(preset: str) -> None:
    """Ten steps with dropout equal a loop of gather, loss.mean(), clip_grad_norm_ and plain AdamW."""
    r = recipe(engine="eager", precision="fp32", clip=0.1, lr=3e-3)
    model, windows, stepper = make(preset, r)
    torch.manual_seed(r.seed)
    text = corpus()
    twin = fsn.build(preset, text.vocab_size, **MODELS[preset]).train()
    plain = torch.optim.AdamW(twin.parameters(), lr=r.lr, weight_decay=r.weight_decay, foreach=False)
    order = epoch_order(len(windows), r.seed, 1)
    expected = []
    for step in range(10):
        batch = windows.gather(order[step * 8 : step * 8 + 8])
        key = DropoutKey(torch.tensor(dropout_base(r.seed) + step), 0)
        loss = twin.loss(batch[:, :-1], batch[:, 1:], dropout_key=key).mean()
        plain.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(twin.parameters(), r.clip)
        plain.step()
        expected.append((float(loss.detach()), float(norm)))
    stepper.run(10, 0)
    losses, norms = stepper.read(0, 10)
    assert losses == pytest.approx([e[0] for e in expected], rel=1e-5)
    assert norms == pytest.approx([e[1] for e in expected], rel=1e-3)
    assert max(norms) > r.clip
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0.1 * r.lr, msg=name)  # of ten steps


def test_parameters_stay_views_of_one_vector() -> None:
    model, _, stepper = make("fsn-1m", recipe(engine="eager", precision="fp32"))
    stepper.run(3, 0)
    assert still_flat(stepper.flat)
    total = sum(p.numel() for p in model.parameters())
    assert total <= stepper.flat.values.numel() < total + 32 * len(list(model.parameters()))
    padding = stepper.flat.values.square().sum() - sum(p.detach().square().sum() for p in model.parameters())
    assert float(padding) == pytest.approx(0.0, abs=1e-3)


def test_weight_decay_reaches_every_parameter() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    optimizer = Optimizer(FlatParameters(module), Recipe(lr=0.1, weight_decay=0.5, clip=0.0))
    optimizer.step(torch.zeros(()))
    for name, p in module.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (1 - 0.1 * 0.5))


def test_optimizer_state_goes_round() -> None:
    model, _, stepper = make("transformer-1m", recipe(engine="eager", precision="fp32"))
    stepper.run(4, 0)
    saved = {n: t.clone() for n, t in stepper.optimizer.state_dict().items()}
    assert float(saved["steps"]) == 4
    assert {n.removeprefix("moment.") for n in saved if n.startswith("moment.")} == dict(
        model.named_parameters()
    ).keys()
    stepper.run(2, 4)
    stepper.optimizer.load_state_dict(saved)
    for name, tensor in stepper.optimizer.state_dict().items():
        assert torch.equal(tensor, saved[name]), name
    with pytest.raises(KeyError, match="fit"):
        stepper.optimizer.load_state_dict({"steps": saved["steps"]})


def test_a_bad_step_leaves_weights_and_moments_alone() -> None:
    """A loss that is not finite at step 3 of 6 freezes everything as it was after step 2."""
    r = recipe(engine="eager", precision="fp32")
    model, _, stepper = make("fsn-1m", r)
    stepper.run(2, 0)
    good = {n: t.clone() for n, t in (model.state_dict() | stepper.optimizer.state_dict()).items()}
    honest = model.loss

    def broken(tokens: torch.Tensor, targets: torch.Tensor, **context: Any) -> torch.Tensor:
        return honest(tokens, targets, **context) * float("nan")  # type: ignore[operator]

    stepper._loss = broken
    stepper.run(1, 2)
    stepper._loss = honest  # type: ignore[assignment]
    stepper.run(3, 3)
    losses, _ = stepper.read(0, 6)
    assert [torch.isfinite(torch.tensor(x)).item() for x in losses] == [True, True, False, True, True, True]
    for name, tensor in (model.state_dict() | stepper.optimizer.state_dict()).items():
        assert torch.equal(tensor, good[name]), name


def test_incomplete_last_batch_is_a_mean_over_what_is_there() -> None:
    r = recipe(engine="eager", precision="fp32", drop_last=False, batch_size=48)
    model, windows, stepper = make("fsn-1m", r, dropout=0.0)
    last = stepper.steps_per_epoch - 1
    assert 0 < stepper.batch_at(last) < 48
    rows = epoch_order(len(windows), r.seed, 1)[last * 48 :]
    batch = windows.gather(rows)
    expected = float(model.loss(batch[:, :-1], batch[:, 1:]).mean().detach())  # type: ignore[operator]
    stepper.seek(last, last)
    stepper.run(1, last)
    assert stepper.read(last, 1)[0][0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("preset", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_parts_of_a_batch_add_up_to_its_gradient(preset: str, dtype: torch.dtype, tolerance: float) -> None:
    """Dropout on; a full batch of 40 and the last of an epoch, in 1, 3 and 40 parts."""
    found = []
    for accumulate in (1, 3, 40):
        r = recipe(engine="eager", precision="fp32", drop_last=False, batch_size=40, accumulate=accumulate)
        model, _, stepper = make(preset, r, dtype=dtype)
        last = stepper.steps_per_epoch - 1
        assert stepper.batch_at(last) == 2 and len(stepper.micro_batches[40]) == accumulate
        results = []
        for position in (0, last):
            stepper.seek(position, position)
            stepper.flat.message.fill_(7.0)  # what was there before does not count
            stepper._gradients(stepper.batch_at(position), model.loss)  # type: ignore[arg-type]
            results.append((stepper.flat.gradient.clone(), stepper.flat.spare[0].item()))
        found.append(results)
    for results in found[1:]:
        for (gradient, loss), (whole, whole_loss) in zip(results, found[0], strict=True):
            slots = stepper.flat.slots
            pairs = [(stepper.flat.view(gradient, n), stepper.flat.view(whole, n)) for n in slots]
            assert all((a - b).norm() <= tolerance * whole.norm() for a, b in pairs)
            assert loss == pytest.approx(whole_loss, rel=tolerance)


def test_a_bad_part_of_a_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of four parts is not finite: the step does not count, and the tensor is named."""
    model, _, stepper = make("fsn-1m", recipe(engine="eager", precision="fp32", accumulate=4))
    honest, calls = model.loss, []

    def broken(tokens: torch.Tensor, targets: torch.Tensor, **context: Any) -> torch.Tensor:
        calls.append(len(tokens))
        losses = honest(tokens, targets, **context)  # type: ignore[operator]
        return losses * float("nan") if len(calls) % 4 == 3 else losses

    monkeypatch.setattr(model, "loss", broken)
    before = stepper.flat.values.clone()
    stepper._eager(8, broken)
    assert calls == [2, 2, 2, 2]
    assert torch.equal(stepper.flat.values, before) and float(stepper.optimizer.broken) == 1
    assert stepper.first_bad_tensor(0, 0) == "loss"


def test_compile_engine_agrees_with_eager_and_its_warm_up_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The traced graph is run by PyTorch itself here: generating C++ takes a minute and is not ours to test.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    results = {}
    for engine in ("eager", "compile"):
        _, _, stepper = make("fsn-1m", recipe(engine=engine, precision="fp32"))
        stepper.run(3, 0)
        results[engine] = stepper.read(0, 3)[0]
        assert stepper.engine == engine
        assert float(stepper.optimizer.steps) == 3
    assert results["compile"] == pytest.approx(results["eager"], rel=1e-4)


def test_dropout_counters_of_two_seeds_lie_far_apart() -> None:
    bases = [dropout_base(seed) % 2**32 for seed in range(200)]
    ordered = sorted(bases)
    assert min(b - a for a, b in itertools.pairwise(ordered)) > 1000
    assert all(0 <= dropout_base(s) < 2**62 for s in range(50))
