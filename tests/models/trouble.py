"""Trouble for the fused path: memory full of NaN, streams that fall behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fsn.ops.fused.common import Aside


@contextlib.contextmanager
def poison() -> Iterator[list[int]]:
    """Fill all memory that is asked for without a value with NaN; yields the count of such tensors."""
    plain = {name: getattr(torch, name) for name in ("empty", "empty_like", "empty_strided")}
    filled = [0]

    def poisoned(make: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            tensor: Tensor = make(*args, **kwargs)
            if tensor.is_floating_point():
                tensor.detach().fill_(float("nan"))
                filled[0] += 1
            return tensor

        return call

    try:
        for name, make in plain.items():
            setattr(torch, name, poisoned(make))
        yield filled
    finally:
        for name, make in plain.items():
            setattr(torch, name, make)


@contextlib.contextmanager
def lagging(which: str | None) -> Iterator[None]:
    """At every block beside the main stream let one of the two fall behind: ``main``, or the stream at its ``side``.

    Work that is ordered stays so. What only luck kept in order, such as memory taken again before its last reader is
    done, goes wrong every time. None: nothing lags.
    """
    enter, leave = Aside.__enter__, Aside.__exit__
    millisecond = 2_000_000  # in the GPU's cycles, about

    def slow_enter(aside: Aside) -> Aside:
        enter(aside)
        torch.cuda._sleep(millisecond)
        return aside

    def slow_leave(aside: Aside, *error: Any) -> None:
        leave(aside, *error)
        torch.cuda._sleep(millisecond)

    try:
        if which == "side":
            Aside.__enter__ = slow_enter  # type: ignore[method-assign]
        elif which == "main":
            Aside.__exit__ = slow_leave  # type: ignore[method-assign]
        yield
    finally:
        Aside.__enter__, Aside.__exit__ = enter, leave  # type: ignore[method-assign]
