"""The layer in a block beside F.scaled_dot_product_attention in a block of the same width: time, memory, ratio.

    python -m benchmarks.layer                     # width 512, eight heads, T = 256, 1,024 and 4,096
    python -m benchmarks.layer --width 256 --heads 4 --lengths 512 --eager

Both blocks are pre-norm: norm, mixer, norm, an MLP of four times the width. One has fsn.FrustratedAttention, the other
causal attention with rotary positions. On a GPU both run in bfloat16 autocast, compiled in one piece, and take turns in
one process; tokens a step are the same at every length. Before its time is taken each path is compared with the
reference in float64: one that is too far gets no time, and the command ends with an error. On a CPU a tiny version
shows that things work, not how fast.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fsn
from fsn import ops
from fsn.errors import UserError
from fsn.io import write_text_atomic
from fsn.train.world import World, choose_device, describe_device, environment

RESULTS = Path(__file__).parent / "results"
LENGTHS = (256, 1024, 4096)
TOKENS = 16 * 1024
LIMIT = {True: 0.05, False: 1e-4}
"""Largest relative error of output and gradients, in bfloat16 and in float32."""
GOALS = {256: 1.3, 1024: 2.0, 4096: 3.0}
"""At most so many times the time of attention, in training."""


class Attention(nn.Module):
    """Causal self-attention with rotary positions, as most networks have it: x (B, T, d) -> (B, T, d)"""

    rates: Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.register_buffer("rates", ops.rotary_rates(width // heads // 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = ops.rotate_half(q, self.rates), ops.rotate_half(k, self.rates)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
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


def blocks(width: int, heads: int, device: torch.device) -> dict[str, Block]:
    torch.manual_seed(0)
    mixers = {"fsn": fsn.FrustratedAttention(width, heads), "attention": Attention(width, heads)}
    return {name: Block(mixer, width).to(device) for name, mixer in mixers.items()}


def results_of(form: Callable[[Tensor], Tensor], block: nn.Module, x: Tensor, half: bool) -> list[Tensor]:
    """Of the first sequence: its output, and gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
        out = form(x)[:1]
    dx, *grads = torch.autograd.grad(out.float().square().mean(), [x, *block.parameters()])
    return [out.detach(), dx[:1], *grads]


def error_of(form: Callable[[Tensor], Tensor], block: Block, x: Tensor, half: bool) -> float:
    """The largest relative error of output and gradients, all gradients of a block as one vector."""
    found = results_of(form, block, x, half)
    wide = copy.deepcopy(block).double()  # kernels take no float64: this is the reference
    exact = results_of(wide, wide, x[:1].double(), False)

    def far(a: list[Tensor], b: list[Tensor]) -> float:
        difference = sum(float((x.double() - y.double()).square().sum()) for x, y in zip(a, b, strict=True))
        return float((difference / sum(float(y.double().square().sum()) for y in b)) ** 0.5)

    return max(far(found[:1], exact[:1]), far(found[1:], exact[1:]))


def milliseconds(action: Callable[[], None], device: torch.device, seconds: float) -> float:
    """The median time of a call."""
    for _ in range(3):
        action()
    times: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(times) < 5:
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            action()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            before = time.perf_counter()
            action()
            times.append(1e3 * (time.perf_counter() - before))
    return statistics.median(times)


def measure(
    form: Callable[[Tensor], Tensor], block: Block, x: Tensor, half: bool, seconds: float
) -> dict[str, float]:
    """Milliseconds forward and in training (forward and backward), and the peak of memory in training."""
    device = x.device

    def forward() -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            form(x)

    def training() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = form(x).float().square().mean()
        loss.backward()
        block.zero_grad(set_to_none=True)

    found = {
        "forward": milliseconds(forward, device, seconds),
        "training": milliseconds(training, device, seconds),
    }
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        training()
        found["memory_gb"] = (torch.cuda.max_memory_allocated(device) - before) / 2**30
    return found


def run(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    gpu = device.type == "cuda"
    width, heads = (options.width, options.heads) if gpu else (32, 2)
    lengths = options.lengths or (LENGTHS if gpu else (32, 64))
    tokens, seconds = (TOKENS, 0.5) if gpu else (128, 0.05)
    rows: list[dict[str, Any]] = []
    print(f"{describe_device(device)}, width {width}, {heads} heads, {tokens:,} tokens a step")
    print(f"{'T':>6}  {'block':<10}{'forward ms':>11}{'×':>6}{'training ms':>13}{'×':>6}{'GB':>8}  check")
    for length in lengths:
        found: dict[str, dict[str, Any]] = {}
        for name, block in blocks(width, heads, device).items():
            form = block if options.eager or not gpu else torch.compile(block, fullgraph=True, dynamic=False)
            x = torch.randn(max(1, tokens // length), length, width, device=device)
            error = error_of(form, block, x, gpu)
            row: dict[str, Any] = {"T": length, "block": name, "error": error, "ok": error < LIMIT[gpu]}
            if name == "fsn" and length in GOALS:
                row["goal"] = GOALS[length]
            if row["ok"]:
                row |= measure(form, block, x, gpu, seconds)
            found[name] = row
        for name, row in found.items():
            print(line(name, row, found["attention"]), flush=True)
            rows.append(row)
        torch._dynamo.reset()
    about = {"width": width, "heads": heads, "tokens": tokens, "compiled": gpu and not options.eager}
    return {"rows": rows, **about, "environment": environment(World(device=device))}


def line(name: str, row: dict[str, Any], beside: dict[str, Any]) -> str:
    if not row["ok"]:
        return f"{row['T']:>6}  {name:<10}no time: {row['error']:.1e} from the reference"
    parts = ""
    for part, wide in (("forward", 11), ("training", 13)):
        ratio = f"{row[part] / beside[part]:.2f}" if beside["ok"] else "–"
        parts += f"{row[part]:>{wide}.3f}{ratio:>6}"
    goal = f", goal {row['goal']}" if "goal" in row else ""
    memory = f"{row['memory_gb']:.2f}" if "memory_gb" in row else "–"
    return f"{row['T']:>6}  {name:<10}{parts}{memory:>8}  {row['error']:.1e}{goal}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layer", description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--lengths", nargs="+", type=int, default=None)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument(
        "--json", type=Path, default=None, help="where the numbers go (default: not kept on a CPU)"
    )
    options = parser.parse_args(arguments)
    try:
        device = choose_device("auto")
        found = run(options, device)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path = options.json
    if path is None and device.type == "cuda":
        path = RESULTS / f"layer-{describe_device(device).lower().replace(' ', '-')}.json"
    if path is not None:
        write_text_atomic(path, json.dumps(found, indent=1) + "\n")
        print(path)
    failed = [f"{row['block']} at T = {row['T']}" for row in found["rows"] if not row["ok"]]
    if failed:
        print(f"error: too far from the reference: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
