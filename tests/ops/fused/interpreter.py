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
    """Make the interpreter treat bfloat16 as the hardware does.

    It keeps such numbers as 16-bit integers. Triton 3.6 multiplies these integers in ``tl.dot`` as if they
    were the numbers, and truncates where the hardware rounds to nearest.
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

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot


def hasten() -> None:
    """Spare the interpreter what does not change a number; it then takes half the time.

    - Every call of a function by a kernel prepares the whole language anew: once for each module will do.
    - Every operation on integers is repeated with 64 bits, and whether the two agree is thrown away (the
      interpreter's ``device_assert`` is off).
    - Every result works out the number and the names of its axes, each a ``constexpr``: blocks of one shape share them.
    - Blocks of one shape are compared axis by axis before they are added, and the type of the sum is found anew.
    """
    import dataclasses

    import triton.language.core as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    prepared = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module not in prepared:
            interpreter._patch_lang(self.fn)
            prepared.add(module)
        return self.rewrite()(*args, **kwargs)

    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

    shapes: dict[tuple[int, ...], tuple[Any, ...]] = {}
    plain_block, plain_tensor = tl.block_type.__init__, tl.tensor.__init__

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([s.value if isinstance(s, tl.constexpr) else s for s in shape])
        if sizes not in shapes:
            plain_block(self, element_ty, shape)
            shapes[sizes] = self.shape, self.numel, str(self.shape)
        self.element_ty = element_ty
        self.shape, self.numel, text = shapes[sizes]
        self.name = f"<{text}, {element_ty}>"

    axes: dict[int, tuple[Any, ...]] = {}  # by the shape that blocks share, which is never thrown away

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = id(type.shape) if type.is_block() else 0
        if key not in axes:
            plain_tensor(self, handle, type)
            axes[key] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = axes[key]

    plain_broadcast = TritonSemantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block() == right.is_block() and (not left.is_block() or left.shape is right.shape):
            return lhs, rhs
        return plain_broadcast(self, lhs, rhs)

    plain_cast, plain_common = TritonSemantic.cast, TritonSemantic.computation_type_impl
    commons: dict[tuple[Any, ...], Any] = {}

    def cast(self: Any, input: Any, dst_ty: Any, *rounding: Any, **more: Any) -> Any:
        if input.type.scalar is dst_ty.scalar:
            return input
        return plain_cast(self, input, dst_ty, *rounding, **more)

    def common(self: Any, a: Any, a_is_scalar: bool, b: Any, b_is_scalar: bool, divides: bool) -> Any:
        key = a.name, a_is_scalar, b.name, b_is_scalar, divides
        if key not in commons:
            commons[key] = plain_common(self, a, a_is_scalar, b, b_is_scalar, divides)
        return commons[key]

    plain_unwrap = tl._unwrap_if_constexpr
    as_it_is = (int, float, bool, str, type(None), tl.tensor, tl.dtype)

    def unwrap(o: Any) -> Any:
        kind = type(o)
        return o.value if kind is tl.constexpr else o if kind in as_it_is else plain_unwrap(o)

    plain_dtype = interpreter._get_np_dtype
    dtypes: dict[str, Any] = {}

    def dtype(of: Any) -> Any:
        name = of.scalar.name
        if name not in dtypes:
            dtypes[name] = plain_dtype(of)
        return dtypes[name]

    def attribute(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function = getattr(member, "__wrapped__", member)  # which asks no more whether a kernel calls it

        def run(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return function(*args, **kwargs)

        scope.set_attr(owner, name, run)

    interpreter.InterpretedFunction.__call__ = call
    interpreter._patch_attr = attribute
    tl.block_type.__init__ = block
    tl.block_type.to_ir = lambda self, builder: self  # what get_block_ty makes is one of these again
    tl.tensor.__init__ = tensor
    TritonSemantic.broadcast_impl_value = broadcast
    TritonSemantic.cast, TritonSemantic.computation_type_impl = cast, common
    tl._unwrap_if_constexpr = unwrap
    interpreter._get_np_dtype = dtype


def serve() -> None:
    """Answer calls, one a line, until standard input ends. What functions print goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch

    torch.set_num_threads(1)
    mend()
    hasten()
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
