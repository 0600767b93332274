"""Writing files so that a half-written one never replaces a good one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import UserError


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a binary file that becomes ``path`` only if the block ends well.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and are renamed over ``path``
    in one step. After a crash at any moment ``path`` holds either all of the old bytes or all of the new ones.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
        sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], instead: str) -> Iterator[None]:
    """Tell what keeps ``path`` from being written in one sentence, which ends with what to do ``instead``."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output has gone; no file is to blame
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); {instead}") from error


def check_writable(folder: str | os.PathLike[str], instead: str) -> None:
    """Refuse a folder in which nothing can be written before work is done for it; it need not be there yet."""
    with writing(folder, instead):
        nearest = next(place for place in (Path(folder), *Path(folder).parents) if place.exists())
        tempfile.TemporaryFile(dir=nearest).close()


def is_plain_name(name: str) -> bool:
    """Whether ``name`` can be that of one thing in a folder."""
    return name not in ("", ".", "..") and name == Path(name).name


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make a rename in ``folder`` survive a power cut (a no-op where folders cannot be opened)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace ``path`` with ``data`` in one step."""
    with atomic_file(path) as file:
        file.write(data)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Replace ``path`` with ``text`` (UTF-8) in one step."""
    write_bytes_atomic(path, text.encode("utf-8"))
