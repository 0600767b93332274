"""hashes.json: which files belong to a run folder, and the sha256 of each.

A file's new hash is entered before the file is replaced, and the old one is dropped with the next entry after that; so
the files always have a known hash, whenever the process dies. Of a file that only grows, the hash covers the bytes up
to the last checkpoint. Every reader goes through :func:`read`, which names a file that was edited or damaged. Folders
made before hashes.json existed can be read, but not checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io import parse_json, read_file, write_bytes_atomic
from ..progress import say

FILE = "hashes.json"
GROWING = ("metrics.jsonl", "timings.jsonl")
HASHED = ["config.yaml", *GROWING, "environment.json", "best.safetensors", "tokenizer.json", "DONE"]
HASHED += ["kernel/*.safetensors", "*.npz", "measured.json"]
"""The files of a run folder that are checked. (Checkpoints in last/ carry their own hashes.)"""
Entry = tuple[int, str]
"""Number of bytes, and their sha256."""

_warned: set[str] = set()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry_of(data: bytes) -> Entry:
    return len(data), sha256(data)


def _digest(files: Any) -> str:
    return sha256(json.dumps(files, sort_keys=True).encode())


def _known(folder: Path) -> dict[str, list[Entry]] | None:
    """The entries of every file in hashes.json; None where there is no hashes.json."""
    try:
        raw = read_file(folder / FILE)
    except FileNotFoundError:
        return None
    try:
        document = parse_json(raw, "it")
        files = document["files"]
        if document["sha256"] != _digest(files):
            raise ValueError
        return {name: [(int(size), str(sha)) for size, sha in entries] for name, entries in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{folder / FILE} was changed or damaged; restore it, or delete it to read the run without checks"
        ) from None


def read(folder: Path, name: str) -> bytes:
    """The bytes of a run's file, checked against hashes.json. A missing file is a ``FileNotFoundError``."""
    manifest = _known(folder)
    while True:
        entries = None if manifest is None else manifest.get(name, [])
        try:
            data = read_file(folder / name)
        except FileNotFoundError:
            if name not in GROWING or not entries:
                raise
            data = b""
        known = entries is None or any(
            sha256(data[:size]) == digest and (len(data) == size or name in GROWING)
            for size, digest in entries
        )
        if known:
            return data
        again = _known(folder)
        if again == manifest:
            what = "is not what the run wrote" if entries else "was not written by the run"
            raise UserError(
                f"{folder / name} {what} (its sha256 is not in {FILE}): it was edited or damaged; "
                "restore the right file"
            )
        manifest = again  # a run is writing to the folder right now


def warn_unhashed(folder: Path) -> None:
    """Print once that a folder has no hashes."""
    if not (folder / FILE).exists() and str(folder) not in _warned:
        _warned.add(str(folder))
        say(f"warning: {folder} has no {FILE}, so whether its files were edited or damaged cannot be checked")


def hash_files(folder: Path) -> None:
    """Write hashes.json for the files that are there: for a copied run, or one made before hashes.json existed."""
    _write(folder, _found(folder))


def add(folder: Path, name: str) -> None:
    """Enter one more file, as it is now, into hashes.json."""
    Hashes(folder).enter({name: [entry_of(read_file(folder / name))]})


def _found(folder: Path) -> dict[str, list[Entry]]:
    paths = [path for pattern in HASHED for path in sorted(folder.glob(pattern))]
    return {path.relative_to(folder).as_posix(): [entry_of(read_file(path))] for path in paths}


def _write(folder: Path, files: dict[str, list[Entry]]) -> None:
    document = {"files": files, "sha256": _digest(files)}
    write_bytes_atomic(folder / FILE, json.dumps(document, indent=1, sort_keys=True).encode() + b"\n")


class Hashes:
    """hashes.json, for the one process that writes to the folder.

    A file that was being replaced when an earlier process died has both its hashes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        known = _known(folder)
        self.files = _found(folder) if known is None else known

    def write(self, name: str, data: bytes) -> None:
        """Replace a file of the run atomically."""
        entry = entry_of(data)
        before = self.files.get(name, []) if os.path.lexists(self.folder / name) else []
        self.enter({name: [*(e for e in before if e != entry), entry]})
        write_bytes_atomic(self.folder / name, data)
        self.files[name] = [entry]

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        if self.files.pop(name, None):
            self.enter({})

    def enter(self, entries: dict[str, list[Entry]]) -> None:
        """Write the hashes that files may have from now on."""
        files = self.files | entries
        _write(self.folder, files)
        self.files = files
