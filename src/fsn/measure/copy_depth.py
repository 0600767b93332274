"""Copy depth: where in the text a model is ahead, by the length of the earlier match that a target continues.

For the target at position t of a window (t = 1 … T−1) let m be the length of the longest suffix that ends
at t, the target included, and also ends at some earlier position of the window; the two stretches may
overlap. Then

    depth(t) = min(max(m − 1, 0), 32),

the number of characters in front of the target that matched an earlier place which was followed by this very
target. Depth depends on the text alone, so it is computed once per corpus and kept, with the distance to the most
recent of the longest matches.

The margin on a set of targets is the mean of (model loss − reference loss) in bits; negative favours the model. The
reference is one run, or the mean over several runs of the loss of each target. Losses are arrays (n, T−1) over the
windows of a :class:`Battery`, as :func:`~fsn.measure.losses.battery_losses` returns them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ..data import Corpus, Windows
from ..data.cache import cache_folder
from ..errors import UserError
from ..io import atomic_file
from ..progress import Bar
from .bootstrap import (
    CLUSTER_RESAMPLES,
    POSITION_RESAMPLES,
    cluster_bootstrap,
    in_blocks,
    position_bootstrap,
    seed_summary,
)
from .finding import Finding, Subject, instrument
from .losses import battery_losses, read_arrays
from .style import MARKERS, WIDTH, colours, drawing, heat_map, legend, zero_line
from .tables import Table, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Losses = NDArray[np.floating]
Edges = tuple[tuple[int, int], ...]

CAP = 32
"""Depths beyond this count as this."""

BINS: Edges = ((0, 1), (2, 3), (4, 7), (8, 15), (16, 23), (24, 32))
"""The paper's six bins, both ends included."""

EARLY_BINS: Edges = ((0, 0), (1, 3), (4, 7), (8, 15), (16, 23), (24, 32))
"""The shallow binning of the paper's early-checkpoint result."""

STANDARD_WINDOWS = 1024
ENRICHED_WINDOWS = 192
DEEP = 24
"""A target this deep counts as deep when the enriched windows are picked."""

CACHE_FORMAT = 1

# -- labels ------------------------------------------------------------------------------------------------


def bin_name(edges: tuple[int, int]) -> str:
    """``(4, 7)`` → ``"4–7"``, ``(0, 0)`` → ``"0"``."""
    low, high = edges
    return f"{low}" if low == high else f"{low}–{high}"


def distance_bins(length: int = 256) -> Edges:
    """Octaves of the distance back to the matching occurrence: 1–15, 16–31, 32–63, … up to the window."""
    edges, low = [(1, min(15, length - 1))], 16
    while low < length:
        edges.append((low, min(2 * low - 1, length - 1)))
        low *= 2
    return tuple(edges)


@dataclass(frozen=True)
class CopyDepth:
    """``match`` and ``distance`` (n, T−1) of the windows of ``length`` tokens that start every ``stride``: of every
    target the length of the longest earlier match, not capped, and the distance back to it, 0 where there is none."""

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


def label(windows: Windows, chunk: int = 1024) -> CopyDepth:
    """Labels of every target of every window.

    Walk along the windows and keep, for every lag d, the length of the run of equalities that ends here:

        run_d(t) = (run_d(t−1) + 1) · [w_t = w_{t−d}],        m(t) = max_d run_d(t).

    The walk is one of Python over t and of numpy over lags and windows. Run and lag live in one integer,
    ``run · T + (T − 1 − d)``, so that a single maximum finds the longest run and, among equals, the nearest.
    """
    count, length = len(windows), windows.length
    kind = np.uint16 if length <= 256 else np.uint32
    match = np.empty((count, length - 1), np.uint16)
    distance = np.empty((count, length - 1), np.uint16)
    nearness = np.arange(length - 2, -1, -1, dtype=kind)[:, None]  # T − 1 − d for d = 1 … T − 1
    with Bar("copy depth", total=count) as bar:
        for start in range(0, count, chunk):
            cut = windows.gather(torch.arange(start, min(start + chunk, count)))
            w = np.ascontiguousarray(cut.to(windows.tokens.dtype).numpy().T)  # (T, c)
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
    return CopyDepth(match, distance, length, windows.stride)


def label_corpus(
    corpus: Corpus,
    split: str = "valid",
    length: int = 256,
    stride: int = 128,
    cache: str | os.PathLike[str] | None = None,
) -> CopyDepth:
    """Labels of a split of a corpus, kept in the cache folder under ``copy-depth/``.

    The file is named by the hash of the corpus, the tokens and the window parameters, written in one step; a damaged
    one is made again.
    """
    windows = Windows(getattr(corpus, split), length, stride)
    array = windows.tokens.numpy()
    key = hashlib.sha256(f"{corpus.sha256} {length} {stride} {CACHE_FORMAT} {array.dtype.str} ".encode())
    key.update(np.ascontiguousarray(array).data)
    path = cache_folder(cache) / "copy-depth" / f"copy-depth-{key.hexdigest()[:24]}.npz"
    stored = read_arrays(path, "match", "distance")
    shape = (len(windows), length - 1)
    if stored is not None and all(part.shape == shape and part.dtype == np.uint16 for part in stored):
        return CopyDepth(stored[0], stored[1], length, stride)
    labels = label(windows)
    # A cache that cannot be written costs the next caller a few seconds, nothing else.
    with contextlib.suppress(OSError), atomic_file(path) as file:
        np.savez_compressed(file, match=labels.match, distance=labels.distance)
    return labels


# -- the battery: which targets ------------------------------------------------------------------------------


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
    end: int | None = None
    """The token in front of each document, where a model keeps documents apart."""

    def mask(self, edges: tuple[int, int], slices: str = "paper") -> NDArray[np.bool_]:
        """The targets (n, T−1) of a depth bin, both edges included, of the standard or enriched slice or of both.

        ``"paper"`` takes shallow bins from the standard slice and bins from depth 16 on from both slices.
        """
        if slices == "paper":
            slices = "both" if edges[0] >= 16 else "standard"
        rows = {"standard": ~self.enriched, "enriched": self.enriched, "both": np.ones_like(self.enriched)}
        if slices not in rows:
            raise UserError(f"there is no slice {slices!r}; choose standard, enriched or both")
        return (self.depth >= edges[0]) & (self.depth <= edges[1]) & rows[slices][:, None]

    def sample(self, standard: int = 128, enriched: int = 96) -> Battery:
        """A smaller battery: so many windows of each slice, evenly spread over it."""
        chosen = []
        for wanted, rows in ((standard, ~self.enriched), (enriched, self.enriched)):
            there = np.flatnonzero(rows)
            chosen.append(there[np.linspace(0, len(there) - 1, min(wanted, len(there))).round().astype(int)])
        rows = np.concatenate(chosen)
        names = ("windows", "enriched", "depth", "distance")
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})

    def counts(self) -> list[int]:
        """Targets per bin."""
        return [int(self.mask(edges).sum()) for edges in BINS]


def battery(labels: CopyDepth, standard: int = STANDARD_WINDOWS, enriched: int = ENRICHED_WINDOWS) -> Battery:
    """The standard slice (the first ``standard`` windows) and the enriched slice of a labelled split.

    The paper says only that its 192 enriched windows were "selected in advance for high deep-copy density". Here
    they are those behind the standard slice with the most deep targets, in the order of the text; ties go to the
    earlier window. On enwik8 this gives 6,875 and 13,325 targets in the two deep bins where the paper has 6,656 and
    12,626.
    """
    depth = labels.depth
    first = np.arange(min(standard, len(depth)), dtype=np.int64)
    density = (depth[len(first) :] >= DEEP).sum(axis=1)
    extra = np.sort(len(first) + np.argsort(-density, kind="stable")[:enriched]).astype(np.int64)
    chosen = np.concatenate([first, extra])
    flags = np.arange(len(chosen)) >= len(first)
    return Battery(chosen, flags, depth[chosen], labels.distance[chosen], labels.length, labels.stride)


# -- margins: how many bits a model gains or loses against a reference on the very same tokens ----------------

DEPTH = "Copy depth: how many characters in front of the target stood earlier in the window, before it."
TARGETS = "Number of targets of this depth."
MARGIN = {
    "margin": (
        "Loss of the run minus loss of the other, in bits per target; below zero the run is ahead.",
        "+.4f",
    ),
    "low": ("Lower end of the margin's 95 % interval, in bits per target.", "+.4f"),
    "high": ("Upper end of the margin's 95 % interval, in bits per target.", "+.4f"),
    "block_low": ("The same when blocks of 8 neighbouring windows are drawn: lower end.", "+.4f"),
    "block_high": ("The same when blocks of 8 neighbouring windows are drawn: upper end.", "+.4f"),
}
ENDS = ("margin", "low", "high")
LOSS = ("Mean loss of the run on these targets, in bits per target.", ".4f")


def paired_difference(losses: Losses, reference: Losses, battery: Battery) -> NDArray[np.float64]:
    """Model minus reference for every token of the battery, in bits, (n, T−1)."""
    if losses.shape != battery.depth.shape or reference.shape != battery.depth.shape:
        raise UserError(
            f"losses of shape {losses.shape} and {reference.shape} do not belong to a battery of shape "
            f"{battery.depth.shape}; measure both runs on this battery"
        )
    return losses.astype(np.float64) - reference.astype(np.float64)


def mean_loss(values: NDArray[np.floating], mask: NDArray[np.bool_]) -> float:
    """Mean over the targets of a mask, ``nan`` where it has none."""
    return float(values[mask].mean(dtype=np.float64)) if mask.any() else float("nan")


def margin_table(
    losses: Mapping[str, Losses],
    reference: Losses,
    battery: Battery,
    bins: Edges = BINS,
    slices: str = "paper",
    resamples: int = CLUSTER_RESAMPLES,
) -> Table:
    """Margins of several runs by depth bin, with window-cluster 95 % intervals and both absolute losses: one row per
    run and bin. ``slices`` is that of :meth:`Battery.mask`."""
    rows = []
    for name, loss in losses.items():
        difference = paired_difference(loss, reference, battery)
        for edges in bins:
            mask = battery.mask(edges, slices)
            counts = {"tokens": int(mask.sum()), "windows": int(mask.any(axis=1).sum())}
            means = {"loss": mean_loss(loss, mask), "reference": mean_loss(reference, mask)}
            margin = _margin(difference, mask, resamples)
            rows.append({"run": name, "bin": bin_name(edges), **counts, **margin, **means})
    columns = {
        "run": "The run that is measured.",
        "bin": DEPTH,
        "tokens": TARGETS,
        "windows": "Number of windows that hold such a target.",
        **MARGIN,
        "loss": LOSS,
        "reference": ("Mean loss of the other run on these targets, in bits per target.", ".4f"),
    }
    caption = (
        "Copy-depth margins in bits per character, window-cluster 95 % intervals; negative favours the run."
    )
    return Table.of(columns, rows, caption)


def _margin(difference: NDArray[np.float64], mask: NDArray[np.bool_], resamples: int) -> dict[str, float]:
    """The margin and its intervals. Windows overlap by half and enriched ones adjoin, so blocks of 8 are drawn too."""
    found = dict(zip(ENDS, cluster_bootstrap(difference, mask, resamples), strict=True))
    blocks = cluster_bootstrap(in_blocks(difference), in_blocks(mask), resamples)
    return {**found, "block_low": blocks.low, "block_high": blocks.high}


def depth_losses(losses: Mapping[str, Losses], battery: Battery) -> Table:
    """Bits per target of several runs by depth bin: a margin may come from a good model or from a poor reference."""
    rows = []
    for edges in BINS:
        mask = battery.mask(edges)
        means = {name: mean_loss(loss, mask) for name, loss in losses.items()}
        rows.append({"depth": bin_name(edges), "targets": int(mask.sum()), **means})
    columns = {"depth": DEPTH, "targets": (TARGETS, ",d"), **dict.fromkeys(losses, LOSS)}
    return Table.of(columns, rows, "Loss by copy depth.")


def seed_mean_table(margins: Table, families: Mapping[str, Sequence[str]]) -> Table:
    """Seed means of a :func:`margin_table`: mean, sample deviation and extremes over the runs of a family."""
    rows = []
    for family, runs in families.items():
        for name in dict.fromkeys(margins.column("bin")):
            cells = [margins.where(run=run, bin=name).rows[0] for run in runs]
            summary = seed_summary([cell["margin"] for cell in cells])
            head = {"family": family, "bin": name, "tokens": cells[0]["tokens"], "seeds": summary.count}
            loss = float(np.mean([cell["loss"] for cell in cells]))
            rows.append({**head, **summary.row(), "range": summary.range, "loss": loss})
    columns = {
        "family": "The model, or the run.",
        "bin": DEPTH,
        "tokens": TARGETS,
        "seeds": "Number of runs.",
        "mean": ("Mean margin over the runs, in bits per target; below zero they are ahead.", "+.4f"),
        "std": ("Sample standard deviation over the runs, in bits per target.", ".4f"),
        "min": ("Lowest margin of a run, in bits per target.", "+.4f"),
        "max": ("Highest margin of a run, in bits per target.", "+.4f"),
        "range": ("Highest minus lowest, in bits per target.", ".4f"),
        "loss": LOSS,
    }
    return Table.of(columns, rows, "Seed means of the copy-depth margins, in bits per character.")


def depth_curve(
    seeds: Sequence[Losses], reference: Losses, battery: Battery, resamples: int = POSITION_RESAMPLES
) -> Table:
    """Margin of the seed mean at every exact depth 0 … 32, with position-bootstrap 95 % bands; the last row pools all
    deeper matches."""
    difference = np.mean([paired_difference(loss, reference, battery) for loss in seeds], axis=0)
    rows = []
    for depth in range(CAP + 1):
        mask = battery.mask((depth, depth))
        found = position_bootstrap(difference[mask], resamples)
        rows.append({"depth": depth, "tokens": int(mask.sum()), **dict(zip(ENDS, found, strict=True))})
    said = {name: MARGIN[name] for name in ENDS}
    return Table.of({"depth": DEPTH, "tokens": TARGETS, **said}, rows)


def depth_distance_table(
    seeds: Sequence[Losses], reference: Losses, battery: Battery, resamples: int = CLUSTER_RESAMPLES
) -> Table:
    """Margin of the seed mean by depth and by distance back to the most recent longest match.

    The paper leaves distance to future work. A target without any match has no distance and is in no cell.
    """
    difference = np.mean([paired_difference(loss, reference, battery) for loss in seeds], axis=0)
    mean = np.mean([np.asarray(loss, dtype=np.float64) for loss in seeds], axis=0)
    rows = []
    for edges in BINS:
        deep = battery.mask(edges)
        for near, far in distance_bins(battery.length):
            mask = deep & (battery.distance >= near) & (battery.distance <= far)
            head = {"bin": bin_name(edges), "distance": bin_name((near, far)), "tokens": int(mask.sum())}
            margin = _margin(difference, mask, resamples)
            rows.append({**head, **margin, "loss": mean_loss(mean, mask)})
    back = "Distance back to the most recent of the longest matches, in characters."
    columns = {"bin": DEPTH, "distance": back, "tokens": TARGETS, **MARGIN, "loss": LOSS}
    caption = "Copy-depth margins by depth and distance to the matching occurrence, in bits per character."
    return Table.of(columns, rows, caption)


# -- figures -------------------------------------------------------------------------------------------------


def draw_depth_bars(families: Table, against: str = "the transformer") -> Figure:
    """Copy-depth margins by bin, from :func:`seed_mean_table`.

    Bars are seed means, whiskers run from the lowest to the highest seed; below zero the model is ahead.
    """
    names = list(dict.fromkeys(families.column("family")))
    bins = list(dict.fromkeys(families.column("bin")))
    shade = colours(names)
    with drawing(1, 1, 2.7) as (figure, grid):
        from matplotlib.colors import to_rgba

        axes, width = grid[0, 0], 0.8 / max(len(names), 1)
        zero_line(axes)
        for i, name in enumerate(names):
            rows = [families.where(family=name, bin=b).rows[0] for b in bins]
            mean = np.array([row["mean"] for row in rows])
            ends = np.array([[row["mean"] - row["min"], row["max"] - row["mean"]] for row in rows]).T
            place = np.arange(len(bins)) + (i - (len(names) - 1) / 2) * width
            seeds = rows[0]["seeds"]
            label = f"{name} ({seeds} seed{'s' if seeds > 1 else ''})"
            axes.bar(place, mean, 0.88 * width, color=to_rgba(shade[name], 0.5), label=label, zorder=2)
            if seeds > 1:
                axes.errorbar(
                    place, mean, ends, fmt="none", ecolor=shade[name], elinewidth=1.5, capsize=2.5, zorder=3
                )
        axes.set_xticks(range(len(bins)), [str(b) for b in bins])
        axes.grid(False, axis="x")
        axes.set(xlabel="copy depth of the target", ylabel=f"bits per character\nagainst {against}")
        legend(axes, loc="best")
    return figure


def draw_depth_curves(curves: Mapping[str, Table]) -> Figure:
    """Seed-mean margin at every exact copy depth with 95 % position-bootstrap bands; the last point pools what is
    deeper."""
    shade = colours(list(curves))
    with drawing(1, 1, 2.7) as (figure, grid):
        axes = grid[0, 0]
        zero_line(axes)
        for i, (name, curve) in enumerate(curves.items()):
            depth, margin, low, high = (curve.column(one) for one in ("depth", "margin", "low", "high"))
            axes.fill_between(depth, low, high, color=shade[name], alpha=0.25, linewidth=0)
            look = {"color": shade[name], "marker": MARKERS[i], "markersize": 3, "linewidth": 1.2}
            axes.plot(depth, margin, label=name, **look)
        ticks = list(range(0, CAP + 1, 4))
        axes.set_xticks(ticks, [f"{t}+" if t == CAP else f"{t}" for t in ticks])
        axes.set_xlim(-0.6, CAP + 0.6)
        axes.set(xlabel="exact copy depth", ylabel="bits per character\nagainst the transformer")
        legend(axes, loc="best")
    return figure


def draw_depth_distance(table: Table) -> Figure:
    """Margins of the FSN by copy depth and by the distance back to the match; below each margin the number of
    targets."""
    rows, columns = (list(dict.fromkeys(table.column(name))) for name in ("bin", "distance"))
    values = np.array(table.column("margin"), dtype=float).reshape(len(rows), len(columns))
    reach = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    with drawing(1, 1, 0.36 * len(rows) + 0.75, width=0.8 * WIDTH) as (figure, grid):
        from matplotlib.colors import LinearSegmentedColormap

        axes = grid[0, 0]
        shades = ["#1f5fae", "#7fb0e6", "#eceff2", "#eda873", "#b8560f"]
        diverging = LinearSegmentedColormap.from_list("margin", shades)
        words = np.array([f"{cell['margin']:+.3f}\n{cell['tokens']:,}" for cell in table.rows])
        font, look = {"fontsize": 6.5, "linespacing": 1.1}, {"cmap": diverging, "vmin": -reach, "vmax": reach}
        picture = heat_map(axes, values, words.reshape(values.shape), font, **look)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel="distance back to the match (characters)", ylabel="copy depth")
        bar = figure.colorbar(picture, ax=axes, pad=0.02, fraction=0.05)
        bar.outline.set_visible(False)
        bar.set_label("bits against the transformer")
    return figure


# -- the instrument ------------------------------------------------------------------------------------------

RESAMPLES = 2000


@instrument("depth")
def inspect(subject: Subject) -> Finding:
    """Loss by copy depth; with a second run, paired margins against it."""
    losses = {
        name: battery_losses(model, subject.corpus.valid, subject.battery, f"copy depth, {name}")
        for name, model in subject.models.items()
    }
    levels = depth_losses(losses, subject.battery)
    name, held = subject.name, [row for row in levels.rows if row["targets"]]
    first, last = held[0], held[-1]
    sentence = (
        f"A target costs {name} {first[name]:.3f} bits at copy depth {first['depth']} and {last[name]:.3f} at "
        f"{last['depth']}."
    )
    if subject.against is None:
        return Finding("Loss by copy depth", sentence, {"depth": levels})
    other = subject.other
    margins = margin_table({name: losses[name]}, losses[other], subject.battery, resamples=RESAMPLES)
    near, far = (margins.where(bin=row["depth"]).rows[0] for row in (first, last))
    families = seed_mean_table(margins, {name: [name]})
    return Finding(
        f"Loss by copy depth, against {other}",
        f"{sentence} Against {other} that is {signed(near['margin'])} bits at depth {near['bin']} and "
        f"{signed(far['margin'])} at {far['bin']} (95 % interval {signed(far['low'])} to {signed(far['high'])}); "
        f"below zero {name} is ahead.",
        {"depth": levels, "margins": margins},
        {"margins": lambda: draw_depth_bars(families, against=other)},
    )
