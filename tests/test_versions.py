"""The table of tested versions: the page is made from it, and what is outside is named in one line."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from fsn import versions

ROOT = Path(__file__).resolve().parents[1]
USED = {"python": "3.12", "torch": "2.11.0", "triton": "3.6.0", "transformers": "5.22.2"}


def use(monkeypatch: pytest.MonkeyPatch, **other: str | None) -> None:
    monkeypatch.setattr(versions, "installed", lambda name: (USED | other)[name])


def test_the_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs" / "versions.md").read_text("utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "site" / "versions.py"))["markdown"]()
    assert page == made, "run: python docs/site/versions.py > docs/versions.md"


def test_pinned_versions_are_in_the_table() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    for name in ("torch", "triton", "transformers"):
        assert pinned[name] in {getattr(row, name) for row in versions.TESTED}, name


def test_what_is_in_the_table_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    assert versions.untested("NVIDIA H200") is None
    assert versions.untested("CPU", ["python", "torch", "transformers"]) is None
    use(monkeypatch, triton=None)
    assert versions.untested("CPU") is None


def test_what_is_outside_is_named_with_what_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, triton="3.9.0")
    line = versions.untested("NVIDIA H200")
    assert line is not None and "\n" not in line
    assert (
        line.startswith("not tested with these kernels: Triton 3.9.0 (tested: ") and "3.6.0 on H200" in line
    )
    assert "torch" not in line and "Python" not in line
    assert versions.untested("CPU") is None  # no kernel runs there
    line = versions.untested("NVIDIA A100")
    assert line is not None and "; NVIDIA A100 (tested: H200)" in line
    use(monkeypatch, transformers="9.1")
    assert "transformers 9.1 (tested: 5.22.2 on CPU)" in str(versions.untested("CPU", ["transformers"]))


def test_only_a_row_that_passed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(versions.TESTED[0], triton="4.0.0")
    use(monkeypatch, triton="4.0.0")
    for status, told in (("passed", False), ("failed", True), ("not run", True)):
        monkeypatch.setattr(versions, "TESTED", (*versions.TESTED, replace(row, status=status)))
        assert (versions.untested("NVIDIA H200") is not None) == told
        monkeypatch.setattr(versions, "TESTED", versions.TESTED[:-1])


def test_versions_are_those_in_use() -> None:
    import torch

    assert versions.installed("torch") == torch.__version__.split("+")[0]
    assert versions.installed("no-such-package") is None
