"""Compile every kernel of a training step for a GPU that is not there, and print what each needs as JSON.

Run as a script: it replaces the launch of kernels by their compilation for compute capability 9.0 and then
runs one step of each model on the CPU. The numbers of that step mean nothing; its kernels are a real step's.
A kernel that two models share is compiled once.

    python -m tests.ops.fused.offline fsn-1m:255:bfloat16 fsn-mf-1m:255:bfloat16 fsn-1m:255:bfloat16:0.1

The last number is the rate of dropout, at all places.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import fsn
from fsn.ops import fused

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64"}
ALIGNED = [["tt.divisibility", 16]]

compiled: dict[Any, dict[str, Any]] = {}


def signature(kernel: Any, values: dict[str, Any]) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Types, constants and alignments of a launch, as Triton's own launcher would find them."""
    types: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for i, parameter in enumerate(kernel.params):
        name, value = parameter.name, values[parameter.name]
        plain = parameter.do_not_specialize
        if parameter.is_constexpr or (type(value) is int and value == 1 and not plain):
            types[name], constants[(i,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[name], attributes[(i,)] = POINTERS[value.dtype], ALIGNED
        elif isinstance(value, float):
            types[name] = "fp32"
        else:
            types[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and not plain:
                attributes[(i,)] = ALIGNED
    return types, constants, attributes


def compile_instead(self: Any, *args: Any, grid: Any = None, warmup: Any = None, **rest: Any) -> None:
    options = {name: rest.pop(name) for name in ("num_warps", "num_stages") if name in rest}
    types, constants, attributes = signature(self, dict(zip(self.arg_names, args, strict=False)) | rest)
    key = (self.__name__, *types.items(), *constants.items(), *options.items(), str(attributes))
    if key in compiled:
        return
    start = time.perf_counter()
    kernel = triton.compile(ASTSource(self, types, constants, attributes), target=TARGET, options=options)
    seconds = time.perf_counter() - start
    compiled[key] = {"kernel": self.__name__, "seconds": seconds, "shared": kernel.metadata.shared} | usage(
        kernel.asm["cubin"]
    )


def usage(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of stack a thread needs."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return {"registers": int(found[1]), "stack": int(found[2])}


def step(name: str, length: int, dtype: str, dropout: float) -> list[dict[str, Any]]:
    """What the kernels of one step of a model need."""
    compiled.clear()
    rates = ("dropout", "dropout_hidden", "dropout_attention", "dropout_update")
    model = fsn.build(name, vocab_size=205, layers=1, **dict.fromkeys(rates, dropout) if dropout else {})
    tokens = torch.randint(205, (2, length))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = model.loss(tokens, tokens)
    loss.mean().backward()
    return list(compiled.values())


def main(cases: list[str]) -> None:
    JITFunction.run = compile_instead
    fused.available = lambda device: True
    split = (case.split(":") for case in cases)
    steps = [(name, int(length), dtype, float(*rest)) for name, length, dtype, *rest in split]
    print(json.dumps([step(*one) for one in steps]))


if __name__ == "__main__":
    main(sys.argv[1:])
