"""Gradients of weights straight into the trainer's vector.

Autograd hands over each weight's gradient as a tensor of its own, which the trainer then copies to its place. A fused
backward pass can write it there itself, if it knows where: while :func:`writing` is on, it asks
``current().place(weight)``, writes to what it gets and returns None for that gradient. Without a ledger, or where
``place`` gives None, it returns the gradient as usual, and the trainer copies it, or adds it to what was written.

Needs no Triton.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .common import Aside

BEHIND = 2
"""Blocks that run on the side before the main stream waits for the oldest: what they read stays in memory till then."""


class Ledger:
    """Where a backward pass may put parameter gradients itself, and which it did put there.

    ``places`` maps the address of a parameter's data to the part of the flat gradient that is its own.
    """

    def __init__(self, places: dict[int, Tensor]) -> None:
        self.places = places
        self.written: set[int] = set()
        """Addresses of the parameters whose place was given out."""
        self._running: deque[tuple[Aside, torch.cuda.Event, list[Tensor]]] = deque()

    def knows(self, parameter: Tensor) -> bool:
        """Whether ``parameter`` is, all of it, one whose place is known.

        A transposed or shortened view of a parameter begins at the same address, but is not all of it in its order.
        """
        view = self.places.get(parameter.data_ptr())
        return view is not None and parameter.numel() == view.numel() and parameter.is_contiguous()

    def place(self, parameter: Tensor) -> Tensor | None:
        """Where the whole gradient of ``parameter`` is to be written, in its shape, or None if that is not known.

        Whoever asks must write, and must add if the parameter was in ``written`` before: a weight can be used twice.
        """
        if not self.knows(parameter):
            return None
        address = parameter.data_ptr()
        self.written.add(address)
        return self.places[address].view(parameter.shape)

    def defer(self, aside: Aside, tensors: list[Tensor]) -> None:
        """Let a block on the side run on, and keep the tensors it reads until the main stream has waited for it.

        That is a few blocks later, or when the ledger is closed.
        """
        if aside.side is None:
            return
        self._running.append((aside, aside.side.record_event(), tensors))
        while len(self._running) > BEHIND:
            self._wait()

    def _wait(self) -> None:
        aside, event, _ = self._running.popleft()
        aside.main.wait_event(event)

    def close(self) -> None:
        """The main stream waits for all that was deferred."""
        while self._running:
            self._wait()


_current: Ledger | None = None  # of the process: autograd runs a backward pass in threads of its own


def current() -> Ledger | None:
    """The ledger of the backward pass that is going on, if it has one."""
    return _current


@contextmanager
def writing(places: dict[int, Tensor]) -> Iterator[Ledger]:
    """A ledger for the backward pass inside; on leaving, all that was deferred is waited for."""
    global _current
    if _current is not None:
        raise RuntimeError("a ledger is open already: backward passes that write gradients cannot be nested")
    book = _current = Ledger(places)
    try:
        yield book
    finally:
        _current = None
        book.close()
