"""A second process that runs kernels in Triton's interpreter, so that they can be tested without a GPU.

Triton decides when it is imported whether kernels are compiled or interpreted, so the two cannot share a
process. Tests ask this one, over its standard input and output, to call a function by name with plain
arguments::

    interpreter = Interpreter()
    errors = interpreter("tests.ops.fused.parity:swiglu", rows=40, k=17, hidden=34)

Every test process starts one at most, and only when a test needs it (:func:`shared`).
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Interpreter:
    """The other process, seen from here."""

    def __init__(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        environment.pop("FSN_FUSED", None)
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *_python_path()])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ops.fused.interpreter"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, function: str, **arguments: Any) -> Any:
        """What the function ("module:name") returns, through JSON; its error as an AssertionError."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the interpreter's process ended without an answer"
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)


@functools.cache
def shared() -> Interpreter:
    """This process's interpreter, started by the first test that asks; skips it where there is no Triton."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    started = Interpreter()
    atexit.register(started.close)
    return started


def _python_path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


def mend() -> None:
    """Make the interpreter treat bfloat16 as the hardware does, and waste less time.

    It keeps such numbers as 16-bit integers. Triton 3.6 multiplies these integers in ``tl.dot`` as if they
    were the numbers, and truncates where the hardware rounds to nearest. And each call of a function by a
    kernel prepares the whole language anew, where once for each module of functions will do: a third of all
    the time.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    plain_convert = interpreter._convert_float
    plain_dot = interpreter.InterpreterBuilder.create_dot

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source == tl.float32 and target == tl.bfloat16:
            bits = np.ascontiguousarray(data).view(np.uint32)
            nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return np.where(np.isnan(data), 0x7FC0, nearest).astype(np.uint16)
        if source == tl.bfloat16 and target == tl.float32:
            return np.ascontiguousarray(data).astype(np.uint32) << 16
        return plain_convert(data, source, target, rounding)

    def widen(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16 or x.data.dtype != np.uint16:
            return x
        wide = convert(x.data, tl.bfloat16, tl.float32, None).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain_dot(self, widen(a), widen(b), *rest)

    prepared = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module not in prepared:
            interpreter._patch_lang(self.fn)
            prepared.add(module)
        return self.rewrite()(*args, **kwargs)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpretedFunction.__call__ = call


def serve() -> None:
    """Answer calls, one a line, until standard input ends. What functions print goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch

    torch.set_num_threads(1)
    mend()
    for line in sys.stdin:
        call = json.loads(line)
        module, _, name = call["function"].partition(":")
        try:
            torch.manual_seed(0)
            answer = {"value": getattr(importlib.import_module(module), name)(**call["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
