"""Compile every kernel of a training step of the layer for a GPU that is not there: see ``offline.py``.

python -m tests.ops.fused.offline_layer WIDTH HEADS LENGTH DTYPE [score]
"""

from __future__ import annotations

import json
import sys

import torch
from triton.runtime.jit import JITFunction

import fsn
from fsn.ops.fused import synchronize
from tests.ops.fused import offline


def main(width: int, count: int, length: int, dtype: str, score: bool) -> None:
    JITFunction.run = offline.compile_instead
    synchronize.available = lambda device: True
    layer = fsn.FrustratedAttention(width, count, score_successor=score)
    x = torch.randn(1, length, width)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        out = layer(x)
    out.float().sum().backward()
    print(json.dumps(list(offline.compiled.values())))


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:4]), sys.argv[4], "score" in sys.argv)
