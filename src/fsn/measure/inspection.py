"""All instruments on one run: what it learned, where it is good, which parts do what.

A run of any model on any text, finished or not; with a second run, where the first is ahead of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fsn.data import Corpus, Windows
from fsn.errors import UserError
from fsn.io import write_text_atomic
from fsn.measure.copy_depth import Battery, battery, label_corpus
from fsn.measure.kernel import read_kernel, thinned, through_training
from fsn.measure.lesions import lesion_table
from fsn.measure.looks import look, said_again
from fsn.measure.losses import battery_losses
from fsn.measure.margins import depth_losses, family_table, margin_table
from fsn.measure.runs import check_comparable, check_corpus
from fsn.measure.synchronization import depth_profile
from fsn.measure.tables import Table, stacked
from fsn.models import FSNConfig, LanguageModel
from fsn.train.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = Literal["coupling", "depth", "lesions", "looks", "states"]
PARTS: tuple[Part, ...] = ("coupling", "depth", "lesions", "looks", "states")
OF_COUPLING = ("coupling", "lesions")
"""What only models of the FSN family have."""
STATE_WINDOWS = 16
RESAMPLES = 2000

Draw = Callable[[Any, str], "Figure"]
"""A figure, from :mod:`fsn.measure.plots` and a surface."""


@dataclass(frozen=True)
class Finding:
    """What one instrument found: tables by file name, figures by file name, and what they show."""

    part: str
    title: str
    about: str
    tables: Mapping[str, Table]
    figures: Mapping[str, Draw] = field(default_factory=dict)


@dataclass(frozen=True)
class Other:
    """The run that another is compared with, loaded once."""

    name: str
    model: LanguageModel

    @classmethod
    def of(cls, run: Run, beside: Run, device: str | torch.device) -> Other:
        """Its best weights, under a name that differs from the first run's."""
        name = run.name if run.name != beside.name else f"{run.name} (other)"
        return cls(name, run.load_model("best", device))


def applicable(run: Run, parts: Sequence[Part] = PARTS) -> list[Part]:
    """The parts that this run's model has."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise UserError(
            f"There is nothing called {unknown[0]!r} to look at; choose among {', '.join(PARTS)}."
        )
    oscillates = isinstance(run.model_config, FSNConfig)
    return [part for part in parts if oscillates or part not in OF_COUPLING]


def inspect_run(
    run: Run,
    corpus: Corpus,
    *,
    against: Run | None = None,
    which: Literal["best", "last"] = "best",
    parts: Sequence[Part] = PARTS,
    windows: int = 256,
    device: str | torch.device = "cpu",
    cache: str | None = None,
) -> list[Finding]:
    """Look at a run through every instrument that applies. ``windows`` validation windows are read, a quarter as many
    again where the text repeats itself most."""
    chosen = applicable(run, parts)
    if windows < 4:
        raise UserError(f"{windows} windows are too few to say anything; give at least 4.")
    check_corpus(run, corpus)
    if against is not None:
        check_comparable([run, against])
    model = run.load_model(which, device)
    other = None if against is None else Other.of(against, beside=run, device=device)

    @functools.cache
    def targets() -> Battery:
        labels = label_corpus(corpus, "valid", run.recipe.length, run.recipe.eval_stride, cache)
        return battery(labels, windows, windows // 4)

    instruments: dict[Part, Callable[[], Finding]] = {
        "coupling": lambda: _coupling(run, model),
        "depth": lambda: _depth(run, model, corpus, targets(), other, device),
        "lesions": lambda: _lesions(model, corpus, targets(), device),
        "looks": lambda: _looks(run, model, corpus, other),
        "states": lambda: _states(run, model, corpus, device),
    }
    return [use() for part, use in instruments.items() if part in chosen]


def _coupling(run: Run, model: LanguageModel) -> Finding:
    reading = read_kernel(model, run.name)
    readings = through_training(run, reading)
    return Finding(
        "coupling",
        "Coupling functions",
        "The pull on a token as a function of its phase difference to what it attends to (present) and to what came "
        "after that (successor); below, from the start of training (faint) to now (bold).",
        {"coupling": reading.table(), "scales": reading.scales()},
        {
            "coupling": lambda plots, surface: plots.coupling(reading, successor=True, surface=surface),
            "coupling-history": lambda plots, surface: plots.coupling_history(
                thinned(readings), surface=surface
            ),
        },
    )


def _depth(
    run: Run,
    model: LanguageModel,
    corpus: Corpus,
    targets: Battery,
    other: Other | None,
    device: str | torch.device,
) -> Finding:
    def measure(name: str, of: LanguageModel) -> NDArray[np.float32]:
        said = f"copy depth, {name}"
        return battery_losses(of, corpus.valid, targets, device=device, description=said)

    ours = measure(run.name, model)
    about = "Bits per target by copy depth: how many characters in front of it stood earlier in the window, before it."
    if other is None:
        return Finding(
            "depth", "Loss by copy depth", about, {"depth": depth_losses({run.name: ours}, targets)}
        )
    theirs = measure(other.name, other.model)
    margins = margin_table({run.name: ours}, theirs, targets, resamples=RESAMPLES)
    families = family_table(margins, {run.name: [run.name]})
    return Finding(
        "depth",
        f"Loss by copy depth, against {other.name}",
        f"{about} Margins are paired target by target, with 95 % intervals over windows; below zero {run.name} is "
        "ahead.",
        {"depth": depth_losses({run.name: ours, other.name: theirs}, targets), "margins": margins},
        {"margins": lambda plots, surface: plots.depth_bars(families, surface)},
    )


def _lesions(model: LanguageModel, corpus: Corpus, targets: Battery, device: str | torch.device) -> Finding:
    table = lesion_table(model, corpus.valid, targets, device=device)
    return Finding(
        "lesions",
        "Which field does what",
        "Bits per target that are added when one field of one layer is taken out, by copy depth; nothing is trained "
        "again.",
        {"lesions": table},
        {"lesions": lambda plots, surface: plots.lesions(table, surface)},
    )


def _looks(run: Run, model: LanguageModel, corpus: Corpus, other: Other | None) -> Finding:
    windows, period = said_again(corpus.valid, run.recipe.length)
    seen = [look(model, windows, period, run.name)]
    if other is not None:
        seen.append(look(other.model, windows, period, other.name))
    bits = "; ".join(f"{found.name} {found.first:.3f}, then {found.second:.3f}" for found in seen)
    return Finding(
        "looks",
        "Where it looks when a text says something again",
        "Mean attention from a passage said a second time to the places around the same one in its first saying, by "
        f"layer. Bits a symbol the first and the second time: {bits}.",
        {"looks": stacked([found.table() for found in seen])},
        {"looks": lambda plots, surface: plots.looks(seen, surface)},
    )


def _states(run: Run, model: LanguageModel, corpus: Corpus, device: str | torch.device) -> Finding:
    windows = Windows(corpus.valid, run.recipe.length, run.recipe.length)
    tokens = windows.gather(torch.arange(min(STATE_WINDOWS, len(windows))))[:, :-1]
    profile = depth_profile(model, tokens.to(device), run.name)
    return Finding(
        "states",
        "States through depth",
        "Do token states come to agree? Consensus, rank, order and winding from the embedding through the layers.",
        {"states": profile.table()},
        {"states": lambda plots, surface: plots.depth_profiles([profile], surface)},
    )


def shown(name: str, table: Table) -> Table:
    """A table as it is read: lesions with a column for every copy depth, others as they are."""
    if name != "lesions":
        return table
    depths = list(dict.fromkeys(table.column("depth")))
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in table.rows:
        key = row["field"], row["layer"]
        rows.setdefault(key, {"field": key[0], "layer": key[1]})[row["depth"]] = row["rise"]
    return Table(("field", "layer", *depths), list(rows.values()), dict.fromkeys(depths, "+.3f"))


def write_findings(run: Run, findings: Sequence[Finding], folder: Path) -> list[Path]:
    """Tables as CSV, figures as SVG and PNG, and ``inspection.md`` with all of them; returns what was written."""
    from fsn.measure import plots

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    lines = [f"# {run.name}", "", f"Written by `fsn inspect`; step {run.step:,} of the run.", ""]
    for finding in findings:
        lines += [f"## {finding.title}", "", finding.about, ""]
        for name, draw in finding.figures.items():
            written += plots.save(draw(plots, "any"), folder / name)
            lines += [f"![{finding.title}]({name}.svg)", ""]
        for name, table in finding.tables.items():
            path = folder / f"{name}.csv"
            table.write_csv(path)
            written.append(path)
            readable = shown(name, table).to_markdown()
            lines += [f"<details><summary>{name}</summary>", "", readable, "</details>", ""]
    page = folder / "inspection.md"
    write_text_atomic(page, "\n".join(lines).rstrip() + "\n")
    return [page, *written]
