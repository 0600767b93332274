"""The whole registry at the tiny scale, made once for all test processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.paper.tiny import reproduce


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything in miniature: runs, tables, figures, the page.

    Several test processes share it: the first makes it, the others wait for it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny-reproduction"
    with open(base.parent / "tiny-reproduction.lock", "w") as lock:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FSN_CACHE", str(shared / "cache"))
                reproduce(shared)
            (shared / "made").touch()
    return shared
