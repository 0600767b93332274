"""What a training step of `python -m benchmarks.recall --headline` costs on a GPU, counted on meta tensors.

PYTHONPATH=. python docs/lab/2026-11-19-cpu/43-recall-cost.py > 43-recall-cost.log

Every operation of a step takes the longest of three times: a kernel's launch inside a CUDA graph, its bytes, its
products. No card was at hand: the rates are guesses on the low side for an H200 in float32 (4.8 TB/s, 67 TFLOP/s).
"""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.recall import __main__ as command
from benchmarks.recall.models import Learner
from benchmarks.recall.tasks import tasks
from benchmarks.recall.train import Cell

LAUNCH, BYTES, FLOPS = 2.5e-6, 3.0e12, 20e12
FREE = set(
    re.findall(
        r"\w+",
        """view _unsafe_view expand t transpose permute slice select unsqueeze squeeze split unbind detach alias
        as_strided unflatten split_with_sizes view_as_real view_as_complex diagonal unfold empty empty_like
        new_empty""",
    )
)
"""Operations that only look at a tensor in another way."""


class Cost(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations, self.bytes, self.flops, self.seconds = 0, 0, 0, 0.0

    def add(self, operations: int, size: int, flops: int = 0) -> None:
        self.operations += operations
        self.bytes += size
        self.flops += flops
        self.seconds += max(operations * LAUNCH, size / BYTES, flops / FLOPS)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in FREE:
            tensors = [x for x in tree_leaves((args, out)) if isinstance(x, torch.Tensor)]
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=out) if count else 0
            self.add(1, sum(x.numel() * x.element_size() for x in tensors), flops)
        return out


def cost(cell: Cell) -> Cost:
    task = tasks()[cell.task]
    learner = Learner(cell.model, task.vocab, cell.width, cell.layers, task.feedforward).to("meta")
    pairs = int(cell.task.split("-")[2])
    tokens = torch.zeros(task.batch, task.length, dtype=torch.int64, device="meta")
    places = torch.zeros(task.batch, pairs, dtype=torch.int64, device="meta")
    with Cost() as found:
        logits = learner.answers(tokens, places)
        F.cross_entropy(logits.flatten(0, 1), places.flatten()).backward()
    found.add(
        12, 7 * 4 * learner.parameter_count()
    )  # AdamW reads and writes weights, gradients and two moments
    return found


for width in (64, 128):
    cells = command.plan(command.parse(["--headline", "--widths", str(width)]), torch.device("cpu"))
    one_of_each = [cell for cell in cells if cell.seed == 0 and cell.rate == cells[0].rate]
    minutes: dict[int, float] = {}
    for cell in one_of_each:
        found = cost(cell)
        times = len(cells) // len(one_of_each) * command.HEADLINE_STEPS
        minutes[cell.layers] = minutes.get(cell.layers, 0.0) + times * found.seconds / 60
        print(
            f"{cell.model:<20}{cell.task:<12} d {cell.width:<4} layers {cell.layers} {found.operations:>4} operations "
            f"{found.flops / 1e9:6.1f} GFLOP {found.bytes / 1e9:6.2f} GB {1e3 * found.seconds:6.2f} ms"
        )
    each = ", ".join(f"{layers}: {spent:.0f}" for layers, spent in minutes.items())
    print(f"width {width}: {len(cells)} cells, {command.HEADLINE_STEPS:,} steps;", end=" ")
    print(f"minutes by layers if none ends early: {each}")
