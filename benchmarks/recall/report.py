"""Finished cells as one table (Markdown and CSV) and one figure."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.recall.models import OURS, known_names
from benchmarks.recall.tasks import tasks
from fsn.io import write_text_atomic


class Row(NamedTuple):
    """A model on a split of a task at its best learning rate: accuracy by seed."""

    task: str
    split: str
    model: str
    layers: int
    width: int
    rate: float
    accuracies: tuple[float, ...]
    steps: tuple[int, ...]
    parameters: int
    state_size: int

    @property
    def column(self) -> str:
        return f"{self.task}, d {self.width}" + ("" if self.split == "test" else f", {self.split}")

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds, from two on."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def shown(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.3f}"
        return f"{self.mean:.3f}{spread}" + (
            f" ({len(self.accuracies)})" if len(self.accuracies) != 3 else ""
        )


def read_cells(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "cells").glob("*.json"))]


def best_rate(cells: list[dict[str, Any]]) -> float:
    """The learning rate with the highest mean accuracy, then the fewest steps, among those most seeds have seen."""
    by_rate: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        by_rate[cell["cell"]["rate"]].append(cell)

    def merit(rate: float) -> tuple[float, ...]:
        of = by_rate[rate]
        score = statistics.fmean(cell["accuracy"]["test"] for cell in of)
        return len(of), score, -statistics.fmean(cell["history"][-1]["step"] for cell in of)

    return max(by_rate, key=merit)


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    groups: dict[tuple[str, str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        c = cell["cell"]
        groups[c["task"], c["model"], c["layers"], c["width"]].append(cell)
    found = []
    for (task, model, layers, width), of in groups.items():
        rate = best_rate(of)
        chosen = sorted((c for c in of if c["cell"]["rate"] == rate), key=lambda c: c["cell"]["seed"])
        for split in dict.fromkeys(name for c in chosen for name in c["accuracy"]):
            tested = [c for c in chosen if split in c["accuracy"]]
            accuracies = tuple(c["accuracy"][split] for c in tested)
            steps = tuple(c["history"][-1]["step"] for c in tested)
            size = chosen[0]["parameters"], chosen[0]["state_size"]
            found.append(Row(task, split, model, layers, width, rate, accuracies, steps, *size))
    order, models = list(tasks()), [*OURS, *known_names()]
    return sorted(found, key=lambda r: (order.index(r.task), r.width, r.layers, models.index(r.model)))


def csv_text(found: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "task",
            "split",
            "model",
            "layers",
            "width",
            "rate",
            "mean",
            "spread",
            "seeds",
            "steps",
            "parameters",
            "state",
        ]
    )
    for row in found:
        spread = "" if row.spread is None else f"{row.spread:.4f}"
        writer.writerow(
            [
                row.task, row.split, row.model, row.layers, row.width, f"{row.rate:.3g}", f"{row.mean:.4f}", spread,
                len(row.accuracies), " ".join(map(str, row.steps)), row.parameters, row.state_size,
            ]
        )  # fmt: skip
    return out.getvalue()


def markdown(found: list[Row], cells: list[dict[str, Any]], left_out: list[str]) -> str:
    """Rows models, columns tasks; then what every task is, and what was left out."""
    columns = list(dict.fromkeys(row.column for row in found))
    models = list(dict.fromkeys(row.model for row in found))
    by_place = {(row.model, row.layers, row.column): row for row in found}
    lines = [
        "# Recall",
        "",
        "Accuracy, mean ± standard deviation over three seeds (another number of seeds stands in brackets), at the",
        "best learning rate of those tried on the first seed. State: numbers kept to read on after the task's T.",
        "",
        "| model | layers | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for layers in sorted({row.layers for row in found}):
        for model in models:
            shown = [by_place.get((model, layers, column)) for column in columns]
            if any(shown):
                entries = " | ".join("–" if row is None else row.shown() for row in shown)
                lines.append(f"| {model} | {layers} | {entries} |")
    lines += [
        "",
        "## Size",
        "",
        "| model | layers | width | task | parameters | state |",
        "|---|---|---|---|---|---|",
    ]
    for row in found:
        if row.split == "test":
            size = f"{row.parameters:,} | {row.state_size:,}"
            lines.append(f"| {row.model} | {row.layers} | {row.width} | {row.task} | {size} |")
    lines += ["", "## Tasks", ""]
    for name in dict.fromkeys(row.task for row in found):
        task = tasks()[name]
        block = "with" if task.feedforward else "without"
        lines.append(
            f"- **{name}**: {task.source}. V = {task.vocab:,}, T = {task.length}, {task.rows[0]:,} rows of training, "
            f"{task.rows[1]:,} of test, batch {task.batch}, {block} feed-forward block, score: {task.score}. "
            f"{task.differs[0].upper()}{task.differs[1:]}."
        )
        lines += [f"  - published, {model}: {value}" for model, value in task.published.items()]
    paths = sorted({f"{cell['cell']['model']}: {cell['path']}; {cell['step']}" for cell in cells})
    lines += ["", "## Paths", "", *(f"- {path}" for path in paths)]
    if left_out:
        lines += ["", f"## Left out ({len(left_out):,} cells)", "", *(f"- {name}" for name in left_out)]
    environment = cells[0]["environment"]
    lines += ["", f"Device: {environment['device']}; torch {environment['packages']['torch']}.", ""]
    return "\n".join(lines)


def draw(found: list[Row], cells: list[dict[str, Any]], path: Path) -> list[Path]:
    """One task: accuracy against steps. Several: accuracy by task. A panel for each number of layers."""
    from fsn.measure.style import MARKERS, colours, drawing, legend, save_figure

    depths = sorted({row.layers for row in found})
    models = list(dict.fromkeys(row.model for row in found))
    shades = colours(models)
    found = [row for row in found if "distractor" not in row.split]
    columns = list(dict.fromkeys(row.column for row in found))
    with drawing(len(depths), 1, 2.6 * len(depths), sharex=True) as (figure, grid):
        for axes, layers in zip(grid.flat, depths, strict=True):
            for i, model in enumerate(models):
                look: dict[str, Any] = {
                    "color": shades[model],
                    "marker": MARKERS[i % len(MARKERS)],
                    "markersize": 4,
                }
                if len(columns) == 1:
                    of = [c for c in cells if (c["cell"]["model"], c["cell"]["layers"]) == (model, layers)]
                    for j, cell in enumerate(of):
                        steps = [line["step"] for line in cell["history"]]
                        heights = [line["accuracy"] for line in cell["history"]]
                        axes.plot(steps, heights, label=model if j == 0 else None, linewidth=1.0, **look)
                else:
                    of_model = [row for row in found if (row.model, row.layers) == (model, layers)]
                    offset = 0.6 * (i / max(1, len(models) - 1) - 0.5)
                    axes.errorbar(
                        [columns.index(row.column) + offset for row in of_model],
                        [row.mean for row in of_model],
                        yerr=[row.spread or 0.0 for row in of_model],
                        linestyle="none",
                        label=model,
                        **look,
                    )
            axes.set_ylim(-0.03, 1.05)
            axes.set_ylabel("accuracy")
            axes.set_title({1: "one layer", 2: "two layers"}.get(layers, f"{layers} layers"))
        last = grid.flat[-1]
        if len(columns) == 1:
            last.set_xlabel("step")
        else:
            last.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=6)
        legend(grid.flat[0], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save_figure(figure, path)


def write(folder: Path, left_out: list[str]) -> list[Path]:
    """Table and figure of all finished cells of a folder; the paths written."""
    cells = read_cells(folder)
    if not cells:
        return []
    found = rows(cells)
    write_text_atomic(folder / "table.md", markdown(found, cells, left_out))
    write_text_atomic(folder / "table.csv", csv_text(found))
    return [folder / "table.md", folder / "table.csv", *draw(found, cells, folder / "figure")]
