"""The coupling figure: the trained kernel, read as coupling functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsn.measure import KernelReading, read_gates, thinned, through_training
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result, picture
from fsn.paper.library import epochs_of
from fsn.paper.rows import Row, compare
from fsn.paper.values import stated
from fsn.train import Run

KERNEL = needs.FSN_CONVERGED.seed(0)
PRESENT, SUCCESSOR = 0, 1
GATE_WINDOWS = 16


def count_rows(bench: Bench) -> list[Row]:
    """What the figure's text says, counted: in how many layers it is so."""

    def read(runs: list[Run]) -> KernelReading:
        return bench.reading(runs[0])

    def negative(harmonic: int) -> Any:
        return lambda runs: float(read(runs).sign_flips[PRESENT, :, harmonic - 1].sum())

    rows = [
        compare(
            bench,
            "layers with an attractive first harmonic, present field",
            stated(4),
            [KERNEL],
            lambda runs: float((read(runs).mean_real[PRESENT, :, 0] > 0).sum()),
            ".0f",
        ),
        compare(
            bench,
            "layers whose mean second harmonic is negative, present field",
            stated(1),
            [KERNEL],
            negative(2),
            ".0f",
            "paper: layer four",
        ),
        compare(
            bench,
            "layers whose mean third harmonic is negative, present field",
            stated(2),
            [KERNEL],
            negative(3),
            ".0f",
            "paper: layers three and four",
        ),
    ]
    for f, name in ((PRESENT, "present"), (SUCCESSOR, "successor")):
        for where, layer in (("first", 0), ("last", -1)):
            rows.append(
                compare(
                    bench,
                    f"RMS first harmonic of the {name} field, {where} layer",
                    None,
                    [KERNEL],
                    lambda runs, f=f, i=layer: float(read(runs).magnitude[f, i, 0]),
                )
            )
    rows.append(
        compare(
            bench,
            "largest RMS imaginary part, over the RMS first harmonic",
            None,
            [KERNEL],
            lambda runs: float((read(runs).rms_imaginary / read(runs).magnitude[:, :, :1]).max()),
            remark="paper: near zero throughout",
        )
    )
    return rows


def furthest(bench: Bench) -> Run | None:
    """The paper's run if it is there, else the FSN that has got furthest."""
    runs = sorted(bench.begun(needs.FSN_CONVERGED), key=lambda run: (-epochs_of(run), run.recipe.seed))
    return next((run for run in runs if (run.folder / "best.safetensors").is_file()), None)


def live_data(run: Run, readings: Sequence[KernelReading]) -> dict[str, Any]:
    """Coordinate means of the coefficients through training, for the page's sliders."""

    def means(reading: KernelReading) -> Any:
        mean = reading.weights.mean(axis=-1)
        return np.stack([mean.real, mean.imag], axis=-1).round(6).tolist()  # field, layer, harmonic, re/im

    last = readings[-1]
    return {
        "run": run.name,
        "epochs": epochs_of(run),
        "frame": last.frame,
        "layers": last.layers,
        "harmonics": last.harmonics,
        "steps": [{"label": reading.label, "weights": means(reading)} for reading in readings],
    }


def compute_item(bench: Bench) -> Result:
    result = Result(rows=count_rows(bench))
    run = furthest(bench)
    if run is None:
        return result
    reading = bench.reading(run)
    readings = through_training(run, reading)
    said = f"{run.name}, {epochs_of(run)} epochs"
    if bench.library.reached(KERNEL, KERNEL.seeds[0]) is None:
        said += f" (the paper's run has {KERNEL.epochs}, so no number here stands beside the paper's)"
        result.notes.append(f"The pictures show {said}.")
    result.pictures += [
        picture(
            "coupling",
            f"The trained kernel of {said}. Left: coupling function of each layer's present field, against "
            "sin Δ (dashed). Right: RMS magnitude of the harmonics; hatched where the mean real part is "
            "negative.",
            lambda plots, surface: plots.coupling(reading, surface=surface),
            reading.table(),
        ),
        picture(
            "coupling-history",
            f"From the start (faint) to the best epoch (bold), through every epoch that was kept: {said}.",
            lambda plots, surface: plots.coupling_history(thinned(readings), surface=surface),
        ),
    ]
    result.tables.append(("Bounds and temperatures", reading.scales()))
    gates = gate_table(bench, run)
    if gates is not None:
        result.tables.append(("Value gates on validation text", gates))
    result.live = {"kernel": live_data(run, readings)}
    return result


def gate_table(bench: Bench, run: Run) -> Any:
    """Signs of the value gates on the first validation windows, or nothing without the text."""
    try:
        corpus = bench.corpus("text")
    except ValueError:
        return None
    length = bench.scale.length(256)
    tokens = corpus.valid[: GATE_WINDOWS * length].long()
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)[:, :-1]
    return bench.memo(("gates", run.folder), lambda: read_gates(bench.model(run), rows))


ITEM = Item(
    "coupling",
    "The trained kernel as coupling functions",
    "Figure 2",
    "Coupling functions per layer against sin Δ, harmonic magnitudes of both fields, signs, bounds, gates.",
    compute_item,
    (KERNEL,),
    ("text",),
)
