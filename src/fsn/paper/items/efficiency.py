"""Efficiency: throughput as the mean of per-epoch values, memory, and the kernel's share of a step."""

from __future__ import annotations

from collections.abc import Callable

from fsn.measure import SeedSummary, kernel_share, measure_efficiency, pace_notes, seed_summary
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.needs import Need
from fsn.paper.rows import Row, compare, grouped
from fsn.paper.values import EFFICIENCY, Cited, cite, macro
from fsn.train import Run

FSN = needs.FSN.seed(0, 1, 2).after(1)
TRANSFORMER = needs.TRANSFORMER.after(1)
MEAN_FIELD = needs.MEAN_FIELD.after(1)
CODE_FSN = needs.CODE_FSN.seed(0).after(1)
CODE_TRANSFORMER = needs.CODE_TRANSFORMER.seed(0).after(1)
FSN_4M, TRANSFORMER_4M = (need.seed(0).after(1) for need in needs.RUNGS["4M"])

TRAINING: tuple[tuple[str, str, Need, str], ...] = (
    ("FSN", "fsn/1M", FSN, "tpsFSNOneM"),
    ("transformer", "transformer/1M", TRANSFORMER, "tpsXFOneM"),
    ("FSN without the harmonic kernel", "fsn-nophase/1M", needs.NO_KERNEL, "tpsNophaseOneM"),
    ("FSN-MF", "fsn-mf/1M", MEAN_FIELD, "tpsMFOneM"),
    ("FSN on code", "fsn/code/1M", CODE_FSN, "tpsFSNCode"),
    ("transformer on code", "transformer/code/1M", CODE_TRANSFORMER, "tpsXFCode"),
    ("FSN at 4M", "fsn/4M", FSN_4M, "tpsFSNFourM"),
    ("transformer at 4M", "transformer/4M", TRANSFORMER_4M, "tpsXFFourM"),
)
SLOWDOWNS: tuple[tuple[str, Need, Need, str], ...] = (
    ("FSN", FSN, TRANSFORMER, "slowdownOneM"),
    ("FSN at 4M", FSN_4M, TRANSFORMER_4M, "slowdownFourM"),
    ("FSN without the harmonic kernel", needs.NO_KERNEL, TRANSFORMER, "slowdownNophaseOneM"),
)


def speed(runs: list[Run], quantity: str = "train_tokens_per_s") -> SeedSummary:
    """Mean over seeds of a run's mean over epochs."""
    return seed_summary([getattr(measure_efficiency(run, steady=True), quantity) for run in runs])


def slowdown(ours: list[Run], theirs: list[Run]) -> float:
    return speed(theirs).mean / speed(ours).mean


def scaled(quantity: str, unit: float) -> Callable[[list[Run]], SeedSummary]:
    """A quantity in other units."""

    def measure(runs: list[Run]) -> SeedSummary:
        return seed_summary([getattr(measure_efficiency(run, steady=True), quantity) / unit for run in runs])

    return measure


def compute_item(bench: Bench) -> Result:
    thousand, million = scaled("train_tokens_per_s", 1e3), scaled("eval_tokens_per_s", 1e6)
    memory = scaled("peak_memory_gb", 1.0)

    def paper(*path: str, name: str) -> Cited:
        return cite(EFFICIENCY, *path).also(*macro(name).sources)

    training = [
        compare(bench, title, paper(key, name=name), [need], thousand, ".0f")
        for title, key, need, name in TRAINING
    ]
    others: list[Row] = [
        compare(
            bench,
            f"{title}, times slower than the transformer",
            macro(name),
            [a, b],
            slowdown,
            ".2f",
            timed=True,
        )
        for title, a, b, name in SLOWDOWNS
    ]
    for title, need, key, evaluation, memory_name in (
        ("FSN", FSN, "fsn", "tpsEvalFSN", "memFSNOneM"),
        ("transformer", TRANSFORMER, "transformer", "tpsEvalXF", "memXFOneM"),
    ):
        others.append(
            compare(
                bench,
                f"{title}: evaluation, million tokens/s",
                paper("evaluation (million tokens/s)", key, name=evaluation),
                [need],
                million,
                ".2f",
            )
        )
        others.append(
            compare(
                bench,
                f"{title}: peak memory, GB",
                paper("memory GB", key, name=memory_name),
                [need],
                memory,
                ".2f",
            )
        )
    share = paper("kernel share of the step, percent", name="kernelShare")
    others.append(
        compare(
            bench,
            "kernel's share of the training step, percent",
            share,
            [FSN, needs.NO_KERNEL],
            lambda full, without: 100 * kernel_share(speed(full).mean, speed(without).mean),
            ".1f",
            timed=True,
        )
    )
    used = bench.library.used(ITEM.needs)
    settings = sorted({str(run.environment.get("device")) for run in used})
    notes = [
        "The paper: one A100-class GPU, float32, eager. What its appendix calls no-phase here is the FSN "
        "with one real harmonic (fsn-noharmonics), which takes the harmonic kernel out."
    ]
    if settings:
        notes.append(f"Ours: {'; '.join(settings)}; on a CPU the memory is that of the whole process.")
    notes += pace_notes(used)
    return Result(
        rows=grouped("Training, thousand tokens/s", training) + grouped("Others", others), notes=notes
    )


ITEM = Item(
    "efficiency",
    "Efficiency",
    "Appendix B",
    "Training throughput as the mean of per-epoch values, evaluation throughput, memory, the kernel's share.",
    compute_item,
    tuple(dict.fromkeys(need for _, _, need, _ in TRAINING)),
)
