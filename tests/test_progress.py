"""Progress, as it stands in a log."""

from __future__ import annotations

import pytest

from fsn import progress


def test_a_field_that_is_empty_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    with progress.Bar("training, steps", 10) as bar:
        bar.update(5, now="fsn 1.00 bits")
        bar.update(5, now="")
    first, last = capsys.readouterr().err.splitlines()
    assert first.endswith("now fsn 1.00 bits") and last == "training, steps: 10 of 10"
