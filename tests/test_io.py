"""Writing: what stands in the way is told in one sentence, before work is done for it where that can be known."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fsn.errors import UserError
from fsn.io import check_writable, writing


@pytest.mark.parametrize(
    "number",
    [errno.ENOTDIR, errno.ENAMETOOLONG, errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO, errno.EMFILE],
)
def test_what_keeps_a_file_from_being_written_is_told(number: int) -> None:
    with pytest.raises(UserError) as caught, writing("some/file", "choose another --out"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"some/file cannot be written ({os.strerror(number)}); choose another --out"


def test_other_mistakes_pass_through() -> None:
    for mistake in (UserError("mine"), KeyError("mine"), BrokenPipeError(errno.EPIPE, "mine")):
        with pytest.raises(type(mistake), match="mine"), writing("some/file", "choose another --out"):
            raise mistake


def test_a_folder_is_checked_before_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    check_writable(tmp_path / "not" / "yet", "x")
    check_writable(tmp_path, "x")
    monkeypatch.chdir(tmp_path)
    check_writable("here", "x")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        with pytest.raises(UserError, match=r"cannot be written \(Not a directory\); try another"):
            check_writable(wrong, "try another")
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "nothing is left"
