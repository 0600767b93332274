"""Files: written atomically, read up to a size limit, with every error as one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as short
from typing import IO, Any

import yaml

from .errors import UserError

LARGEST_FILE = 1 << 34  # bytes of a file that is read whole
MOST_NODES = 200_000
"""Values in a YAML file, each counted as often as aliases repeat it."""


# -- errors ------------------------------------------------------------------------------------------------


class MissingFile(UserError, FileNotFoundError):
    """A file that does not exist."""


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], instead: str) -> Iterator[None]:
    """Raise errors of writing ``path`` as one sentence, which ends with what to do ``instead``."""
    try:
        yield
    except (BrokenPipeError, UserError):  # a pipe's reader has exited; and what is a sentence already
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); {instead}") from error


def check_writable(folder: str | os.PathLike[str], instead: str) -> None:
    """Stop if nothing can be written in ``folder``, which need not exist yet: before any work is done for it."""
    if Path(folder).parts[:1] == ("~",):
        raise UserError(
            f"{folder} would be a folder named ~: write your home in full, or a space in place of ="
        )
    with writing(folder, instead):
        nearest = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
        tempfile.TemporaryFile(dir=nearest).close()


def is_plain_name(name: str) -> bool:
    """Whether ``name`` can be that of a file or folder, without a path."""
    return name not in ("", ".", "..") and "\0" not in name and name == Path(name).name


# -- writing -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a binary file that becomes ``path`` if the block raises no error.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed to ``path``. After a
    crash at any moment ``path`` holds either all of the old bytes or all of the new ones.
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
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files of :func:`atomic_file` that a killed process left in ``folder``."""
    for file in Path(folder).glob(".*.tmp"):
        with contextlib.suppress(OSError):
            file.unlink()


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make a rename in ``folder`` survive a power cut (a no-op where folders cannot be opened)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace ``path`` with ``data`` atomically."""
    with atomic_file(path) as file:
        file.write(data)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Replace ``path`` with ``text`` (UTF-8) atomically."""
    write_bytes_atomic(path, text.encode("utf-8"))


# -- reading -----------------------------------------------------------------------------------------------


NAME = "check the name and that you may read it"


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path as a user wrote it, with ``~`` expanded; an impossible one raises a sentence."""
    text = os.fspath(path)
    if "\0" in text:
        raise UserError(f"{text!r} holds a zero byte, which no path may; leave it out")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(
            f"{text!r} names the folder of a user that is not known here; write the path out"
        ) from None


def read_file(path: str | os.PathLike[str], instead: str = NAME, largest: int = LARGEST_FILE) -> bytes:
    """The bytes of a regular file of at most ``largest`` bytes; anything else raises a sentence, and a file that does
    not exist :class:`MissingFile`.

    A pipe without a writer, or ``/dev/zero``, would be read for ever.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise UserError(f"{path} is not a regular file: {instead}")
            if about.st_size > largest:
                raise UserError(f"{path} has {about.st_size:,} bytes, more than {largest:,}: {instead}")
            return file.read()
    except UserError:
        raise
    except (OSError, ValueError) as error:
        kind = MissingFile if isinstance(error, FileNotFoundError) else UserError
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{path} cannot be read ({reason}): {instead}") from error
    except MemoryError as error:
        raise UserError(f"{path} is larger than the memory of this machine; use a smaller file") from error


def check_regular(path: str | os.PathLike[str]) -> None:
    """Stop if ``path`` is not a regular file, before it is read in chunks."""
    if not os.path.isfile(path):
        raise UserError(f"{path} is not there or not a regular file: {NAME}")


class _Loader(yaml.SafeLoader):
    """Safe YAML without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{short(key.value)} is given twice; give it once", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str | bytes, what: str) -> Any:
    """YAML as plain values: mappings, lists, text, numbers, true, false, null. ``what`` names it in a sentence.

    Repeated keys, dates and other objects, and documents that expand to more than :data:`MOST_NODES` values are
    refused.
    """
    try:
        loader = _Loader(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
        _check_plain(value)
    except Exception as error:  # the parser raises many types
        raise UserError(f"{what} cannot be read as YAML ({_reason(error)})") from None
    return value


def _check_plain(value: Any) -> None:
    """Stop at values that JSON does not have, and at documents that expand without end."""
    waiting, count = [value], 0
    while waiting:
        one = waiting.pop()
        count += 1
        if count > MOST_NODES:
            raise ValueError("it expands to too many values")
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
        elif not isinstance(one, str | int | float | None):
            raise ValueError(f"it has a {type(one).__name__}; put that in quotes")


def _reason(error: Exception) -> str:
    """Why a text cannot be parsed, in at most a line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    problem = getattr(error, "problem", None) or str(error).strip() or type(error).__name__
    mark = getattr(error, "problem_mark", None)
    return str(problem).splitlines()[0][:200] + (f", line {mark.line + 1}" if mark is not None else "")


def parse_json(text: str | bytes, what: str) -> Any:
    """JSON, without the NaN and Infinity that Python accepts. ``what`` names it in a sentence."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} is not JSON ({_reason(error)})") from None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")
