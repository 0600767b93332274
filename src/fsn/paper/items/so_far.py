"""What has been trained so far, at matched epochs, whether or not it has reached the paper's budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fsn.measure import SeedSummary, loss_at
from fsn.measure.runs import diverged_at
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.library import epochs_of
from fsn.paper.needs import Need
from fsn.paper.rows import MEASURED, MISSING, Row
from fsn.paper.values import Cited, cite
from fsn.train import Run

SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    need: Need
    paper: Mapping[int, Cited]
    """The paper's values by epoch."""


def _text(family: str, **by_epoch: Cited) -> Group:
    return Group(Need(family, SEEDS), {int(name[1:]): value for name, value in by_epoch.items()})


def groups() -> list[Group]:
    """Every kind of run the registry knows, with the paper's values at the epochs it gives."""
    table = "main_table"

    def main(key: str) -> Cited:
        place = (table, "enwik8@30", key)
        return cite(*place, "mean").plus_minus(cite(*place, "std"))

    found = [
        _text("transformer", e30=main("transformer")),
        _text(
            "fsn",
            e2=cite("early", "fsn@2"),
            e30=main("fsn"),
            e50=cite(table, "enwik8@50", "fsn", "mean").plus_minus(cite(table, "enwik8@50", "fsn", "std")),
        ),
        _text("fsn-nophase", e2=cite("early", "fsn-nophase@2"), e30=main("fsn-nophase")),
        _text("fsn-lean", e11=cite("early", "fsn-lean@11")),
        _text("kuramoto"),
        _text("fsn-mf", e30=main("fsn-mf")),
        _text("fsn-mf-winding", e30=main("fsn-mf-winding")),
        _text("fsn-torus-swiglu", e2=cite("early", "fsn-torus-swiglu@2")),
        Group(needs.DROPOUT.seed(*SEEDS), {}),
        Group(needs.KURAMOTO_DROPOUT.seed(*SEEDS), {}),
        _text("fsn-literal"),
        Group(Need("fsn-literal", SEEDS, overrides=(("dropout", 0.1),)), {30: main("fsn")}),
        _text("fsn-nodelay"),
        _text("fsn-noharmonics"),
        _text("fsn-nobound", e1=cite("early", "no-bound@1")),
        _text("fsn-dissolved"),
        _text("daido"),
        _text("successor"),
        _text("fsn-positive-gate"),
        _text("fsn-shared-kernel"),
    ]
    for rung, (fsn, transformer) in list(needs.RUNGS.items())[1:]:
        for key, need in (("transformer", transformer), ("fsn", fsn)):
            epochs = (14, 30) if rung == "8M" and key == "transformer" else (need.epochs,)
            paper = {e: cite("ladder", rung, f"{key}@{e}") for e in epochs}
            found.append(Group(Need(need.family, SEEDS, size=need.size), paper))
    code = (table, "code@30")
    xf = cite(*code, "transformer", "mean").plus_minus(cite(*code, "transformer", "std"))
    found += [
        Group(Need("transformer", SEEDS, role="code"), {30: xf}),
        Group(Need("fsn", SEEDS, role="code"), {}),
        Group(Need("fsn-nophase", SEEDS, role="code"), {30: cite(*code, "fsn-nophase", "seed0")}),
    ]
    for family in ("transformer", "fsn"):
        paper = {30: cite(table, "code@30/seq512", family)}
        found.append(Group(Need(family, SEEDS, role="code", length=512), paper))
    return found


def comparable(bench: Bench, need: Need) -> bool:
    """Whether a level of loss may stand beside the paper's: the same text at the paper's scale."""
    return (
        bench.library.corpus_name(need.role) == bench.scale.corpora[need.role][0]
        and not bench.scale.shared_text
    )


def shown_epochs(bench: Bench, group: Group, runs: list[Run], others: set[int]) -> list[int]:
    """The epochs the paper has a value for, those that runs have reached, and those others are compared at."""
    reached = {epochs_of(run) for run in runs}
    worth = {*map(bench.epoch, group.paper), *others}
    return sorted({e for e in worth if 0 < e <= max(reached)} | reached)


def common_epochs(found: dict[Need, list[Run]]) -> dict[tuple[str, str, int], int]:
    """The last epoch that FSN and transformer of one size, text and length both have; 0 where there is none."""
    furthest: dict[tuple[str, str, int], dict[str, int]] = {}
    for need, runs in found.items():
        if need.family in ("fsn", "transformer") and not need.overrides:
            most = max(map(epochs_of, runs), default=0)
            furthest.setdefault((need.role, need.size, need.length), {})[need.family] = most
    return {key: min(of.values()) if len(of) == 2 else 0 for key, of in furthest.items()}


def variant_epochs(found: dict[Need, list[Run]], need: Need) -> set[int]:
    """The last epochs of runs of the same model with something replaced, so that it stands beside them."""
    return {
        epochs_of(run)
        for other, runs in found.items()
        for run in runs
        if other.plain == need.plain and not need.overrides
    }


def found_runs(bench: Bench, need: Need) -> list[Run]:
    """The runs of a kind that have finished an epoch, or diverged before."""
    found = [bench.library.find(need, seed) for seed in SEEDS]
    return [run for run in found if run is not None and (epochs_of(run) or diverged_at(run))]


def progress(bench: Bench) -> list[Row]:
    """One row for each model and epoch worth showing."""
    rows = []
    every = {group.need: found_runs(bench, group.need) for group in groups()}
    common = common_epochs(every)
    for group in groups():
        need = group.need
        runs = every[need]
        begun = [run for run in runs if epochs_of(run)]
        others = {common.get((need.role, need.size, need.length), 0), *variant_epochs(every, need)}
        by_epoch = {bench.epoch(e): paper for e, paper in group.paper.items()}
        corpus = bench.library.corpus_name(need.role)
        long = f", windows of {bench.scale.length(need.length)}" if need.length != 256 else ""
        heading = f"{corpus}{long}"
        for run in runs:
            if not epochs_of(run):
                remark = f"{run.name}: not finite in epoch {diverged_at(run)}"
                rows.append(
                    Row(f"{need.model}, epoch 1", None, float("inf"), None, "1", remark=remark, group=heading)
                )
        for epoch in shown_epochs(bench, group, begun, others) if begun else []:
            there = [run for run in begun if epochs_of(run) >= epoch]
            summary: SeedSummary = loss_at(there, epoch)
            half = loss_at(there, epoch, "valid_bits_second_half")
            paper = by_epoch.get(epoch) if comparable(bench, need) else None
            rows.append(
                Row(
                    f"{need.model}, epoch {epoch}",
                    paper,
                    summary.mean,
                    summary.std if summary.count > 1 else None,
                    str(summary.count),
                    MEASURED,
                    ".4f",
                    f"second half of each window {half.mean:.4f}",
                    heading,
                )
            )
    return rows


def compute_item(bench: Bench) -> Result:
    rows = progress(bench)
    if not rows:
        rows = [Row("any run of the paper", None, None, state=MISSING, remark="no run has finished an epoch")]
    notes = ["The paper's value stands only where model, text and epoch are the same."]
    return Result(rows=rows, notes=notes)


ITEM = Item(
    "so-far",
    "What has been trained so far",
    "beyond the paper",
    "Every run found, at the epochs it has reached; the number of seeds is what was found.",
    compute_item,
)
