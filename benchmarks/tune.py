"""Which launch shapes are fastest on this GPU: for the successor in the score, and for a layer's heads.

    python -m benchmarks.tune --json best.json --seconds 170     # try a small grid; results go to the file as they come
    python -m benchmarks.tune --apply best.json                  # write the best ones into ops/fused/tiles.py

One shape after the other: its candidates are compiled by other processes first, checked against the reference, then
timed with the others as they are best so far. What does not compile, does not fit on the chip or is wrong is named and
left out. The score's shapes are timed in the whole training step of fsn-score-1m, the layer's in the forward and
backward pass of its custom op (eight heads of 64, 16,384 tokens), both as CUDA graphs. A shape changes only where it
saves more than noise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.layer import captured, milliseconds
from benchmarks.warm import begin, default_workers, one_compiler, share_caches
from fsn import ops
from fsn.errors import UserError
from fsn.io import write_text_atomic
from fsn.models import FSNConfig, preset
from fsn.models import selfcheck as model_check
from fsn.nn import FrustratedAttention
from fsn.nn import selfcheck as layer_check
from fsn.ops import fused
from fsn.train.world import World, choose_device, environment, numerics

NOISE = 0.007
"""A candidate must save more than this share of the time."""
HEADS, WIDTH, TOKENS = 8, 64, 16 * 1024
WIDTHS = (WIDTH, 17, 41)
"""Of heads that a candidate must get right: a shape that fits one may reach beyond the rows of another."""
MODEL = "fsn-score-1m"
LAW = ops.CouplingLaw()

SCORE_GRID: dict[str, list[int]] = {
    "SCORE_ROWS": [1, 2, 4, 8],
    "SCORE_STEPS": [1, 2, 4, 8],
    "FOLDED_ROWS": [1, 2, 4],
}
"""Numbers of ``tiles.py`` that only the successor in the score reads."""
LAYER_GRID: dict[str, tuple[tuple[int, ...], list[Any]]] = {
    "rows.update_backward": ((256,), [(2, 1), (4, 1), (4, 2), (4, 4), (8, 4)]),
    "rows.prepare_backward": ((256,), [(2, 1), (4, 1), (4, 2), (4, 4), (8, 4)]),
    "rows.query_key": ((256,), [(4, 1), (4, 2), (8, 2), (8, 4)]),
    "rows.update": ((256,), [(4, 1), (8, 1), (8, 4), (16, 4)]),
    "COUPLE": (
        (256, 1024),
        [
            (64, 64, 16, 4, 3), (64, 64, 32, 4, 2), (64, 32, 32, 4, 3), (64, 64, 32, 8, 2), (128, 64, 32, 8, 2),
            (128, 32, 32, 8, 3), (64, 64, 64, 8, 2), (64, 32, 64, 8, 3), (128, 64, 16, 4, 2),
        ],
    ),
    "SCORE_GRADIENT": (
        (256,),
        [
            (64, 64, 256, 8, 2), (64, 64, 256, 8, 3), (64, 32, 256, 8, 3), (64, 32, 256, 8, 4), (64, 128, 256, 8, 2),
            (64, 64, 256, 4, 2), (32, 64, 256, 4, 2), (32, 64, 256, 4, 3),
        ],
    ),
    "SCORES": (
        (256,),
        [
            (64, 32, 256, 4, 3), (64, 64, 256, 4, 2), (64, 32, 256, 8, 3), (64, 64, 256, 8, 2), (128, 64, 256, 8, 2),
            (128, 128, 256, 8, 1), (64, 128, 256, 4, 1), (64, 128, 256, 8, 1),
        ],
    ),
    "STRIP": ((256,), [(64, 64, 1, 4), (16, 64, 1, 4), (32, 64, 1, 3), (32, 64, 2, 4), (32, 32, 1, 4)]),
    "LONG_SCORE_GRADIENT": (
        (1024, 4096),
        [
            (128, 64, 128, 8, 4), (128, 32, 128, 8, 4), (128, 128, 128, 8, 2), (64, 64, 128, 4, 3),
            (128, 64, 128, 4, 3), (128, 64, 256, 8, 3),
        ],
    ),
    "TRIANGLE": (
        (1024, 4096),
        [
            (64, 64, 128, 4, 3), (128, 32, 128, 8, 4), (128, 64, 128, 8, 3), (128, 64, 128, 4, 3), (128, 64, 64, 4, 3),
            (128, 32, 128, 4, 4),
        ],
    ),
    "LONG_SCORES": (
        (1024, 4096),
        [
            (128, 64, 128, 8, 2), (128, 64, 128, 8, 3), (128, 128, 128, 8, 1), (128, 64, 128, 4, 3),
            (64, 64, 128, 4, 3), (128, 64, 256, 8, 3), (64, 128, 128, 4, 1),
        ],
    ),
    "FIELDS": ((256,), [(4, 1, 64, 4, 1), (16, 1, 64, 4, 1), (8, 1, 64, 2, 1), (16, 1, 64, 8, 1)]),
}  # fmt: skip
"""Shapes of narrow heads, the most promising first: the lengths they are timed at, and candidates beside today's."""

Change = tuple[str, Any]
"""A name of one of the grids, and its value: a number, or the numbers of a tile."""


def shape_of(name: str, value: Any) -> Any:
    from fsn.ops.fused import tiles

    if isinstance(value, int) or name.startswith("rows."):
        return value if isinstance(value, int) else tuple(value)
    return (tiles.Strip if name == "STRIP" else tiles.Tile)(*value)


@contextlib.contextmanager
def changed(*changes: Change) -> Iterator[None]:
    """Other shapes for a while."""
    from fsn.ops.fused import tiles

    narrow, numbers = dict(tiles.NARROW), {name: getattr(tiles, name) for name in SCORE_GRID}
    try:
        for name, value in changes:
            if name in SCORE_GRID:
                setattr(tiles, name, value)
            else:
                tiles.NARROW[name] = shape_of(name, value)
        yield
    finally:
        tiles.NARROW.clear()
        tiles.NARROW.update(narrow)
        for name, value in numbers.items():
            setattr(tiles, name, value)


def wrong(change: Change | None, lengths: tuple[int, ...], device: torch.device) -> str | None:
    """What kernels of these shapes get wrong; None where they are right. Compiles them where that is not done yet."""
    with changed(*([] if change is None else [change])), torch.enable_grad():
        if not lengths:
            config = preset(MODEL, measure.SYMBOLS)
            assert isinstance(config, FSNConfig)
            return model_check.disagreement(config, device, torch.bfloat16, 255)
        for length, width in itertools.product(lengths, WIDTHS):
            reason = layer_check.disagreement(
                FrustratedAttention, width, LAW, True, device, torch.bfloat16, length
            )
            if reason:
                return f"T = {length}, {width} phases: {reason}"
    return None


def step_time(model: str, device: torch.device, seconds: float) -> float:
    """Milliseconds of a training step, as ``benchmarks.step`` times it."""
    case = measure.Case(model.removesuffix("-1m"), "1m", 256, 64, preset(model, measure.SYMBOLS))
    recipe = case.recipe(device)
    with numerics(recipe, device):
        ready = measure.make_ready(case.config, recipe, "training", device)
        return measure.time_blocks(ready.run, device, seconds).ms


def layer_time(length: int, device: torch.device, seconds: float) -> float:
    """Milliseconds of the custom op, forward and backward."""
    from fsn.ops.fused.heads import frustrated_update

    torch.manual_seed(0)
    batch = TOKENS // length

    def leaf(*shape: int, scale: float = 1.0, kind: torch.dtype = torch.float32) -> torch.Tensor:
        return (scale * torch.randn(*shape, device=device)).to(kind).requires_grad_()

    theta = leaf(HEADS, batch, length, WIDTH, scale=0.5)
    raw = leaf(HEADS, batch, length, 3 * WIDTH, kind=torch.bfloat16)
    tau = torch.full((HEADS,), WIDTH**0.5, device=device, requires_grad=True)
    alpha = torch.ones(HEADS, device=device, requires_grad=True)
    w = [leaf(LAW.harmonics, HEADS * WIDTH) for _ in range(4)]
    rates, arriving = ops.rotary_rates(WIDTH).to(device), torch.randn_like(raw[..., :WIDTH])

    def action() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            out = frustrated_update(theta, raw, rates, tau, ops.Pair(*w[:2]), ops.Pair(*w[2:]), alpha, LAW)
        torch.autograd.grad(out, [theta, raw, tau, alpha, *w], arriving)

    return milliseconds(captured(action) if device.type == "cuda" else action, device, seconds)


class Tuning:
    """The search, its results so far, and its time."""

    def __init__(self, device: torch.device, path: Path, seconds: float) -> None:
        self.device, self.path = device, path
        self.end = time.monotonic() + seconds
        self.best: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.bad: dict[str, str] = {}
        self.good: set[str] = set()

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def store(self) -> None:
        found = {"best": self.best, "rows": self.rows, "left out": self.bad}
        write_text_atomic(self.path, json.dumps(found | {"environment": self.about}, indent=1) + "\n")

    @property
    def about(self) -> dict[str, Any]:
        return environment(World(device=self.device))

    def skip(self, what: str, why: str) -> None:
        self.bad[what] = why
        print(f"  left out: {what}: {why}", flush=True)

    def compile_ahead(self, jobs: list[tuple[Change | None, tuple[int, ...]]]) -> None:
        """All candidates in as many processes as there are cores, for half of the time at most."""
        share_caches()
        workers = default_workers(self.device)
        if not workers:
            return
        start, before = time.monotonic(), set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=begin
        )
        done = 0
        with one_compiler():
            waiting = {pool.submit(wrong, *job, self.device): job for job in jobs}
            try:
                for future in as_completed(waiting, timeout=self.left / 2):
                    done += 1
                    change = waiting[future][0]
                    reason = first_line(future.exception()) if future.exception() else future.result()
                    if reason:
                        self.skip(
                            "today's shapes" if change is None else f"{change[0]} = {change[1]}", reason
                        )
            except TimeoutError:
                for process in set(multiprocessing.active_children()) - before:
                    process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        print(f"{done} of {len(jobs)} candidates compiled in {time.monotonic() - start:.0f} s", flush=True)
        self.store()

    def times(self, lengths: tuple[int, ...], change: Change | None) -> list[float]:
        changes = [(name, value) for name, value in self.best.items() if change is None or name != change[0]]
        with changed(*changes, *([] if change is None else [change])):
            if not lengths:
                return [step_time(MODEL, self.device, 0.15)]
            return [layer_time(length, self.device, 0.06) for length in lengths]

    def tune(self, name: str, lengths: tuple[int, ...], candidates: list[Any]) -> None:
        """Try them all; keep the best, where it is better than what is there by more than noise."""
        now = base = self.times(lengths, None)
        self.show(name, "as it is", lengths, base, base)
        best, least = None, 1.0 - NOISE
        for value in candidates:
            what = f"{name} = {value}"
            if what in self.bad:
                continue
            if self.left < 1.0:
                self.skip(what, "out of time")
                continue
            try:
                reason = None if what in self.good else wrong((name, value), lengths, self.device)
                if reason:
                    self.skip(what, reason)
                    continue
                now = self.times(lengths, (name, value))
            except torch.AcceleratorError:  # the device is lost to this process
                raise
            except Exception as error:
                self.skip(what, first_line(error))
                continue
            self.show(name, value, lengths, now, base)
            share = sum(a / b for a, b in zip(now, base, strict=True)) / len(base)
            if share < least:
                best, least = value, share
        if best is not None:
            self.best[name] = best
            print(f"{name} = {best}: {least:.3f} of the time", flush=True)
        self.store()

    def show(
        self, name: str, value: Any, lengths: tuple[int, ...], ms: list[float], base: list[float]
    ) -> None:
        self.rows.append({"name": name, "value": value, "lengths": lengths, "ms": ms})
        text = "  ".join(f"{a:.4f} ms ({a / b:.3f})" for a, b in zip(ms, base, strict=True))
        print(f"  {name:<22}{value!s:<24}{text}", flush=True)


def first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


def run(options: argparse.Namespace, device: torch.device) -> None:
    if device.type != "cuda" and not fused.interpreting():
        raise UserError("there is no CUDA GPU here; shapes are tuned on the GPU they are for")
    tuning = Tuning(device, options.json, options.seconds)
    layer = {name: (lengths, found) for name, (lengths, found) in LAYER_GRID.items() if name in options.only}
    score = {name: found for name, found in SCORE_GRID.items() if name in options.only}
    longest = sorted({length for lengths, _ in layer.values() for length in lengths})
    jobs: list[tuple[Change | None, tuple[int, ...]]] = [(None, (length,)) for length in longest]
    jobs += [((name, value), ()) for name, found in score.items() for value in found]
    # the slow ones are spread: a candidate of one length after one of another
    grids = [[((name, v), lengths) for v in found] for name, (lengths, found) in layer.items()]
    jobs += [job for group in itertools.zip_longest(*grids) for job in group if job is not None]
    tuning.store()
    tuning.compile_ahead(jobs)
    try:
        if score:
            print(f"training step of fsn-1m {step_time('fsn-1m', device, 0.3):.4f} ms", flush=True)
        for name, found in score.items():
            from fsn.ops.fused import tiles

            tuning.tune(name, (), [value for value in found if value != getattr(tiles, name)])
        for name, (lengths, candidates) in layer.items():
            if tuning.left < 3.0:
                tuning.skip(name, "out of time")
                continue
            tuning.tune(name, lengths, candidates)
    finally:
        tuning.store()
    print(f"best: {tuning.best or 'today'}; {options.seconds - tuning.left:.0f} s")


def apply(path: Path, tiles_path: Path) -> None:
    """Write what a run has found into ``tiles.py``; shapes that it does not name stay."""
    try:
        best = json.loads(path.read_text(encoding="utf-8"))["best"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} cannot be read ({error}); give a file that --json wrote") from error
    from fsn.ops.fused import tiles

    text = tiles_path.read_text(encoding="utf-8")
    narrow = {name: value for name, value in best.items() if name not in SCORE_GRID}
    for name in SCORE_GRID:
        if name in best:
            text = re.sub(rf"^{name} = \d+$", f"{name} = {int(best[name])}", text, flags=re.M)
    shapes = {name: value for name, value in tiles.NARROW.items()}
    shapes |= {name: shape_of(name, value) for name, value in narrow.items()}
    lines = "".join(f'    "{name}": {_written(value)},\n' for name, value in sorted(shapes.items()))
    body = f"{{\n{lines}}}" if lines else "{}"
    pattern = r"^(NARROW: dict\[str, .*?\] = )\{.*?\}$"
    text, count = re.subn(pattern, lambda m: m[1] + body, text, flags=re.M | re.S)
    if count != 1:
        raise UserError(f"{tiles_path} has no table NARROW; apply to the file that belongs to this version")
    write_text_atomic(tiles_path, text)
    print(f"{tiles_path}: {best or 'nothing changes'}")


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return str(value)
    return f"{type(value).__name__}({', '.join(str(x) for x in vars(value).values())})"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__.split("\n")[0])
    every = [*SCORE_GRID, *LAYER_GRID]
    parser.add_argument("--json", type=Path, default=Path("best.json"), help="where results go, as they come")
    parser.add_argument("--seconds", type=float, default=170.0, help="the time for everything")
    parser.add_argument(
        "--only", nargs="+", choices=every, default=every, metavar="NAME", help="some shapes alone"
    )
    parser.add_argument(
        "--apply", type=Path, default=None, help="write the best shapes of such a file into tiles.py"
    )
    options = parser.parse_args(arguments)
    try:
        if options.apply is not None:
            from fsn.ops.fused import tiles

            apply(options.apply, Path(tiles.__file__))
        else:
            run(options, choose_device("auto"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
