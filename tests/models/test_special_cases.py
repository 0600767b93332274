"""The family's exact inclusions, model by model: one is another with some parameters at special values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fsn
from fsn.models import LanguageModel
from tests.small import random_tokens, small

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}


def with_parameters_of(model: LanguageModel, family: str, **overrides: Any) -> LanguageModel:
    """Another family's model that takes over every parameter it has in common with this one."""
    other = small(family, seed=9, **overrides)
    missing, _ = other.load_state_dict(
        {n: v for n, v in model.state_dict().items() if n in other.state_dict()}, strict=False
    )
    assert all("kernel" in name for name in missing)
    return other


def assert_same_logits(a: LanguageModel, b: LanguageModel) -> None:
    tokens = random_tokens(a)
    with torch.no_grad():
        torch.testing.assert_close(a(tokens), b(tokens), **EXACT)


def kernels(model: LanguageModel) -> list[dict[str, torch.Tensor]]:
    """The kernel parameters of every layer: present_re, present_im, successor_re, successor_im, score."""
    return [
        dict(model.get_submodule(f"layers.{i}.coupling.kernel").named_parameters())
        for i in range(model.config.layers)
    ]


@pytest.mark.parametrize("family", ["fsn", "fsn-literal"])
def test_zero_angles_are_the_model_without_phases(family: str) -> None:
    model = small(family)
    for kernel in kernels(model):
        kernel["present_im"].data.zero_()
        kernel["successor_im"].data.zero_()
    assert_same_logits(model, with_parameters_of(model, "fsn-nophase"))


@pytest.mark.parametrize("family", ["fsn", "fsn-literal"])
def test_w0_one_and_w1_zero_is_kuramoto_attention(family: str) -> None:
    model = small(family)
    for kernel in kernels(model):
        for value in kernel.values():
            value.data.zero_()
        kernel["present_re"].data[0] = 1.0
    assert_same_logits(model, with_parameters_of(model, "kuramoto"))


def test_no_delay_is_a_delay_of_weight_zero() -> None:
    model = small("fsn")
    for kernel in kernels(model):
        kernel["successor_re"].data.zero_()
        kernel["successor_im"].data.zero_()
    assert_same_logits(model, with_parameters_of(model, "fsn-nodelay"))


def test_a_score_without_successors_is_one_of_weight_zero() -> None:
    model = small("fsn-score")
    for kernel in kernels(model):
        kernel["score"].data.zero_()
    assert_same_logits(model, with_parameters_of(model, "fsn"))


def test_successor_coupling_is_a_present_of_weight_zero() -> None:
    model = small("fsn-nophase")
    for kernel in kernels(model):
        kernel["present_re"].data.zero_()
    assert_same_logits(model, with_parameters_of(model, "successor"))


def test_one_harmonic_is_higher_ones_of_weight_zero() -> None:
    model = small("fsn-nophase")
    for kernel in kernels(model):
        for value in kernel.values():
            value.data[1:] = 0.0
    other = small("fsn-noharmonics", seed=9)
    state = {n: v[:1] if "kernel" in n else v for n, v in model.state_dict().items()}
    other.load_state_dict(state)
    assert_same_logits(model, other)


def test_a_shared_kernel_is_equal_columns() -> None:
    model = small("fsn")
    for kernel in kernels(model):
        for value in kernel.values():
            value.data[:] = value.data[:, :1].clone()
    other = small("fsn-shared-kernel", seed=9)
    other.load_state_dict({n: v[:, :1] if "kernel" in n else v for n, v in model.state_dict().items()})
    assert_same_logits(model, other)


def test_the_lean_model_differs_from_the_full_one_in_its_start_alone() -> None:
    model = small("fsn")
    assert_same_logits(model, with_parameters_of(model, "fsn-lean"))
    torch.manual_seed(0)
    lean = fsn.build("fsn-lean-1m", vocab_size=13, k=11)
    for kernel in kernels(lean):
        assert kernel["present_im"].eq(0).all() and kernel["successor_im"].eq(0).all()


def test_the_frames_agree_where_the_kernel_is_real_and_differ_where_not() -> None:
    model = small("fsn")
    literal = with_parameters_of(model, "fsn-literal")
    tokens = random_tokens(model)
    with torch.no_grad():
        assert (model(tokens) - literal(tokens)).abs().max() > 1e-2
    real = small("fsn-nophase")
    assert_same_logits(real, with_parameters_of(real, "fsn-nophase", frame="rest"))


def test_the_literal_kernel_turns_every_phase_and_the_co_rotating_one_does_not() -> None:
    """At the start tokens nearly agree: in the rest frame the angles alone move them by half a radian."""
    tokens = torch.randint(13, (2, 30))
    rms = {}
    for family in ("fsn", "fsn-literal"):
        torch.manual_seed(0)
        model = fsn.build(f"{family}-1m", vocab_size=13)
        with torch.no_grad(), fsn.record(model, "layers.0.update.bounded") as points:
            model(tokens)
        rms[family] = points["layers.0.update.bounded"].square().mean().sqrt().item()
    assert rms["fsn-literal"] > 0.3 > 0.15 > rms["fsn"]


def test_logits_are_coherences_with_prototypes() -> None:
    """logits = s Σ_c cos(θ_c − p_c), so they never exceed |s| k."""
    model = small("fsn")
    tokens = random_tokens(model)
    with torch.no_grad(), fsn.record(model, "layers.1.state") as points:
        logits = model(tokens)
    theta, p = points["layers.1.state"], model.get_parameter("readout.prototypes")
    scale = model.get_parameter("readout.scale")
    torch.testing.assert_close(logits, scale * (theta[:, :, None] - p).cos().sum(-1), **EXACT)


@pytest.mark.parametrize("family", ["fsn", "fsn-dissolved", "transformer"])
def test_the_three_ways_to_the_loss_agree(family: str) -> None:
    model = small(family)
    tokens, targets = random_tokens(model, seed=2), random_tokens(model, seed=3)
    with torch.no_grad():
        logits, loss = model(tokens, targets=targets)
        torch.testing.assert_close(logits, model(tokens), **EXACT)
        torch.testing.assert_close(loss, model.loss(tokens, targets), **EXACT)
    expected = -logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss, expected, **EXACT)
    assert loss.mean() > 0.1 * math.log(13)
