"""Intervals by resampling, without a Python loop over resamples, and summaries over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

CLUSTER_RESAMPLES = 4000
POSITION_RESAMPLES = 2000
LEVEL = 0.95
BLOCK_WINDOWS = 8
"""Neighbouring windows that are drawn together where overlap matters."""
_BLOCK = 1 << 22  # draws held in memory at once


class Interval(NamedTuple):
    """An estimate and the two ends of its percentile interval; ``nan`` where nothing could be measured."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SeedSummary:
    """Several seeds of one thing: mean, sample standard deviation (``nan`` for one seed), extremes, count."""

    mean: float
    std: float
    low: float
    high: float
    count: int

    @property
    def range(self) -> float:
        return self.high - self.low

    def row(self) -> dict[str, float]:
        """As columns of a table."""
        return {"mean": self.mean, "std": self.std, "min": self.low, "max": self.high}


def seed_summary(values: Sequence[float]) -> SeedSummary:
    """Mean, sample standard deviation (divided by n − 1), minimum and maximum over seeds."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise UserError("there is no seed to summarise; give at least one run")
    spread = float(array.std(ddof=1)) if array.size > 1 else float("nan")
    return SeedSummary(float(array.mean()), spread, float(array.min()), float(array.max()), int(array.size))


def _percentiles(means: NDArray[np.float64]) -> tuple[float, float]:
    tail = 50.0 * (1.0 - LEVEL)
    low, high = np.percentile(means, [tail, 100.0 - tail])
    return float(low), float(high)


def resample_counts(items: int, resamples: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """How often each item is drawn in each resample, (resamples, items): rows sum to ``items``."""
    counts = np.empty((resamples, items), np.float64)
    rows = max(1, _BLOCK // max(items, 1))
    for start in range(0, resamples, rows):
        n = min(rows, resamples - start)
        drawn = generator.integers(0, items, size=(n, items), dtype=np.int64)
        drawn += items * np.arange(n, dtype=np.int64)[:, None]
        counts[start : start + n] = np.bincount(drawn.ravel(), minlength=n * items).reshape(n, items)
    return counts


def cluster_bootstrap(
    values: NDArray[np.floating],
    mask: NDArray[np.bool_],
    resamples: int = CLUSTER_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The mean of ``values`` (n, T) over ``mask`` and its interval when whole windows are drawn again.

    Tokens of one window share their text, so they are drawn together. With s_w the sum and n_w the number
    of masked tokens of window w, and c_w how often a resample drew the window,

        mean = Σ_w c_w s_w / Σ_w c_w n_w,

    which for all resamples at once is two products with the matrix of counts. Windows without a masked
    token carry nothing and are left out of the draw. The same seed draws the same windows for every model.
    """
    n = mask.sum(axis=1)
    held = n > 0
    if not held.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    total = np.where(mask, values, 0.0).sum(axis=1, dtype=np.float64)[held]
    n = n[held].astype(np.float64)
    counts = resample_counts(len(n), resamples, np.random.default_rng(seed))
    means = (counts @ total) / (counts @ n)
    return Interval(float(total.sum() / n.sum()), *_percentiles(means))


def in_blocks(values: NDArray[Any]) -> NDArray[Any]:
    """Neighbouring windows (n, T) joined to rows of :data:`BLOCK_WINDOWS`, the last filled up with zeros.

    Windows that overlap, or adjoin, share their text. Resampling such rows keeps neighbours together.
    """
    rows = -(-len(values) // BLOCK_WINDOWS)
    whole = np.zeros((rows * BLOCK_WINDOWS, *values.shape[1:]), values.dtype)
    whole[: len(values)] = values
    return whole.reshape(rows, -1)


def position_bootstrap(values: NDArray[np.floating], resamples: int = POSITION_RESAMPLES) -> Interval:
    """The mean of ``values`` (m,) and its interval when single positions are drawn again."""
    if values.size == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    array = np.ascontiguousarray(values, dtype=np.float64)
    generator = np.random.default_rng(0)
    means = np.empty(resamples)
    rows = max(1, _BLOCK // array.size)
    for start in range(0, resamples, rows):
        n = min(rows, resamples - start)
        drawn = generator.integers(0, array.size, size=(n, array.size), dtype=np.uint32)
        means[start : start + n] = array[drawn].mean(axis=1)
    return Interval(float(array.mean()), *_percentiles(means))
