"""The trainer's own kernels compile for a Hopper GPU, without one, and keep to their registers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.fused.interpreter import ROOT


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not sys.platform.startswith("linux"),
    reason="Triton is not installed",
)
def test_kernels_fit(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.ops.fused.offline_step"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)
    names = {"gather_kernel", "mean_kernel", "squares_kernel", "adamw_kernel", "count_kernel"}
    assert {kernel["kernel"] for kernel in kernels} == names and len(kernels) == len(names)
    assert not [k for k in kernels if k["stack"] or k["registers"] > 128 or k["shared"] > 4096], kernels
