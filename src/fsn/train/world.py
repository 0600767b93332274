"""The processes, device and precision of a run, and environment.json, which records them."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .. import __version__
from ..checks import check
from ..errors import UserError, reason
from ..models import Config, fused_stack
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
    def is_main(self) -> bool:
        return self.rank == 0

    def rows(self, batch: int) -> range:
        """This process's rows of a batch: a contiguous slice, uneven where the batch does not divide."""
        return range(batch * self.rank // self.size, batch * (self.rank + 1) // self.size)

    def _collective(self, call: Callable[[], Any]) -> None:
        """Run a collective operation, in which every process takes part; nothing where there is only one."""
        if self.size == 1:
            return
        try:
            call()
        except RuntimeError as error:
            raise UserError(
                "another process of this run has ended or cannot be reached; look at what it printed, and run the "
                f"same command again: it resumes from its last checkpoint ({reason(error, 100)})"
            ) from None

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        self._collective(lambda: dist.all_reduce(tensor))
        return tensor

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """The maximum of each number over the processes, so that all of them decide alike."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        self._collective(lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX))
        return tensor.tolist()

    def broadcast(self, tensor: Tensor) -> None:
        """Copy the main process's tensor to all others, in place."""
        self._collective(lambda: dist.broadcast(tensor, src=0))

    def barrier(self) -> None:
        """Wait until all processes have come here."""
        self._collective(dist.barrier)

    def gather(self, value: T) -> list[T]:
        """Every process's value, in order of rank."""
        values: list[Any] = [value] * self.size
        self._collective(lambda: dist.all_gather_object(values, value))
        return values

    def on_main_process(self, action: Callable[[], T]) -> T:
        """Run ``action`` in the main process only; all get its result, or its error as a :class:`UserError`."""
        if self.size == 1:
            return action()
        message: list[Any] = [None, None]  # the error, or the result
        failure: BaseException | None = None
        if self.is_main:
            try:
                message[1] = action()
            except BaseException as error:
                failure = error
                known = isinstance(error, UserError)
                message = [str(error) if known else f"the main process failed: {error!r}", None]
        self._collective(lambda: dist.broadcast_object_list(message, src=0))
        if failure is not None:
            raise failure
        if message[0] is not None:
            raise UserError(message[0])
        return message[1]


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    check(
        value.isdecimal() and int(value) < 2**20,
        f"the environment variable {name} is {short(value)}; it takes a whole number, or unset it",
    )
    return int(value)


@contextlib.contextmanager
def open_world(device: str = "auto") -> Iterator[World]:
    """The processes that ``torchrun`` describes in the environment, or a single one."""
    size, rank = _from_environment("WORLD_SIZE", 1), _from_environment("RANK", 0)
    local = _from_environment("LOCAL_RANK", 0)
    check(
        rank < size, f"RANK is {rank} and WORLD_SIZE {size}; start the processes with torchrun, or unset both"
    )
    chosen = choose_device(device, local if size > 1 else None)
    if size == 1:
        yield World(device=chosen)
        return
    owned = not dist.is_initialized()
    if owned:
        # Counting parameters and torch.compile import this. Imported while a process group exists, it holds a
        # reference to the group, whose threads then never end and may crash the process when it exits.
        import torch._dynamo

        backend = "nccl" if chosen.type == "cuda" else "gloo"
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        try:
            dist.init_process_group(backend, timeout=datetime.timedelta(minutes=30))
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f"the processes do not find each other ({reason(error)}); start them with torchrun"
            ) from None
    try:
        yield World(rank, size, chosen)
    finally:
        if owned:
            dist.destroy_process_group()


def choose_device(asked: str, local_rank: int | None = None) -> torch.device:
    """``auto`` is a CUDA GPU where there is one, else the CPU."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise UserError(f"there is no device {asked!r}; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cpu":
        return device
    check(device.type == "cuda", f"device {asked!r} is not supported; use auto, cpu or cuda")
    check(
        torch.cuda.is_available(),
        "this PyTorch sees no CUDA GPU; use --device cpu, or install a CUDA build of PyTorch",
    )
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if local_rank is None else local_rank
    gpus = torch.cuda.device_count()
    check(index < gpus, f"there is no cuda:{index}; this machine has {gpus} CUDA GPUs")
    return torch.device("cuda", index)


def choose_precision(asked: Precision, device: torch.device) -> Precision:
    if asked == "auto":
        supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if supported else "fp32"
    on_gpu = device.type == "cuda"
    check(asked != "tf32" or on_gpu, "precision tf32 needs a CUDA GPU; use --precision fp32 on a CPU")
    return asked


def choose_engine(
    asked: Engine, device: torch.device, model: Config, precision: Precision, length: int
) -> Engine:
    """``auto`` on a GPU: one CUDA graph of fused kernels where the model has them, of compiled ones otherwise."""
    if asked == "auto":
        if device.type != "cuda":
            return "eager"
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        return "graph" if fused_stack.supports(model, device, dtype, length) else "compile-graph"
    check(
        device.type == "cuda" or not asked.endswith("graph"),
        f"engine {asked} needs a CUDA GPU; use --engine eager or compile on a CPU",
    )
    return asked


@contextlib.contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set PyTorch's flags for the precision and determinism of a run, and restore them afterwards.

    fp32: float32 products. tf32: float32 storage, products rounded to TensorFloat-32. bf16: autocast (see
    :func:`autocast`), and TensorFloat-32 for the products autocast leaves in float32.
    """
    before = torch.get_deterministic_debug_mode()
    if recipe.deterministic:
        if device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_deterministic_debug_mode("error")
    try:
        with products(recipe.precision):
            yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextlib.contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Matrix products of float32 tensors: in float32 for fp32, in TensorFloat-32 otherwise."""
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


# -- environment.json --------------------------------------------------------------------------------------


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu_name()} (CPU, {threads} thread{'s' * (threads > 1)})"


def environment(world: World) -> dict[str, Any]:
    """Versions, device and commit of this process."""
    packages: dict[str, str | None] = dict.fromkeys(("torch", "triton", "numpy", "safetensors"))
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "fsn": __version__,
        **commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "cuda": torch.version.cuda if world.device.type == "cuda" else None,
        "device": describe_device(world.device),
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def commit() -> dict[str, Any]:
    """The commit of the source tree fsn is imported from, and whether tracked files differ from it.

    For a copy of the tree without its git history, or with an older one, set ``FSN_COMMIT``.
    """
    given = os.environ.get("FSN_COMMIT")
    if given:
        return {"commit": given, "modified": None}
    root = Path(__file__).resolve().parents[3]

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()

    if (root / ".git").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            changed = bool(git("status", "--porcelain", "--untracked-files=no"))
            return {"commit": git("rev-parse", "HEAD"), "modified": changed}
    return {"commit": None, "modified": None}


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def peak_memory_gb(device: torch.device) -> float:
    """Peak memory so far, in units of 10⁹ bytes: allocated on the GPU, or resident for this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    try:
        import resource
    except ImportError:
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
