"""One training step, and four ways to run it.

    gather windows → forward → backward → (all-reduce) → clip → AdamW → count

Everything a step needs is on the device: the text, the order of the epoch, the position in it, the dropout counter,
the learning rates of the next steps. So every step is the same work and can be captured once as a CUDA graph, then
replayed many times before the host synchronises. Losses collect in a ring buffer that the host reads; learning rates
that change are in another, which the host fills. With ``accumulate`` a batch goes through the first three stages in
micro-batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import Windows
from ..errors import reason
from ..models import LanguageModel
from ..nn.probe import record
from ..ops import DropoutKey
from .checkpoint import first_not_finite
from .optimizer import FlatParameters, Optimizer
from .recipe import Engine, Recipe
from .schedule import Schedule
from .world import World, autocast

RING = 1024  # losses on the device: the most steps before the host must read them
WARM_UP = 3
MANY = 8
"""Steps in a second graph, beside that of a single step: between two replays the GPU pauses for 13 µs."""


def dropout_base(seed: int) -> int:
    """A 62-bit hash of the seed (the finaliser of splitmix64): where the run's dropout counter starts."""
    mask = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 2


class MicroBatch(NamedTuple):
    """Rows of a batch that go through the model together."""

    rows: range
    """Of the whole batch."""
    offsets: Tensor
    """The same, (b,), on the device."""
    loss_gradient: Tensor
    """The derivative of the mean loss by the loss of each prediction, (b, T)."""


class Stepper:
    """The step of a run and all the device state it changes.

    :meth:`run` starts steps and returns at once on a GPU; :meth:`read` waits for them and returns their losses
    and gradient norms. From the first loss or norm that is not finite on, weights and moments do not change.
    """

    def __init__(
        self,
        model: LanguageModel,
        windows: Windows,
        recipe: Recipe,
        world: World,
        on_fallback: Callable[[str], None] | None = None,
    ) -> None:
        self.model, self.windows, self.recipe, self.world = model, windows, recipe, world
        self.device = world.device
        self.engine: Engine = recipe.engine
        self.on_fallback = on_fallback
        self.flat = FlatParameters(model)
        self.optimizer = Optimizer(self.flat, recipe)
        self.n_windows = len(windows)
        self.steps_per_epoch = recipe.steps_per_epoch(self.n_windows)
        self.order = torch.zeros(self.n_windows, dtype=torch.int64, device=self.device)
        self.counters = torch.zeros(3, dtype=torch.int64, device=self.device)
        self.position, self.counter, self.step = self.counters.unbind()  # in epoch, for dropout, in run
        self._steps_done = 0  # ``step``, on the host
        self.schedule = Schedule.of(recipe, self.n_windows)
        self.rates = self.optimizer.lr.new_full((RING,), recipe.lr)
        self.ring = torch.zeros(RING, 2, device=self.device)
        self._slots = torch.arange(RING, device=self.device)[:, None]
        batches = {self.batch_at(0), self.batch_at(self.steps_per_epoch - 1)}
        self.micro_batches = {b: self._split(b) for b in batches}
        self._later_loss = torch.zeros_like(self.flat.spare[:1])  # of every micro-batch but the first
        self._loss: Callable[..., Tensor] = model.loss
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._many: torch.cuda.CUDAGraph | None = None
        self._ready = False

    # -- position in the run -------------------------------------------------------------------------------

    def batch_at(self, position: int) -> int:
        """Windows in batch ``position`` of an epoch, over all processes: all full but perhaps the last."""
        return min(self.recipe.batch_size, self.n_windows - position * self.recipe.batch_size)

    def _split(self, batch: int) -> list[MicroBatch]:
        """This process's rows of a batch as ``accumulate`` micro-batches; fewer where there are fewer rows."""
        rows, n, predictions = self.world.rows(batch), self.recipe.accumulate, self.recipe.predictions
        offsets = torch.arange(rows.start, rows.stop, device=self.device)
        ones = torch.ones(len(rows), predictions, dtype=self.flat.values.dtype, device=self.device)
        gradient = ones / (batch * predictions)
        cuts = [slice(len(rows) * i // n, len(rows) * (i + 1) // n) for i in range(n)]
        return [MicroBatch(rows[cut], offsets[cut], gradient[cut]) for cut in cuts if rows[cut]]

    def set_order(self, order: Tensor) -> None:
        self.order.copy_(order)

    def seek(self, position: int, step: int) -> None:
        """Go to batch ``position`` of the epoch, after ``step`` steps of the run."""
        counters = [position, dropout_base(self.recipe.seed) + step, step]
        self.counters.copy_(torch.tensor(counters, dtype=torch.int64))
        self._steps_done = step
        self.optimizer.broken.zero_()

    # -- the step ------------------------------------------------------------------------------------------

    def gather(self, part: MicroBatch) -> tuple[Tensor, Tensor]:
        """Tokens and targets."""
        if self.optimizer.fused:
            from ..ops.fused.gather import gather

            w = self.windows
            return gather(
                self.counters, self.order, w.tokens, self.recipe.batch_size, part.rows, w.stride, w.length
            )
        positions = self.position * self.recipe.batch_size + part.offsets
        text = self.windows.gather(self.order.index_select(0, positions))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def _gradients(self, batch: int, loss_function: Callable[..., Tensor]) -> None:
        """This process's contribution to gradient and loss, into ``flat.message``.

        The loss is the sum over this process's predictions divided by the number in the whole batch, so the sum
        over processes is the mean, however the rows are divided.
        """
        parts, count = self.micro_batches[batch], batch * self.recipe.predictions
        if not parts:
            self.flat.message.zero_()
        for i, part in enumerate(parts):
            loss = self.flat.spare if i == 0 else self._later_loss
            self.flat.release()
            tokens, targets = self.gather(part)
            dropout_key = DropoutKey(self.counter, part.rows.start)
            with autocast(self.recipe.precision, self.device):
                documents = self.windows.documents(tokens)
                losses = loss_function(tokens, targets, dropout_key=dropout_key, documents=documents)
            if self.optimizer.fused:
                self._backward_fused(losses, part, loss, count, add=i > 0)
            else:
                torch.autograd.backward(losses, part.loss_gradient)
                self.flat.collect(add=i > 0)
                loss[0].copy_(losses.detach().sum() / count)
            if i > 0:
                self.flat.spare[0].add_(loss[0])

    def _backward_fused(self, losses: Tensor, part: MicroBatch, loss: Tensor, count: int, add: bool) -> None:
        """The same with kernels: the loss is summed on a second stream beside the backward pass, which may write
        gradients to their final place."""
        from ..ops.fused import ledger
        from ..ops.fused.adamw import mean
        from ..ops.fused.common import Aside

        with ledger.writing({} if add else self.flat.places) as book:
            aside = Aside(self.device)
            with torch.no_grad(), aside:
                mean(losses.detach(), loss, count)
            book.defer(aside, [losses])
            torch.autograd.backward(losses, part.loss_gradient)
        self.flat.collect(book.written, add)

    @torch.no_grad()
    def _update(self) -> None:
        if not self.schedule.constant:
            torch.index_select(self.rates, 0, self.step.view(1) % RING, out=self.optimizer.lr.view(1))
        if self.optimizer.fused:
            self.optimizer.finish(self.flat.spare, self.ring, self.counters)
            return
        loss, norm = self.flat.spare[0], torch.linalg.vector_norm(self.flat.gradient)
        broken = self.optimizer.broken
        broken.copy_(torch.maximum(broken, (~torch.isfinite(loss + norm)).to(broken.dtype)))
        self.optimizer.step(norm)
        # A masked write: index_copy_ would sort in deterministic mode.
        torch.where(self._slots == self.step % RING, torch.stack([loss, norm]), self.ring, out=self.ring)
        self.counters.add_(1)

    def _eager(self, batch: int, loss_function: Callable[..., Tensor]) -> None:
        self._gradients(batch, loss_function)
        self.world.all_reduce_sum(self.flat.message)
        self._update()

    # -- the engines ---------------------------------------------------------------------------------------

    def prepare(self) -> float:
        """Compile, warm up and capture; returns the seconds it took.

        Called once, before the first step. Warm-up steps run on the real data; all they changed is then restored.
        """
        if self._ready:
            return 0.0
        self._ready = True
        if self.device.type == "cpu" and self.engine == "eager":
            return 0.0
        start = time.perf_counter()
        if self.engine.startswith("compile"):
            self._loss = torch.compile(self.model.loss, dynamic=False)
        saved = [(t, t.clone()) for t in (*self.optimizer.tensors(), self.counters, self.ring)]
        try:
            self._warm_up()
        except Exception as error:
            if self.on_fallback is None or self.engine == "eager":
                raise
            why = f"{type(error).__name__}: {reason(error)}"
            self.on_fallback(f"engine    {self.engine} does not work here ({why}); using eager")
            self.engine, self._loss = "eager", self.model.loss
            self._graphs, self._many = [], None
        finally:
            for tensor, before in saved:
                tensor.copy_(before)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def _warm_up(self) -> None:
        batch = self.batch_at(0)
        start = self.counters.clone()
        start[0] = 0  # the first batch: the next may be the last, with fewer windows than a full one

        def once() -> None:
            self.counters.copy_(start)
            self.optimizer.broken.zero_()
            self._eager(batch, self._loss)

        if self.device.type != "cuda":
            once()
            return
        stream = torch.cuda.Stream(self.device, priority=-1)  # before work on side streams
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                once()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        if self.engine.endswith("graph") and batch == self.recipe.batch_size:
            self.counters.copy_(start)
            self._capture(batch, stream)

    def _capture(self, batch: int, stream: torch.cuda.Stream) -> None:
        """The step as one graph; with many GPUs as two, and the all-reduce of gradients between them."""
        alone, pool = self.world.size == 1, None
        mode = "global" if alone else "thread_local"  # NCCL's watchdog may touch the device meanwhile

        def capture(work: Callable[[], None], times: int = 1) -> torch.cuda.CUDAGraph:
            nonlocal pool
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
                for _ in range(times):
                    work()
            pool = graph.pool()
            return graph

        if alone:
            step = partial(self._eager, batch, self._loss)
            self._graphs, self._many = [capture(step)], capture(step, MANY)
        else:
            gradients = partial(self._gradients, batch, self._loss)
            self._graphs = [capture(gradients), capture(self._update)]

    def _set_rates(self, steps: range) -> None:
        """Fill the ring with the learning rates of the next steps."""
        if len(steps) > RING:
            raise ValueError(f"at most {RING} steps at a time, not {len(steps)}")
        slots = torch.tensor([step % RING for step in steps], device=self.device)
        self.rates[slots] = self.rates.new_tensor([self.schedule.rate(step) for step in steps])

    def run(self, n: int, position: int) -> None:
        """Start ``n`` steps, the first of them on batch ``position`` of the epoch."""
        if not self.schedule.constant:
            self._set_rates(range(self._steps_done, self._steps_done + n))
        self._steps_done += n
        self.prepare()
        i = 0
        while i < n:
            many = i + MANY <= n and self.batch_at(position + i + MANY - 1) == self.recipe.batch_size
            if many and self._many is not None:
                self._many.replay()
                i += MANY
                continue
            batch = self.batch_at(position + i)
            i += 1
            if batch != self.recipe.batch_size:
                self._eager(batch, self.model.loss)
            elif not self._graphs:
                self._eager(batch, self._loss)
            else:
                self._graphs[0].replay()
                if len(self._graphs) > 1:
                    self.world.all_reduce_sum(self.flat.message)
                    self._graphs[1].replay()

    def read(self, step: int, n: int) -> tuple[list[float], list[float]]:
        """Losses (nats) and gradient norms of the ``n`` steps that follow step ``step``, oldest first."""
        slots = [(step + i) % RING for i in range(n)]
        values = self.ring.cpu()[slots]
        return values[:, 0].tolist(), values[:, 1].tolist()

    # -- when something is not finite ----------------------------------------------------------------------

    def first_bad_tensor(self, position: int, step: int) -> str | None:
        """The name of the first tensor that is not finite when the step is run again from ``position``.

        Parameters come first, then the named points of the forward pass in their order, the loss, then the
        gradients in the order in which the backward pass reaches them. Runs eagerly and changes no weight.
        """
        bad = first_not_finite(self.model.named_parameters())
        if bad is not None:
            return f"parameter {bad}"
        self.seek(position, step)
        batch = self.batch_at(position)
        found: list[str] = []

        def probed(*args: Any, **kwargs: Any) -> Tensor:
            with record(self.model) as points:
                losses = self.model.loss(*args, **kwargs)
            bad = first_not_finite((points | {"loss": losses}).items())
            found.extend([] if bad is None else [bad])
            return losses

        try:
            self._gradients(batch, probed)
        finally:
            self.seek(position, step)
        if found:
            return found[0]
        parameters = reversed(list(self.model.named_parameters()))
        bad = first_not_finite((name, p.grad) for name, p in parameters if p.grad is not None)
        return None if bad is None else f"gradient of {bad}"
