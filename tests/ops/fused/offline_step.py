"""Compile the trainer's own kernels for a GPU that is not there, and print what each needs as JSON (see offline.py)."""

from __future__ import annotations

import json

import torch
from triton.runtime.jit import JITFunction

from fsn.ops.fused.adamw import adamw, count, mean, parts, squares
from fsn.ops.fused.gather import gather
from tests.ops.fused import offline


def main(n: int) -> None:
    offline.POINTERS[torch.uint8] = "*u8"
    JITFunction.run = offline.compile_instead
    vector, number, counters = torch.zeros(n), torch.zeros(()), torch.zeros(3, dtype=torch.int64)
    sums = torch.zeros(parts(n))
    gather(counters, counters, torch.zeros(300, dtype=torch.uint8), 64, range(8, 16), 64, 256)
    mean(torch.zeros(8, 255), sums, 8 * 255)
    squares(vector, sums)
    adamw(vector, vector, vector, vector, sums, *[number] * 5, 1.0, 0.9, 0.999, 1e-8, 0.01)
    count(number, number, number, number, torch.zeros(8, 2), counters)
    print(json.dumps(list(offline.compiled.values())))


if __name__ == "__main__":
    main(1_000_000 // 32 * 32)
