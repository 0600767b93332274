"""The README's table of results, from ``results/``.

python docs/site/readme_table.py      brings README.md up to date
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fsn.io import write_text_atomic
from fsn.measure.bootstrap import seed_summary
from fsn.measure.metrics import valid_bits, validated_in
from fsn.measure.tables import Table
from fsn.paper.archive import EVALUATIONS
from fsn.paper.bench import Bench
from fsn.paper.needs import epochs_of
from fsn.paper.rows import number
from fsn.paper.sections.beyond import SEEDS, papers_values
from fsn.train import Run
from fsn.train.evaluate import read_evaluations

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NOTHING = "No evaluated runs yet."


def results_block(results: Path) -> str:
    """What stands between the markers: a table of the runs in ``results`` whose best weights were evaluated in float32.

    It is made from ``evaluations.jsonl`` (``fsn archive --evaluate``), metrics and configs, so that it comes out the
    same everywhere.
    """
    evaluations = read_evaluations(results / EVALUATIONS)
    bench = Bench.open([results])
    lines: list[dict[str, Any]] = []
    for need, papers in papers_values().items():
        if need.overrides:  # the recipe alone: the page has the comparisons
            continue
        served = [run for seed in SEEDS for run in bench.matching(need, seed)]
        by_epochs: dict[int, dict[int, Run]] = {}  # a run that went on to fifty is archived at thirty too
        for run in served:
            if _bits(evaluations, run, "valid"):
                by_epochs.setdefault(epochs_of(run), {}).setdefault(run.recipe.seed, run)
        for epochs, seeds in by_epochs.items():
            runs, paper = list(seeds.values()), papers.get(epochs)
            lines.append(
                {
                    "model": need.preset,
                    "epochs": epochs,
                    "seeds": len(runs),
                    "validation": _mean([_bits(evaluations, run, "valid") for run in runs]),
                    "paper": "" if paper is None else number(paper.value, ".4f", paper.spread),
                    "test": _mean([_bits(evaluations, run, "test") for run in runs]),
                    "4× window": _mean([_bits(evaluations, run, "valid", 4) for run in runs]),
                }
            )
    if not lines:
        return NOTHING
    longest = max(line["epochs"] for line in lines)
    lines = [line for line in lines if 3 * line["epochs"] >= longest]  # much shorter runs: the page has them
    lines.sort(key=lambda line: line["validation"])
    return (
        f"{Table(tuple(lines[0]), lines).to_markdown()}\n"
        "Bits per character of enwik8, best epoch, no dropout. "
        "4× window: the last quarter of windows of 1,024. "
        "The paper's: epoch 30, dropout 0.1, mean of seeds. Empty: not in the paper, or not measured."
    )


def _bits(evaluations: Sequence[Mapping[str, Any]], run: Run, split: str, times: int = 1) -> float | None:
    """The loss of a run's best weights in windows of so many times its own length: of their last part, if longer.

    Where a run was validated in float32 while it trained, that is the evaluation.
    """
    if split == "valid" and times == 1 and validated_in(run) == "fp32":
        return min(valid_bits(run))
    for line in evaluations:
        asked = {"run": run.name, "which": "best", "split": split, "precision": "fp32"}
        if asked.items() <= line.items() and line["length"] == times * run.recipe.length:
            last = line["by_position"][-run.recipe.length :]
            return float(line["bits"]) if times == 1 else sum(last) / len(last)
    return None


def _mean(bits: Sequence[float | None]) -> str:
    known = [value for value in bits if value is not None]
    summary = seed_summary(known) if known else None
    return "" if summary is None else number(summary.mean, ".4f", summary.std if summary.count > 1 else None)


def fill(text: str, block: str) -> str:
    """The README with the block between its markers replaced."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"the README has no {BEGIN} and {END}; put them where the table should stand")
    return f"{head}{begin}\n{block.strip()}\n{end}{tail}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before = readme.read_text("utf-8")
    after = fill(before, results_block(ROOT / "results"))
    if after != before:
        write_text_atomic(readme, after)
    print("README.md: results " + ("brought up to date" if after != before else "are up to date"))
