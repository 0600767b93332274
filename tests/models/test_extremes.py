"""Scales and temperatures at values no one would choose: finite logits, losses and gradients all the same."""

from __future__ import annotations

import contextlib

import pytest
import torch

import fsn
from fsn.models import LanguageModel
from tests.small import randomise

VALUES = [1e-8, 1e6, 0.0, -1.0]
FAMILIES = ["fsn", "fsn-literal", "fsn-mf", "fsn-mf-winding", "fsn-dissolved", "fsn-torus-swiglu"]


def finite_everywhere(model: LanguageModel, bf16: bool) -> None:
    model.train()
    model.zero_grad()
    tokens = torch.randint(model.config.vocab_size, (2, 12))
    cast = torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()
    with cast:
        logits, loss = model(tokens, targets=tokens.roll(-1, 1))
    assert logits.dtype == loss.dtype == torch.float32
    assert logits.isfinite().all() and loss.isfinite().all()
    loss.mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def set_all(model: LanguageModel, ending: str, value: float) -> None:
    chosen = [p for name, p in model.named_parameters() if name.endswith(ending)]
    assert chosen
    for parameter in chosen:
        parameter.data.fill_(value)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("ending", ["alpha", "tau", "readout.scale"])
@pytest.mark.parametrize("family", FAMILIES)
def test_extreme_scales(family: str, ending: str, value: float, bf16: bool) -> None:
    """At the start, and again with random parameters, where phases are spread over many turns."""
    model = fsn.build(f"{family}-1m", vocab_size=13, k=16, layers=2)
    set_all(model, ending, value)
    finite_everywhere(model, bf16)
    randomise(model)
    set_all(model, ending, value)
    finite_everywhere(model, bf16)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_all_extremes_at_once(bf16: bool) -> None:
    model = fsn.build("fsn-1m", vocab_size=13, k=16, layers=2)
    for alpha in VALUES:
        for tau in VALUES:
            for scale in VALUES:
                set_all(model, "alpha", alpha)
                set_all(model, "tau", tau)
                set_all(model, "readout.scale", scale)
                finite_everywhere(model, bf16)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_gates_shut_or_wide_open(value: float, bf16: bool) -> None:
    """Gates whose every raw value is hugely negative meet the floor of their mean."""
    model = fsn.build("fsn-positive-gate-1m", vocab_size=13, k=16, layers=2)
    set_all(model, "gates.bias", value)
    finite_everywhere(model, bf16)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_identical_tokens(bf16: bool) -> None:
    """All updates of the attention half are exactly zero here: the bound meets its singular point."""
    model = fsn.build("kuramoto-1m", vocab_size=13, k=16, layers=2)
    tokens = torch.full((2, 12), 7)
    cast = torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()
    with cast, fsn.record(model, "layers.0.update.raw") as points:
        loss = model.loss(tokens, tokens)
    assert points["layers.0.update.raw"].abs().max() < (1e-2 if bf16 else 1e-6)
    loss.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_smallest_model_there_is() -> None:
    for family in ("fsn", "fsn-mf", "fsn-mf-winding", "fsn-dissolved", "fsn-torus-swiglu"):
        finite_everywhere(fsn.build(f"{family}-1m", vocab_size=13, k=1, layers=1), bf16=False)
    finite_everywhere(fsn.build("transformer-1m", vocab_size=13, width=2, layers=1), bf16=False)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_a_step_of_training_lowers_the_loss_from_extreme_scales(bf16: bool) -> None:
    """ "Keep working" means more than staying finite: gradients still point downhill."""
    for ending, value in (("alpha", 1e-3), ("tau", 1e-8), ("tau", 1e6), ("readout.scale", 1e-4)):
        torch.manual_seed(0)
        model = fsn.build("fsn-1m", vocab_size=13, k=16, layers=2)
        set_all(model, ending, value)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        tokens = torch.arange(24).remainder(13).view(1, 24)
        losses = []
        for _ in range(15):
            cast = torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()
            with cast:
                loss = model.loss(tokens, tokens.roll(-1, 1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] - 0.01, (ending, value)
