"""What every test gets: one thread, a fixed seed, and GPU tests only where there is a GPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import settings

from tests.ops.fused.interpreter import Interpreter, shared

# Several test processes share the cores; threads inside each would only get in each other's way.
torch.set_num_threads(1)

# Property tests draw the same examples every time, and a busy machine is not a failure.
settings.register_profile("fsn", deadline=None, derandomize=True)
settings.load_profile("fsn")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed every generator before every test, so that no test depends on which ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return 0


@pytest.fixture
def interpreter() -> Interpreter:
    """This process's partner that runs kernels in Triton's interpreter."""
    return shared()
