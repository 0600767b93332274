"""Dropout as a pure function of a counter: its rate, what its masks depend on, and what they do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fsn import ops
from fsn.ops import DropoutKey


def key(counter: int, first_row: int = 0) -> DropoutKey:
    return DropoutKey(torch.tensor(counter), first_row)


def kept(counter: int = 1, site: int = 0, p: float = 0.5, shape: tuple[int, ...] = (8, 64, 16)) -> Tensor:
    return ops.dropout(torch.ones(shape), p, key(counter), site) != 0


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_the_rate_is_p_and_the_mean_is_kept(p: float) -> None:
    x = torch.ones(64, 64, 64)
    y = ops.dropout(x, p, key(7), site=2)
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=4 * deviation)
    assert y.mean().item() == pytest.approx(1.0, abs=4 * deviation / (1 - p))
    assert torch.equal(y[y != 0].unique(), torch.tensor([1 / (1 - p)]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_rate_is_p_along_every_axis(axis: int) -> None:
    """No row, position or coordinate is favoured."""
    mask = kept(shape=(64, 64, 64)).float()
    others = [a for a in range(3) if a != axis]
    assert (mask.mean(others) - 0.5).abs().max() < 5 * 0.5 / 64


def test_one_key_is_one_mask() -> None:
    assert torch.equal(kept(5, 1), kept(5, 1))


def correlation(a: Tensor, b: Tensor) -> float:
    return (2 * a.float() - 1).mul(2 * b.float() - 1).mean().abs().item()


def test_counters_sites_rows_positions_and_coordinates_are_independent() -> None:
    mask = kept(shape=(64, 64, 64))
    limit = 4 / 64**1.5
    for counter in (2, 3, 2**20, 2**31 - 1):
        assert correlation(mask, kept(counter, shape=(64, 64, 64))) < limit
    for site in (1, 2, 17):
        assert correlation(mask, kept(site=site, shape=(64, 64, 64))) < limit
    for axis in range(3):
        for shift in (1, 2, 32):
            assert correlation(mask, mask.roll(shift, axis)) < limit


def test_steps_and_sites_do_not_alias() -> None:
    """Site s of step t is not site s + 1 of another step nearby."""
    masks = {(c, s): kept(c, s, shape=(2, 32, 32)) for c in range(4) for s in range(8)}
    seen = {mask.numpy().tobytes() for mask in masks.values()}
    assert len(seen) == len(masks)


@pytest.mark.parametrize("pieces", [2, 3, 4, 12])
def test_a_batch_split_over_processes_gets_the_same_mask(pieces: int) -> None:
    x = torch.randn(12, 5, 7)
    whole = ops.dropout(x, 0.3, key(9), site=4)
    size = 12 // pieces
    parts = [
        ops.dropout(x[start : start + size], 0.3, key(9, first_row=start), site=4)
        for start in range(0, 12, size)
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_the_same_rows_elsewhere_get_another_mask() -> None:
    x = torch.ones(4, 8, 8)
    assert not torch.equal(ops.dropout(x, 0.5, key(9), 0), ops.dropout(x, 0.5, key(9, first_row=4), 0))


def test_the_counter_may_be_any_step() -> None:
    for counter in (0, 2**31, 2**40 + 3, -1):
        assert kept(counter).float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_no_key_or_no_rate_is_the_identity() -> None:
    x = torch.randn(2, 3, 4)
    assert ops.dropout(x, 0.5, None, 0) is x
    assert ops.dropout(x, 0.0, key(1), 0) is x
    assert ops.dropout(x, 1.0, key(1), 0).eq(0).all()


def test_the_counter_is_read_when_the_mask_is_made() -> None:
    """A graph that increments the counter in place gets a new mask every step."""
    counter = torch.tensor(3)
    stepping = DropoutKey(counter)
    x = torch.ones(2, 16, 16)
    before = ops.dropout(x, 0.5, stepping, 0)
    counter += 1
    after = ops.dropout(x, 0.5, stepping, 0)
    assert not torch.equal(before, after)
    assert torch.equal(after, ops.dropout(x, 0.5, key(4), 0))


def test_a_drawn_key_follows_the_seed() -> None:
    device = torch.device("cpu")
    torch.manual_seed(1)
    first, second = DropoutKey.draw(device), DropoutKey.draw(device)
    torch.manual_seed(1)
    again = DropoutKey.draw(device)
    assert first.counter == again.counter and first.counter != second.counter
    assert first.counter.dtype == torch.int64 and first.counter.dim() == 0
