"""The copy-depth tables: margins against the transformer by depth bin, on text and on code."""

from __future__ import annotations

from collections.abc import Callable

from fsn.measure import best_epoch
from fsn.measure.tables import Table
from fsn.paper import depth, needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.needs import Need
from fsn.paper.rows import Measurement, Row, compare, compute, grouped, levels
from fsn.paper.values import DEEP_SHARE, Cited, cite, macro
from fsn.train import Run

SECTION = {"text": "copy_depth", "code": "copy_depth_code"}


def count_rows(bench: Bench, role: str) -> list[Row]:
    """Targets per bin and the share of deep ones: properties of the text alone."""

    def count(i: int) -> Callable[[], Measurement]:
        return lambda: float(bench.battery(role).counts()[i])

    rows = [
        compute(bench, f"targets, depth {name}", cite(SECTION[role], "tokens", str(i)), count(i), ",.0f")
        for i, name in enumerate(depth.BIN_NAMES)
    ]
    corpus = {"text": "enwik8", "code": "code"}[role]
    share = cite(DEEP_SHARE, corpus)
    rows.append(
        compute(
            bench,
            "validation targets of depth ≥ 24, percent",
            share,
            lambda: 100 * bench.labels(role).share(24),
            ".2f",
        )
    )
    return grouped("Targets", levels(bench, role, rows))


def margin_rows(bench: Bench, role: str, family: str, need: Need) -> list[Row]:
    """One row per seed and bin, with both intervals in the remark."""
    rows = []
    for seed in bench.scale.seeds(need):
        label = f"{family}, s{seed}"
        for name in depth.BIN_NAMES:
            paper, ends = depth.cite_margin(SECTION[role], label, name)

            def measure(
                runs: list[Run], reference: list[Run], label: str = label, name: str = name, ends: str = ends
            ) -> Measurement:
                found = depth.cell(depth.margins(bench, role), label, name)
                ours = depth.interval(found["low"], found["high"])
                return found["margin"], f"95 % {ours}, paper {ends}"

            pair = [need.seed(seed), depth.REFERENCE[role]]
            rows.append(compare(bench, f"{label}, depth {name}", paper, pair, measure, "+.4f"))
    return grouped(f"{family}, seed by seed", rows)


def mean_rows(bench: Bench, family: str, need: Need) -> list[Row]:
    """Seed means and ranges on text; the paper gives both."""
    rows = []
    pair = [need, depth.REFERENCE["text"]]
    for name in depth.BIN_NAMES:
        plain = depth.plain(name)
        mean = cite("copy_depth", "margins", f"{family}, mean", plain, "margin")
        span = cite("copy_depth", "ranges over seeds", family, plain)
        rows.append(
            compare(
                bench,
                f"{family}, mean, depth {name}",
                mean,
                pair,
                lambda r, ref, n=name: depth.seed_margins(bench, "text", family, n).mean,
                "+.4f",
            )
        )
        rows.append(
            compare(
                bench,
                f"{family}, range, depth {name}",
                span,
                pair,
                lambda r, ref, n=name: depth.seed_margins(bench, "text", family, n).range,
            )
        )
    return grouped(f"{family}, over seeds", rows)


def absolute_rows(bench: Bench, role: str) -> list[Row]:
    """Absolute loss on the two deep bins, seed 0: what a margin is a part of."""
    place = ("copy_depth", "absolute loss, 16-23 and 24-32", {"text": "enwik8", "code": "code"}[role])
    pair = [depth.FAMILIES[role]["FSN"].seed(0), depth.REFERENCE[role]]
    rows = []
    for key, column in (("fsn", "loss"), ("transformer", "reference")):
        for i, name in enumerate(depth.BIN_NAMES[-2:]):

            def measure(*groups: list[Run], column: str = column, name: str = name) -> Measurement:
                return depth.cell(depth.margins(bench, role), "FSN, s0", name)[column]

            remark = "mean of the transformer seeds" if role == "code" and key == "transformer" else ""
            paper: Cited = cite(*place, key, str(i))
            rows.append(
                compare(bench, f"{key}, depth {name}: bits per target", paper, pair, measure, remark=remark)
            )
    return grouped("Absolute loss, seed 0", levels(bench, role, rows))


def epoch_rows(bench: Bench) -> list[Row]:
    """Where the evaluated checkpoints come from."""
    rows = [
        compare(
            bench,
            "best epoch of the reference",
            macro("cdXfEpoch"),
            [needs.REFERENCE],
            lambda runs: float(best_epoch(runs[0]).epoch),
            ".0f",
        ),
        compare(
            bench,
            "best epoch of the no-phase seeds, mean",
            macro("cdNophaseEpoch"),
            [needs.NO_PHASES],
            lambda runs: sum(best_epoch(run).epoch for run in runs) / len(runs),
            ".1f",
        ),
    ]
    return grouped("Checkpoints", rows)


def compute_role(role: str) -> Callable[[Bench], Result]:
    def compute_item(bench: Bench) -> Result:
        rows = count_rows(bench, role)
        for family, need in depth.FAMILIES[role].items():
            rows += margin_rows(bench, role, family, need)
        if role == "text":
            for family, need in depth.FAMILIES[role].items():
                rows += mean_rows(bench, family, need)
            rows += epoch_rows(bench)
        rows += absolute_rows(bench, role)
        notes = [
            "Negative margins favour the model. How the paper picked its 192 enriched windows is not known, "
            "so the two deep bins hold other windows than the paper's; the four shallow bins are the same."
        ]
        if role == "code":
            notes.append(f"Code is {bench.library.corpus_said('code')}.")
        result = Result(rows=rows, notes=notes)
        matrix = wide(bench, role)
        if matrix is not None:
            result.tables.append(("Ours, as the paper prints it", matrix))
        return result

    return compute_item


def wide(bench: Bench, role: str) -> Table | None:
    """Our margins in the paper's layout: a row per run, a column per bin."""
    if not bench.by_seed(depth.REFERENCE[role]) or not any(
        bench.by_seed(need) for need in depth.FAMILIES[role].values()
    ):
        return None
    try:
        found = depth.margins(bench, role)
    except ValueError:
        return None
    lines = []
    for run in dict.fromkeys(found.column("run")):
        cells = {name: depth.cell(found, run, name)["margin"] for name in depth.BIN_NAMES}
        lines.append({"run": run, **cells})
    return Table(("run", *depth.BIN_NAMES), lines, {name: "+.4f" for name in depth.BIN_NAMES})


TEXT = Item(
    "copy-depth",
    "Copy-depth margins on text",
    "Table 4",
    "Paired differences of every target's loss against the converged transformer, by copy depth, with "
    "window-cluster bootstrap intervals.",
    compute_role("text"),
    (needs.REFERENCE, *depth.TEXT.values()),
    ("text",),
)
CODE = Item(
    "copy-depth-code",
    "Copy-depth margins on code",
    "Table 5",
    "The same on code, against the mean of the transformer seeds.",
    compute_role("code"),
    (needs.CODE_TRANSFORMER, *depth.CODE.values(), needs.CODE_FSN.seed(2)),
    ("code",),
)
