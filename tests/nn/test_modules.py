"""The modules by themselves: what they hold and what they compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fsn
from fsn import nn
from fsn.models import FSN
from tests.small import FSN_FAMILIES, law_of, layers_of, small

K = 11


def features() -> torch.Tensor:
    theta = torch.randn(2, 5, K, dtype=torch.float64)
    return torch.cat((theta.cos(), theta.sin()), dim=-1)


def random_gates(positive_value: bool) -> nn.Gates:
    gates = nn.Gates(K, positive_value).double()
    for parameter in gates.parameters():
        torch.nn.init.normal_(parameter)
    return gates


@pytest.mark.parametrize("positive", [False, True])
def test_gates_are_three_linear_maps_with_their_own_activations(positive: bool) -> None:
    gates, x = random_gates(positive), features()
    query, key, value = gates(x)
    raw = [F.linear(x, gates.weight[i * K : (i + 1) * K], gates.bias[i * K : (i + 1) * K]) for i in range(3)]
    for gate, linear in ((query, raw[0]), (key, raw[1])):
        positive_part = F.softplus(linear)
        torch.testing.assert_close(gate, positive_part / positive_part.mean(-1, keepdim=True))
    torch.testing.assert_close(value, F.softplus(raw[2]) if positive else raw[2])
    assert bool((value < 0).any()) != positive


def test_gates_start_uniform() -> None:
    query, key, value = nn.Gates(K)(torch.randn(2, 5, 2 * K))
    for gate in (query, key, value):
        torch.testing.assert_close(gate, torch.ones(2, 5, K))


@pytest.mark.parametrize("family", FSN_FAMILIES)
def test_coefficients_are_full_pairs_whatever_the_kernel_has(family: str) -> None:
    model = small(family)
    law = law_of(model)
    for layer in layers_of(model):
        kernel = layer.kernel.coefficients()
        assert set(kernel) == {"w0", "w1"}
        for name, exists in (("w0", law.present), ("w1", law.delay)):
            pair = kernel[name]
            assert pair.shape == (law.harmonics, K, 2) and pair.dtype == torch.float64
            assert not pair.requires_grad
            assert bool(pair[..., 0].ne(0).any()) == exists
            assert bool(pair[..., 1].ne(0).any()) == (exists and law.phases)
            if law.shared:
                assert torch.equal(pair, pair[:, :1].expand_as(pair))


def test_noise_is_on_imaginary_parts_or_on_angles() -> None:
    """Section 2.3 speaks of angles, the appendix of imaginary parts: harmonics that start at zero tell them apart."""
    kernels = {}
    for where in ("imaginary", "angles"):
        torch.manual_seed(0)
        kernels[where] = nn.CouplingKernel(K, fsn.ops.CouplingLaw(noise=0.2, noise_on=where))
    imaginary, angles = kernels["imaginary"].w1, kernels["angles"].w1
    assert imaginary is not None and imaginary.im is not None and angles is not None and angles.im is not None
    gain = imaginary.re[0]  # what every kernel starts with
    assert imaginary.im[1:].abs().min() > 0
    assert not angles.im[1:].any() and not angles.re[1:].any()
    torch.testing.assert_close(torch.hypot(angles.re[0], angles.im[0]), gain)
    torch.testing.assert_close(torch.atan2(angles.im[0], angles.re[0]), imaginary.im[0])


def test_coefficients_are_the_parameters() -> None:
    kernel = layers_of(small("fsn"))[1].kernel
    pairs, own = kernel.coefficients(), dict(kernel.named_parameters())
    assert torch.equal(pairs["w0"], torch.stack((own["present_re"], own["present_im"]), -1))
    assert torch.equal(pairs["w1"], torch.stack((own["successor_re"], own["successor_im"]), -1))


@pytest.mark.parametrize("family", FSN_FAMILIES)
def test_scales_are_where_instruments_look_for_them(family: str) -> None:
    model = small(family)
    for layer in layers_of(model):
        for bound in (layer.attention_bound, layer.feedforward_bound):
            assert (bound.alpha is None) == (family == "fsn-nobound")
    assert isinstance(model, FSN)
    assert model.tau.dim() == 0 and model.readout.scale.dim() == 0


def test_the_register_accumulates_a_projection() -> None:
    """After a layer the register is the projection of both of its updates, added to what was there."""
    model = small("fsn-dissolved", k=23)
    theta = torch.randn(2, 4, 23, dtype=torch.float64)
    start = torch.randn(2, 4, 2, dtype=torch.float64)
    assert isinstance(model, FSN)
    layer = layers_of(model)[0]
    with torch.no_grad(), fsn.record(model) as points:
        _, after = layer(theta, start, model.gates, model.tau, nn.Context(model.probe))
    moved = points["update.bounded"] + points["feedforward.bounded"]
    torch.testing.assert_close(after, start + moved @ layer.get_parameter("register.weight").mT)


def test_no_feedforward_is_the_attention_half_alone() -> None:
    model = small("fsn", feedforward="none")
    with torch.no_grad(), fsn.record(model) as points:
        model(torch.arange(6).view(1, 6))
    assert points["layers.0.feedforward.bounded"].eq(0).all()
    moved = points["phases"] + points["layers.0.update.bounded"]
    torch.testing.assert_close(points["layers.0.state"], moved)
    assert not any("feedforward" in name for name, _ in model.named_parameters())


def test_a_state_dict_moves_a_model() -> None:
    """All that a model knows is in its state dict: loading it into a fresh one gives the same logits."""
    for family in ("fsn", "kuramoto", "fsn-dissolved", "transformer"):
        model, other = small(family, seed=1), small(family, seed=2)
        tokens = torch.arange(6).view(1, 6)
        assert not torch.equal(model(tokens), other(tokens))
        other.load_state_dict(model.state_dict())
        assert torch.equal(model(tokens), other(tokens))
