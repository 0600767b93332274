"""What ``import fsn`` gives: quickly what every user needs, and the rest by name when it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fsn


def printed(script: str) -> str:
    """What a script prints in a process of its own, where nothing is imported yet."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_parts_are_imported_when_they_are_used() -> None:
    said = printed(
        "import sys, fsn\n"
        "parts = {f'fsn.{name}' for name in fsn.PARTS}\n"
        "print(sorted(parts & set(sys.modules)))\n"
        "print(fsn.measure.without_field.__name__, fsn.data.load.__name__, fsn.train.train.__name__)\n"
        "print(fsn.paper.__name__, sorted(parts - set(sys.modules)))\n"
    )
    assert said.splitlines() == ["[]", "without_field load train", "fsn.paper ['fsn.hub']"]


def test_a_part_whose_needs_are_missing_says_so() -> None:
    """And stays away from those who only look around, as ``help`` does."""
    said = printed(
        "import inspect, sys\n"
        "sys.modules['transformers'] = None\n"
        "import fsn\n"
        "print(hasattr(fsn, 'hub'), len(inspect.getmembers(fsn)) > 10)\n"
        "try:\n"
        "    fsn.hub\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    assert said.startswith("False True\nthis needs transformers") and "pip install transformers" in said


def test_nobody_is_sent_to_the_package_index_for_fsn() -> None:
    """It is not there: an extra is named by its packages."""
    sent = re.compile(r"pip install [^.\n]*fsn\b")
    files = Path(fsn.__file__).parent.rglob("*.py")
    assert not [file.name for file in files if sent.search(file.read_text("utf-8"))]


def test_everything_public_is_listed_and_nothing_else_is_there() -> None:
    assert {*fsn.PARTS, *fsn.__all__} <= set(dir(fsn))
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        fsn.mesure  # type: ignore[attr-defined]  # noqa: B018
