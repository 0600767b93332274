"""Finished cells as one table (Markdown and CSV) and one figure."""

from __future__ import annotations

import csv
import functools
import io
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.recall.models import OTHERS, OURS, Learner, known_names
from benchmarks.recall.tasks import SMALL, tasks
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
    warmup: int = 0

    @property
    def column(self) -> str:
        warmup = f", warm-up {self.warmup}" if self.warmup else ""
        return f"{self.task}, d {self.width}{warmup}" + ("" if self.split == "test" else f", {self.split}")

    def title(self, with_width: bool) -> str:
        """The column's name in a figure."""
        split = self.split.removesuffix("test").strip()
        task = self.task.removesuffix(SMALL)
        name = split if split.startswith("duplicate") else f"{task}, {split}" if split else task
        return name.replace(", length", "").replace(" length", "") + (
            f", d {self.width}" if with_width else ""
        )

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
    """The learning rate with the highest median accuracy, then the fewest steps, of those that most seeds have tried.

    By the median, so that one seed that never started decides nothing: of two seeds by the better one.
    """
    by_rate: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        by_rate[cell["cell"]["rate"]].append(cell)

    def merit(rate: float) -> tuple[float, ...]:
        of = by_rate[rate]
        score = statistics.median_high(cell["accuracy"]["test"] for cell in of)
        return len(of), score, -statistics.fmean(cell["history"][-1]["step"] for cell in of)

    return max(by_rate, key=merit)


@functools.cache
def state_size(task: str, model: str, layers: int, width: int) -> int | None:
    """What today's code keeps to read on; None for other people's models, which have it in their cells."""
    if model in OTHERS:
        return None
    known = tasks()[task]
    learner = Learner(model, known.vocab, width, layers, known.feedforward)
    return learner.state_size(known.length, torch.device("cpu"))


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    groups: dict[tuple[str, str, int, int, int], list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        c = cell["cell"]
        groups[c["task"], c["model"], c["layers"], c["width"], c.get("warmup", 0)].append(cell)
    found = []
    for (task, model, layers, width, warmup), of in groups.items():
        rate = best_rate(of)
        chosen = sorted((c for c in of if c["cell"]["rate"] == rate), key=lambda c: c["cell"]["seed"])
        for split in dict.fromkeys(name for c in chosen for name in c["accuracy"]):
            tested = [c for c in chosen if split in c["accuracy"]]
            accuracies = tuple(c["accuracy"][split] for c in tested)
            steps = tuple(c["history"][-1]["step"] for c in tested)
            size = chosen[0]["parameters"], state_size(task, model, layers, width) or chosen[0]["state_size"]
            found.append(Row(task, split, model, layers, width, rate, accuracies, steps, *size, warmup))
    order, models = list(tasks()), [*OURS, *known_names()]
    return sorted(
        found, key=lambda r: (order.index(r.task), r.width, r.warmup, r.layers, models.index(r.model))
    )


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
            "warmup",
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
                row.task, row.split, row.model, row.layers, row.width, row.warmup, f"{row.rate:.3g}",
                f"{row.mean:.4f}", spread, len(row.accuracies), " ".join(map(str, row.steps)), row.parameters,
                row.state_size,
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
        "learning rate with the best median over seeds, of those that most seeds have tried. State: the fewest numbers",
        "that must be kept to read on after the task's T (a lean cache).",
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
    where = {
        f"{e['device']}, torch {e['packages']['torch']}" for e in (cell["environment"] for cell in cells)
    }
    lines += ["", f"Devices: {'; '.join(sorted(where))}.", ""]
    return "\n".join(lines)


def draw(found: list[Row], cells: list[dict[str, Any]], path: Path) -> Path:
    """One task: accuracy against steps. Several: a panel for each, models one below the other."""
    kept = [row for row in found if row.split != "no distractor"]
    one_task = len({row.column for row in kept if row.split != "distractor"}) == 1
    return draw_curves(found, cells, path) if one_task else draw_panels(kept, path)


def draw_curves(found: list[Row], cells: list[dict[str, Any]], path: Path) -> Path:
    """Accuracy against steps, a line for each seed, a panel for each number of layers."""
    from fsn.measure.style import MARKERS, colours, drawing, legend, save_figure

    depths = sorted({row.layers for row in found})
    models = list(dict.fromkeys(row.model for row in found))
    shades = colours(models)
    with drawing(len(depths), 1, 2.6 * len(depths), sharex=True) as (figure, grid):
        for axes, layers in zip(grid.flat, depths, strict=True):
            for i, model in enumerate(models):
                look: dict[str, Any] = {"color": shades[model], "marker": MARKERS[i % len(MARKERS)]}
                of = [c for c in cells if (c["cell"]["model"], c["cell"]["layers"]) == (model, layers)]
                for j, cell in enumerate(of):
                    steps = [line["step"] for line in cell["history"]]
                    heights = [line["accuracy"] for line in cell["history"]]
                    name = model if j == 0 else None
                    axes.plot(steps, heights, label=name, linewidth=1.0, markersize=4, **look)
            axes.set_ylim(-0.03, 1.05)
            axes.set_ylabel("accuracy")
            axes.set_title(in_words(layers))
        grid.flat[-1].set_xlabel("step")
        legend(grid.flat[0], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save_figure(figure, path)


def in_words(layers: int) -> str:
    return {1: "one layer", 2: "two layers"}.get(layers, f"{layers} layers")


def draw_panels(found: list[Row], path: Path) -> Path:
    """A panel for each column of the table: a model's seeds as marks, their mean as a bar."""
    from fsn.measure.style import colours, drawing, save_figure

    columns = list(dict.fromkeys(row.column for row in found))
    models = list(dict.fromkeys(row.model for row in found))
    depths = sorted({row.layers for row in found})
    shades, across = colours(models), 4
    down = -(-len(columns) // across)
    marks = {depth: {"marker": "o" if i == 0 else "D", "s": 13} for i, depth in enumerate(depths)}
    with drawing(down, across, 0.8 + 1.45 * down, sharex=True, sharey=True) as (figure, grid):
        for axes, column in zip(grid.flat, columns, strict=False):
            rows_here = [row for row in found if row.column == column]
            for row in rows_here:
                step = depths.index(row.layers) - (len(depths) - 1) / 2
                y, shade = models.index(row.model) + 0.36 * step, shades[row.model]
                fill = {"facecolors": "none" if row.layers == depths[0] else shade}
                axes.plot([row.mean] * 2, [y - 0.17, y + 0.17], color=shade, linewidth=1.4)
                axes.scatter(
                    row.accuracies,
                    [y] * len(row.accuracies),
                    edgecolors=shade,
                    linewidths=0.8,
                    **fill,
                    **marks[row.layers],
                )
            axes.set_title(rows_here[0].title(len({row.width for row in found}) > 1), fontsize=7.5)
        for axes in grid.flat[len(columns) :]:
            axes.set_visible(False)
        first = grid.flat[0]
        first.set_xlim(-0.06, 1.06)
        first.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        first.set_ylim(len(models) - 0.4, -0.6)
        first.set_yticks(range(len(models)), models)
        for axes in grid.flat:
            axes.tick_params(length=0, labelsize=7)
            axes.spines["left"].set_visible(False)
        said = [f"{'○' if layers == depths[0] else '◆'} {in_words(layers)}" for layers in depths]
        figure.supxlabel(f"accuracy; every mark a seed, the bar their mean: {', '.join(said)}", fontsize=8)
    return save_figure(figure, path)


def write(folder: Path, left_out: list[str]) -> list[Path]:
    """Table and figure of all finished cells of a folder; the paths written."""
    cells = read_cells(folder)
    if not cells:
        return []
    found = rows(cells)
    write_text_atomic(folder / "table.md", markdown(found, cells, left_out))
    write_text_atomic(folder / "table.csv", csv_text(found))
    return [folder / "table.md", folder / "table.csv", draw(found, cells, folder / "figure")]
