"""The run folder while a run is being written: one writer at a time, and lines that survive a crash."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from ..data.paths import reads
from ..data.registry import folder_of
from ..errors import UserError
from ..io import check_writable, write_text_atomic

try:
    import fcntl
except ImportError:  # Windows: no advisory locks; two writers are then not noticed
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
_CANNOT_BE_WRITTEN = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
LABELS = frozenset({"fsn_version", "format", "preset", "corpus.name", "begin_with.run"})
"""Entries of a config, flattened, that only name things: two runs that differ in them are the same experiment."""


class RunFolder:
    """Paths, lock, log and metrics of one run."""

    def __init__(self, path: str | os.PathLike[str], quiet: bool = False) -> None:
        self.path = Path(path)
        self.quiet = quiet
        self._lock: IO[str] | None = None
        self._log: IO[str] | None = None
        self._metrics: IO[bytes] | None = None

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def best_file(self) -> Path:
        return self.path / "best.safetensors"

    def kernel_file(self, epoch: int) -> Path:
        return self.path / "kernel" / f"epoch-{epoch:04d}.safetensors"

    @property
    def done_file(self) -> Path:
        return self.path / "DONE"

    # -- one writer ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the folder, lock it, open the log."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / "lock", "a+", encoding="utf-8")  # noqa: SIM115 (held while the run lasts)
            if fcntl is not None:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.seek(0)
                    holder = lock.read().strip()
                    lock.close()
                    raise UserError(
                        f"another process{f' ({holder})' if holder else ''} is writing to {self.path}; "
                        "wait for it, stop it, or choose another --out"
                    ) from None
            lock.truncate(0)
            lock.write(f"process {os.getpid()}")
            lock.flush()
            self._lock = lock
            self._log = open(self.path / "log.txt", "a", encoding="utf-8")  # noqa: SIM115

    def close(self) -> None:
        for file in (self._metrics, self._log):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._metrics = self._log = None
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.truncate(0)
            self._lock.close()  # releases the lock
            self._lock = None

    def say(self, line: str) -> None:
        """Print a line and keep it in log.txt."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
            self._log.flush()

    # -- config --------------------------------------------------------------------------------------------

    def read_config(self) -> dict[str, Any] | None:
        return read_config(self.path) if self.config_file.exists() else None

    def write_config(self, config: dict[str, Any]) -> None:
        write_text_atomic(self.config_file, yaml.safe_dump(config, sort_keys=False, width=110))

    # -- metrics -------------------------------------------------------------------------------------------

    def open_metrics(self, size: int) -> None:
        """Cut metrics.jsonl to ``size`` bytes, the length at the checkpoint the run goes on from."""
        have = self.metrics_file.stat().st_size if self.metrics_file.exists() else 0
        if have < size:
            raise UserError(
                f"{self.metrics_file} is shorter ({have:,} bytes) than when the checkpoint was written "
                f"({size:,}); put the file back, or start a new run in another folder"
            )
        self._metrics = open(self.metrics_file, "ab")  # noqa: SIM115
        self._metrics.truncate(size)
        self._metrics.seek(size)

    def record(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl; numbers that are not finite become null."""
        assert self._metrics is not None
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        self._metrics.write((json.dumps(clean) + "\n").encode())
        self._metrics.flush()

    def metrics_size(self) -> int:
        """Bytes of metrics.jsonl that are on the disk for certain."""
        assert self._metrics is not None
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()


def check_out(out: str | os.PathLike[str], corpus: str | os.PathLike[str] | None = None) -> None:
    """Stop if a run cannot be written to ``out``, or would become part of the corpus it is trained on."""
    if not os.fspath(out):
        raise UserError("--out is empty; give it the name of a folder")
    path = Path(out)
    check_writable(path, "choose another --out")
    if corpus is not None:
        check_outside(path, corpus, "an --out")


def check_outside(path: Path, corpus: str | os.PathLike[str], option: str) -> None:
    """Stop if what is written to ``path`` would become part of the corpus it is made from."""
    text = folder_of(corpus)
    if text is not None and reads(text, path):
        raise UserError(
            f"{path} lies in the corpus {text} and would become part of its text; "
            f"choose {option} outside of it"
        )


def read_config(path: Path) -> dict[str, Any]:
    """config.yaml of a run folder."""
    try:
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is not a run folder: it has no config.yaml") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path / 'config.yaml'} cannot be read ({type(error).__name__})") from None
    if not isinstance(config, dict) or not {"model", "recipe", "corpus"} <= set(config):
        raise UserError(f"{path / 'config.yaml'} is not the config of a run")
    if config.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {config.get('format')}; this version of fsn reads format {FORMAT}"
        )
    _check_config(path / "config.yaml", config)
    return config


def _check_config(file: Path, config: dict[str, Any]) -> None:
    """Stop if a section of the config, or what names the corpus, is missing."""
    wrong = next((name for name in ("model", "recipe", "corpus") if not isinstance(config[name], dict)), None)
    if wrong is None:
        fits: dict[str, Callable[[Any], bool]] = {
            "name": lambda value: isinstance(value, str),
            "sha256": lambda value: value is not None,
            "symbols": _is_hexadecimal,
        }
        corpus = config["corpus"]
        wrong = next((f"corpus.{name}" for name, fit in fits.items() if not fit(corpus.get(name))), None)
    if wrong is not None:
        raise UserError(
            f"{file} was changed: its {wrong} is missing or makes no sense; put the right file back"
        )


def _is_hexadecimal(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(bytes.fromhex(value))
    except ValueError:
        return False


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line that was cut off is left out."""
    lines: list[dict[str, Any]] = []
    try:
        raw = (path / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return lines
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            lines.append(json.loads(line))
        except ValueError:
            if number < raw.count(b"\n") + 1:
                raise UserError(f"line {number} of {path / 'metrics.jsonl'} is not JSON") from None
    return lines


def flatten(d: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one dict with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in d.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full or closed disk, or a name that cannot be one, into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise UserError(
                f"the disk that holds {path} is full; free some space and run the same command again: "
                "it goes on from the last checkpoint, which is untouched"
            ) from error
        if error.errno in _CANNOT_BE_WRITTEN:
            raise UserError(f"{path} cannot be written ({error.strerror}); choose another --out") from error
        raise
