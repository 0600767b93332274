"""Copy depth: how long a stretch of the window, ending at the target, was seen earlier in the same window.

For the target at position t of a window (t = 1 … T−1) let m be the length of the longest suffix that ends
at t, the target included, and also ends at some earlier position of the window; the two stretches may
overlap. Then

    depth(t) = min(max(m − 1, 0), 32),

the number of characters in front of the target that matched an earlier place which was followed by this very
target. Depth depends on the text alone, so it is computed once per corpus and kept.

The distance to the most recent of the longest matches comes for free and is kept beside the depth.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fsn.data import Corpus
from fsn.data.cache import cache_folder
from fsn.errors import UserError
from fsn.io import atomic_file
from fsn.progress import Bar

CAP = 32
"""Depths beyond this count as this."""

BINS: tuple[tuple[int, int], ...] = ((0, 1), (2, 3), (4, 7), (8, 15), (16, 23), (24, 32))
"""The paper's six bins, both ends included."""

EARLY_BINS: tuple[tuple[int, int], ...] = ((0, 0), (1, 3), (4, 7), (8, 15), (16, 23), (24, 32))
"""The shallow binning of the paper's early-checkpoint result."""

STANDARD_WINDOWS = 1024
ENRICHED_WINDOWS = 192
DEEP = 24
"""A target this deep counts as deep when the enriched windows are picked."""

CACHE_FORMAT = 1

Tokens = NDArray[np.integer] | torch.Tensor


def bin_name(edges: tuple[int, int]) -> str:
    """``(4, 7)`` → ``"4–7"``, ``(0, 0)`` → ``"0"``."""
    low, high = edges
    return f"{low}" if low == high else f"{low}–{high}"


def distance_bins(length: int = 256) -> tuple[tuple[int, int], ...]:
    """Octaves of the distance back to the matching occurrence: 1–15, 16–31, 32–63, … up to the window."""
    edges, low = [(1, min(15, length - 1))], 16
    while low < length:
        edges.append((low, min(2 * low - 1, length - 1)))
        low *= 2
    return tuple(edges)


def windows_of(tokens: Tokens, length: int = 256, stride: int = 128) -> NDArray[np.uint8]:
    """Every full window of a sequence as a read-only view (n, length); window i starts at i · stride."""
    array = tokens.detach().cpu().numpy() if isinstance(tokens, torch.Tensor) else np.asarray(tokens)
    if length < 2 or stride < 1:
        raise UserError(f"A window needs length ≥ 2 and stride ≥ 1, not length {length} and stride {stride}.")
    if array.ndim != 1 or len(array) < length:
        raise UserError(
            f"Cannot cut windows of {length} tokens from a sequence of shape {tuple(array.shape)}; "
            "use a longer split or a shorter window."
        )
    return np.lib.stride_tricks.sliding_window_view(array, length)[::stride]


def longest_matches(
    windows: NDArray[np.integer], chunk: int = 1024, progress: str | None = None
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Length of the longest earlier match of every target, and the distance back to it.

    Walk along the windows and keep, for every lag d, the length of the run of equalities that ends here:

        run_d(t) = (run_d(t−1) + 1) · [w_t = w_{t−d}],        m(t) = max_d run_d(t).

    The walk is one of Python over t and of numpy over lags and windows. Run and lag live in one integer,
    ``run · T + (T − 1 − d)``, so that a single maximum finds the longest run and, among equals, the nearest.

    Returns ``(m, d)``, each (n, T−1); d is 0 where m is 0. The length is not capped here.
    """
    count, length = windows.shape
    kind = np.uint16 if length <= 256 else np.uint32
    match = np.empty((count, length - 1), np.uint16)
    distance = np.empty((count, length - 1), np.uint16)
    nearness = np.arange(length - 2, -1, -1, dtype=kind)[:, None]  # T − 1 − d for d = 1 … T − 1
    with Bar(progress or "copy depth", total=count) as bar:
        for start in range(0, count, chunk):
            w = np.ascontiguousarray(windows[start : start + chunk].T)  # (T, c)
            backwards = np.ascontiguousarray(w[::-1])  # row T − t + (d − 1) holds w_{t − d}
            run = np.zeros((length - 1, w.shape[1]), kind)  # row d − 1: run_d · T
            key, equal = np.empty_like(run), np.empty(run.shape, bool)
            best = np.empty((length - 1, w.shape[1]), kind)
            for t in range(1, length):
                np.equal(w[t], backwards[length - t :], out=equal[:t])
                run[:t] += kind(length)
                run[:t] *= equal[:t]
                np.add(run[:t], nearness[:t], out=key[:t])
                key[:t].max(axis=0, out=best[t - 1])
            found = best.T // kind(length)
            match[start : start + chunk] = found
            distance[start : start + chunk] = np.where(found > 0, length - 1 - best.T % kind(length), 0)
            bar.update(w.shape[1])
    return match, distance


@dataclass(frozen=True)
class CopyDepth:
    """``match`` and ``distance`` (n, T−1) of the windows of ``length`` tokens that start every ``stride``."""

    match: NDArray[np.uint16]
    distance: NDArray[np.uint16]
    length: int
    stride: int

    @property
    def depth(self) -> NDArray[np.uint8]:
        """depth = min(max(m − 1, 0), 32), (n, T−1)."""
        return np.minimum(np.maximum(self.match, 1) - 1, CAP).astype(np.uint8)

    def share(self, at_least: int = DEEP) -> float:
        """Share of all targets of at least this depth."""
        return float((self.depth >= at_least).mean())


def label_windows(windows: NDArray[np.integer], stride: int = 0) -> CopyDepth:
    """Labels of windows (n, T) that are already cut."""
    match, distance = longest_matches(windows)
    return CopyDepth(match, distance, windows.shape[1], stride)


def label_split(
    tokens: Tokens,
    length: int = 256,
    stride: int = 128,
    corpus_hash: str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> CopyDepth:
    """Labels of a whole split, read from ``cache`` when they are there and written there when not.

    The file is named by the hash of the corpus, the tokens and the window parameters, written in one step,
    and read without pickle; a damaged one is made again. ``corpus_hash`` is ``corpus.sha256``; without a
    cache folder it is not needed.
    """
    windows = windows_of(tokens, length, stride)
    if cache is None:
        return CopyDepth(*longest_matches(windows), length, stride)
    array = tokens.detach().cpu().numpy() if isinstance(tokens, torch.Tensor) else np.asarray(tokens)
    key = hashlib.sha256(f"{corpus_hash} {length} {stride} {CACHE_FORMAT} {array.dtype.str} ".encode())
    key.update(np.ascontiguousarray(array).data)
    path = Path(cache) / f"copy-depth-{key.hexdigest()[:24]}.npz"
    labels = _read(path, (len(windows), length - 1), length, stride)
    if labels is None:
        labels = CopyDepth(*longest_matches(windows), length, stride)
        # A cache that cannot be written costs the next caller a few seconds, nothing else.
        with contextlib.suppress(OSError), atomic_file(path) as file:
            np.savez_compressed(file, match=labels.match, distance=labels.distance)
    return labels


def label_corpus(
    corpus: Corpus,
    split: str = "valid",
    length: int = 256,
    stride: int = 128,
    cache: str | os.PathLike[str] | None = None,
) -> CopyDepth:
    """Labels of a split of a corpus, kept in the cache folder under ``copy-depth/``."""
    tokens = getattr(corpus, split)
    return label_split(tokens, length, stride, corpus.sha256, cache_folder(cache) / "copy-depth")


def _read(path: Path, shape: tuple[int, int], length: int, stride: int) -> CopyDepth | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            match, distance = stored["match"], stored["distance"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if match.shape != shape or distance.shape != shape or match.dtype != np.uint16:
        return None
    return CopyDepth(match, distance, length, stride)


def enriched_windows(
    depth: NDArray[np.integer], count: int = ENRICHED_WINDOWS, after: int = STANDARD_WINDOWS, deep: int = DEEP
) -> NDArray[np.int64]:
    """The windows behind the standard slice with the most deep targets, in the order of the text.

    The paper says only that its 192 windows were "selected in advance for high deep-copy density". Here
    they are the ``count`` windows after the first ``after`` with the most targets of depth ≥ ``deep``; ties
    go to the earlier window. On enwik8 this gives 6,875 and 13,325 targets in the two deep bins where the
    paper has 6,656 and 12,626.
    """
    density = (depth[after:] >= deep).sum(axis=1)
    return np.sort(after + np.argsort(-density, kind="stable")[:count]).astype(np.int64)


@dataclass(frozen=True)
class Battery:
    """The targets every model is measured on: two slices of windows and the labels of their targets.

    ``windows`` (n,) are window numbers of the split, ``enriched`` (n,) says which come from the enriched
    slice, ``depth`` and ``distance`` are (n, T−1).
    """

    windows: NDArray[np.int64]
    enriched: NDArray[np.bool_]
    depth: NDArray[np.uint8]
    distance: NDArray[np.uint16]
    length: int
    stride: int

    def rows(self, slices: str) -> NDArray[np.bool_]:
        """Which windows belong to ``"standard"``, ``"enriched"`` or ``"both"``."""
        if slices not in ("standard", "enriched", "both"):
            raise UserError(f"There is no slice {slices!r}; choose standard, enriched or both.")
        return {
            "standard": ~self.enriched,
            "enriched": self.enriched,
            "both": np.ones_like(self.enriched),
        }[slices]

    def mask(self, edges: tuple[int, int], slices: str = "paper") -> NDArray[np.bool_]:
        """The targets (n, T−1) of a depth bin, both edges included.

        ``"paper"`` takes shallow bins from the standard slice and bins from depth 16 on from both slices.
        """
        if slices == "paper":
            slices = "both" if edges[0] >= 16 else "standard"
        inside = (self.depth >= edges[0]) & (self.depth <= edges[1])
        return inside & self.rows(slices)[:, None]

    def counts(self, bins: tuple[tuple[int, int], ...] = BINS, slices: str = "paper") -> list[int]:
        """Targets per bin."""
        return [int(self.mask(edges, slices).sum()) for edges in bins]


def battery(labels: CopyDepth, standard: int = STANDARD_WINDOWS, enriched: int = ENRICHED_WINDOWS) -> Battery:
    """The standard slice (the first ``standard`` windows) and the enriched slice of a labelled split."""
    depth = labels.depth
    first = np.arange(min(standard, len(depth)), dtype=np.int64)
    extra = enriched_windows(depth, enriched, after=len(first))
    chosen = np.concatenate([first, extra])
    flags = np.arange(len(chosen)) >= len(first)
    return Battery(chosen, flags, depth[chosen], labels.distance[chosen], labels.length, labels.stride)
