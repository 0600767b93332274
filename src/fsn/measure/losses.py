"""Loss of every single token, in bits: what the copy-depth instrument compares between models."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import zipfile
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fsn.data import Corpus
from fsn.data.cache import cache_folder
from fsn.errors import UserError
from fsn.io import atomic_file
from fsn.measure.copy_depth import CACHE_FORMAT, Battery, Tokens, windows_of
from fsn.measure.runs import check_corpus
from fsn.progress import Bar
from fsn.train.recipe import Precision
from fsn.train.run import Run
from fsn.train.world import autocast

NATS_PER_BIT = math.log(2.0)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the block, the former mode after it."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def per_token_losses(
    model: nn.Module,
    tokens: Tokens,
    *,
    windows: NDArray[np.integer] | None = None,
    length: int = 256,
    stride: int = 128,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    precision: Precision = "fp32",
    description: str = "loss of every token",
) -> NDArray[np.float32]:
    """Bits of every prediction, float32 (n, length − 1).

    ``tokens`` is a split, a vector of tokens from which windows of ``length`` are cut every ``stride``, or
    windows (n, length) already cut. ``windows`` (n,) picks some of them by number, in the given order.
    Without a ``device`` the model stays where it is; with one it is moved there.
    """
    two_dimensional = tokens.ndim == 2
    cut = np.asarray(tokens) if two_dimensional else windows_of(tokens, length, stride)
    chosen = np.arange(len(cut)) if windows is None else np.asarray(windows)
    if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(cut):
        raise UserError(
            f"Window {int(chosen.max())} was asked for, but the split has {len(cut):,} windows; "
            "use a battery made from this split."
        )
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    if vocabulary is not None and len(chosen) and int(cut[chosen].max()) >= vocabulary:
        raise UserError(
            f"The text holds token {int(cut[chosen].max())}, but the model knows {vocabulary} symbols; "
            "measure it on the corpus it was trained on."
        )
    if device is not None:
        model = model.to(device)
    place = next(model.parameters()).device
    losses = np.empty((len(chosen), cut.shape[1] - 1), np.float32)
    with evaluating(model), Bar(description, total=len(chosen)) as bar:
        for start in range(0, len(chosen), batch_size):
            batch = torch.from_numpy(cut[chosen[start : start + batch_size]].astype(np.int64)).to(place)
            with autocast(precision, place):
                nats = model.loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())  # type: ignore[operator]
            losses[start : start + len(batch)] = (nats.float() / NATS_PER_BIT).cpu().numpy()
            bar.update(len(batch))
    return losses


def battery_losses(
    model: nn.Module,
    tokens: Tokens,
    battery: Battery,
    *,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    precision: Precision = "fp32",
    description: str = "loss of every token",
) -> NDArray[np.float32]:
    """:func:`per_token_losses` on the windows of a copy-depth battery, (n, T−1)."""
    return per_token_losses(
        model,
        tokens,
        windows=battery.windows,
        length=battery.length,
        stride=battery.stride,
        device=device,
        batch_size=batch_size,
        precision=precision,
        description=description,
    )


def run_losses(
    run: Run,
    corpus: Corpus,
    battery: Battery,
    *,
    split: str = "valid",
    device: str | torch.device | None = None,
    batch_size: int = 64,
    precision: Precision = "fp32",
    cache: str | os.PathLike[str] | None = None,
) -> NDArray[np.float32]:
    """Losses of a run's best weights on a battery, kept in the cache folder so that a second table is free.

    The file is named by a hash of the weights, the text, the windows and the precision; a damaged one is
    made again.
    """
    check_corpus(run, corpus)
    weights = run.folder / "best.safetensors"
    if not weights.is_file():
        raise UserError(
            f"{run.folder} has no best.safetensors, so its losses cannot be measured; copy its weights too."
        )
    with open(weights, "rb") as file:
        key = hashlib.file_digest(file, "sha256")
    setting = f"{corpus.sha256} {split} {battery.length} {battery.stride} {precision} {CACHE_FORMAT}"
    key.update(setting.encode() + battery.windows.tobytes())
    path = cache_folder(cache) / "losses" / f"losses-{key.hexdigest()[:24]}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            bits = stored["bits"]
        if bits.shape == battery.depth.shape and bits.dtype == np.float32:
            return bits
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    bits = battery_losses(
        run.load_model("best"),
        getattr(corpus, split),
        battery,
        device=device,
        batch_size=batch_size,
        precision=precision,
        description=f"losses of {run.name}",
    )
    with contextlib.suppress(OSError), atomic_file(path) as file:
        np.savez_compressed(file, bits=bits)
    return bits
