"""Copy-depth margins of the paper's runs, measured once and shared by tables, figures and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsn.measure import BINS, DepthCurve, SeedSummary, Table, depth_curve, margin_table, seed_summary
from fsn.measure.copy_depth import bin_name
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.needs import Need
from fsn.paper.values import MACROS, Cited, cite
from fsn.train import Run

TEXT: dict[str, Need] = {
    "Base layer": needs.KURAMOTO,
    "FSN": needs.FSN_CONVERGED,
    "No phases": needs.NO_PHASES,
}
CODE: dict[str, Need] = {"FSN": needs.CODE_FSN, "No phases": needs.CODE_NO_PHASES}
FAMILIES: dict[str, dict[str, Need]] = {"text": TEXT, "code": CODE}
REFERENCE: dict[str, Need] = {"text": needs.REFERENCE, "code": needs.CODE_TRANSFORMER}
"""On text one converged transformer, on code the mean of three."""

BIN_NAMES = [bin_name(edges) for edges in BINS]
DEEP_BINS = [bin_name(edges) for edges in BINS if edges[0] >= 4]
SHALLOW_BINS = [name for name in BIN_NAMES if name not in DEEP_BINS]
WORDS = dict(
    zip(BIN_NAMES, ("ZeroOne", "TwoThree", "FourSeven", "EightFifteen", "Sixteen", "TwentyFour"), strict=True)
)
"""The bins in the names of the paper's macros."""


def plain(name: str) -> str:
    """A bin's name as ``values.json`` writes it."""
    return name.replace("–", "-")


def cite_margin(section: str, label: str, name: str) -> tuple[Cited, str]:
    """The paper's margin of one row and bin, and its interval in words."""
    path = (section, "margins", label, plain(name))
    low, high = (cite(*path, "ci95", end) for end in "01")
    ends = interval(low.value, high.value)
    return cite(*path, "margin").also(*low.sources, *high.sources), ends


def interval(low: float, high: float) -> str:
    """A margin's 95 % interval as it is written in remarks."""
    return f"[{low:+.4f}, {high:+.4f}]".replace("-", "−")


def macro_names(stem: str, suffix: str = "") -> dict[str, tuple[str, str]]:
    """The macros of one row of a copy-depth table, by bin."""
    return {name: (MACROS, f"{stem}{word}{suffix}") for name, word in WORDS.items()}


def reference(bench: Bench, role: str) -> NDArray[np.float64]:
    """Loss of every target under the reference: one run, or the mean of several."""
    runs = bench.runs(REFERENCE[role])
    return bench.memo(
        ("reference", role),
        lambda: np.mean([bench.losses(run, role).astype(np.float64) for run in runs], axis=0),
    )


def seeds_of(bench: Bench, role: str, family: str) -> dict[int, Run]:
    return bench.by_seed(FAMILIES[role][family])


def margins(bench: Bench, role: str) -> Table:
    """One row per run and bin, of every family that has runs; ``run`` is ``"FSN, s0"``."""

    def measure() -> Table:
        runs = {
            f"{family}, s{seed}": run
            for family in FAMILIES[role]
            for seed, run in seeds_of(bench, role, family).items()
        }
        return against(bench, role, runs, reference(bench, role))

    return bench.memo(("margins", role), measure)


def against(bench: Bench, role: str, runs: Mapping[str, Run], base: NDArray[Any]) -> Table:
    """One row per run and bin, against the losses ``base`` of every target."""
    losses = {name: bench.losses(run, role) for name, run in runs.items()}
    return margin_table(losses, base, bench.battery(role), resamples=bench.scale.cluster_resamples)


def cell(table: Table, run: str, name: str) -> Mapping[str, float]:
    return table.where(run=run, bin=name).rows[0]


def labels(bench: Bench, role: str, family: str) -> list[str]:
    """Names of the family's runs in the margins table."""
    return [f"{family}, s{seed}" for seed in seeds_of(bench, role, family)]


def seed_margins(bench: Bench, role: str, family: str, name: str) -> SeedSummary:
    """Mean, deviation and extremes over seeds of the margin on one bin."""
    bench.runs(FAMILIES[role][family])
    table = margins(bench, role)
    return seed_summary([cell(table, run, name)["margin"] for run in labels(bench, role, family)])


def curve(bench: Bench, family: str, role: str = "text") -> DepthCurve:
    """Seed-mean margin of a family at every exact depth."""
    runs: Sequence[Run] = bench.runs(FAMILIES[role][family])
    return bench.memo(
        ("curve", role, family),
        lambda: depth_curve(
            [bench.losses(run, role) for run in runs],
            reference(bench, role),
            bench.battery(role),
            resamples=bench.scale.position_resamples,
        ),
    )
