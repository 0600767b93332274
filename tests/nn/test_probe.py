"""Reading and replacing the named points inside a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fsn
from fsn import UserError
from tests.small import ALL_FAMILIES, FSN_FAMILIES, law_of, random_tokens, small

B, T, K = 2, 9, 11
LAYER = {
    "gates.query": (B, T, K),
    "gates.key": (B, T, K),
    "gates.value": (B, T, K),
    "scores": (B, T, T),
    "attention": (B, T, T),
    "coupling": (B, T, K),
    "update.raw": (B, T, K),
    "update.bounded": (B, T, K),
    "feedforward.raw": (B, T, K),
    "feedforward.bounded": (B, T, K),
    "state": (B, T, K),
}


@pytest.mark.parametrize("family", FSN_FAMILIES)
def test_every_point_has_its_name_and_shape(family: str) -> None:
    model = small(family)
    with torch.no_grad(), fsn.record(model) as points:
        model(random_tokens(model))
    expected: dict[str, tuple[int, ...]] = {"phases": (B, T, K), "coherences": (B, T, 13)}
    for i in range(2):
        expected |= {f"layers.{i}.{name}": shape for name, shape in LAYER.items()}
        expected[f"layers.{i}.fields"] = (B, T, law_of(model).harmonics, 2, K)
        if family == "fsn-dissolved":
            expected[f"layers.{i}.register"] = (B, T, 1)
    assert {name: tuple(value.shape) for name, value in points.items()} == expected


def test_every_point_of_the_transformer() -> None:
    model = small("transformer")
    with torch.no_grad(), fsn.record(model) as points:
        model(random_tokens(model))
    expected: dict[str, tuple[int, ...]] = {"embedding": (B, T, 12), "logits": (B, T, 13)}
    for i in range(2):
        expected[f"layers.{i}.attention"] = (B, T, T)
        for name in ("update.raw", "feedforward.raw", "state"):
            expected[f"layers.{i}.{name}"] = (B, T, 12)
    assert {name: tuple(value.shape) for name, value in points.items()} == expected


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_watching_changes_nothing(family: str) -> None:
    model = small(family)
    tokens = random_tokens(model)
    with torch.no_grad():
        alone = model(tokens)
        with fsn.record(model):
            watched = model(tokens)
        after = model(tokens)
    torch.testing.assert_close(watched, alone, rtol=0, atol=1e-12)
    assert torch.equal(alone, after)


def test_points_hang_together() -> None:
    """What is recorded is what was used: each point follows from the ones before it."""
    model = small("fsn")
    tokens = random_tokens(model)
    with torch.no_grad(), fsn.record(model) as p:
        logits = model(tokens)
    torch.testing.assert_close(p["phases"], model.get_parameter("embedding.phases")[tokens])
    theta = p["phases"]
    for i in range(2):
        at = f"layers.{i}."
        torch.testing.assert_close(p[at + "attention"].sum(-1), torch.ones(B, T, dtype=torch.float64))
        torch.testing.assert_close(p[at + "update.raw"], p[at + "gates.value"] * p[at + "coupling"])
        theta = theta + p[at + "update.bounded"] + p[at + "feedforward.bounded"]
        torch.testing.assert_close(p[at + "state"], theta)
    torch.testing.assert_close(logits, model.get_parameter("readout.scale") * p["coherences"])


def test_patterns_select_points() -> None:
    model = small("fsn")
    tokens = random_tokens(model)
    with fsn.record(model, "layers.*.attention", "phases") as points:
        model(tokens)
    assert set(points) == {"layers.0.attention", "layers.1.attention", "phases"}
    with fsn.record(model, "layers.1.gates.*") as points:
        model(tokens)
    assert set(points) == {f"layers.1.gates.{which}" for which in ("query", "key", "value")}


def test_gradients_flow_through_recorded_points() -> None:
    model = small("fsn")
    with fsn.record(model, "layers.1.scores") as points:
        loss = model.loss(random_tokens(model), random_tokens(model)).sum()
    (gradient,) = torch.autograd.grad(loss, points["layers.1.scores"])
    assert gradient.isfinite().all() and gradient.abs().max() > 0


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_replacing_a_point_by_itself_changes_nothing(family: str) -> None:
    model = small(family)
    tokens = random_tokens(model)
    with torch.no_grad():
        with fsn.record(model) as points:
            before = model(tokens)
        with fsn.replace(model, dict(points)):
            after = model(tokens)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_every_replaced_point_changes_the_logits() -> None:
    model = small("fsn-dissolved")
    tokens = random_tokens(model)
    with torch.no_grad():
        with fsn.record(model) as points:
            before = model(tokens)
        for name in points:
            with fsn.replace(model, {name: lambda x: x + torch.linspace(0.1, 0.5, x.numel()).view_as(x)}):
                assert (model(tokens) - before).abs().max() > 1e-6, name


def test_replaced_gates_change_the_layer() -> None:
    """A value gate of zero silences the attention half; a doubled one doubles its raw update."""
    model = small("fsn")
    tokens = random_tokens(model)
    with torch.no_grad():
        with fsn.record(model, "layers.0.update.*") as plain:
            model(tokens)
        with (
            fsn.replace(model, {"layers.0.gates.value": lambda gate: 2 * gate}),
            fsn.record(model, "layers.0.update.*") as doubled,
        ):
            model(tokens)
        with (
            fsn.replace(model, {"layers.0.gates.value": torch.zeros(B, T, K)}),
            fsn.record(model, "layers.0.update.*") as silent,
        ):
            model(tokens)
    torch.testing.assert_close(doubled["layers.0.update.raw"], 2 * plain["layers.0.update.raw"])
    assert silent["layers.0.update.bounded"].eq(0).all()


def test_probes_nest_in_both_orders() -> None:
    """A record inside a replace sees the replaced value, and so does one around it."""
    model = small("fsn")
    tokens = random_tokens(model)

    def uniform(attention: Tensor) -> Tensor:
        return torch.ones_like(attention).tril() / torch.arange(1, T + 1)[:, None]

    with torch.no_grad():
        with fsn.replace(model, {"layers.0.attention": uniform}), fsn.record(model, "*.attention") as inner:
            model(tokens)
        with fsn.record(model, "*.attention") as outer, fsn.replace(model, {"layers.0.attention": uniform}):
            model(tokens)
    for points in (inner, outer):
        torch.testing.assert_close(points["layers.0.attention"], uniform(points["layers.0.attention"]))
    torch.testing.assert_close(inner["layers.1.attention"], outer["layers.1.attention"])


def test_nested_records_hold_what_each_asked_for() -> None:
    model = small("fsn")
    with fsn.record(model, "phases") as outer, fsn.record(model, "coherences") as inner:
        model(random_tokens(model))
    assert set(outer) == {"phases"} and set(inner) == {"coherences"}


def test_two_changes_to_one_point_are_made_in_order() -> None:
    model = small("fsn")
    tokens = random_tokens(model)
    zero = torch.zeros(B, T, K, dtype=torch.float64)
    with (
        torch.no_grad(),
        fsn.replace(model, {"phases": zero}),
        fsn.replace(model, {"phases": lambda x: x + 1}),
        fsn.record(model, "phases") as points,
    ):
        model(tokens)
    assert points["phases"].eq(1).all()


def test_the_probe_is_gone_afterwards_even_after_an_error() -> None:
    model = small("fsn")
    tokens = random_tokens(model)
    before = model(tokens)
    with pytest.raises(RuntimeError, match="on purpose"), fsn.replace(model, {"phases": lambda x: 0 * x}):
        raise RuntimeError("on purpose")
    assert torch.equal(model(tokens), before)


def test_a_wrong_shape_is_refused() -> None:
    model = small("fsn")
    with (
        pytest.raises(UserError, match=r"layers\.0\.attention.*\(2, 3\).*\(2, 9, 9\)"),
        fsn.replace(model, {"layers.0.attention": torch.zeros(2, 3)}),
    ):
        model(random_tokens(model))
    with (
        pytest.raises(
            UserError, match=r"layers\.0\.attention' is None; return a tensor of shape \(2, 9, 9\)"
        ),
        fsn.replace(model, {"layers.0.attention": lambda attention: None}),
    ):
        model(random_tokens(model))


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_an_unknown_point_is_an_error_that_lists_the_known_ones(family: str) -> None:
    model = small(family)
    with (
        pytest.raises(UserError, match=r"layers\.0\.atention.*layers\.0\.attention") as told,
        fsn.record(model, "layers.0.atention"),
    ):
        model(random_tokens(model))
    with fsn.record(model) as points:
        model(random_tokens(model))
    assert "layers.1.attention" in points and "layers.1." not in str(told.value)  # once is enough
    assert all(name in str(told.value) for name in points if not name.startswith("layers.1."))
    with (
        pytest.raises(UserError, match=r"layers\.7\.state"),
        fsn.replace(model, {"layers.7.state": lambda x: x}),
    ):
        model(random_tokens(model))
    model(random_tokens(model))


def test_a_model_that_is_never_called_is_an_error() -> None:
    """As where a continuation is asked for inside the block and drawn after it."""
    model = small("fsn")
    with (
        pytest.raises(UserError, match=r"'phases' was never reached.*call it there"),
        fsn.record(model, "phases"),
    ):
        pass
    with pytest.raises(UserError, match="never reached"), fsn.replace(model, {"phases": lambda x: x}):
        pass


@pytest.mark.parametrize("wrong", [torch.nn.Linear(2, 2), torch.nn.Sequential(small("fsn"))])
def test_what_is_no_model_of_ours_has_no_points(wrong: torch.nn.Module) -> None:
    with pytest.raises(UserError, match=f"a {type(wrong).__name__} has no named points"), fsn.record(wrong):
        pytest.fail("entered")
