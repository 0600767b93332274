"""The copy-depth figures: bars by bin, and the curve by exact depth."""

from __future__ import annotations

from fsn.errors import UserError
from fsn.measure import Table, depth_distance_table, family_table
from fsn.paper import depth, needs
from fsn.paper.bench import Bench, NotRun
from fsn.paper.item import Item, Result, picture
from fsn.paper.rows import compare
from fsn.paper.values import cite, macro
from fsn.train import Run

SHOWN = ("Base layer", "FSN")
SPIKES = ((17, "cdCurveSeventeen"), (19, "cdCurveNineteen"), (22, "cdCurveTwentyTwo"))
PAIR = (needs.KURAMOTO, needs.REFERENCE)
NEEDS = (needs.REFERENCE, needs.KURAMOTO, needs.FSN_CONVERGED)


def compute_bars(bench: Bench) -> Result:
    rows = []
    for family in SHOWN:
        for name in depth.BIN_NAMES:
            paper = cite("copy_depth", "margins", f"{family}, mean", depth.plain(name), "margin")

            def measure(runs: list[Run], ref: list[Run], f: str = family, n: str = name) -> tuple[float, str]:
                found = depth.seed_margins(bench, "text", f, n)
                return found.mean, f"seeds from {found.low:+.4f} to {found.high:+.4f}".replace("-", "−")

            pair = [depth.TEXT[family], needs.REFERENCE]
            rows.append(compare(bench, f"{family}, depth {name}", paper, pair, measure, "+.4f"))
    result = Result(rows=rows)
    table = families(bench)
    if table is not None:
        result.pictures.append(
            picture(
                "copy-depth-bars",
                "Margins against the converged transformer by copy depth: bars are seed means, whiskers run "
                "from the lowest to the highest seed. Below zero the model is ahead.",
                lambda plots, surface: plots.depth_bars(table, surface),
                table,
            )
        )
    return result


def families(bench: Bench) -> Table | None:
    """Seed means of the families that have runs."""
    found = {name: depth.labels(bench, "text", name) for name in SHOWN}
    found = {name: runs for name, runs in found.items() if runs}
    if not found:
        return None
    try:
        return family_table(depth.margins(bench, "text"), found)
    except UserError:
        return None


def compute_curve(bench: Bench) -> Result:
    rows = []
    for exact, name in SPIKES:
        paper = cite("copy_depth", "base-layer spikes by exact depth", str(exact)).also(*macro(name).sources)

        def measure(runs: list[Run], ref: list[Run], d: int = exact) -> tuple[float, str]:
            curve = depth.curve(bench, "Base layer")
            return float(curve.margin[d]), f"{int(curve.tokens[d]):,} targets"

        rows.append(compare(bench, f"base layer, depth {exact}", paper, PAIR, measure, "+.2f"))
    result = Result(rows=rows)
    try:
        curves = {family: depth.curve(bench, family) for family in SHOWN}
    except NotRun:
        return result
    for family, curve in curves.items():
        result.tables.append((f"{family}, every depth", curve.table()))
    result.pictures.append(
        picture(
            "copy-depth-curve",
            "Seed-mean margin at every exact copy depth with 95 % position-bootstrap bands; the last point "
            "pools what is deeper.",
            lambda plots, surface: plots.depth_curves(curves, surface),
        )
    )
    return result


def compute_distance(bench: Bench) -> Result:
    """Depth × distance, which the paper leaves to future work."""

    def table() -> Table:
        return bench.memo(
            "distance",
            lambda: depth_distance_table(
                [bench.losses(run, "text") for run in bench.runs(needs.FSN_CONVERGED)],
                depth.reference(bench, "text"),
                bench.battery("text"),
                resamples=bench.scale.cluster_resamples,
            ),
        )

    def deep(near: bool) -> float:
        """Margin of targets of depth ≥ 4 whose match lies within, or beyond, a quarter of the window."""
        edge = bench.scale.length(256) // 4
        rows = [row for row in table().rows if row["bin"] in depth.DEEP_BINS and row["tokens"]]
        picked = [row for row in rows if (int(row["distance"].split("–")[0]) < edge) == near]
        tokens = sum(row["tokens"] for row in picked)
        return sum(row["margin"] * row["tokens"] for row in picked) / tokens if tokens else float("nan")

    pair = [needs.FSN_CONVERGED, needs.REFERENCE]
    result = Result(
        rows=[
            compare(
                bench, f"FSN, depth ≥ 4, match {where}", None, pair, lambda r, ref, n=near: deep(n), "+.4f"
            )
            for where, near in (("in the nearest quarter of the window", True), ("further back", False))
        ]
    )
    if result.rows[0].ours is not None:
        result.pictures.append(
            picture(
                "depth-distance",
                "Margins of the FSN by copy depth and by the distance back to the match; below each margin "
                "the number of targets.",
                lambda plots, surface: plots.depth_distance(table(), surface),
                table(),
            )
        )
    return result


BARS = Item(
    "copy-depth-bars",
    "Copy-depth margins by bin",
    "Figure 1",
    "Seed means of the base layer and the FSN against the converged transformer, whiskers over seeds.",
    compute_bars,
    NEEDS,
    ("text",),
)
CURVE = Item(
    "copy-depth-curve",
    "Margin at every exact copy depth",
    "Figure 4",
    "The base layer's deficit is not a law of depth: it stands in spikes at a few exact depths.",
    compute_curve,
    NEEDS,
    ("text",),
)
DISTANCE = Item(
    "depth-distance",
    "Copy depth and distance together",
    "future work of Appendix C",
    "The paper conditions on the length of a match, not on how far back it lies. Here are both.",
    compute_distance,
    (needs.REFERENCE, needs.FSN_CONVERGED),
    ("text",),
)
