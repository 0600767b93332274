"""What a layer remembers of the positions before: the cache behind generation one symbol at a time."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import ops
from ..checks import check
from ..errors import UserError

if TYPE_CHECKING:
    from .decode import Constants


class Rows:
    """The rows of a sequence that grows: (B, T, ...) in a buffer that doubles when it is full."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self.length = 0

    def write(self, first: int, rows: Tensor, since: int = 0) -> Tensor:
        """Put ``rows`` at the positions from ``first`` on, over what is there; all from ``since`` to their end.

        rows (B, n, ...) -> (B, first + n − since, ...)
        """
        if first > self.length:
            raise ValueError(f"rows from {first} on would leave a gap behind {self.length}")
        last = first + rows.shape[1]
        buffer = self.buffer
        if torch.is_grad_enabled() and rows.requires_grad:  # what a backward pass reads is not written over
            buffer = rows if buffer is None else torch.cat((buffer[:, :first], rows), dim=1)
            self.buffer, self.length = buffer, last
            return buffer[:, since:]
        if buffer is None or last > buffer.shape[1] or _unfit(buffer, rows):
            room = last if buffer is None else max(last, 2 * buffer.shape[1])
            wider = rows.new_empty(rows.shape[0], room, *rows.shape[2:])
            if buffer is not None:
                wider[:, :first] = buffer[:, :first]
            buffer = wider
        buffer[:, first:last] = rows
        self.buffer, self.length = buffer, last
        return buffer[:, since:last]


def _unfit(buffer: Tensor, rows: Tensor) -> bool:
    """Whether rows cannot be written to it: a backward pass reads it, the model was cast since, or it was made in
    inference mode and this is outside."""
    if buffer.requires_grad or buffer.dtype != rows.dtype:
        return True
    if torch.compiler.is_compiling() or not buffer.is_inference():
        return False
    return not torch.is_inference_mode_enabled()


class Past:
    """A layer's memory: sequences by name, and tensors that follow from its weights alone."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, Rows] = defaultdict(Rows)
        self.constants: Constants | None = None

    def __getitem__(self, name: str) -> Rows:
        return self.rows[name]

    def reorder(self, index: Tensor, batch: int) -> None:
        """Take these of ``batch`` sequences, in this order; one may be taken twice, with the rows of all its heads."""
        for rows in self.rows.values():
            if rows.buffer is not None:
                each = rows.buffer.unflatten(0, (batch, -1))
                rows.buffer = each.index_select(0, index.to(each.device)).flatten(0, 1)


class Owner:
    """Whose memory a cache is, which keeps nothing alive. Of a copy of both the copied layer is, of the cache alone the
    same layer; who has read it from a file belongs to the first that continues it."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        self.layer = None if layer is None else weakref.ref(layer)

    def admits(self, layer: nn.Module) -> bool:
        return self.layer is None or self.layer() is layer

    def __deepcopy__(self, memo: dict[int, Any]) -> Owner:
        layer = None if self.layer is None else self.layer()
        return self if layer is None else Owner(memo.get(id(layer), layer))

    def __reduce__(self) -> tuple[type[Owner], tuple[()]]:
        return Owner, ()


class Cache:
    """The memory of a whole model, and which of the positions seen so far are real.

    ``lean`` asks layers to keep as little as they can and to make the rest again for every new symbol: less memory and
    more work (figures in ``docs/hub.md``). ``padding`` (B, T) is true for padding in front of sequences, which no later
    position looks at; None: there is none.
    """

    def __init__(self, layers: int, lean: bool = False) -> None:
        self.lean = lean
        self.layers = [Past() for _ in range(layers)]
        self.rotation: Tensor | None = None
        self.now: tuple[Any, ...] | None = None  # first and last of the new positions, and how far they turn
        self.gates: tuple[Tensor, Tensor, Any] | None = None
        self.prototypes: tuple[Tensor, Any] | None = None
        self.length = 0
        self.batch: int | None = None
        self.padding: Tensor | None = None
        self.owner = Owner()

    def claim(self, layer: nn.Module) -> None:
        """Note whose memory this is, once it holds something; stop where it is another layer's."""
        if self.length and not self.owner.admits(layer):
            raise UserError("the cache belongs to another layer; make one for each with layer.new_cache()")
        if self.length == 0 or self.owner.layer is None:
            self.owner = Owner(layer)

    def numbers(self) -> int:
        """How many numbers are kept, all layers and sequences together; buffers have room for more."""
        buffers = [
            rows.buffer for past in self.layers for rows in past.rows.values() if rows.buffer is not None
        ]
        return sum(self.length * buffer[:, :1].numel() * (1 + buffer.is_complex()) for buffer in buffers)

    def turns(self, rates: Tensor, dtype: torch.dtype, first: int, last: int) -> Tensor:
        """e^{iωt} of the positions from ``first`` to before ``last``: complex (last − first, k), for all layers."""
        if self.now is None or self.now[:2] != (first, last):
            if self.rotation is None or len(self.rotation) < last:
                positions = torch.arange(2 * last, device=rates.device, dtype=rates.dtype)
                angle = (positions[:, None] * rates).to(dtype)
                self.rotation = torch.complex(angle.cos(), angle.sin())
            self.now = first, last, self.rotation[first:last]
        return self.now[2]

    def cosines(self, rates: Tensor, dtype: torch.dtype, first: int, last: int) -> tuple[Tensor, Tensor]:
        """:func:`fsn.ops.rotary_turns`, made once for all layers."""
        if self.now is None or self.now[:2] != (first, last):
            self.now = first, last, *ops.rotary_turns(rates, dtype, first, last)
        return self.now[2], self.now[3]

    def cut(self, length: int) -> None:
        """Forget the positions from ``length`` on: what comes next is written over them."""
        if length < 0:
            raise ValueError(f"cut({length}): there are no positions before the first")
        self.length = min(self.length, length)
        if self.length == 0:
            self.batch = self.padding = None
            for past in self.layers:
                past.rows.clear()
        if self.padding is not None:
            self.padding = self.padding[:, : self.length]

    def reorder(self, index: Tensor) -> None:
        """Take these sequences of the batch, in this order: what a beam search does after every step."""
        whole = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32) and index.dim() == 1
        check(whole, "the order is no list of sequences; pass a tensor of whole numbers with one axis")
        before = self.batch or len(index)
        if self.batch is not None and index.device.type == "cpu" and len(index):  # a GPU would stall
            low, high = (int(end) for end in index.aminmax())
            fits = low >= 0 and high < before
            wrong = low if low < 0 else high
            check(fits, f"there is no sequence {wrong}; the cache holds 0 to {before - 1}")
        self.batch = len(index)
        if self.padding is not None:
            self.padding = self.padding.index_select(0, index.to(self.padding.device))
        for past in self.layers:
            past.reorder(index, before)

    def grow(self, tokens: Tensor, padding: Tensor | None) -> None:
        """Note what is known of new positions: tokens (B, n), and which of them are padding, (B, n)."""
        if self.length == 0:  # a cache belongs to the weights that fill it
            self.gates = self.prototypes = self.rotation = self.now = None
            for past in self.layers:
                past.constants = None
        if padding is not None or self.padding is not None:
            batch, new = tokens.shape
            before, after = self.padding, padding
            if before is None:
                before = torch.zeros(batch, self.length, dtype=torch.bool, device=tokens.device)
            if after is None:
                after = torch.zeros(batch, new, dtype=torch.bool, device=tokens.device)
            self.padding = torch.cat((before, after), dim=1)
        self.batch, self.length = tokens.shape[0], self.length + tokens.shape[1]
