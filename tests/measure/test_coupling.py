"""Reading the kernel: hand-set coefficients come back to 1e-12, as the function the layer really applies."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import fsn
from fsn.errors import UserError
from fsn.measure import coupling
from tests.small import random_tokens, small

DELTA = np.linspace(-np.pi, np.pi, 101)


def hand_set(
    layers: int = 3, k: int = 5, harmonics: int = 3, **overrides: object
) -> fsn.models.LanguageModel:
    """A float64 model whose coefficients follow a formula nobody would arrive at by accident."""
    model = small("fsn", k=k, layers=layers, harmonics=harmonics, **overrides)
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            for j, name in enumerate(("present_re", "present_im", "successor_re", "successor_im")):
                parameter = getattr(layer.kernel, name)
                n, a = np.mgrid[1 : harmonics + 1, 0:k]
                parameter.copy_(torch.from_numpy(np.cos(1.3 * n + 0.7 * a + 2.1 * i + 0.9 * j) / n))
    return model


def expected(
    layer: int, field: int, delta: np.ndarray, k: int = 5, harmonics: int = 3, rest: bool = True
) -> np.ndarray:
    total = np.zeros_like(delta)
    for a in range(k):
        for n in range(1, harmonics + 1):
            re = math.cos(1.3 * n + 0.7 * a + 2.1 * layer + 0.9 * (2 * field)) / n
            im = math.cos(1.3 * n + 0.7 * a + 2.1 * layer + 0.9 * (2 * field + 1)) / n
            total = total + re * np.sin(n * delta) + im * np.cos(n * delta) - (0.0 if rest else im)
    return total / k


def test_hand_set_kernels_are_recovered() -> None:
    reading = coupling.read_kernel(hand_set())
    assert reading.frame == "co-rotating" and (reading.layers, reading.harmonics) == (3, 3)
    for layer in range(3):
        for field in range(2):
            for rest, frame in ((True, "rest"), (False, "co-rotating")):
                found = dataclasses.replace(reading, frame=frame).functions(DELTA)[field, layer]
                assert np.abs(found - expected(layer, field, DELTA, rest=rest)).max() < 1e-12
    assert np.abs(reading.functions(np.zeros(1))).max() < 1e-12  # tokens that agree leave each other alone


def test_kuramoto_is_a_sine() -> None:
    reading = coupling.read_kernel(small("kuramoto"))
    present, successor = reading.functions(DELTA)
    assert np.abs(present - np.sin(DELTA)).max() < 1e-12 and not successor.any()
    assert not reading.rms_imaginary.any() and not reading.sign_flips.any()


@pytest.mark.parametrize("frame", ["rest", "co-rotating"])
def test_the_function_read_is_the_one_the_layer_applies(frame: str) -> None:
    """A token that attends to one other, all coordinates at one gap, moves by f(Δ) + f₊(Δ₊) on average."""
    model = hand_set(layers=1, frame=frame)
    k, gap, next_gap = 5, 0.8, -1.7
    theta = torch.zeros(1, 3, k, dtype=torch.float64)
    theta[0, 0], theta[0, 1], theta[0, 2] = 0.3 + gap, 0.3 + next_gap, 0.3
    attention = torch.zeros(1, 3, 3, dtype=torch.float64)
    attention[0, 0, 0] = attention[0, 1, 0] = attention[0, 2, 0] = 1.0
    changes = {"phases": theta, "layers.0.attention": attention}
    with torch.no_grad(), fsn.replace(model, changes), fsn.record(model, "layers.0.coupling") as points:
        model(random_tokens(model, batch=1, length=3))
    read = coupling.read_kernel(model)
    here, after = read.functions(np.array([gap, next_gap]))
    got = points["layers.0.coupling"][0, 2].mean().item()
    assert got == pytest.approx(here[0, 0] + after[0, 1], abs=1e-12)


def test_magnitudes_signs_and_angles() -> None:
    weights = np.zeros((2, 1, 2, 4), np.complex128)
    weights[0, 0, 0] = [3, 3, 3, 3]
    weights[0, 0, 1] = [-1, -1, 1, -1]
    weights[1, 0, 0] = 2 * np.exp(0.5j)
    reading = coupling.KernelReading(weights, np.ones(1), np.ones(1), 1.0, 1.0)
    np.testing.assert_allclose(reading.magnitude, [[[3, 1]], [[2, 0]]])
    assert reading.sign_flips.tolist() == [[[False, True]], [[False, False]]]
    assert reading.rms_imaginary[1, 0, 0] == pytest.approx(2 * math.sin(0.5))
    assert reading.rms_imaginary[0, 0, 0] == 0
    table = reading.table()
    assert len(table) == 4 and table.where(field="present", harmonic=2).rows[0]["sign_flip"]
    assert table.where(field="present", harmonic=2).rows[0]["angle"] == pytest.approx(np.pi)
    assert table.where(field="successor", harmonic=1).rows[0]["angle"] == pytest.approx(0.5)
    assert "yes" in table.to_markdown()


def test_scales_and_missing_bounds() -> None:
    model = small("fsn")
    reading = coupling.read_kernel(model)
    model.requires_grad_(False)
    assert reading.tau == pytest.approx(float(model.tau)) and reading.readout_scale == float(
        model.readout.scale
    )
    expected_alpha = [float(layer.attention_bound.alpha) for layer in model.layers]
    assert reading.attention_alpha.tolist() == expected_alpha
    assert reading.scales().rows[1]["alpha_feedforward"] == float(model.layers[1].feedforward_bound.alpha)
    assert np.isnan(coupling.read_kernel(small("fsn-nobound")).attention_alpha).all()


def test_gates_by_sign() -> None:
    model = small("fsn", k=4, layers=2)
    gate = torch.tensor([1.0, -2.0, 3.0, 0.5])
    with fsn.replace(model, {"layers.*.gates.value": lambda g: gate.expand_as(g)}):
        table = coupling.read_gates(model, random_tokens(model))
    for row in table.rows:
        assert row["attractive"] == 0.75 and row["repulsive"] == 0.25
        assert row["always_attractive"] == 0.75 and row["always_repulsive"] == 0.25
        assert row["mean"] == pytest.approx(0.625)
        assert row["rms"] == pytest.approx(math.sqrt((1 + 4 + 9 + 0.25) / 4))
    positive = coupling.read_gates(small("fsn-positive-gate"), random_tokens(model))
    assert positive.rows[0]["repulsive"] == 0.0


def test_data_for_the_page() -> None:
    readings = [coupling.read_kernel(small("fsn", seed=seed), f"epoch {seed}") for seed in (1, 2)]
    data = coupling.coupling_data(readings, coordinates=True)
    assert [step["label"] for step in data["steps"]] == ["epoch 1", "epoch 2"]
    mean = readings[1].weights[1, 0, 2].mean()
    assert data["steps"][1]["weights"][1][0][2] == pytest.approx([mean.real, mean.imag], abs=1e-6)
    one = readings[1].weights[0, 1, 0, 3]
    assert data["coordinates"][0][1][3][0] == pytest.approx([one.real, one.imag], abs=1e-4)


def test_a_transformer_has_no_kernel_and_frames_have_names() -> None:
    with pytest.raises(UserError, match="no coupling kernel"):
        coupling.read_kernel(small("transformer"))
    with pytest.raises(UserError, match="frame"):
        coupling.coupling_function(np.ones((1, 1), complex), DELTA, "moving")
