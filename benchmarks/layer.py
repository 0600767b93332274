"""The layer in a block beside F.scaled_dot_product_attention in a block of the same width: time, memory, ratio.

    python -m benchmarks.layer                     # width 512, eight heads, T = 256, 1,024 and 4,096
    python -m benchmarks.layer --width 256 --heads 4 --lengths 512 --forms eager
    python -m benchmarks.layer --seconds 60        # what does not fit is left out and named

Both blocks are pre-norm: norm, mixer, norm, an MLP of four times the width. One has fsn.FrustratedAttention, the other
causal attention with rotary positions from a table. On a GPU both run in bfloat16 autocast, in one process, in three
forms: as PyTorch runs them (eager), compiled in one piece (compiled), and as CUDA graphs of the compiled kernels
(graph), which leaves out what the host does. Tokens a step are the same at every length. Other processes fill the
compile caches first. Before its time is taken each path is compared with the reference in float64: one that is too far
gets no time, and the command ends with an error. On a CPU a tiny version shows that things work, not how fast.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fsn
from benchmarks.warm import begin, default_workers, one_compiler, share_caches
from fsn import ops
from fsn.errors import UserError
from fsn.io import write_text_atomic
from fsn.train.world import World, choose_device, describe_device, environment

RESULTS = Path(__file__).parent / "results"
LENGTHS = (256, 1024, 4096)
FORMS = ("graph", "compiled", "eager")
TOKENS = 16 * 1024
LIMIT = {True: 0.05, False: 1e-4}
"""Largest relative error of output and gradients, in bfloat16 and in float32."""
GOALS = {256: 1.3, 1024: 2.0, 4096: 3.0}
"""At most so many times the time of attention, in training."""
REPEATS = 7
"""Blocks of calls; the time is their median."""

Form = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    """Causal self-attention with rotary positions, as most networks have it: x (B, T, d) -> (B, T, d)"""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        rates = ops.rotary_rates(width // heads // 2)
        angle = torch.arange(longest, dtype=torch.float64)[:, None] * rates
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def turn(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """x + mixer(norm x), then x + MLP(norm x)."""

    def __init__(self, mixer: nn.Module, width: int) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


BLOCKS = ("fsn", "attention")


def make_block(name: str, width: int, heads: int, longest: int, device: torch.device) -> Block:
    torch.manual_seed(0)
    mixer = fsn.FrustratedAttention(width, heads) if name == "fsn" else Attention(width, heads, longest)
    return Block(mixer, width).to(device)


def results_of(form: Form, block: nn.Module, x: Tensor, half: bool) -> list[Tensor]:
    """Of the first sequence: its output, and gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
        out = form(x)[:1]
    dx, *grads = torch.autograd.grad(out.float().square().mean(), [x, *block.parameters()])
    return [out.detach(), dx[:1], *grads]


def exact_results(block: Block, x: Tensor) -> list[Tensor]:
    """The same in float64: kernels take none, so this is the reference."""
    wide = copy.deepcopy(block).double()
    return results_of(wide, wide, x[:1].double(), False)


def error_of(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest relative error of output and gradients, all gradients of a block as one vector."""

    def far(a: list[Tensor], b: list[Tensor]) -> float:
        difference = sum(float((x.double() - y.double()).square().sum()) for x, y in zip(a, b, strict=True))
        return float((difference / sum(float(y.double().square().sum()) for y in b)) ** 0.5)

    return max(far(found[:1], exact[:1]), far(found[1:], exact[1:]))


def milliseconds(action: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """The median time of a call, over blocks of calls that the host may start ahead of the device."""

    def block(calls: int) -> float:
        if device.type != "cuda":
            start = time.perf_counter()
            for _ in range(calls):
                action()
            return 1e3 * (time.perf_counter() - start) / calls
        begin_, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin_.record()
        for _ in range(calls):
            action()
        end.record()
        end.synchronize()
        return float(begin_.elapsed_time(end)) / calls

    block(3)
    calls = max(1, round(1e3 * seconds / REPEATS / block(3)))
    return statistics.median(block(calls) for _ in range(REPEATS))


def captured(action: Callable[[], None]) -> Callable[[], None]:
    """The action as a CUDA graph, after a warm-up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        action()
    return graph.replay


def steps_of(form: Form, block: Block, x: Tensor, half: bool) -> dict[str, Callable[[], None]]:
    """What is timed: the forward pass without gradients, and forward and backward, as inside a network."""
    kind, inside = x.device.type, x.clone().requires_grad_()

    def forward() -> None:
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=half):
            form(x)

    def training() -> None:
        with torch.autocast(kind, torch.bfloat16, enabled=half):
            loss = form(inside).float().square().mean()
        loss.backward()
        block.zero_grad(set_to_none=True)
        inside.grad = None

    return {"forward": forward, "training": training}


def measure(form: Form, block: Block, x: Tensor, half: bool, graph: bool, seconds: float) -> dict[str, float]:
    """Milliseconds forward and in training (forward and backward), and the peak of memory in training."""
    device, found = x.device, {}
    steps = steps_of(form, block, x, half)
    for name, action in steps.items():
        found[name] = milliseconds(captured(action) if graph else action, device, seconds)
    if device.type == "cuda" and not graph:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        steps["training"]()
        found["memory_gb"] = (torch.cuda.max_memory_allocated(device) - before) / 2**30
    return found


def make_form(name: str, block: Block) -> Form:
    return block if name == "eager" else torch.compile(block, fullgraph=True, dynamic=False)


def rehearse(name: str, length: int, width: int, heads: int, longest: int, device: torch.device) -> None:
    """Compile a block in a process of its own, for what that leaves in the caches."""
    block = make_block(name, width, heads, longest, device)
    x = torch.randn(max(1, TOKENS // length), length, width, device=device)
    form = make_form("compiled", block)
    for step in steps_of(form, block, x, True).values():
        step()
    torch.cuda.synchronize()


def fill_caches(options: argparse.Namespace, lengths: tuple[int, ...], device: torch.device) -> float:
    """All that will be compiled, in as many processes at once, for most of the time at most; seconds spent."""
    start = time.perf_counter()
    share_caches()
    jobs = [(name, length) for length in reversed(lengths) for name in BLOCKS]
    before = set(multiprocessing.active_children())
    workers = min(len(jobs), default_workers(device))
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=begin)
    with one_compiler():
        waiting = [
            pool.submit(rehearse, *job, options.width, options.heads, max(lengths), device) for job in jobs
        ]
        limit = None if options.seconds is None else 0.6 * options.seconds
        done, left = wait(waiting, timeout=limit)
    for job, future in zip(jobs, waiting, strict=True):
        if future in done and future.exception() is not None:
            print(f"not compiled ahead: {job[0]} at T = {job[1]} ({future.exception()})", flush=True)
    if left:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    return time.perf_counter() - start


def run(options: argparse.Namespace, device: torch.device, path: Path | None = None) -> dict[str, Any]:
    gpu, started = device.type == "cuda", time.perf_counter()
    width, heads = (options.width, options.heads) if gpu else (32, 2)
    lengths = tuple(options.lengths or (LENGTHS if gpu else (32, 64)))
    forms = tuple(options.forms) if gpu else ("eager",)
    tokens, seconds = (TOKENS, 0.3) if gpu else (128, 0.05)
    print(f"{describe_device(device)}, width {width}, {heads} heads, {tokens:,} tokens a step", flush=True)
    if gpu and set(forms) - {"eager"} and not options.cold:
        print(f"compiled ahead in {fill_caches(options, lengths, device):.0f} s", flush=True)
    about = {
        "width": width,
        "heads": heads,
        "tokens": tokens,
        "environment": environment(World(device=device)),
    }
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    print(
        f"{'T':>6}  {'form':<9}{'block':<10}{'forward ms':>11}{'×':>6}{'training ms':>13}{'×':>6}{'GB':>8}  check"
    )
    for length in lengths:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for name in BLOCKS:
            if options.seconds is not None and time.perf_counter() - started > options.seconds:
                skipped.append(f"{name} at T = {length}")
                continue
            block = make_block(name, width, heads, max(lengths), device)
            x = torch.randn(max(1, tokens // length), length, width, device=device)
            exact = exact_results(block, x)
            compiled = make_form("compiled", block) if set(forms) - {"eager"} else block
            for kind in forms:
                form = block if kind == "eager" else compiled
                error = error_of(results_of(form, block, x, gpu), exact)
                row: dict[str, Any] = {"T": length, "form": kind, "block": name, "error": error}
                row["ok"] = error < LIMIT[gpu]
                if name == "fsn" and length in GOALS:
                    row["goal"] = GOALS[length]
                if row["ok"]:
                    row |= measure(form, block, x, gpu, kind == "graph", seconds)
                found[kind, name] = row
            del block, exact, compiled
            torch._dynamo.reset()
        for (kind, _), row in found.items():
            print(line(row, found.get((kind, "attention"))), flush=True)
            rows.append(row)
        if path is not None:
            write_text_atomic(path, json.dumps({"rows": rows, "skipped": skipped, **about}, indent=1) + "\n")
    if skipped:
        print(f"left out for want of time: {', '.join(skipped)}")
    return {"rows": rows, "skipped": skipped, **about}


def line(row: dict[str, Any], beside: dict[str, Any] | None) -> str:
    head = f"{row['T']:>6}  {row['form']:<9}{row['block']:<10}"
    if not row["ok"]:
        return f"{head}no time: {row['error']:.1e} from the reference"
    parts = ""
    for part, wide in (("forward", 11), ("training", 13)):
        ratio = f"{row[part] / beside[part]:.2f}" if beside is not None and beside["ok"] else "–"
        parts += f"{row[part]:>{wide}.3f}{ratio:>6}"
    goal = f", goal {row['goal']}" if "goal" in row else ""
    memory = f"{row['memory_gb']:.2f}" if "memory_gb" in row else "–"
    return f"{head}{parts}{memory:>8}  {row['error']:.1e}{goal}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layer", description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--lengths", nargs="+", type=int, default=None)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--cold", action="store_true", help="do not compile ahead in other processes")
    parser.add_argument("--seconds", type=float, default=None, help="start no block after so long")
    parser.add_argument(
        "--json", type=Path, default=None, help="where the numbers go (default: not kept on a CPU)"
    )
    options = parser.parse_args(arguments)
    try:
        device = choose_device("auto")
        path = options.json
        if path is None and device.type == "cuda":
            path = RESULTS / f"layer-{describe_device(device).lower().replace(' ', '-')}.json"
        found = run(options, device, path)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if path is not None:
        print(path)
    failed = [f"{row['block']} at T = {row['T']} ({row['form']})" for row in found["rows"] if not row["ok"]]
    if failed:
        print(f"error: too far from the reference: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
