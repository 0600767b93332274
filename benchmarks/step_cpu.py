"""What a training step costs on one CPU thread: the FSN beside the transformer, in one process.

    python -m benchmarks.step_cpu             # fsn-1m and transformer-1m, batches of 8 and of 64 windows of 256 symbols
    python -m benchmarks.step_cpu --json F    # and the raw numbers

The trainer's own step (gather, forward, backward, clip, AdamW) of either model is run in turn, and so is the FSN's by
the reference alone (``FSN_FUSED=0``). The time is that of the thread, so that other work on the machine counts little;
a row is the lower quartile of its repetitions. First losses and gradients of the CPU's own path are checked against
float64, as in ``gate.py``: where they are off nothing is timed.

The floor: ``products`` are the matrix products of a step at the rate of one large product (``floor.py`` counts them,
over the pairs u ≤ t where attention is causal), and what the rest is made of are passes over the state.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import floor
from benchmarks.gate import Check, compare, losses_and_gradient, reference_path, scatter
from benchmarks.measure import SYMBOLS, make_ready
from fsn.io import write_text_atomic
from fsn.models import FSN, FSNConfig, preset
from fsn.train.recipe import Recipe
from fsn.train.world import World, describe_device, environment

LENGTH = 256
BATCHES = (8, 64)
WAYS = ("fsn", "fsn, reference", "transformer")
REPETITIONS = 15
CPU = torch.device("cpu")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--length", type=int, default=LENGTH, help="symbols in a window")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    configs = {way: preset(f"{way.split(',')[0]}-1m", SYMBOLS) for way in WAYS}
    config = configs["fsn"]
    assert isinstance(config, FSNConfig)
    check = check_cpu(config, options.length - 1)
    if check.failed:
        print(f"failed the check, and so got no time: {check.failed}", file=sys.stderr)
        return 1
    rate = product_rate()
    print(f"{describe_device(CPU)}, torch {torch.__version__}, windows of {options.length}, ms a step")
    print(f"a large product runs at {rate / 1e9:.0f} GFLOP/s\n")
    print(
        f"{'batch':>5}" + "".join(f"{way:>16}" for way in WAYS) + f"{'ratio':>8}{'products':>20}{'ratio':>8}"
    )
    print("(products: what the matrix products alone would take at that rate, fsn / transformer)")
    rows = []
    for batch in options.batches:
        recipe = Recipe(batch_size=batch, length=options.length, precision="fp32", engine="eager")
        repetitions = max(3, options.repetitions * 8 // max(8, batch))
        ms = measure({way: configs[way] for way in WAYS}, recipe, repetitions)
        products = {
            way: 1e3 * floor.training(configs[way], batch, options.length - 1).flops / rate
            for way in ("fsn", "transformer")
        }
        rows.append({"batch": batch, "ms": ms, "products_ms": products, "repetitions": repetitions})
        both = f"{products['fsn']:.0f} / {products['transformer']:.0f}"
        print(
            f"{batch:>5}" + "".join(f"{ms[way]:>16.0f}" for way in WAYS)
            + f"{ms['fsn'] / ms['transformer']:>8.2f}{both:>20}"
            + f"{products['fsn'] / products['transformer']:>8.2f}", flush=True,
        )  # fmt: skip
    if options.json:
        found = {"environment": environment(World(device=CPU)), "length": options.length, "rows": rows}
        found |= {"flop_per_s": rate, "check": asdict(check)}
        write_text_atomic(options.json, json.dumps(found, indent=1) + "\n")
    return 0


def product_rate(size: int = 1024, repetitions: int = 9) -> float:
    """FLOP/s of a large product on this thread, at best."""
    a, times = torch.ones(size, size), []
    for _ in range(repetitions):
        start = time.thread_time()
        a @ a
        times.append(time.thread_time() - start)
    return float(2 * size**3 / min(times))


def check_cpu(config: FSNConfig, positions: int) -> Check:
    """Losses and gradients of two layers of the CPU's path against float64, beside the reference's in float32."""
    torch.manual_seed(0)
    model = FSN(replace(config, layers=2)).eval()
    scatter(model)
    double = copy.deepcopy(model).double()
    tokens, targets = torch.randint(config.vocab_size, (2, 4, positions))
    exact = losses_and_gradient(double, tokens, targets, "fp64")
    found = losses_and_gradient(model, tokens, targets, "fp32")
    with reference_path():
        plain = losses_and_gradient(model, tokens, targets, "fp32")
    return Check("cpu", {"fp32": compare(model, (found, plain, exact))}).judge()


def measure(configs: dict[str, Any], recipe: Recipe, repetitions: int) -> dict[str, float]:
    """Milliseconds of a step, by way, taken in turn."""
    runs: dict[str, Callable[[], None]] = {}
    for way, config in configs.items():
        path = reference_path if "reference" in way else contextlib.nullcontext
        with path():
            runs[way] = stepper(make_ready(config, recipe, "training", CPU).run, path)
    times: dict[str, list[float]] = {way: [] for way in configs}
    for _ in range(repetitions):
        for way, run in runs.items():
            start = time.thread_time()
            run()
            times[way].append(time.thread_time() - start)
    return {way: round(1e3 * sorted(t)[len(t) // 4], 2) for way, t in times.items()}


def stepper(run: Callable[[int], None], path: Callable[[], Any]) -> Callable[[], None]:
    def step() -> None:
        with path():
            run(1)

    return step


if __name__ == "__main__":
    sys.exit(main())
