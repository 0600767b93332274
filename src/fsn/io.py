"""Reading files that people name, and writing files so that a half-written one never replaces a good one."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import UserError


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path as people write it: ``~`` is their folder, and one that cannot be is a sentence."""
    text = os.fspath(path)
    if "\0" in text:
        raise UserError(f"{text!r} holds a zero byte, which no path can; leave it out")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(
            f"{text!r} names the folder of a user that is not known here; write the path out"
        ) from None


def read_file(
    path: str | os.PathLike[str], instead: str = "check the name and that you may read it"
) -> bytes:
    """The bytes of a regular file; a device, a pipe or a folder, and what cannot be read, is a sentence.

    A pipe without a writer would be waited for, and ``/dev/zero`` read, for ever.
    """
    check_regular(path, instead)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {instead}") from error
    except MemoryError as error:
        raise UserError(f"{path} is larger than the memory of this machine; use a smaller file") from error


def check_regular(
    path: str | os.PathLike[str], instead: str = "check the name and that you may read it"
) -> None:
    """Stop if ``path`` is not a regular file."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({reason}): {instead}") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file: {instead}")


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


def is_writable(folder: str | os.PathLike[str]) -> bool:
    """Whether something can be written in ``folder``, which need not be there yet."""
    try:
        check_writable(folder, "")
    except UserError:
        return False
    return True


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
