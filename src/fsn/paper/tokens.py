"""The losses of single tokens, kept beside an archived run so that its tables need no GPU."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..io import atomic_file
from ..measure import Battery
from ..train import Run

FILE = "token_losses.npz"


def _weights_hash(folder: Path) -> str:
    with open(folder / "best.safetensors", "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mark(folder: Path, sha256: str, battery: Battery) -> str:
    """What the losses belong to: the weights, the text, the windows."""
    key = hashlib.sha256(f"{_weights_hash(folder)} {sha256} {battery.length} {battery.stride} ".encode())
    key.update(battery.windows.tobytes())
    return key.hexdigest()


def store_losses(folder: Path, sha256: str, battery: Battery, bits: NDArray[np.float32]) -> None:
    """Write ``token_losses.npz`` into a run folder."""
    mark = np.frombuffer(_mark(folder, sha256, battery).encode(), np.uint8)
    with atomic_file(folder / FILE) as file:
        np.savez_compressed(file, bits=bits, mark=mark)


def stored_losses(run: Run, battery: Battery) -> NDArray[np.float32] | None:
    """The losses kept in a run folder, if they belong to its weights and to these windows."""
    try:
        with np.load(run.folder / FILE, allow_pickle=False) as kept:
            bits, mark = kept["bits"], kept["mark"].tobytes().decode("ascii")
        expected = _mark(run.folder, str(run.config["corpus"]["sha256"]), battery)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if mark != expected or bits.shape != battery.depth.shape or bits.dtype != np.float32:
        return None
    return bits
