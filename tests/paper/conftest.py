"""The whole registry at the tiny scale, made once for all test processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.once import made_once
from tests.paper.tiny import reproduce


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything in miniature: runs, tables, figures, the page."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FSN_CACHE", str(folder / "cache"))
            reproduce(folder)

    return made_once(tmp_path_factory, "tiny-reproduction", make)
