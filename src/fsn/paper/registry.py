"""The registry as a whole: open it, compute items, judge claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsn.paper.bench import Bench
from fsn.paper.claims import CLAIMS, Claim, Verdict, judge_all
from fsn.paper.item import Item, Result
from fsn.paper.items import ITEMS, item_named
from fsn.paper.library import ROOTS, Library
from fsn.paper.needs import Need, distinct
from fsn.paper.scales import scale_named
from fsn.paper.writing import Report
from fsn.progress import track


def open_bench(
    scale: str = "paper",
    where: Sequence[Path] = ROOTS,
    device: str = "auto",
    fetch: bool = False,
    cache: Path | None = None,
    code: str | None = None,
) -> Bench:
    """The runs below some folders, ready to be measured; ``code`` names the corpus that serves as code."""
    prefer = {"code": code} if code is not None and scale == "paper" else {}
    return Bench(Library.open(scale_named(scale), where, prefer), device, cache, fetch)


def needs_of(item: str | None = None) -> list[Need]:
    """The runs of one item, of the claims, or of everything."""
    claims = [need for one in CLAIMS for need in one.needs]
    if item == "claims":
        return distinct(claims)
    if item is not None:
        return distinct(item_named(item).needs)
    return distinct([need for one in ITEMS for need in one.needs] + claims)


def compute_item(bench: Bench, name: str) -> tuple[Item, Result]:
    item = item_named(name)
    return item, item.compute(bench)


def claims_of(bench: Bench) -> list[tuple[Claim, Verdict]]:
    return judge_all(CLAIMS, bench)


def make_report(bench: Bench) -> Report:
    """Every item and every claim."""
    results = [(item, item.compute(bench)) for item in track(ITEMS, "items")]
    return Report(
        bench.scale.name,
        bench.scale.note,
        results,
        claims_of(bench),
        bench.library.used(needs_of()),
        bench.library.notes,
        bench.library.refused,
    )
