"""Where a run takes place: one process or many, which device, which precision, which engine."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import UserError
from ..models import Config, fused
from .recipe import Engine, Precision, Recipe

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """The processes of a run. With one process every method is the identity."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        return self.rank == 0

    def rows(self, batch: int) -> range:
        """This process's rows of a batch: a contiguous slice, uneven where the batch does not divide."""
        return range(batch * self.rank // self.size, batch * (self.rank + 1) // self.size)

    def add(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, values: list[float]) -> list[float]:
        """The largest of each number over the processes, so that all of them decide alike."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def share(self, tensor: Tensor) -> Tensor:
        """Give every process the first one's tensor, in place."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def wait(self) -> None:
        """Go on when all processes have come here."""
        if self.size > 1:
            dist.barrier()

    def gather(self, value: T) -> list[T]:
        """Every process's value, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def first_does(self, action: Callable[[], T]) -> T:
        """Run ``action`` in the first process only; all get its result, or its :class:`UserError`."""
        if self.size == 1:
            return action()
        answer: list[Any] = [None, None]
        failure: BaseException | None = None
        if self.first:
            try:
                answer = ["ok", action()]
            except UserError as error:
                answer, failure = ["user", str(error)], error
            except BaseException as error:
                answer, failure = ["other", f"{type(error).__name__}: {error}"], error
        dist.broadcast_object_list(answer, src=0)
        if failure is not None:
            raise failure
        if answer[0] == "user":
            raise UserError(answer[1])
        if answer[0] == "other":
            raise RuntimeError(f"the first process failed: {answer[1]}")
        return answer[1]


@contextlib.contextmanager
def open_world(device: str = "auto") -> Iterator[World]:
    """The world that ``torchrun`` describes in the environment, or a single process."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = choose_device(device, local if size > 1 else None)
    if size == 1:
        yield World(device=chosen)
        return
    mine = not dist.is_initialized()
    if mine:
        # An optimizer's first step imports this. Imported while a process group exists, it keeps a reference
        # to it, and the group's threads then live on and may crash the process at its end.
        import torch._dynamo

        backend = "nccl" if chosen.type == "cuda" else "gloo"
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        dist.init_process_group(backend, timeout=datetime.timedelta(minutes=30))
    try:
        yield World(rank, size, chosen)
    finally:
        if mine:
            dist.destroy_process_group()


def choose_device(asked: str, local_rank: int | None = None) -> torch.device:
    """``auto`` is a CUDA GPU where there is one, else the CPU."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise UserError(f"there is no device {asked!r}; use auto, cpu, cuda or cuda:0") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {asked!r} is not supported; use auto, cpu or cuda")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(
                "this PyTorch sees no CUDA GPU; use --device cpu, or install a CUDA build of PyTorch"
            )
        if device.index is None:
            device = torch.device(
                "cuda", local_rank if local_rank is not None else torch.cuda.current_device()
            )
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise UserError(f"there is no {device}; this machine has {torch.cuda.device_count()} CUDA GPUs")
    return device


def choose_precision(asked: Precision, device: torch.device) -> Precision:
    if asked == "auto":
        good = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if good else "fp32"
    if asked == "tf32" and device.type != "cuda":
        raise UserError("precision tf32 needs a CUDA GPU; use --precision fp32 on a CPU")
    return asked


def choose_engine(asked: Engine, device: torch.device, model: Config | None = None) -> Engine:
    """``auto`` on a GPU: one CUDA graph of fused kernels where the model has them, of compiled ones otherwise."""
    if asked == "auto":
        if device.type != "cuda":
            return "eager"
        return "graph" if model is None or fused.serves(model, device) else "compile-graph"
    if asked.endswith("graph") and device.type != "cuda":
        raise UserError(f"engine {asked} needs a CUDA GPU; use --engine eager or compile on a CPU")
    return asked


@contextlib.contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set PyTorch's switches for the precision and determinism of a run, and set them back afterwards.

    fp32: float32 products. tf32: float32 storage, products rounded to TensorFloat-32. bf16: autocast (see
    :func:`autocast`), and TensorFloat-32 for the products autocast leaves in float32.
    """
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    if recipe.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if recipe.deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        with products(recipe.precision):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextlib.contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Products of float32 tensors: in float32 for fp32, in TensorFloat-32 otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """bfloat16 autocast for bf16, nothing otherwise."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()
