"""Attention that is known comes out where it was put; what is said again is said again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import fsn
from fsn.errors import UserError
from fsn.measure import Looks, Table, look, token_losses
from fsn.measure.looks import repeated
from fsn.measure.tables import stacked
from tests.measure.example_runs import windows_from
from tests.small import ALL_FAMILIES, random_tokens, small


def test_a_passage_something_else_and_the_passage_again() -> None:
    text = torch.arange(1000) % 251
    windows, period = repeated(text, length=50)
    assert windows.shape == (64, 50) and period == 30
    assert torch.equal(windows[:, :20], windows[:, 30:])
    starts = windows[:, 0]
    assert starts[0] == 0 and windows[-1, period - 1] == text[-1], "from one end of the text to the other"
    assert all(torch.equal(w[:30], text[s : s + 30]) for w, s in zip(windows[:2], starts, strict=False))
    with pytest.raises(UserError, match="too short"):
        repeated(text, length=19)
    with pytest.raises(UserError, match="takes 60"):
        repeated(text[:59], length=100)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_attention_is_found_where_it_was_put(family: str) -> None:
    """Layer one looks at what came next, layer two half at the same place and half at the one before it."""
    model = small(family)
    windows, period = repeated(torch.randint(13, (300,), generator=torch.Generator().manual_seed(0)), 40)

    def at(*shares: tuple[int, float]):
        def put(weights: Tensor) -> Tensor:
            new = torch.zeros_like(weights)
            t = torch.arange(period, weights.shape[-1])
            for offset, share in shares:
                new[..., t, t - period + offset] = share
            return new

        return put

    pattern = {"layers.0.attention": at((1, 1.0)), "layers.1.attention": at((0, 0.5), (-1, 0.5))}
    with fsn.replace(model, pattern):
        seen = look(model, windows, period, "it")
    expected = {(1, 1): 1.0, (2, 0): 0.5, (2, -1): 0.5}
    for layer in (1, 2):
        for offset in seen.offsets:
            assert seen.weights[layer - 1, seen.offsets.index(offset)] == pytest.approx(
                expected.get((layer, offset), 0.0)
            )


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_losses_of_both_times_and_weights_of_every_family(family: str) -> None:
    model = small(family)
    text = random_tokens(model, length=400)[0]
    windows, period = repeated(text, 40)
    seen = look(model, windows, period, family)
    losses = token_losses(model, windows_from(windows.numpy()))
    assert seen.first == pytest.approx(losses[:, 4:15].mean(), rel=1e-5)
    assert seen.second == pytest.approx(losses[:, 28:].mean(), rel=1e-5)
    with torch.no_grad(), fsn.record(model, "layers.*.attention") as points:
        model(windows[:, :-1])
    t = torch.arange(28, 39)
    for layer in (1, 2):
        found = points[f"layers.{layer - 1}.attention"]
        for offset in (-2, 0, 1):
            assert seen.weights[layer - 1, seen.offsets.index(offset)] == pytest.approx(
                found[:, t, t - 24 + offset].mean().item()
            )


def test_heads_are_averaged() -> None:
    model = small("transformer", heads=2)
    windows, period = repeated(random_tokens(model, length=100)[0], 40)
    seen = look(model, windows, period, "two heads")
    with torch.no_grad(), fsn.record(model, "layers.*.attention") as points:
        model(windows[:, :-1])
    t = torch.arange(28, 39)
    assert points["layers.0.attention"].dim() == 4
    assert seen.weights[0, seen.offsets.index(1)] == pytest.approx(
        points["layers.0.attention"][:, :, t, t - 24 + 1].mean().item()
    )


def test_the_layer_that_looks_most(looks: Looks) -> None:
    assert looks.most(0) == (1, 0.1) and looks.most(1) == (2, 0.3)


def test_the_table_has_a_row_for_each_layer(looks: Looks) -> None:
    table = looks.table()
    assert table.columns == ("model", "layer", "−1", "+0", "+1") and table.column("layer") == [1, 2]
    assert (
        table.rows[1]["+1"] == 0.3 and "2.000 bits" in table.caption and "1.000 the second" in table.caption
    )


def test_tables_are_stacked(looks: Looks) -> None:
    other = Table(("model", "note"), [{"model": "b", "note": "x"}], {"note": "s"})
    both = stacked([looks.table(), other])
    assert both.columns == ("model", "layer", "−1", "+0", "+1", "note") and both.formats["+1"] == ".3f"
    assert both.column("model") == ["FSN", "FSN", "b"] and both.column("note") == [None, None, "x"]
    assert both.formats["note"] == "s"


def test_the_figure_has_a_panel_for_each_layer_that_looks_back_and_names_what_stands_out(
    looks: Looks,
) -> None:
    pytest.importorskip("matplotlib")
    from fsn.measure.looks import draw_looks

    faint = Looks("other", (-1, 0, 1), np.array([[0.0, 0.0, 0.0], [0.0, 0.001, 0.0]]), 2.0, 1.9)
    figure = draw_looks([looks, faint])
    panels = [axes for axes in figure.axes if axes.get_visible()]
    titles = [axes.get_title() for axes in panels]
    assert titles == ["FSN, layer 1", "FSN, layer 2", "other, layer 2"], "no panel without a bar"
    assert [bar.get_height() for bar in panels[1].patches[:3]] == [0.0, 0.02, 0.3]
    assert [text.get_text() for text in panels[1].texts] == ["30 %"], "small ones are not named"


@pytest.fixture
def looks() -> Looks:
    return Looks("FSN", (-1, 0, 1), np.array([[0.0, 0.1, 0.0], [0.0, 0.02, 0.3]]), 2.0, 1.0)
