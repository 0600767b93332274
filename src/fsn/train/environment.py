"""What a run ran on: versions, device, commit. Enough to say later why two runs differ."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import fsn

from ..io import write_text_atomic
from .world import World


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_name()} (CPU, {torch.get_num_threads()} threads)"


def environment(world: World) -> dict[str, Any]:
    """Versions, device and commit of this process."""
    cuda = world.device.type == "cuda"
    packages: dict[str, str | None] = {}
    for name in ("torch", "triton", "numpy", "safetensors"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "fsn": fsn.__version__,
        **commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "cuda": torch.version.cuda if cuda else None,
        "device": describe_device(world.device),
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def commit() -> dict[str, Any]:
    """The commit of the source tree fsn is imported from, and whether tracked files differ from it.

    Where the tree is a copy without its history, or with an older one, whoever made the copy says in ``FSN_COMMIT``
    which commit it is.
    """
    told = os.environ.get("FSN_COMMIT")
    if told:
        return {"commit": told, "modified": None}
    root = Path(fsn.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {"commit": None, "modified": None}

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "modified": None}


def write_environment(path: Path, current: dict[str, Any]) -> None:
    """environment.json: the present part of the run on top, the parts before it under ``earlier``."""
    earlier: list[dict[str, Any]] = []
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        earlier = before.pop("earlier", [])
        earlier.append(before)
    except (OSError, ValueError, AttributeError):
        pass
    write_text_atomic(path, json.dumps({**current, "earlier": earlier}, indent=1) + "\n")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def peak_memory_gb(device: torch.device) -> float:
    """The most memory held so far: on the GPU, or by this process on a CPU; in units of 10⁹ bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9
