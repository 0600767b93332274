"""The versions that fsn has been run with: one table, from which docs/site/versions.py makes docs/versions.md.

Other versions may well work, and nothing is refused: ``fsn train`` names those in use that are not in the table.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Tested:
    """One set of versions, what was done with it, and how it ended. None: not part of it."""

    torch: str
    triton: str | None
    transformers: str | None
    python: str
    device: str
    """A GPU by the name CUDA gives it, or CPU."""
    done: str
    status: Status


TESTED = (
    Tested(
        "2.11.0", "3.6.0", None, "3.12", "NVIDIA H200",
        "all 362 GPU tests of 45776f5 but one, whose own mistake was mended; 117 of models and layer again at "
        "4fbb46d; every run in `results`; CUDA 13.0, ptxas 12.8.93",
        "passed",
    ),
    Tested(
        "2.11.0", "3.7.1", None, "3.12", "NVIDIA H200",
        "all 282 GPU tests and 2,000 training steps (fused kernels); CUDA 13.0, its own ptxas 12.8.93",
        "passed",
    ),
    Tested(
        "2.13.0", "3.7.1", None, "3.12", "NVIDIA H200",
        "what `constraints.txt` installs on a GPU machine: its CUDA build was too large to take along",
        "not run",
    ),
    Tested(
        "2.13.0", "3.7.1", "5.22.2", "3.11", "CPU",
        "all tests without a GPU: the reference, kernels in Triton's interpreter, kernels compiled for Hopper",
        "passed",
    ),
)  # fmt: skip
"""What was run, newest kernels first. A row counts as tested when its status is ``passed``."""


def installed(name: str) -> str | None:
    """The version in use, without a build's suffix; None where there is none."""
    if name == "python":
        return ".".join(platform.python_version_tuple()[:2])
    try:
        return importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def untested(device: str, names: Sequence[str] = ("python", "torch", "triton")) -> str | None:
    """One sentence about what is in use here and not in the table; None where all of it is.

    ``device`` is a GPU's name, or CPU. What passed on a CPU says nothing about a GPU, and on a CPU no kernel runs.
    """
    gpu = device != "CPU"
    rows = [row for row in TESTED if row.status == "passed" and (row.device != "CPU" or not gpu)]
    found = {name: installed(name) for name in names if gpu or name != "triton"}
    if gpu:
        found["device"] = device
    parts = []
    for name, version in found.items():
        known = {(getattr(row, name), row.device) for row in rows if getattr(row, name) is not None}
        if version is not None and version not in {v for v, _ in known}:
            shown = {v if name == "device" else f"{v} on {where}" for v, where in known}
            tested = sorted(words.replace("NVIDIA ", "") for words in shown)
            title = {"python": "Python ", "triton": "Triton ", "device": ""}.get(name, f"{name} ")
            parts.append(f"{title}{version} (tested: {', '.join(tested) or 'none yet'})")
    if not parts:
        return None
    return f"not tested with {'these kernels' if gpu else 'fsn'}: {'; '.join(parts)}; see docs/versions.md"
