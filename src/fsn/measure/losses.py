"""Loss of every single token, in bits, and the one store in which a run's are kept."""

from __future__ import annotations

import contextlib
import hashlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import Corpus, Windows
from ..errors import UserError
from ..io import atomic_file
from ..train import hashes
from ..train.evaluate import window_losses
from ..train.run import Run, weights_hash
from .metrics import check_corpus

if TYPE_CHECKING:
    from .copy_depth import Battery

NATS_PER_BIT = math.log(2.0)
BATCH = 64
FILE = "token_losses.npz"
"""What an archived run keeps beside its weights, so that its tables need no GPU."""


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the block, the former mode after it."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def token_losses(
    model: nn.Module,
    windows: Windows,
    index: NDArray[np.integer] | None = None,
    label: str = "loss of every token",
) -> NDArray[np.float32]:
    """Bits of every prediction of the windows ``index`` (all, without it), float32 (n, length − 1)."""
    chosen = torch.arange(len(windows)) if index is None else torch.from_numpy(np.asarray(index, np.int64))
    outside = chosen[(chosen < 0) | (chosen >= len(windows))]
    if len(outside):
        raise UserError(
            f"window {int(outside[0])} was asked for, but the split has {len(windows):,} windows; "
            "use a battery made from this split"
        )
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    largest = int(windows.tokens.numpy(force=True).max())  # PyTorch has no maximum of uint16
    if vocabulary is not None and largest >= vocabulary:
        raise UserError(
            f"the text holds token {largest}, but the model knows {vocabulary} symbols; "
            "measure it on the corpus it was trained on"
        )
    found = np.empty((len(chosen), windows.length - 1), np.float32)
    there, low = windows.to(next(model.parameters()).device), 0
    for nats in window_losses(model, there, chosen, batch_size=BATCH, label=label):
        found[low : low + len(nats)] = (nats.float() / NATS_PER_BIT).cpu().numpy()
        low += len(nats)
    return found


def battery_losses(
    model: nn.Module, tokens: Tensor, battery: Battery, label: str = "loss of every token"
) -> NDArray[np.float32]:
    """:func:`token_losses` on the windows of a copy-depth battery, cut from a split: (n, T−1)."""
    windows = Windows(tokens, battery.length, battery.stride, battery.end)
    return token_losses(model, windows, battery.windows, label)


def run_losses(
    run: Run, corpus: Corpus, battery: Battery, device: str | torch.device = "cpu"
) -> NDArray[np.float32]:
    """Losses of a run's best weights on a battery of its validation split, measured now."""
    check_corpus(run, corpus)
    if weights_hash(run.folder) is None:
        raise UserError(
            f"{run.folder} has no best.safetensors, so its losses cannot be measured; copy its weights too"
        )
    model = run.load_model("best", device)
    return battery_losses(model, corpus.valid, battery, f"losses of {run.name}")


def stored_losses(run: Run, battery: Battery) -> NDArray[np.float32] | None:
    """The losses kept in a run folder, if they belong to its weights, its text and these windows.

    They name their weights, so that they serve where those were not kept.
    """
    path, there = run.folder / FILE, weights_hash(run.folder)
    if not path.is_file():
        return None
    weights = losses_weights(run.folder) or there
    if weights is None or there not in (None, weights):
        return None
    hashes.read(run.folder, FILE)  # says so where it was edited or damaged
    stored = read_arrays(path, "bits", "mark")
    mark = _mark(weights, str(run.config["corpus"]["sha256"]), battery)
    if stored is None or stored[1].tobytes() != mark.encode():
        return None
    fits = stored[0].shape == battery.depth.shape and stored[0].dtype in (np.float32, np.float16)
    return stored[0].astype(np.float32) if fits else None


def losses_weights(folder: Path) -> str | None:
    """The sha256 of the weights whose losses a folder keeps; None where it keeps none, or they do not say."""
    named = read_arrays(folder / FILE, "weights") if (folder / FILE).is_file() else None
    return None if named is None else named[0].tobytes().decode("ascii", "replace")


def store_losses(
    folder: Path, weights: str, sha256: str, battery: Battery, bits: NDArray[np.floating]
) -> None:
    """Keep losses in an archived run as ``token_losses.npz``, in half precision: to 0.0005 of a loss of one bit.

    ``weights`` and ``sha256`` are the hashes of the weights and of the text they were measured on.
    """
    words = {"mark": _mark(weights, sha256, battery), "weights": weights}
    coded = {name: np.frombuffer(word.encode(), np.uint8) for name, word in words.items()}
    with atomic_file(folder / FILE) as file:
        np.savez_compressed(file, bits=bits.astype(np.float16), **coded)  # type: ignore[arg-type]


def _mark(weights: str, sha256: str, battery: Battery) -> str:
    """What losses belong to: the weights, the text, the windows."""
    key = hashlib.sha256(f"{weights} {sha256} {battery.length} {battery.stride} ".encode())
    key.update(battery.windows.tobytes())
    return key.hexdigest()


def read_arrays(path: Path, *names: str) -> list[NDArray[Any]] | None:
    """Arrays of an .npz file, read without pickle; ``None`` if it is not there, damaged, or lacks one."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
