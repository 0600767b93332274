"""Whole models through fused kernels and through the reference: losses, gradients, training.

The functions take and return plain values, so that they can run in this process on a GPU or in another one
under Triton's interpreter (``tests/ops/fused/interpreter.py``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fsn
from fsn.data import Windows, epoch_order
from fsn.models import FSN, LanguageModel, fused_stack, selfcheck
from fsn.ops import DropoutKey
from fsn.ops.fused import check, ledger
from fsn.train.optimizer import FlatParameters
from fsn.train.recipe import Recipe
from fsn.train.step import Stepper
from fsn.train.world import World, numerics
from tests.models.trouble import lagging, poison
from tests.ops.fused.inputs import limited, relative

SYMBOLS = 29
Gradients = dict[str, Tensor]


@contextlib.contextmanager
def path(which: str) -> Iterator[None]:
    """Take the ``fused`` path, whatever the check at its first use would say, or the ``reference``."""
    before = os.environ.get("FSN_FUSED")
    os.environ["FSN_FUSED"] = {"fused": "force", "reference": "0"}[which]
    try:
        yield
    finally:
        if before is None:
            del os.environ["FSN_FUSED"]
        else:
            os.environ["FSN_FUSED"] = before


def text(batch: int, length: int, device: str, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Something to learn: each symbol follows from the one before it, but for one in eight."""
    generator = torch.Generator().manual_seed(seed)
    successor = torch.randperm(SYMBOLS, generator=torch.Generator().manual_seed(1))
    rows = [torch.randint(SYMBOLS, (batch,), generator=generator)]
    for _ in range(length):
        noise = torch.randint(SYMBOLS, (batch,), generator=generator)
        odd = torch.rand(batch, generator=generator) < 0.125
        rows.append(torch.where(odd, noise, successor[rows[-1]]))
    tokens = torch.stack(rows, dim=1).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def build(family: str, device: str, steps: int = 0, **overrides: Any) -> LanguageModel:
    """A model with random weights, or with weights that the reference has trained for a few steps."""
    torch.manual_seed(5)
    overrides = {"layers": 2, "k": 17} | overrides
    model = fsn.build(f"{family}-1m", vocab_size=SYMBOLS, **overrides).to(device).train()
    if steps:
        train(model, steps, "reference", device)
    else:
        selfcheck.scatter(model)
    return model


def train(
    model: LanguageModel, steps: int, which: str, device: str, batch: int = 8, length: int = 32
) -> list[float]:
    """Plain AdamW in float32; the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    with path(which):
        for step in range(steps):
            tokens, targets = text(batch, length, device, seed=100 + step)
            optimizer.zero_grad()
            loss = model.loss(tokens, targets).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def gradients(
    model: LanguageModel, tokens: Tensor, targets: Tensor, dtype: str, key: DropoutKey | None = None
) -> tuple[Tensor, Gradients]:
    """Losses (B, T), and the gradients of their mean."""
    model.zero_grad()
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        losses = model.loss(tokens, targets, dropout_key=key)
    losses.mean().backward()
    return losses.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def compare(
    family: str,
    dtype: str = "float32",
    device: str = "cpu",
    T: int = 12,
    batch: int = 2,
    steps: int = 0,
    chunk: int | None = None,
    first_row: int = 0,
    **overrides: Any,
) -> dict[str, list[float]]:
    """Errors against float64 by name: of the fused path, and of the reference in the same precision."""
    model = build(family, device, steps, **overrides)
    tokens, targets = text(batch, T, device)
    key = DropoutKey(torch.tensor(11, device=device), first_row) if model.uses_dropout else None
    with path("fused"), limited(chunk=chunk):
        assert isinstance(model, FSN) and fused_stack.applies(model, tokens)
        found = selfcheck.errors(model, tokens, targets, getattr(torch, dtype), key)
    return {name: list(pair) for name, pair in found.items()}


def same_bits(
    family: str,
    dtype: str = "float32",
    device: str = "cpu",
    T: int = 12,
    batch: int = 2,
    chunk: int | None = None,
    poisoned: bool = False,
    lag: str | None = None,
    kept: int | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """The fused path twice, the second time perhaps with poisoned memory, a lag, or so many bytes of fields to keep:
    which results differ in any bit?"""
    model = build(family, device, **overrides)
    tokens, targets = text(batch, T, device)
    key = DropoutKey(torch.tensor(11, device=device)) if model.uses_dropout else None
    with path("fused"), limited(chunk=chunk):
        first_losses, first = gradients(model, tokens, targets, dtype, key)
        with (
            poison() if poisoned else contextlib.nullcontext([0]) as filled,
            lagging(lag),
            limited(kept=kept),
        ):
            losses, grads = gradients(model, tokens, targets, dtype, key)
    results = {name: (first[name], grads[name]) for name in first} | {"loss": (first_losses, losses)}
    return {
        "filled": filled[0],
        "results": len(results),
        "different": [name for name, (a, b) in results.items() if not torch.equal(a, b)],
        "not finite": [name for name, (_, b) in results.items() if not torch.isfinite(b).all()],
    }


def saved(family: str, kept: int | None = None, T: int = 12, **overrides: Any) -> dict[str, int]:
    """Bytes that a forward pass in bfloat16 keeps for the backward pass, and bytes of the fields of all its layers."""
    model = build(family, "cpu", **overrides)
    assert isinstance(model, FSN)
    tokens, targets = text(2, T, "cpu")
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with path("fused"), limited(kept=kept), torch.autocast("cpu", torch.bfloat16), hooks:
        losses = model.loss(tokens, targets)
    assert losses.requires_grad
    return {
        "saved": sum(storages.values()),
        "fields": fused_stack.fields_size(model, 2, T, torch.bfloat16),
    }


def written(
    family: str, dtype: str = "float32", device: str = "cpu", lag: str | None = None, **overrides: Any
) -> dict[str, Any]:
    """The gradient that a backward pass writes into the trainer's vector itself, against the one autograd returns.

    Layers share gates and τ, so that their places are written once and added to after that.
    """
    model = build(family, device, **overrides)
    tokens, targets = text(2, 12, device)
    with path("fused"):
        losses, expected = gradients(model, tokens, targets, dtype)
        flat = FlatParameters(model)
        flat.gradient.fill_(float("nan"))
        flat.release()
        with lagging(lag):
            with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
                again = model.loss(tokens, targets)
            with ledger.writing(flat.places) as book:
                again.backward(torch.full_like(again, 1 / again.numel()))
            flat.collect(book.written)
    found = flat.split(flat.gradient)
    names = {p.data_ptr(): name for name, p in model.named_parameters()}
    return {
        "same loss": torch.equal(again, losses),
        "written": sorted(names[address] for address in book.written),
        "errors": {name: relative(found[name], g.double()) for name, g in expected.items()},
    }


def between_two_steps() -> dict[str, Any]:
    """What an evaluation of another length does: to the rotary tables a captured step reads, and for gradients."""
    from fsn.ops.fused import embedding

    model = build("fsn", "cpu", k=9, layers=1)
    assert isinstance(model, FSN)
    made: list[bool] = []

    class Counted:
        def __getitem__(self, grid: Any) -> Any:
            made.append(torch.is_grad_enabled())
            return plain[grid]

    plain, embedding.one_hot_kernel = embedding.one_hot_kernel, Counted()
    try:
        with path("fused"):
            gradients(model, *text(2, 12, "cpu"), "float32")
            before = fused_stack.rotary_tables(model, 12)
            trained = len(made)
            with torch.inference_mode():
                model.loss(*text(2, 7, "cpu"))
            evaluated = len(made) - trained
            gradients(model, *text(2, 7, "cpu"), "float32")
    finally:
        embedding.one_hot_kernel = plain
    after = fused_stack.rotary_tables(model, 12)
    return {
        "kept": [t.data_ptr() for t in before] == [t.data_ptr() for t in after],
        "made": [trained, evaluated],
    }


def rotary_rows(lengths: list[int]) -> dict[str, Any]:
    """Tables for many lengths: are they right, does the first stay where it is, how many rows are kept in all?"""
    from fsn.ops.fused.attention import rotary_table

    model = build("fsn", "cpu", k=9, layers=1)
    assert isinstance(model, FSN)
    first, same = fused_stack.rotary_tables(model, lengths[0]), True
    for length in lengths:
        found, expected = (
            fused_stack.rotary_tables(model, length),
            rotary_table(length, fsn.ops.rotary_rates(9)),
        )
        same = same and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    again = fused_stack.rotary_tables(model, lengths[0])
    rows = sum(cos.shape[0] for cos, _ in model.__dict__["_rotary"].values())
    return {"same": same, "kept": first[0].data_ptr() == again[0].data_ptr(), "rows": rows}


def logits_and_losses(
    family: str, dtype: str = "float32", device: str = "cpu", **overrides: Any
) -> dict[str, float]:
    """The other way into a model: fused logits and the reference's, fused losses and those logits'."""
    model = build(family, device, **overrides).eval()
    tokens, targets = text(2, 12, device)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
        with path("reference"):
            expected = model(tokens)
        with path("fused"):
            logits, losses = model(tokens, targets=targets)
            alone = model.loss(tokens, targets)
    return {
        "logits": relative(logits, expected.double()),
        "losses": relative(alone, losses.double()),
    }


def short_training(steps: int, device: str = "cpu", **overrides: Any) -> dict[str, list[float]]:
    """The same training twice, from the same start: losses of the fused path and of the reference."""
    losses = {}
    for which in ("fused", "reference"):
        torch.manual_seed(5)
        model = fsn.build("fsn-1m", vocab_size=SYMBOLS, **overrides).to(device).train()
        losses[which] = train(model, steps, which, device, batch=2, length=8)
    return losses


def fallback(family: str, dtype: str = "float32", **overrides: Any) -> dict[str, Any]:
    """A model that has no kernels, asked to run fused: it runs, and it is the reference but for a CPU's rounding."""
    model = build(family, "cpu", **overrides)
    tokens, targets = text(2, 6, "cpu")
    key = DropoutKey(torch.tensor(11)) if model.uses_dropout else None
    with path("fused"):
        applies = isinstance(model, FSN) and fused_stack.applies(model, tokens)
        losses, grads = gradients(model, tokens, targets, dtype, key)
    with path("reference"):
        plain_losses, plain_grads = gradients(model, tokens, targets, dtype, key)
    return {
        "applies": applies,
        "same": torch.allclose(losses, plain_losses, atol=1e-5)
        and all(torch.allclose(g, plain_grads[n], rtol=1e-4, atol=1e-6) for n, g in grads.items()),
    }


def special_calls() -> dict[str, Any]:
    """Calls that take the reference path although the model has kernels, in a process where kernels run."""
    model = build("fsn", "cpu")
    assert isinstance(model, FSN)
    tokens, targets = text(2, 6, "cpu")
    answer: dict[str, Any] = {}
    with path("fused"):
        answer["plain"] = fused_stack.applies(model, tokens)
        with fsn.record(model, "layers.*.attention") as points:
            answer["probed"] = fused_stack.applies(model, tokens)
            model.loss(tokens, targets)
        answer["recorded"] = sorted(points)
        with torch.autocast("cpu", torch.bfloat16):
            answer["bfloat16"] = fused_stack.applies(model, tokens)
        with torch.autocast("cpu", torch.float16):
            answer["float16"] = fused_stack.applies(model, tokens)
        eager = model.loss(tokens, targets)
        compiled = torch.compile(model.loss, backend="eager")(tokens, targets)
        answer["compiled"] = relative(compiled, eager.detach().double())
        answer["float64"] = fused_stack.applies(model.double(), tokens)
        answer["float64 loss"] = str(model.loss(tokens, targets).dtype)
    with path("reference"):
        answer["switched off"] = fused_stack.applies(model.float(), tokens)
    return answer


def graph_training(steps: int, device: str = "cuda", **overrides: Any) -> dict[str, list[float]]:
    """The trainer's step in float32, twice from the same start: fused in a CUDA graph, reference eager.

    Two paths differ by their rounding, and training may make more of it. With the paper's lr = 1e-3 and
    ε = 1e-8 it does: on this text even two references, one with noise of 1e-6 of each gradient's size, part
    by 1e-3 at step 67 and by 0.2 at step 200, so that such a run would say nothing about kernels. With
    lr = 3e-4 and ε = 1e-4, where tiny gradients make tiny steps, the loss still falls to 0.71 of its start,
    and noise of 1e-6 moves it by 2e-7, noise of 1e-4 by 9e-7. Faults show: gradients of the kernels or of
    the gates a tenth too small move it by 8e-5 and 4e-4, bounds that do not learn by 2e-4, a learning rate
    1 % off by 5e-3. (All of this is measured with the reference on a CPU.)
    """
    place = torch.device(device)
    tokens, _ = text(1, 64 * 1024, "cpu")
    windows = Windows(tokens[0].to(torch.uint8).to(place), 128, 32)
    losses = {}
    for which in ("fused", "reference"):
        engine: Any = "graph" if which == "fused" and place.type == "cuda" else "eager"
        recipe = Recipe(batch_size=8, length=128, lr=3e-4, eps=1e-4, precision="fp32", engine=engine)
        torch.manual_seed(5)
        model = fsn.build("fsn-1m", vocab_size=SYMBOLS, **overrides).to(place).train()
        with path(which), numerics(recipe, place):
            stepper = Stepper(model, windows, recipe, World(device=place))
            stepper.set_order(epoch_order(len(windows), 0, 1))
            stepper.seek(0, 0)
            stepper.run(steps, 0)
            losses[which] = stepper.read(0, steps)[0]
    return losses


class Broken:
    """A kernel that does its work and then spoils what it wrote, or does not run at all."""

    def __init__(self, kernel: Any, raises: bool) -> None:
        self.kernel, self.raises = kernel, raises

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            if self.raises:
                raise RuntimeError("PassManager::run failed\nand more")
            tensors = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
            before = [t.clone() for t in tensors]
            self.kernel[grid](*args, **options)
            for tensor, old in zip(tensors, before, strict=True):
                if not torch.equal(tensor, old):
                    tensor.mul_(1.3)

        return launch


@contextlib.contextmanager
def first_check(broken: str | None, raises: bool, forced: bool) -> Iterator[pytest.MonkeyPatch]:
    """Kernels are checked on this CPU, as at their first use; one of them ("module:name") may be broken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSN_FUSED", "force" if forced else "1")
        patch.setattr(check, "CHECKED", {"cpu"})
        patch.setattr(check, "LENGTHS", {256: 9})
        patch.setattr(check, "_verdicts", {})
        if broken:
            module, _, name = broken.partition(":")
            home = importlib.import_module(f"fsn.ops.fused.{module}")
            patch.setattr(home, name, Broken(getattr(home, name), raises))
        yield patch


def self_check(
    family: str = "fsn",
    dtype: str = "float32",
    broken: str | None = None,
    raises: bool = False,
    forced: bool = False,
    backward: bool = True,
    **overrides: Any,
) -> dict[str, Any]:
    """What a model does that checks its kernels, one of which ("module:name") may be broken: is it served, does it run
    fused, and which lines are shown?"""
    config = fsn.preset(f"{family}-1m", SYMBOLS, **{"k": 5, "layers": 1} | overrides)
    tokens, targets = text(1, 4, "cpu")
    random = torch.get_rng_state()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(first_check(broken, raises, forced))
        checks = Counter[bool]()
        plain = selfcheck.disagreement

        def counted(*args: Any) -> str | None:
            checks[args[-1]] += 1
            return plain(*args)

        patch.setattr(selfcheck, "disagreement", counted)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(torch.set_grad_enabled(backward))
        served = [fused_stack.supports(config, torch.device("cpu"), getattr(torch, dtype)) for _ in range(2)]
        same_random = torch.equal(random, torch.get_rng_state())
        model = FSN(config)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            applies = fused_stack.applies(model, tokens)
            with torch.inference_mode():
                finite = bool(torch.isfinite(model.loss(tokens, targets)).all())
    return {
        "served": served,
        "applies": applies,
        "finite": finite,
        "checks": checks.total(),
        "same random": same_random,
        "lines": [str(w.message) for w in caught],
    }
