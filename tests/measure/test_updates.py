"""Updates before and after their bound, on values that were put in place and so are known."""

from __future__ import annotations

import math

import pytest
import torch

import fsn
from fsn.measure.updates import draw_updates, has_bounds, told, update_table
from fsn.models import FSN
from fsn.train import Run
from tests.small import FSN_FAMILIES, layers_of, random_tokens, small


def fsn_of(family: str = "fsn", **overrides: object) -> FSN:
    model = small(family, **overrides)
    assert isinstance(model, FSN)
    return model


def test_a_constant_update_is_moved_by_alpha_tanh() -> None:
    """Of an update of c everywhere the bound makes α tanh c; nothing in it tells two tokens apart."""
    model, c = fsn_of(), 3.0
    shape = (2, 9, 11)
    with fsn.replace(model, {"layers.*.update.raw": torch.full(shape, c, dtype=torch.float64)}):
        table = update_table(model, random_tokens(model), "mine")
    rows = table.where(block="coupling").rows
    assert [row["layer"] for row in rows] == [1, 2] and {row["model"] for row in rows} == {"mine"}
    for row, layer in zip(rows, layers_of(model), strict=True):
        alpha = layer.attention_bound.alpha.item()
        assert row["alpha"] == alpha and row["raw"] == pytest.approx(c)
        assert row["moved"] == pytest.approx(abs(alpha) * math.tanh(c))
        assert row["passed"] == pytest.approx(abs(alpha) * math.tanh(c) / c)
        assert row["differs"] == pytest.approx(0, abs=1e-7)


def test_what_passes_is_the_share_of_a_gradient_that_comes_back() -> None:
    """Of a gradient at right angles to one token's update."""
    model = fsn_of()
    bound = layers_of(model)[0].attention_bound
    raw = torch.randn(1, 1, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 50
    with fsn.replace(model, {"layers.0.update.raw": raw}):
        row = update_table(model, random_tokens(model, 1, 1)).where(block="coupling").rows[0]
    across = torch.zeros_like(raw)
    across[..., 0], across[..., 1] = raw[..., 1], -raw[..., 0]
    _, back = torch.autograd.functional.vjp(bound, raw, across)
    share = (back * across).sum() / across.square().sum()
    # The norm of tanh(raw) hardly changes so far out, so what comes back is moved / raw.
    assert share.item() == pytest.approx(row["passed"], rel=1e-3)


def test_opposite_tokens_differ_in_everything() -> None:
    model = fsn_of()
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 2, 1)
    with fsn.replace(model, {"layers.*.feedforward.raw": 0.5 * sign.expand(1, 2, 11)}):
        table = update_table(model, random_tokens(model, 1, 2))
    assert table.where(block="feed-forward").column("differs") == pytest.approx([1.0, 1.0])


def test_the_sentence_names_blocks_beyond_their_bound() -> None:
    model = fsn_of()
    tokens = random_tokens(model)
    healthy = told(update_table(model, tokens, "mine"))
    assert "inside its bound" in healthy and "beyond" not in healthy
    far = {"layers.1.feedforward.raw": lambda raw: 1e6 * raw}
    with fsn.replace(model, far):
        one = told(update_table(model, tokens, "mine"))
    assert "the feed-forward block of layer 2 works far beyond the bound" in one
    with fsn.replace(model, far | {"layers.0.update.raw": lambda raw: 1e6 * raw}):
        both = told(update_table(model, tokens, "mine"))
    assert "the coupling block of layer 1 and the feed-forward block of layer 2 work far" in both


@pytest.mark.parametrize(("alpha", "remedy"), [(0.7, False), (6.0, True)])
def test_a_remedy_is_named_where_a_block_makes_more_than_half_a_turn(alpha: float, remedy: bool) -> None:
    """Beyond its bound a block moves every phase by α."""
    model = fsn_of()
    with torch.no_grad():
        layers_of(model)[1].feedforward_bound.alpha.fill_(alpha)
    with fsn.replace(model, {"layers.1.feedforward.raw": lambda raw: 1e6 * raw}):
        text = told(update_table(model, random_tokens(model), "mine"))
    assert f"no more than {alpha:.2g} rad" in text
    assert ("--warmup-steps" in text) == remedy


def test_a_block_that_does_not_move_is_nan() -> None:
    """As with the mean field's modes that begin at zero."""
    model = fsn_of()
    with fsn.replace(model, {"layers.*.update.raw": torch.zeros(2, 9, 11, dtype=torch.float64)}):
        table = update_table(model, random_tokens(model))
    for row in table.where(block="coupling").rows:
        assert row["raw"] == row["moved"] == 0 and math.isnan(row["passed"]) and math.isnan(row["differs"])
    assert "inside its bound" in told(table)


@pytest.mark.parametrize("family", [family for family in FSN_FAMILIES if family != "fsn-nobound"])
def test_every_family_with_a_bound(family: str) -> None:
    model = fsn_of(family)
    table = update_table(model, random_tokens(model))
    assert len(table) == 4 and all(row["raw"] > 0 and row["moved"] > 0 for row in table.rows)


def test_without_a_feedforward_block_the_coupling_alone() -> None:
    pytest.importorskip("matplotlib")
    model = fsn_of(feedforward="none")
    table = update_table(model, random_tokens(model))
    assert table.column("block") == ["coupling", "coupling"]
    sizes, shares = draw_updates(table).axes[:2]
    assert len(sizes.lines) == 2 and len(shares.lines) == 1
    assert sizes.lines[0].get_ydata() == pytest.approx(table.column("raw"))
    assert sizes.lines[1].get_ydata() == pytest.approx(table.column("moved"))


@pytest.mark.parametrize(
    ("family", "bounded"), [("fsn", True), ("fsn-nobound", False), ("transformer", False)]
)
def test_whom_it_is_asked_of(family: str, bounded: bool, tmp_path: object) -> None:
    class Made(Run):
        def __init__(self) -> None: ...

        model_config = fsn.build(f"{family}-1m", vocab_size=5).config  # type: ignore[assignment]

    assert has_bounds(Made()) is bounded
