"""The cache folder: every file in it is complete and verified.

A file is written to a temporary name and renamed only when it is complete and its hash is right, so an interrupted
download leaves nothing behind. Every read checks the hash again: 100 MB take a fraction of a second, and a corrupt disk
is noticed before a week of training, not after.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import lzma
import os
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from ..errors import UserError
from ..io import read_file, user_path, write_bytes_atomic, write_text_atomic, writing
from ..progress import Bar, say
from ..text import printable

CHUNK = 1 << 20
TIMEOUT_S = 30.0
"""To connect, and between two chunks."""
LIMIT_S = 1800.0
"""For a whole download, with its retries."""
RETRIES = 2

#: Compressed forms of a corpus that may be put into the cache folder, e.g. on a machine without network.
PACKED = (".zip", ".gz", ".xz")

INSTEAD = "free some space there or set FSN_CACHE to another folder"
"""The remedy for a cache folder that cannot be written."""

#: What unpacking a damaged archive can raise: a truncated or foreign .gz an OSError or an EOFError, an encrypted .zip a
#: RuntimeError, an unknown compression a NotImplementedError, invalid numbers in a header a ValueError.
DAMAGED = (
    OSError,
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    LookupError,
    RuntimeError,
    ValueError,
)


class FetchError(Exception):
    """A source of a file failed; there may be another."""


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """``cache`` if given, else the environment's ``FSN_CACHE``, else ``~/.cache/fsn``."""
    return user_path(cache or os.environ.get("FSN_CACHE") or "~/.cache/fsn")


def mismatch(raw: bytes, sha256: str) -> str | None:
    """None if ``raw`` has the expected hash, else the found and the expected one in words."""
    found = hashlib.sha256(raw).hexdigest()
    return None if found == sha256 else f"{len(raw):,} bytes with sha256 {found}, expected {sha256}"


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Let one process at a time make ``name``; the others wait, then find it in the cache.

    The lock belongs to the open file, so it is released when the process dies. Without ``flock`` (Windows) two
    processes may both do the work; the rename is atomic, so the result is still right.
    """
    with writing(folder, INSTEAD):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / f".{name}.lock", "wb")  # noqa: SIM115 (closed below, after the caller's block)
    with file:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_verified(path: Path, sha256: str | None, warn: bool = False) -> bytes | None:
    """The bytes of ``path``; None if it does not exist or, with a warning if ``warn``, has another hash."""
    if sha256 is None or not os.path.lexists(path):
        return None
    raw = read_file(path, "repair or remove it")
    difference = mismatch(raw, sha256)
    if difference is None:
        return raw
    if warn:
        say(printable(f"{path} is corrupt ({difference}); getting it again"))
    return None


def cached(folder: Path, name: str, sha256: Callable[[], str | None], make: Callable[[], bytes]) -> bytes:
    """``name`` from the cache folder if it has the right hash, else what ``make`` returns, which is written there."""
    path = folder / name
    raw = read_verified(path, sha256())
    if raw is None:
        with locked(folder, name), writing(folder, INSTEAD):
            raw = read_verified(path, sha256(), warn=True)
            if raw is None:  # no other process has made it while we waited
                raw = make()
                write_bytes_atomic(path, raw)
    return raw


def cached_unpinned(folder: Path, name: str, make: Callable[[], bytes]) -> bytes:
    """:func:`cached` for bytes without a published hash: that of the first download is written beside them."""
    hash_file = folder / f"{name}.sha256"

    def read_hash() -> str | None:
        try:
            return hash_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None

    def make_and_hash() -> bytes:
        raw = make()
        write_text_atomic(hash_file, hashlib.sha256(raw).hexdigest() + "\n")
        return raw

    return cached(folder, name, read_hash, make_and_hash)


def unpack(packed: Path, limit: int) -> bytes:
    """The content of a .gz or .xz file, or of the member of a .zip that has its name.

    At most ``limit`` bytes and one more are read: enough to detect a file that is too long.
    """
    with unpacking("it"):
        if packed.suffix == ".zip":
            with zipfile.ZipFile(packed) as archive, archive.open(packed.stem) as member:
                return member.read(limit + 1)
        with gzip.open(packed) if packed.suffix == ".gz" else lzma.open(packed) as file:
            return file.read(limit + 1)


@contextlib.contextmanager
def unpacking(name: str) -> Iterator[None]:
    """Raise :class:`FetchError` where the archive ``name`` is damaged."""
    try:
        yield
    except DAMAGED as error:
        raise FetchError(f"{name} cannot be unpacked ({printable(error, limit=100)})") from error


def obtain(
    name: str,
    folder: Path,
    size: int,
    sha256: str,
    sources: Sequence[tuple[str, Callable[[Path], bytes]]],
) -> bytes:
    """The verified bytes of corpus ``name``: from the cache, a packed copy in it, or a source.

    ``sources`` are (name, function of the cache folder that returns the bytes or raises FetchError), tried in order.
    What they return must have the same hash.
    """

    def make() -> bytes:
        packed = [folder / f"{name}{suffix}" for suffix in PACKED]
        options = [(str(file), partial(unpack, file, size)) for file in packed if file.is_file()]
        options += [(source, partial(fetch, folder)) for source, fetch in sources]
        failures = []
        for source, get in options:
            say(printable(f"{name}: trying {source}"))
            try:
                raw = get()
                difference = mismatch(raw, sha256)
                if difference is None:
                    return raw
                raise FetchError(f"it is not {name}: {difference}")
            except FetchError as error:
                failures.append(f"{source}: {error}")
                say(printable(f"{name}: failed: {failures[-1]}"))
        forms = ", ".join(f"{name}{suffix}" for suffix in PACKED)
        reasons = "; ".join(failures)
        raise UserError(
            f"{name} could not be fetched ({reasons}): put {name} or one of {forms} into {folder}"
        )

    return cached(folder, name, lambda: sha256, make)


def download(address: str, path: Path, sha256: str, description: str, size: int) -> None:
    """Download the file of ``size`` bytes and this hash from ``address`` to ``path``, with progress and a time limit.

    pooch retries and checks the hash, but has no limit for the whole download, and a server that sends a byte now and
    then never exceeds the timeout of a read. So it runs in a thread, which is abandoned when the time is over.
    """
    import pooch

    pooch.get_logger().setLevel("ERROR")  # progress is shown here, and a server's text is not repeated
    over = threading.Event()
    ended: list[BaseException | None] = []

    def save(url: str, output: str, manager: Any) -> None:
        with open(output, "wb") as file, Bar(description, total=size) as bar:
            get = pooch.HTTPDownloader(chunk_size=CHUNK, timeout=TIMEOUT_S)
            get(url, _Bounded(file, bar, size, over), manager)

    def work() -> None:
        try:
            urls, registry = {path.name: address}, {path.name: f"sha256:{sha256}"}
            manager = pooch.create(path.parent, "", urls=urls, registry=registry, retry_if_failed=RETRIES)
            manager.fetch(path.name, downloader=save)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    over.set()
    error = ended[0] if ended else FetchError(f"it takes longer than {LIMIT_S / 60:.0f} minutes")
    if error is None:
        return
    if isinstance(error, FetchError) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        raise error
    raise FetchError(_reason(error, path.name)) from error


class _Bounded:
    """A file for a download: shows progress, and stops when it grows too large or the time is over."""

    def __init__(self, file: IO[bytes], bar: Bar, size: int, over: threading.Event) -> None:
        self.file, self.bar, self.size, self.over = file, bar, size, over

    def write(self, data: bytes) -> int:
        if self.over.is_set():
            self.bar.shown = False  # nobody waits for it any more
        self.bar.update(len(data))
        if self.bar.done > self.size or self.over.is_set():
            raise FetchError(f"it is larger than the {self.size:,} bytes expected")
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _reason(error: BaseException, name: str) -> str:
    """Why a download failed. A server's own text is not repeated: it may contain anything."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered with status {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return f"the server did not answer within {TIMEOUT_S:.0f} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError | requests.exceptions.ContentDecodingError):
        return "the download was interrupted"
    if isinstance(error, requests.ConnectionError):
        return "there is no connection to the server"
    if isinstance(error, ValueError) and "hash" in str(error):
        return f"the file it sends is not {name}: its sha256 differs"
    return f"the answer is invalid ({type(error).__name__})"
