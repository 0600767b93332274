"""Time and memory of one model at one size: the training step and the evaluation step.

A step is made ready first (built, compiled, captured, run once), then timed. ``warm.py`` makes the same steps
ready in other processes and throws them away, for the compiled kernels that they leave in the caches.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks import floor, gate
from benchmarks.floor import Ceilings, Work
from benchmarks.gate import Check
from fsn.data import Windows
from fsn.models import Config, build_from_config
from fsn.ops import DropoutKey
from fsn.train.recipe import Recipe
from fsn.train.step import Stepper
from fsn.train.world import World, autocast, choose_engine, numerics, peak_memory_gb

SYMBOLS = 205
STRIDE = 64
BLOCKS = 7
STEPS = 2000
"""The most steps that any measurement takes: the text is long enough for them."""

Part = Literal["training", "evaluation"]
PARTS: tuple[Part, ...] = ("training", "evaluation")


@dataclass(frozen=True)
class Case:
    """A row of the table. Windows of ``length`` have length − 1 predictions."""

    model: str
    size: str
    length: int
    batch: int
    config: Config

    @property
    def name(self) -> str:
        return f"{self.model}-{self.size}"

    def __str__(self) -> str:
        return f"{self.name} at T = {self.length}"

    def recipe(self, device: torch.device) -> Recipe:
        """The paper's, with the engine and the precision that this model would train with here."""
        precision: Any = "bf16" if device.type == "cuda" else "fp32"
        engine = choose_engine("auto", device, self.config, precision, self.length)
        return Recipe(batch_size=self.batch, length=self.length, precision=precision, engine=engine)


@dataclass
class Ready:
    """A step that has run once: ``run(n)`` starts n more."""

    run: Callable[[int], None]
    check: Callable[[], Check | None]
    """Compares what was compiled or captured with what was not; None where nothing was."""
    first_step_s: float
    """Seconds to compile, capture and run once; with warm caches there is little left to compile."""
    held: float
    """Gigabytes that the device held before."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a step: the median over blocks, and the fastest and slowest of them."""

    ms: float
    low: float
    high: float
    blocks: int
    steps: int
    """Steps in a block."""


def time_blocks(run: Callable[[int], None], device: torch.device, seconds: float) -> Timing:
    """Run blocks of steps of about ``seconds`` in all; the first block warms up and tells how long a step takes."""
    run(3)
    step = _block(run, 5, device)
    steps = max(1, min(STEPS // (2 * BLOCKS), round(1e3 * seconds / BLOCKS / step)))
    times = sorted(_block(run, steps, device) for _ in range(BLOCKS))
    return Timing(times[BLOCKS // 2], times[0], times[-1], BLOCKS, steps)


def _block(run: Callable[[int], None], steps: int, device: torch.device) -> float:
    """Milliseconds a step: by the device's own clock on a GPU."""
    if device.type != "cuda":
        start = time.perf_counter()
        run(steps)
        return 1e3 * (time.perf_counter() - start) / steps
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run(steps)
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / steps


def fresh(device: torch.device) -> float:
    """Free what the last measurement held and start counting memory; gigabytes still held."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if device.type != "cuda":
        return 0.0
    torch.cuda.init()  # a process that has not used the GPU yet has no counters to reset
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device) / 1e9


def compiled_graphs() -> dict[str, int]:
    """How many graphs this process has found in the compile cache, and how many it had to compile."""
    if "torch._dynamo" not in sys.modules:
        return {"found": 0, "compiled": 0}
    count = sys.modules["torch._dynamo.utils"].counters["aot_autograd"]
    return {"found": count["autograd_cache_hit"], "compiled": count["total"] - count["autograd_cache_hit"]}


def text(windows: int, length: int, device: torch.device) -> Windows:
    """Random symbols: a step costs the same whatever the text says."""
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randint(SYMBOLS, (windows * STRIDE + length,), dtype=torch.uint8, generator=generator)
    return Windows(symbols.to(device), length, STRIDE)


def measure(case: Case, device: torch.device, ceilings: Ceilings, seconds: float) -> dict[str, Any]:
    """Check, then time; a path that fails its check gets no time."""
    start = time.perf_counter()
    recipe = case.recipe(device)
    row: dict[str, Any] = {"model": case.model, "size": case.size, "length": case.length, "batch": case.batch}
    row |= {"engine": recipe.engine, "precision": recipe.precision}
    fresh(device)
    check = gate.check_fused(case.config, case.length - 1, device)
    parts: dict[str, Any] = {}
    with numerics(recipe, device):
        for part in PARTS:
            if check.failed:
                break
            parts[part], compiled = _time(case, recipe, part, device, ceilings, seconds)
            check = check.joined(compiled)
    row["check"] = asdict(check)
    if not check.failed:
        row |= parts
    return row | {"seconds": time.perf_counter() - start}


def _time(
    case: Case, recipe: Recipe, part: Part, device: torch.device, ceilings: Ceilings, seconds: float
) -> tuple[dict[str, Any], Check | None]:
    before = compiled_graphs()
    ready = make_ready(case.config, recipe, part, device)
    timing = time_blocks(ready.run, device, seconds)
    memory = peak_memory_gb(device) - ready.held
    work: Work = getattr(floor, part)(case.config, case.batch, case.length - 1)
    found = asdict(timing) | {
        "mtok_per_s": case.batch * (case.length - 1) / timing.ms / 1e3,
        "memory_gb": memory,
        "first_step_s": ready.first_step_s,
        "graphs": {name: n - before[name] for name, n in compiled_graphs().items()},
        "gflop": work.flops / 1e9,
        "gbyte": work.bytes / 1e9,
        **work.against(timing.ms, ceilings),
    }
    return found, ready.check()


def make_ready(config: Config, recipe: Recipe, part: Part, device: torch.device) -> Ready:
    """Build, compile, capture and run once; call it under ``numerics``."""
    return (_training if part == "training" else _evaluation)(config, recipe, device)


def _training(config: Config, recipe: Recipe, device: torch.device) -> Ready:
    """The trainer's own step: gather, forward, backward, clip, AdamW; on a GPU as one graph."""
    windows = text(
        recipe.batch_size * STEPS if device.type == "cuda" else 64 * recipe.batch_size, recipe.length, device
    )
    held = fresh(device)
    torch.manual_seed(0)
    model = build_from_config(config).to(device).train()
    stepper = Stepper(model, windows, recipe, World(device=device))
    stepper.set_order(torch.randperm(len(windows)))
    stepper.seek(0, 0)
    start = time.perf_counter()
    stepper.prepare()
    place = 0

    def run(steps: int) -> None:
        nonlocal place
        if place + steps > stepper.steps_per_epoch:
            place = 0
            stepper.seek(0, 0)
        stepper.run(steps, place)
        place += steps

    def check() -> Check | None:
        if recipe.engine == "eager":
            return None
        stepper.seek(0, 0)
        batch = (
            *stepper.gather(stepper.micro_batches[recipe.batch_size][0]),
            recipe.precision,
            DropoutKey(stepper.counter, 0),
        )
        compiled = recipe.engine.startswith("compile")
        found = gate.check_compiled(model, stepper._loss, *batch) if compiled else Check("fused")
        if not stepper.optimizer.fused:  # PyTorch's AdamW leaves the clipped gradient in the vector
            return found
        expected = gate.losses_and_gradient(model, *batch, stepper._loss)[1]
        stepper.run(1, 0)
        written = stepper.flat.split(stepper.flat.gradient)
        return found.joined(gate.check_written(found.path, model, written, expected, recipe.precision))

    run(1)
    _wait(device)
    return Ready(run, check, time.perf_counter() - start, held)


def _evaluation(config: Config, recipe: Recipe, device: torch.device) -> Ready:
    """The losses of a batch without gradients: gather and forward; on a GPU as one graph."""
    windows = text(recipe.batch_size, recipe.length, device)
    held = fresh(device)
    torch.manual_seed(0)
    model = build_from_config(config).to(device).eval()
    compiled = recipe.engine.startswith("compile")
    loss: Callable[..., Tensor] = torch.compile(model.loss, dynamic=False) if compiled else model.loss
    index = torch.arange(recipe.batch_size, device=device)
    total = torch.zeros((), dtype=torch.float64, device=device)

    def gathered() -> tuple[Tensor, Tensor]:
        batch = windows.gather(index)
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()

    @torch.no_grad()
    def once() -> None:
        with autocast(recipe.precision, device):
            total.add_(loss(*gathered()).double().sum())

    def check() -> Check | None:
        assert torch.isfinite(total)
        if not compiled:
            return None
        return gate.check_compiled_losses(model, loss, *gathered(), recipe.precision)

    start = time.perf_counter()
    step = _graph(once, device) if recipe.engine.endswith("graph") else once

    def run(steps: int) -> None:
        for _ in range(steps):
            step()

    run(1)
    _wait(device)
    return Ready(run, check, time.perf_counter() - start, held)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _graph(action: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The action captured as a CUDA graph, after a warm-up."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            action()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        action()
    return graph.replay
