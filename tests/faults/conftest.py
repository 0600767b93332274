"""The worker is started once; tests marked ``faults`` run where they are asked for by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Worker


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "faults" in str(config.option.markexpr):
        return
    every = [item for item in items if item.get_closest_marker("faults")]
    config.hook.pytest_deselected(items=every)
    items[:] = [item for item in items if item not in every]


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    started = Worker(tmp_path_factory.mktemp("worker"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def reference(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("reference") / "run"
    found = worker.train(out)
    assert found["code"] == 0, found["said"]
    return out
