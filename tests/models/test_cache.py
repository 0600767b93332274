"""Reading on with a memory gives what reading everything at once gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fsn
from fsn.errors import UserError
from fsn.nn import Context
from fsn.nn.past import Rows
from tests.small import ALL_FAMILIES, small

SYMBOLS = 13
CLOSE = {"atol": 1e-9, "rtol": 1e-9}


def words(batch: int = 3, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(SYMBOLS, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("lean", [False, True])
@torch.no_grad()
def test_any_pieces_give_the_logits_of_the_whole(family: str, lean: bool) -> None:
    model, tokens = small(family), words()
    whole, cache = model(tokens), model.new_cache(lean)
    pieces = [model.extend(part, cache) for part in tokens.split([4, 1, 1, 5, 1], dim=1)]
    assert cache.length == 12
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **CLOSE)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@torch.no_grad()
def test_replacing_points_acts_in_pieces_as_in_the_whole(family: str) -> None:
    """Every point at once, so that one which is passed over in pieces would show."""
    model, tokens = small(family), words()
    plain, cache = model(tokens), model.new_cache()
    with fsn.replace(model, {"*": lambda x: 0.7 * x}):
        whole = model(tokens)
        pieces = [model.extend(part, cache) for part in tokens.split([4, 1, 1, 5, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **CLOSE)
    assert (whole - plain).abs().max() > 1e-3


def joined(name: str, pieces: list[Tensor]) -> Tensor:
    """What was recorded of each piece as one tensor: rows of attention get zeros for the columns they lack."""
    if name.endswith(".fields"):
        return pieces[-1]
    if name.endswith((".attention", ".scores")):
        width = pieces[-1].shape[-1]
        pieces = [torch.nn.functional.pad(piece, (0, width - piece.shape[-1])) for piece in pieces]
    return torch.cat(pieces, dim=1)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@torch.no_grad()
def test_what_is_recorded_of_pieces_is_what_is_recorded_of_the_whole(family: str) -> None:
    model, tokens = small(family), words()
    with fsn.record(model) as whole:
        model(tokens)
    cache, pieces = model.new_cache(), []
    for part in tokens.split([4, 1, 1, 5, 1], dim=1):
        with fsn.record(model) as points:
            model.extend(part, cache)
        pieces.append(points)
    assert all(list(points) == list(whole) for points in pieces)
    for name, value in whole.items():
        found = joined(name, [points[name] for points in pieces])
        if name.endswith(".scores"):  # above the diagonal nobody looks
            found, value = found.tril(), value.tril()
        torch.testing.assert_close(found, value, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@torch.no_grad()
def test_recorded_and_replaced_fields_are_not_the_memory_itself() -> None:
    """The memory completes the last field when its successor comes; a change in place must not reach it."""
    model, tokens = small("fsn"), words()
    cache = model.new_cache()
    with fsn.record(model, "*.fields") as points, fsn.replace(model, {"*.fields": lambda x: x.mul_(0.5)}):
        model.extend(tokens[:, :5], cache)
        recorded = points["layers.0.fields"]
        before = recorded.clone()
        model.extend(tokens[:, 5:9], cache)
    assert torch.equal(recorded, before)
    with fsn.replace(model, {"*.fields": lambda x: 0.5 * x}):
        whole, last = model(tokens), model.extend(tokens[:, 9:], cache)
    torch.testing.assert_close(last, whole[:, 9:], **CLOSE)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
@torch.no_grad()
def test_an_unknown_point_is_refused_in_pieces_too(family: str) -> None:
    model = small(family)
    with pytest.raises(UserError, match=r"'nonsense'; it has .*attention"), fsn.record(model, "nonsense"):
        model.extend(words(), model.new_cache())


@pytest.mark.parametrize("family", ["fsn", "fsn-literal", "kuramoto", "transformer", "transformer-kvshift"])
@pytest.mark.parametrize("lean", [False, True])
@torch.no_grad()
def test_padding_in_front_changes_nothing(family: str, lean: bool) -> None:
    """Sequences of different lengths in one batch, each as if it were alone."""
    model, tokens = small(family), words()
    padding = torch.tensor([0, 2, 5])
    mask = torch.arange(12) < padding[:, None]
    cache = model.new_cache(lean)
    logits = torch.cat(
        [model.extend(tokens[:, :9], cache, mask[:, :9]), model.extend(tokens[:, 9:], cache)], dim=1
    )
    assert torch.isfinite(logits).all()
    for row, first in enumerate(padding.tolist()):
        alone = model(tokens[row : row + 1, first:])
        torch.testing.assert_close(logits[row : row + 1, first:], alone, **CLOSE)


@pytest.mark.parametrize("family", ["fsn", "fsn-dissolved", "transformer", "transformer-kvshift"])
@pytest.mark.parametrize("lean", [False, True])
@torch.no_grad()
def test_what_is_forgotten_leaves_no_trace(family: str, lean: bool) -> None:
    """Above all no successor: the field of the last position kept had one, and gets another."""
    model, tokens, other = small(family), words(), words(seed=1)
    cache = model.new_cache(lean)
    model.extend(tokens, cache)
    cache.cut(7)
    assert cache.length == 7
    mixed = torch.cat((tokens[:, :7], other[:, 7:]), dim=1)
    torch.testing.assert_close(model.extend(other[:, 7:], cache), model(mixed)[:, 7:], **CLOSE)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
@torch.no_grad()
def test_sequences_can_change_places(family: str) -> None:
    model, tokens = small(family), words()
    order = torch.tensor([2, 0, 0])
    padding = torch.zeros(3, 8, dtype=torch.bool)
    padding[2, :3] = True
    cache, same = model.new_cache(), model.new_cache()
    model.extend(tokens[:, :8], cache, padding)
    model.extend(tokens[order, :8], same, padding[order])
    cache.reorder(order)
    torch.testing.assert_close(model.extend(tokens[:, 8:], cache), model.extend(tokens[:, 8:], same), **CLOSE)


@pytest.mark.parametrize("order", [[5], [0, -1], [[0, 1]], [0.0, 1.0], [True, False, True]])
@torch.no_grad()
def test_an_order_that_cannot_be_leaves_the_cache_as_it_was(order: list[Any]) -> None:
    model, tokens = small("fsn"), words()
    cache = model.new_cache()
    model.extend(tokens[:, :8], cache)
    said = "no sequence (5|-1); the cache holds 0 to 2|tensor of whole numbers with one axis"
    with pytest.raises(UserError, match=said):
        cache.reorder(torch.tensor(order))
    assert cache.batch == 3
    torch.testing.assert_close(model.extend(tokens[:, 8:], cache), model(tokens)[:, 8:], **CLOSE)


@pytest.mark.parametrize(
    ("family", "lean", "kept"),
    [
        ("fsn", False, 9 * 11),
        ("fsn", True, 2 * 11),
        ("transformer", True, 2 * 12),
        ("transformer-kvshift", False, 4 * 12),
        ("transformer-kvshift", True, 2 * 12),
    ],
)
def test_numbers_a_position_takes(family: str, lean: bool, kept: int) -> None:
    """Nine for each phase: itself, key 2, fields 6; two where they are made again: the gated phasor."""
    model = small(family)
    cache = model.new_cache(lean)
    with torch.no_grad():  # which leaves room for more
        for symbol in words().split(1, dim=1):
            model.extend(symbol, cache)
    assert cache.numbers() == 3 * 12 * 2 * kept  # sequences, positions, layers
    buffers = [rows.buffer for rows in cache.layers[0].rows.values()]
    assert all(b is not None and 12 <= b.shape[1] <= 24 for b in buffers)


def test_rows_grow_and_leave_no_gap() -> None:
    rows = Rows()
    rows.write(0, torch.ones(2, 3))
    assert rows.write(2, torch.full((2, 4), 2.0)).tolist() == [[1, 1, 2, 2, 2, 2]] * 2
    with pytest.raises(ValueError, match="gap"):
        rows.write(7, torch.ones(2, 1))


@pytest.mark.parametrize("family", ["fsn", "transformer"])
@torch.no_grad()
def test_a_failure_leaves_the_cache_as_it_was(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = small(family), words()
    cache = model.new_cache()
    last = list(model.layers)[-1]  # type: ignore[arg-type]

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    for begin, end in ((0, 5), (5, 9)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(last, "forward", fail)
            model.extend(tokens[:, begin:end], cache)
        assert cache.length == begin
        model.extend(tokens[:, begin:end], cache)
    torch.testing.assert_close(model.extend(tokens[:, 9:], cache), model(tokens)[:, 9:], **CLOSE)


@torch.no_grad()
def test_another_batch_size_is_refused() -> None:
    model, tokens = small("fsn"), words()
    cache = model.new_cache()
    model.extend(tokens, cache)
    with pytest.raises(UserError, match="holds 3 sequences and tokens 1"):
        model.extend(tokens[:1], cache)
    cache.reorder(torch.tensor([1]))
    model.extend(tokens[:1], cache)
    with pytest.raises(ValueError, match="before the first"):
        cache.cut(-1)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
@torch.no_grad()
def test_a_padding_mask_needs_no_cache(family: str) -> None:
    model, tokens = small(family), words()
    mask = torch.arange(12) < torch.tensor([0, 2, 5])[:, None]
    expected = model.extend(tokens, model.new_cache(), mask)
    torch.testing.assert_close(model.compute_logits(tokens, Context(padding=mask)), expected, **CLOSE)


def test_a_mask_of_the_wrong_kind_is_refused() -> None:
    model = small("fsn")
    with pytest.raises(UserError, match="make it bool, true for padding"):
        model.extend(words(), model.new_cache(), torch.zeros(3, 12))
    with pytest.raises(UserError, match="make them equal"):
        model.extend(words(), model.new_cache(), torch.zeros(3, 11, dtype=torch.bool))
