"""What a new symbol costs: time and memory of decoding, the FSN beside the transformer, in one run.

    python -m benchmarks.decode              # the weights that come with the package, this computer's CPU or GPU
    python -m benchmarks.decode --json F     # and the raw numbers

A prompt of each length is read into a cache; then one symbol more is read, again and again, by the FSN with its cache,
by the FSN with a lean one, and by the transformer, in turn, sixteen symbols each: whoever generates finds weights and
cache of the last symbol in the processor's cache, where a model that waits for its turn does not. On a CPU the time is
that of the process on one thread, so other work on the machine counts little; on a GPU it is the device's, with
everything the host does. A row is the lower quartile of all turns. First each is checked: the symbol's logits are those
of reading everything at once.

``products`` is how many times the multiplications of the transformer's matrix products the FSN's are (``floor.py``).

A lean cache makes its features anew in buffers of some megabytes. Where the C library gives such memory back each time,
page faults cost more than the arithmetic: start it with MALLOC_MMAP_THRESHOLD_=33554432
MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456, as the committed log was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fsn
from benchmarks import floor
from fsn.io import write_text_atomic
from fsn.models import LanguageModel
from fsn.nn import Cache
from fsn.train.world import World, choose_device, describe_device, environment

WAYS = {"fsn": ("fsn-1m", False), "fsn, lean": ("fsn-1m", True), "transformer": ("transformer-1m", False)}
"""What is compared: a model, and whether its cache is lean."""
CASES = ((1, 32), (1, 254), (1, 1022), (16, 254), (64, 254))
"""(sequences, symbols read before)"""
CLOSE = 2e-3
"""Logits go up to about 20; float32 sums in another order differ by less."""
SECONDS = 1.5
"""Of turns for each row and way, at least ten of them."""
SYMBOLS = 16
"""In a turn; one before them is not timed."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many rows, from the first")
    options = parser.parse_args(arguments)
    device = choose_device("auto")
    torch.set_num_threads(1)
    models = {name: fsn.load(name, device=device) for name, _ in WAYS.values()}
    print(f"{describe_device(device)}, one symbol more, ms; numbers kept for a position and layer\n")
    print(
        f"{'batch':>5}{'read':>6}"
        + "".join(f"{way:>14}" for way in WAYS)
        + f"{'ratio':>8}{'lean':>8}{'products':>11}"
    )
    print(
        "(ratio, lean: time over the transformer's; products: the ratio of the FSN's matrix products to its)"
    )
    rows = []
    for batch, read in CASES[: options.cases]:
        rows.append(measure(models, batch, read, device, options.seconds))
        times = rows[-1]["ms"]
        ratios = [times[way] / times["transformer"] for way in ("fsn", "fsn, lean")]
        print(
            f"{batch:>5}{read:>6}" + "".join(f"{times[way]:>14.3f}" for way in WAYS)
            + "".join(f"{ratio:>8.2f}" for ratio in ratios) + f"{rows[-1]['products']:>11.2f}", flush=True,
        )  # fmt: skip
    print(f"{'kept':>11}" + "".join(f"{rows[-1]['kept'][way]:>14,d}" for way in WAYS))
    if options.json:
        found = {
            "environment": environment(World(device=device)),
            "device": describe_device(device),
            "rows": rows,
        }
        write_text_atomic(options.json, json.dumps(found, indent=1) + "\n")
    return 0


@torch.no_grad()
def measure(
    models: dict[str, LanguageModel], batch: int, read: int, device: torch.device, seconds: float
) -> dict[str, Any]:
    """One row: milliseconds for a symbol of every sequence, and numbers kept for a position and layer, by way."""
    tokens = torch.randint(205, (batch, read + 1), generator=torch.Generator().manual_seed(0)).to(device)
    steps: dict[str, Callable[[], Tensor]] = {}
    kept = {}
    for way, (name, lean) in WAYS.items():
        model = models[name]
        cache = model.new_cache(lean)
        model.extend(tokens[:, :-1], cache)
        steps[way] = stepper(model, tokens[:, -1:], cache, read)
        whole = model(tokens[:1])[:, -1]
        error = float((steps[way]()[:1, -1] - whole).abs().max())
        if error > CLOSE:
            sys.exit(
                f"{way} after {read} symbols: logits differ by {error:.1e} from reading everything at once"
            )
        kept[way] = cache.numbers() // (batch * read * model.config.layers)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    end = time.monotonic() + seconds * len(WAYS)
    while time.monotonic() < end or len(times["fsn"]) < 10:
        for way, step in steps.items():
            times[way].append(timed(step, device))
    ms = {way: round(1e3 * sorted(t)[len(t) // 4], 4) for way, t in times.items()}
    flops = {way: floor.symbol_flops(models[name].config, read) for way, (name, _) in WAYS.items()}
    products = round(flops["fsn"] / flops["transformer"], 3)
    count = len(times["fsn"])
    return {"batch": batch, "read": read, "ms": ms, "kept": kept, "products": products, "repetitions": count}


def stepper(model: LanguageModel, tokens: Tensor, cache: Cache, length: int) -> Callable[[], Tensor]:
    """One symbol more for every sequence, which is then forgotten."""

    def step() -> Tensor:
        logits = model.extend(tokens, cache)
        cache.cut(length)
        return logits

    return step


def timed(step: Callable[[], Tensor], device: torch.device) -> float:
    """Seconds a symbol: of this process on a CPU, until the device is done on a GPU."""
    cpu = device.type == "cpu"
    clock, wait = (time.process_time, lambda: None) if cpu else (time.perf_counter, torch.cuda.synchronize)
    step()
    wait()
    start = clock()
    for _ in range(SYMBOLS):
        step()
    wait()
    return (clock() - start) / SYMBOLS


if __name__ == "__main__":
    sys.exit(main())
