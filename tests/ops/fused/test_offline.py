"""Every kernel compiles for a Hopper GPU, without one, and keeps to its registers and shared memory."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ops.fused.interpreter import ROOT

SHARED_MEMORY = 227 * 1024
"""Bytes that a block may have on compute capability 9.0."""
STACK = {"bfloat16": 16, "float32": 128}
"""Bytes a thread may keep outside its registers. In float32 an exact sine alone takes 32."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not sys.platform.startswith("linux"),
    reason="Triton is not installed",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        [
            "fsn-1m:255:bfloat16",
            "fsn-1m:511:bfloat16",
            "fsn-mf-1m:255:bfloat16",
            "fsn-score-1m:255:bfloat16",
            "fsn-1m:255:bfloat16:0.1",
        ],
        ["fsn-8m:1500:bfloat16"],
        ["fsn-1m:1500:bfloat16:0.1"],
        ["fsn-1m:511:float32"],
    ],
    ids=" ".join,
)
def test_kernels_fit(
    cases: list[str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    for case, kernels in zip(cases, compiled("offline", cases, tmp_path), strict=True):
        seconds = sum(kernel["seconds"] for kernel in kernels)
        record_property(f"compile_seconds {case}", round(seconds, 1))
        print(f"{case}: {len(kernels)} kernels compiled in {seconds:.1f} s")
        assert len({kernel["kernel"] for kernel in kernels}) >= 12, case
        assert not heavy(kernels, case.split(":")[2]), case


@pytest.mark.slow
@pytest.mark.parametrize("length", ["200", "600"])
def test_kernels_of_the_layer_fit(length: str, tmp_path: Path) -> None:
    kernels = compiled("offline_layer", ["128", "2", length, "bfloat16"], tmp_path)
    assert {"gated_update_kernel", "prepare_backward_kernel"} <= {kernel["kernel"] for kernel in kernels}
    assert not heavy(kernels, "bfloat16")


def compiled(script: str, arguments: list[str], cache: Path) -> list[Any]:
    """What the kernels that this script compiles need, one by one; those of models, a list for each."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"tests.ops.fused.{script}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    kernels: list[Any] = json.loads(done.stdout)
    return kernels


def heavy(kernels: list[dict[str, Any]], dtype: str) -> list[dict[str, Any]]:
    """Those that spill registers or ask for too much shared memory."""
    return [k for k in kernels if k["stack"] > STACK[dtype] or k["shared"] > SHARED_MEMORY]
