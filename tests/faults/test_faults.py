"""Killed at any call that touches its folder, or with any of them failing, a run ends with the same bits.

A sample by default; ``-m faults`` takes every call.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.faults.harness import Worker, end_of, is_one_sentence

ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EROFS, errno.EFBIG)
SAMPLE = 9
PARTS = 10
"""All calls in so many tests, which can run beside each other."""


@pytest.fixture(scope="session")
def calls(worker: Worker, reference: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many calls touch the folder of an undisturbed run."""
    out = tmp_path_factory.mktemp("counted") / "run"
    found = worker.train(out)
    assert end_of(out) == end_of(reference), "two runs of one config are the same to the byte"
    assert found["calls"] > 200
    return int(found["calls"])


def check(worker: Worker, reference: Path, out: Path, at: int, error: int) -> None:
    """Disturb a run at one call; then let it finish, undisturbed."""
    found = worker.train(out, at, error)
    where = f"call {at}, error {error}: {found}"
    assert found["code"] is not None, f"it hung at {where}"
    assert "Traceback" not in found["said"], where
    if error == 0:
        assert found["code"] in (-9, 0), where  # 0: the end came before the call
    else:
        assert found["code"] == 0 or (found["code"] == 2 and is_one_sentence(found["said"])), where
    again = worker.train(out)
    assert again["code"] == 0, f"{where}, then {again}"
    assert end_of(out) == end_of(reference), where
    left = [path.name for path in out.rglob(".*")]
    assert not left, f"{left} is left after {where}"
    shutil.rmtree(out)


@pytest.mark.parametrize("part", range(SAMPLE))
def test_killed_at_a_call(worker: Worker, reference: Path, calls: int, tmp_path: Path, part: int) -> None:
    check(worker, reference, tmp_path / "run", (2 * part + 1) * calls // (2 * SAMPLE), 0)


@pytest.mark.parametrize("part", range(SAMPLE))
def test_a_call_that_fails(worker: Worker, reference: Path, calls: int, tmp_path: Path, part: int) -> None:
    check(worker, reference, tmp_path / "run", part * calls // SAMPLE, ERRORS[part % len(ERRORS)])


@pytest.mark.faults
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_call(worker: Worker, reference: Path, calls: int, tmp_path: Path, part: int) -> None:
    for at in range(part, calls, PARTS):
        check(worker, reference, tmp_path / "run", at, 0)


@pytest.mark.faults
@pytest.mark.parametrize("turn", range(2))
@pytest.mark.parametrize("part", range(PARTS))
def test_every_call_fails(
    worker: Worker, reference: Path, calls: int, tmp_path: Path, turn: int, part: int
) -> None:
    for at in range(part, calls, PARTS):
        check(worker, reference, tmp_path / "run", at, ERRORS[(at + turn) % len(ERRORS)])


@pytest.mark.faults
def test_killed_twice(worker: Worker, reference: Path, calls: int, tmp_path: Path) -> None:
    """Killed, and killed again in what the next start does."""
    for at in range(calls // 2, calls, 7):
        out = tmp_path / "run"
        worker.train(out, at)
        check(worker, reference, out, 5 + at % 60, 0)
