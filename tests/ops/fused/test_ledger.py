"""Gradients that a backward pass writes to their place itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fsn.ops.fused import ledger
from fsn.train.optimizer import FlatParameters
from tests.train.tiny import still_flat


class Direct(torch.autograd.Function):
    """x @ w, whose backward pass writes the gradient of w to its place where there is one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, w = ctx.saved_tensors
        book = ledger.current()
        again = book is not None and w.data_ptr() in book.written
        place = None if book is None else book.place(w)
        if place is None:
            return grad @ w.t(), x.t() @ grad
        place.copy_(place + x.t() @ grad if again else x.t() @ grad)
        return grad @ w.t(), None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.once = nn.Parameter(torch.randn(5, 5))
        self.twice = nn.Parameter(torch.randn(5, 5))
        self.mixed = nn.Parameter(torch.randn(5, 5))
        self.plain = nn.Parameter(torch.randn(5, 5))
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        x = Direct.apply(x, self.once)
        x = Direct.apply(Direct.apply(x, self.twice), self.twice)
        x = Direct.apply(x, self.mixed) @ self.mixed
        return x @ self.plain


def test_what_is_written_and_what_autograd_brings_make_the_gradient() -> None:
    net = Net()
    flat = FlatParameters(net)
    x, weights = torch.randn(4, 5), torch.randn(4, 5)
    flat.release()
    net(x).backward(weights)
    flat.collect()
    expected = flat.gradient.clone()
    assert flat.view(expected, "mixed").norm() > 0

    flat.gradient.fill_(float("nan"))
    flat.release()
    with ledger.writing(flat.places) as book:
        assert ledger.current() is book
        net(x).backward(weights)
    assert ledger.current() is None
    assert book.written == {p.data_ptr() for p in (net.once, net.twice, net.mixed)}
    flat.collect(book.written)
    for name in flat.slots:
        torch.testing.assert_close(flat.view(flat.gradient, name), flat.view(expected, name), msg=name)
    assert still_flat(flat)


def test_only_a_whole_parameter_has_a_place() -> None:
    weight = torch.randn(4, 6)
    view = torch.zeros(4, 6)
    book = ledger.Ledger({weight.data_ptr(): view})
    for other in (weight[:2], weight[:, :3], weight.t(), weight.clone(), weight[1:]):
        assert not book.knows(other)
        assert book.place(other) is None
    assert not book.written
    assert book.knows(weight) and not book.written
    found = book.place(weight.view(-1))
    assert found is not None and found.shape == (24,) and found.data_ptr() == view.data_ptr()
    assert book.written == {weight.data_ptr()}
    again = book.place(weight)
    assert again is not None and again.shape == (4, 6)


class Lane:
    """Stands for a block on a side stream, and writes down what is done with its events."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.side = self.main = self

    def record_event(self) -> str:
        return self.name

    def wait_event(self, event: str) -> None:
        self.log.append(event)


def test_a_ledger_is_closed_after_an_error_and_never_nested() -> None:
    log: list[str] = []
    with pytest.raises(KeyError), ledger.writing({}) as book:
        book.defer(Lane("block", log), [torch.zeros(1)])  # type: ignore[arg-type]
        raise KeyError
    assert ledger.current() is None and not book._running and log == ["block"]
    with (
        ledger.writing({}) as book,
        pytest.raises(RuntimeError, match="nested"),
        ledger.writing({}),
    ):
        pass
    assert ledger.current() is None


def test_deferred_blocks_are_waited_for_in_order_and_their_tensors_kept_till_then() -> None:
    log: list[str] = []
    with ledger.writing({}) as book:
        for i in range(ledger.BEHIND + 2):
            book.defer(Lane(str(i), log), [torch.zeros(1)])  # type: ignore[arg-type]
        assert log == ["0", "1"]
        assert len(book._running) == ledger.BEHIND
    assert log == [str(i) for i in range(ledger.BEHIND + 2)]
    assert not book._running
