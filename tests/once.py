"""What takes long to make and is the same each time: made by the first test process that asks, read by all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder ``name`` that ``make`` fills, once in a run of the tests; other processes wait for it."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with open(shared.parent / f"{name}.lock", "w") as lock:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            shared.mkdir(exist_ok=True)
            make(shared)
            (shared / "made").touch()
    return shared
