"""Failed runs, seen from their metrics: plateaus, divergence, losses worse than guessing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fsn.measure.runs import RunLike, diverged_at, epoch_value, finished_epochs, run_name, vocabulary_of
from fsn.measure.tables import Table
from fsn.train.run import MARGIN_BITS, same_but_seed, trailing


@dataclass(frozen=True)
class Finding:
    """One run's trouble: ``kind`` is ``"plateau"``, ``"divergence"`` or ``"worse than guessing"``."""

    run: str
    kind: str
    epoch: int
    detail: str


def plateaus(first_epoch: Mapping[str, float], threshold: float = MARGIN_BITS) -> list[Finding]:
    """Seeds that trail their best sibling by more than ``threshold`` bits after the first epoch.

    ``first_epoch`` maps the name of a seed to its validation loss in bits after epoch one. The best
    sibling, not their mean, is the yardstick, so that one failed seed cannot hide another; a lone seed has
    nobody to trail.
    """
    finite = {name: value for name, value in first_epoch.items() if math.isfinite(value)}
    return [
        Finding(
            one.run,
            "plateau",
            1,
            f"{one.bits:.4f} bits after the first epoch where its best sibling has {one.best:.4f}",
        )
        for one in trailing(finite, threshold)
    ]


def divergence(run: RunLike) -> list[Finding]:
    """A loss that is not finite, or above log₂ V bits, where blind guessing does better."""
    name, vocabulary = run_name(run), vocabulary_of(run)
    epoch = diverged_at(run)
    if epoch is not None:
        return [Finding(name, "divergence", epoch, f"not finite in epoch {epoch}")]
    for row in run.epochs:
        loss = epoch_value(row, "valid_bits")
        if vocabulary and vocabulary > 1 and loss > math.log2(vocabulary):
            detail = (
                f"{loss:.2f} bits at epoch {row['epoch']}, above the {math.log2(vocabulary):.2f} of guessing "
                f"among {vocabulary} symbols"
            )
            return [Finding(name, "worse than guessing", int(row["epoch"]), detail)]
    return []


def check_runs(runs: Iterable[RunLike], threshold: float = MARGIN_BITS) -> list[Finding]:
    """All findings for a set of runs, in order. Siblings are runs that differ in nothing but the seed."""
    group = list(runs)
    families: list[list[RunLike]] = []
    for run in group:
        home = next((f for f in families if same_but_seed(f[0].config, run.config)), None)
        if home is None:
            families.append([run])
        else:
            home.append(run)
    found: list[Finding] = []
    for family in families:
        begun = [run for run in family if finished_epochs(run)]
        found += plateaus(
            {run_name(run): epoch_value(finished_epochs(run)[0], "valid_bits") for run in begun}, threshold
        )
    for run in group:
        found += divergence(run)
    order = {run_name(run): i for i, run in enumerate(group)}
    return sorted(found, key=lambda finding: order[finding.run])


def health_table(runs: Iterable[RunLike], threshold: float = MARGIN_BITS) -> Table:
    """One row per run: its state and, where something is wrong, what."""
    group = list(runs)
    findings = check_runs(group, threshold)
    rows = []
    for run in group:
        name = run_name(run)
        own = [finding for finding in findings if finding.run == name]
        rows.append(
            {
                "run": name,
                "epochs": len(finished_epochs(run)),
                "state": ", ".join(finding.kind for finding in own) or "healthy",
                "detail": "; ".join(finding.detail for finding in own) or None,
            }
        )
    return Table(("run", "epochs", "state", "detail"), rows)
