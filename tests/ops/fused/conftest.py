"""The interpreter's process, for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.ops.fused.interpreter import Interpreter, shared


@pytest.fixture
def interpreter() -> Interpreter:
    return shared()
