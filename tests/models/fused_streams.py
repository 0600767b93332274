"""Is work on several streams in order? Found out without a GPU, by keeping clocks.

The kernels run one after the other in Triton's interpreter. Meanwhile streams that only keep time stand in for the
GPU's: each counts its operations and knows, through waits and events, how far into the others' it may rely on. Two
operations that touch the same bytes, one of them writing, race unless the later one's stream knows of the earlier
one. So does memory that a stream takes again while an operation on another stream may still read it: the allocator
gives a freed block back to the stream it was made on, whoever read it last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fsn.data import Windows, epoch_order
from fsn.ops.fused import gradients, ledger, mean_field, readout, residual, swiglu
from fsn.ops.fused.common import Aside
from fsn.train.recipe import Recipe
from fsn.train.step import Stepper
from fsn.train.world import World, numerics
from tests.models import fused_models
from tests.models.trouble import poison


class Stream:
    """A stream's name, and how many operations of each stream are known to be over before its next one."""

    def __init__(self, name: str) -> None:
        self.name, self.known = name, {name: 0}

    def wait_event(self, event: dict[str, int]) -> None:
        for name, count in event.items():
            self.known[name] = max(count, self.known.get(name, 0))

    def record_event(self) -> dict[str, int]:
        return dict(self.known)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.known)


@dataclass
class Access:
    """One operation's use of the bytes first .. last of a storage: the count-th on its stream."""

    what: str
    stream: str
    count: int
    writes: bool
    first: int
    last: int

    def is_over(self, stream: Stream) -> bool:
        return stream.known.get(self.stream, 0) >= self.count


@dataclass
class Block:
    """A storage: the stream it was made on, and all that touched it."""

    made: str
    alive: StorageWeakRef
    accesses: list[Access] = field(default_factory=list)


def extent(tensor: Tensor) -> tuple[int, int]:
    """First and last byte of a tensor in its storage."""
    first = tensor.storage_offset() * tensor.element_size()
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (reach + 1) * tensor.element_size() - 1


def tensors_in(values: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor) and t.numel()]


class Clocks(TorchDispatchMode):
    """Follows every operation of torch and every kernel; ``races`` says what was out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = {"main": Stream("main")}
        self.current = self.streams["main"]
        self.blocks: dict[int, Block] = {}
        self.races: list[str] = []
        self.operations = 0

    def lane(self, name: str) -> Stream:
        return self.streams.setdefault(name, Stream(name))

    def block(self, tensor: Tensor, fresh: bool = False) -> Block:
        storage = tensor.untyped_storage()
        found = self.blocks.get(storage._cdata)
        if found is None:
            found = Block(self.current.name if fresh else "main", StorageWeakRef(storage))
            self.blocks[storage._cdata] = found
            if fresh:
                self.take_memory()
        return found

    def take_memory(self) -> None:
        """Memory freed on this stream may be the memory taken now: has everybody finished with it?"""
        for key, block in list(self.blocks.items()):
            if block.made == self.current.name and block.alive.expired():
                late = [a for a in block.accesses if not a.is_over(self.current)]
                for a in late[:1]:
                    self.races.append(
                        f"{a.what} on {a.stream} may still use memory taken again on {self.current.name}"
                    )
                del self.blocks[key]

    def touch(self, what: str, tensor: Tensor, writes: bool, span: tuple[int, int] | None = None) -> None:
        first, last = extent(tensor) if span is None else span
        accesses = self.block(tensor).accesses
        for a in accesses:
            if (a.writes or writes) and a.first <= last and first <= a.last and not a.is_over(self.current):
                verb = "writes" if writes else "reads"
                self.races.append(f"{what} on {self.current.name} {verb} what {a.what} on {a.stream} touched")
                break
        accesses.append(
            Access(what, self.current.name, self.current.known[self.current.name], writes, first, last)
        )

    def tick(self) -> None:
        self.operations += 1
        self.current.known[self.current.name] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        before = tensors_in((args, kwargs))
        known = {t.untyped_storage()._cdata for t in before}
        made = [t for t in tensors_in(out) if t.untyped_storage()._cdata not in known]
        named = dict(zip((spec.name for spec in func._schema.arguments), args, strict=False)) | (kwargs or {})
        written = [
            s.name for s in func._schema.arguments if s.alias_info is not None and s.alias_info.is_write
        ]
        changed = [named[name] for name in written if name in named]
        what = str(func)
        if not made and not changed:
            return out  # a view
        self.tick()
        for t in made:
            self.block(t, fresh=True)
        if "empty" in what:
            return out
        for t in before if "_like" not in what else []:
            self.touch(what, t, writes=False)
        for t in [*made, *tensors_in(changed)]:
            self.touch(what, t, writes=True)
        return out

    def launch(self, kernel: str, tensors: list[Tensor], before: list[Tensor], after: list[Tensor]) -> None:
        """A kernel reads all it was given, and writes the bytes that have changed."""
        self.tick()
        for tensor in tensors:
            self.touch(kernel, tensor, writes=False)
        for tensor, old, new in zip(tensors, before, after, strict=True):
            changed = (old != new).nonzero()
            if len(changed):
                start = extent(tensor)[0]
                span = start + int(changed[0]), start + int(changed[-1])
                self.touch(kernel, tensor, writes=True, span=span)


def bytes_of(tensor: Tensor) -> Tensor:
    first, last = extent(tensor)
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # type: ignore[call-overload]
    return raw[first : last + 1].clone()


@contextlib.contextmanager
def watching() -> Iterator[Clocks]:
    """Everything inside runs on streams that keep time."""
    from triton.runtime import interpreter

    clocks = Clocks()
    plain_init, plain_stream, plain_run = (
        Aside.__init__,
        torch.cuda.stream,
        interpreter.InterpretedFunction.run,
    )

    def init(aside: Aside, device: torch.device, lane: str = "fields") -> None:
        aside.main, aside.side = clocks.current, clocks.lane(lane)  # type: ignore[assignment]

    @contextlib.contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        outer, clocks.current = clocks.current, chosen
        try:
            yield
        finally:
            clocks.current = outer

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            tensors = tensors_in((args, kwargs))
            before = [bytes_of(t) for t in tensors]
            out = plain_run(kernel, *args, **kwargs)
            after = [bytes_of(t) for t in tensors]
            clocks.launch(kernel.fn.__name__, tensors, before, after)
        return out

    try:
        Aside.__init__ = init  # type: ignore[method-assign]
        torch.cuda.stream = stream  # type: ignore[assignment]
        interpreter.InterpretedFunction.run = run
        with clocks:
            yield clocks
    finally:
        Aside.__init__ = plain_init  # type: ignore[method-assign]
        torch.cuda.stream = plain_stream  # type: ignore[assignment, misc]
        interpreter.InterpretedFunction.run = plain_run


@contextlib.contextmanager
def without(rule: str | None) -> Iterator[None]:
    """The code without one of the rules that keep it in order, to see that this is noticed."""
    plain = {name: getattr(Aside, name) for name in ("__enter__", "wait", "join")}
    release, close = gradients.release, ledger.Ledger.close
    users = (gradients, mean_field, readout, residual, swiglu)

    def replace(function: Any) -> None:
        for module in users:
            module.release = function  # type: ignore[attr-defined]

    kept: list[Any] = []

    def enter(aside: Aside) -> Aside:
        aside.context = torch.cuda.stream(aside.side)  # type: ignore[arg-type]
        aside.context.__enter__()
        return aside

    def always_run_on(aside: Aside, reads: Any, results: Any) -> None:
        release(aside, reads, (None,))

    def forget(aside: Aside, reads: Any, results: Any) -> None:
        release(aside, (), results)

    try:
        if rule == "the side waits for the main stream":
            Aside.__enter__ = enter  # type: ignore[method-assign]
        elif rule == "the main stream waits for a mark":
            Aside.wait = lambda aside, mark: None  # type: ignore[method-assign]
        elif rule == "the main stream joins":
            Aside.join = lambda aside: None  # type: ignore[method-assign]
        elif rule == "results for autograd are joined":
            replace(always_run_on)
        elif rule == "what a block reads stays alive":
            replace(forget)
        elif rule == "the optimizer waits for the gradients":
            ledger.Ledger.close = lambda book: kept.append(book._running)  # type: ignore[method-assign]
        elif rule is not None:
            raise ValueError(rule)
        yield
    finally:
        for name, method in plain.items():
            setattr(Aside, name, method)
        replace(release)
        ledger.Ledger.close = close  # type: ignore[method-assign]


def races(
    family: str,
    dtype: str = "float32",
    T: int = 5,
    trainer: bool = True,
    chunk: int | None = None,
    kept: int | None = None,
    tied: bool = False,
    broken: str | None = None,
    accumulate: int = 1,
    **overrides: Any,
) -> dict[str, Any]:
    """What is out of order in two passes through a model and an evaluation between them, and which streams are not
    joined at the end: by the trainer, with its ledger and its optimizer, or by plain autograd."""
    model = fused_models.build(family, "cpu", **overrides)
    if tied:  # one table for symbols and prototypes, which no preset has
        model.readout.prototypes = model.embedding.phases  # type: ignore[union-attr]
    tokens, targets = fused_models.text(2, T, "cpu")
    precision: Any = "bf16" if dtype == "bfloat16" else "fp32"
    recipe = Recipe(
        batch_size=2, length=T + 1, lr=3e-3, precision=precision, engine="eager", accumulate=accumulate
    )
    windows = Windows(fused_models.text(1, 8 * T, "cpu")[0][0].to(torch.uint8), T + 1, T)
    limits = fused_models.limited(chunk=chunk, kept=kept)
    with fused_models.path("fused"), limits, numerics(recipe, torch.device("cpu")):
        stepper = Stepper(model, windows, recipe, World(device=torch.device("cpu")))
        stepper.set_order(epoch_order(len(windows), 0, 1))
        stepper.seek(0, 0)
        with poison(), without(broken), watching() as clocks:
            for last in (False, True):
                if trainer:
                    stepper._eager(2, model.loss)
                else:
                    fused_models.gradients(model, tokens, targets, dtype)
                if not last:
                    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                        model.loss(tokens, targets)
                        model(tokens)
    main = clocks.streams["main"].known
    running = [name for name, stream in clocks.streams.items() if stream.known[name] > main.get(name, 0)]
    return {
        "races": clocks.races,
        "running": running,
        "operations": clocks.operations,
        "streams": sorted(clocks.streams),
    }
