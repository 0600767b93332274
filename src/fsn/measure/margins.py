"""Copy-depth margins: how many bits a model gains or loses against a reference on the very same tokens.

The margin on a set of tokens is the mean of (model loss − reference loss) in bits; negative favours the
model. The reference is one run, or the mean over several runs of the loss of each token. Losses are arrays
(n, T−1) over the windows of a :class:`~fsn.measure.copy_depth.Battery`, as
:func:`~fsn.measure.losses.battery_losses` returns them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsn.errors import UserError
from fsn.measure.bootstrap import (
    CLUSTER_RESAMPLES,
    POSITION_RESAMPLES,
    cluster_bootstrap,
    position_bootstrap,
    seed_summary,
)
from fsn.measure.copy_depth import BINS, CAP, Battery, bin_name, distance_bins
from fsn.measure.tables import Table

Losses = NDArray[np.floating]
Edges = tuple[tuple[int, int], ...]


def reference_losses(reference: Losses | Sequence[Losses]) -> NDArray[np.float64]:
    """One reference as it is, several as the mean of each token's loss."""
    if isinstance(reference, np.ndarray) and reference.ndim == 2:
        return reference.astype(np.float64)
    stack = [np.asarray(one, dtype=np.float64) for one in reference]
    if not stack or any(one.shape != stack[0].shape for one in stack):
        raise UserError("The reference runs were measured on different windows; measure them on one battery.")
    return np.mean(stack, axis=0)


def paired_difference(
    losses: Losses, reference: Losses | Sequence[Losses], battery: Battery
) -> NDArray[np.float64]:
    """Model minus reference for every token of the battery, in bits, (n, T−1)."""
    base = reference_losses(reference)
    if losses.shape != battery.depth.shape or base.shape != battery.depth.shape:
        raise UserError(
            f"Losses of shape {losses.shape} and {base.shape} do not belong to a battery of shape "
            f"{battery.depth.shape}; measure both runs on this battery."
        )
    return losses.astype(np.float64) - base


def _mean(values: NDArray[np.floating], mask: NDArray[np.bool_]) -> float:
    return float(values[mask].mean(dtype=np.float64)) if mask.any() else float("nan")


def margin_table(
    losses: Mapping[str, Losses],
    reference: Losses | Sequence[Losses],
    battery: Battery,
    bins: Edges = BINS,
    slices: str = "paper",
    resamples: int = CLUSTER_RESAMPLES,
    seed: int = 0,
) -> Table:
    """Margins of several runs by depth bin, with window-cluster 95 % intervals and both absolute losses.

    One row per run and bin: run, bin, tokens, windows, margin, low, high, loss, reference. ``slices`` is
    ``"paper"`` (shallow bins from the standard slice, bins from 16 on from both), ``"standard"``,
    ``"enriched"`` or ``"both"``.
    """
    base = reference_losses(reference)
    rows = []
    for name, loss in losses.items():
        difference = paired_difference(loss, base, battery)
        for edges in bins:
            mask = battery.mask(edges, slices)
            margin = cluster_bootstrap(difference, mask, resamples, seed)
            rows.append(
                {
                    "run": name,
                    "bin": bin_name(edges),
                    "tokens": int(mask.sum()),
                    "windows": int(mask.any(axis=1).sum()),
                    "margin": margin.value,
                    "low": margin.low,
                    "high": margin.high,
                    "loss": _mean(loss, mask),
                    "reference": _mean(base, mask),
                }
            )
    return Table(
        ("run", "bin", "tokens", "windows", "margin", "low", "high", "loss", "reference"),
        rows,
        {name: "+.4f" for name in ("margin", "low", "high")} | {"loss": ".4f", "reference": ".4f"},
        "Copy-depth margins in bits per character, window-cluster 95 % intervals; negative favours the run.",
    )


def depth_losses(losses: Mapping[str, Losses], battery: Battery, bins: Edges = BINS) -> Table:
    """Bits per target of several runs by depth bin: a margin may come from a good model or from a poor reference."""
    rows = []
    for edges in bins:
        mask = battery.mask(edges)
        means = {name: _mean(loss, mask) for name, loss in losses.items()}
        rows.append({"depth": bin_name(edges), "targets": int(mask.sum()), **means})
    return Table(("depth", "targets", *losses), rows, {"targets": ",d", **dict.fromkeys(losses, ".4f")})


def family_table(margins: Table, families: Mapping[str, Sequence[str]]) -> Table:
    """Seed means of a :func:`margin_table`: mean, sample deviation and extremes over the runs of a family."""
    rows = []
    for family, runs in families.items():
        missing = [run for run in runs if run not in margins.column("run")]
        if missing:
            raise UserError(
                f"The family {family!r} names {missing[0]!r}, which has no row in the margins table."
            )
        for name in dict.fromkeys(margins.column("bin")):
            cells = [margins.where(run=run, bin=name).rows[0] for run in runs]
            summary = seed_summary([cell["margin"] for cell in cells])
            rows.append(
                {
                    "family": family,
                    "bin": name,
                    "tokens": cells[0]["tokens"],
                    "seeds": summary.count,
                    "mean": summary.mean,
                    "std": summary.std,
                    "min": summary.low,
                    "max": summary.high,
                    "range": summary.range,
                    "loss": float(np.mean([cell["loss"] for cell in cells])),
                }
            )
    return Table(
        ("family", "bin", "tokens", "seeds", "mean", "std", "min", "max", "range", "loss"),
        rows,
        {name: "+.4f" for name in ("mean", "min", "max")}
        | {name: ".4f" for name in ("std", "range", "loss")},
        "Seed means of the copy-depth margins, in bits per character.",
    )


def recombined(margins: Table, run: str, column: str = "loss") -> float:
    """The token-weighted mean over the bins of one run; on the standard slice this is the slice's loss."""
    rows = [row for row in margins.where(run=run).rows if row["tokens"]]
    tokens = np.array([row["tokens"] for row in rows], dtype=np.float64)
    return float(np.array([row[column] for row in rows]) @ tokens / tokens.sum())


@dataclass(frozen=True)
class DepthCurve:
    """Seed-mean margin at every exact depth 0 … 32 with its band; the last point pools all deeper matches."""

    depth: NDArray[np.int64]
    tokens: NDArray[np.int64]
    margin: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def table(self) -> Table:
        columns = ("depth", "tokens", "margin", "low", "high")
        data = zip(self.depth, self.tokens, self.margin, self.low, self.high, strict=True)
        rows = [
            dict(zip(columns, (int(d), int(n), float(m), float(a), float(b)), strict=True))
            for d, n, m, a, b in data
        ]
        return Table(columns, rows, {name: "+.4f" for name in columns[2:]})


def depth_curve(
    seeds: Sequence[Losses],
    reference: Losses | Sequence[Losses],
    battery: Battery,
    slices: str = "paper",
    resamples: int = POSITION_RESAMPLES,
    seed: int = 0,
) -> DepthCurve:
    """Margin of the seed mean at every exact depth, with position-bootstrap 95 % bands."""
    base = reference_losses(reference)
    difference = np.mean([paired_difference(loss, base, battery) for loss in seeds], axis=0)
    depths = np.arange(CAP + 1)
    masks = [battery.mask((d, d), slices) for d in range(CAP + 1)]
    cells = [position_bootstrap(difference[mask], resamples, seed) for mask in masks]
    return DepthCurve(
        depths,
        np.array([mask.sum() for mask in masks]),
        np.array([cell.value for cell in cells]),
        np.array([cell.low for cell in cells]),
        np.array([cell.high for cell in cells]),
    )


def depth_distance_table(
    seeds: Sequence[Losses],
    reference: Losses | Sequence[Losses],
    battery: Battery,
    bins: Edges = BINS,
    distances: Edges | None = None,
    slices: str = "paper",
    resamples: int = CLUSTER_RESAMPLES,
    seed: int = 0,
) -> Table:
    """Margin of the seed mean by depth and by distance back to the most recent longest match.

    The paper leaves distance to future work. A target without any match has no distance and is in no cell.
    """
    base = reference_losses(reference)
    difference = np.mean([paired_difference(loss, base, battery) for loss in seeds], axis=0)
    mean_loss = np.mean([np.asarray(loss, dtype=np.float64) for loss in seeds], axis=0)
    rows = []
    for edges in bins:
        deep = battery.mask(edges, slices)
        for near, far in distances or distance_bins(battery.length):
            mask = deep & (battery.distance >= near) & (battery.distance <= far)
            margin = cluster_bootstrap(difference, mask, resamples, seed)
            rows.append(
                {
                    "bin": bin_name(edges),
                    "distance": bin_name((near, far)),
                    "tokens": int(mask.sum()),
                    "margin": margin.value,
                    "low": margin.low,
                    "high": margin.high,
                    "loss": _mean(mean_loss, mask),
                }
            )
    return Table(
        ("bin", "distance", "tokens", "margin", "low", "high", "loss"),
        rows,
        {name: "+.4f" for name in ("margin", "low", "high")} | {"loss": ".4f"},
        "Copy-depth margins by depth and distance to the matching occurrence, in bits per character.",
    )
