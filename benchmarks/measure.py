"""Time and memory of one model at one size: the training step and the evaluation step."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import floor, gate
from benchmarks.floor import Ceilings, Work
from fsn.data import Windows
from fsn.models import Config, build_from_config
from fsn.ops import DropoutKey
from fsn.train.environment import peak_memory_gb
from fsn.train.recipe import Recipe
from fsn.train.step import Stepper
from fsn.train.world import World, autocast, choose_engine, numerics

SYMBOLS = 205
STRIDE = 64
BLOCKS = 7
STEPS = 2000
"""The most steps that any measurement takes: the text is long enough for them."""


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
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device) / 1e9


def text(windows: int, length: int, device: torch.device) -> Windows:
    """Random symbols: a step costs the same whatever the text says."""
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randint(SYMBOLS, (windows * STRIDE + length,), dtype=torch.uint8, generator=generator)
    return Windows(symbols.to(device), length, STRIDE)


def measure(
    config: Config, length: int, batch: int, device: torch.device, ceilings: Ceilings, seconds: float
) -> dict[str, Any]:
    """Check, then time; a path that fails its check gets no time. Windows of ``length`` have length − 1 predictions."""
    start = time.perf_counter()
    engine = choose_engine("auto", device, config)
    precision: Any = "bf16" if device.type == "cuda" else "fp32"
    recipe = Recipe(batch_size=batch, length=length, precision=precision, engine=engine)
    row: dict[str, Any] = {"engine": engine, "precision": precision, "batch": batch, "length": length}
    fresh(device)
    check = gate.check_fused(config, length - 1, device)
    row["check"] = asdict(check)
    if check.failed:
        return row | {"seconds": time.perf_counter() - start}
    with numerics(recipe, device):
        trained = _training(config, recipe, device, seconds)
        check = trained.pop("check") or check
        row["check"] = asdict(check)
        if check.failed:
            return row | {"seconds": time.perf_counter() - start}
        row["training"] = trained | _share(floor.training(config, batch, length - 1), ceilings, trained["ms"])
        evaluated = _evaluation(config, recipe, device, seconds)
        row["evaluation"] = evaluated | _share(
            floor.evaluation(config, batch, length - 1), ceilings, evaluated["ms"]
        )
    for part in ("training", "evaluation"):
        row[part]["mtok_per_s"] = batch * (length - 1) / row[part]["ms"] / 1e3
    return row | {"seconds": time.perf_counter() - start}


def _share(work: Work, ceilings: Ceilings, ms: float) -> dict[str, Any]:
    least = work.floor_ms(ceilings)
    return {
        "gflop": work.flops / 1e9,
        "gbyte": work.bytes / 1e9,
        "floor_ms": least,
        "floor": work.limit(ceilings),
        "share_of_floor": least / ms,
    }


def _training(config: Config, recipe: Recipe, device: torch.device, seconds: float) -> dict[str, Any]:
    """The trainer's own step: gather, forward, backward, clip, AdamW; on a GPU as one graph."""
    windows = text(
        recipe.batch_size * STEPS if device.type == "cuda" else 64 * recipe.batch_size, recipe.length, device
    )
    held = fresh(device)
    torch.manual_seed(0)
    model = build_from_config(config).to(device).train()
    stepper = Stepper(model, windows, recipe, World(device=device))
    stepper.set_order(torch.randperm(len(windows)))
    stepper.set_place(0, 0)
    first = time.perf_counter()
    stepper.prepare()
    place = 0

    def run(steps: int) -> None:
        nonlocal place
        if place + steps > stepper.steps_per_epoch:
            place = 0
            stepper.set_place(0, 0)
        stepper.run(steps, place)
        place += steps

    run(1)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    first = time.perf_counter() - first
    timing = time_blocks(run, device, seconds)
    peak = peak_memory_gb(device) - held
    check = None
    if recipe.engine.startswith("compile"):
        stepper.set_place(0, 0)
        tokens, targets = stepper._gather(recipe.batch_size)
        key = DropoutKey(stepper.counter, 0)
        check = gate.check_compiled(model, stepper._loss, tokens, targets, recipe.precision, key)
    return asdict(timing) | {"memory_gb": peak, "first_step_s": first, "check": check}


def _evaluation(config: Config, recipe: Recipe, device: torch.device, seconds: float) -> dict[str, Any]:
    """The losses of a batch without gradients: gather and forward; on a GPU as one graph."""
    windows = text(recipe.batch_size, recipe.length, device)
    held = fresh(device)
    torch.manual_seed(0)
    model = build_from_config(config).to(device).eval()
    loss: Callable[..., Tensor] = model.loss
    if recipe.engine.startswith("compile"):
        loss = torch.compile(model.loss, dynamic=False)
    index = torch.arange(recipe.batch_size, device=device)
    total = torch.zeros((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def once() -> None:
        batch = windows.gather(index)
        with autocast(recipe.precision, device):
            total.add_(loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()).double().sum())

    step = _graph(once, device) if recipe.engine.endswith("graph") else once

    def run(steps: int) -> None:
        for _ in range(steps):
            step()

    timing = time_blocks(run, device, seconds)
    assert torch.isfinite(total)
    return asdict(timing) | {"memory_gb": peak_memory_gb(device) - held}


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
