"""Windows and their order: counted by formula, gathered as by hand, shuffled by the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsn.data import Windows, epoch_order
from fsn.errors import UserError


@pytest.mark.parametrize(
    ("symbols", "stride", "count"), [(90_000_000, 64, 1_406_247), (5_000_000, 128, 39_061), (256, 64, 1)]
)
def test_the_papers_window_counts(symbols: int, stride: int, count: int) -> None:
    tokens = torch.empty(symbols, dtype=torch.uint8)
    assert len(Windows(tokens, length=256, stride=stride)) == count


@given(st.integers(2, 300), st.integers(2, 20), st.integers(1, 9))
def test_gather_is_slicing(n: int, length: int, stride: int) -> None:
    tokens = torch.arange(n).remainder(251).to(torch.uint8)
    if n < length:
        with pytest.raises(UserError, match="fewer than one window"):
            Windows(tokens, length, stride)
        return
    windows = Windows(tokens, length, stride)
    slices = [tokens[start : start + length] for start in range(0, n - length + 1, stride)]
    assert len(windows) == len(slices)
    order = torch.randperm(len(windows))
    gathered = windows.gather(order)
    assert gathered.dtype == torch.int64
    assert torch.equal(gathered, torch.stack([slices[int(i)] for i in order]).long())


def test_no_window_beyond_the_last() -> None:
    windows = Windows(torch.zeros(300, dtype=torch.uint8), length=256, stride=64)
    with pytest.raises(IndexError):
        windows.gather(torch.tensor([len(windows)]))


@pytest.mark.parametrize(("length", "stride"), [(1, 64), (256, 0)])
def test_impossible_windows_are_refused(length: int, stride: int) -> None:
    with pytest.raises(UserError, match="length >= 2 and stride >= 1"):
        Windows(torch.zeros(1000, dtype=torch.uint8), length, stride)


def test_windows_of_windows_are_refused() -> None:
    with pytest.raises(UserError, match="one dimension"):
        Windows(torch.zeros(1000, 2, dtype=torch.uint8))


@pytest.mark.gpu
def test_gather_stays_on_the_device_and_replays_in_a_graph() -> None:
    tokens = torch.randint(0, 205, (100_000,), dtype=torch.uint8)
    here, there = Windows(tokens), Windows(tokens).to("cuda")
    index = torch.tensor([3, 1, 2], device="cuda")
    there.gather(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gathered = there.gather(index)
    index.copy_(torch.tensor([0, 1500, 7]))
    graph.replay()
    assert gathered.device.type == there.tokens.device.type == "cuda"
    assert torch.equal(gathered.cpu(), here.gather(torch.tensor([0, 1500, 7])))


@given(st.integers(0, 500), st.integers(-5, 2**64), st.integers(0, 100))
def test_an_order_is_a_permutation_of_its_arguments_alone(n: int, seed: int, epoch: int) -> None:
    order = epoch_order(n, seed, epoch)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(n))
    torch.manual_seed(epoch)  # neither of these may matter,
    np.random.seed(epoch)
    state = torch.random.get_rng_state()
    assert torch.equal(order, epoch_order(n, seed, epoch))
    assert torch.equal(state, torch.random.get_rng_state())  # nor be touched


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {tuple(epoch_order(100, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_the_order_is_pinned() -> None:
    """Results name a seed; the seed must go on meaning the same order."""
    assert epoch_order(1_406_247, seed=0, epoch=3)[:5].tolist() == [37104, 446287, 1091477, 129708, 483723]


def test_an_order_mixes_well() -> None:
    """Neighbours in the order are about a third of the text apart, as for a uniform shuffle."""
    order = epoch_order(100_000, seed=1, epoch=0).double()
    assert order.diff().abs().mean() / 100_000 == pytest.approx(1 / 3, rel=0.02)


def test_a_negative_epoch_is_refused() -> None:
    with pytest.raises(UserError, match="epoch >= 0"):
        epoch_order(10, seed=0, epoch=-1)
