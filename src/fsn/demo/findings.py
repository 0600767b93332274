"""What the demo's page shows, measured on the finished runs: one plain dict, ready for JSON.

- ``about``: text, recipe, machine
- ``models``: size, losses, speed, curves, loss by copy depth and a sample of each
- ``depth``: the copy-depth bins and how many characters each holds
- ``margins``: bits against the transformer by bin, with intervals
- ``kernel``: the FSN's coefficients, mean and by coordinate
- ``snippet``: a line, twice: bits of every character and the attention of every layer
"""

from __future__ import annotations

import base64
import datetime
import platform
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import fsn
from fsn.data import Corpus
from fsn.demo.plan import Entry, Plan
from fsn.errors import UserError
from fsn.measure import (
    BINS,
    battery,
    battery_losses,
    label_corpus,
    margin_table,
    per_token_losses,
    read_kernel,
)
from fsn.measure.copy_depth import bin_name
from fsn.measure.losses import evaluating
from fsn.progress import Bar
from fsn.train import Run
from fsn.train.sample import sample

LINE = 'zorblat = Quokka(weight=3.7, food="lupin_leaves")\n'
"""Two names that no library has: the second time they can only come from the first."""
PROMPT = "def "
SYMBOLS = 280
TEMPERATURE = 0.5
STRIDE = 128
STANDARD, ENRICHED = 768, 64
"""Windows of the copy-depth measurement: the first ones, and the ones richest in long copies."""
COPYING = 4
"""Copy depth from which a character counts as copied."""
REFERENCE = "transformer"


def measure(plan: Plan, runs: dict[str, Run], corpus: Corpus) -> dict[str, Any]:
    """Everything the page needs."""
    length = plan.recipe.length
    labels = label_corpus(corpus, "valid", length, STRIDE)
    chosen = battery(labels, STANDARD, ENRICHED)
    models = {key: run.load_model() for key, run in runs.items()}
    losses = {
        key: battery_losses(model, corpus.valid, chosen, description=f"copy depth, {key}")
        for key, model in models.items()
    }
    copied = chosen.mask((COPYING, 32), "standard")
    rows = []
    with Bar("writing samples", len(plan.entries)) as bar:
        for entry in plan.entries:
            text = sample(
                models[entry.key],
                corpus.alphabet,
                prompt(corpus),
                symbols=SYMBOLS,
                temperature=TEMPERATURE,
                context=length - 1,
                seed=plan.recipe.seed,
            )
            row = _results(entry, runs[entry.key])
            row["copied_bits"] = _mean(losses[entry.key], copied)
            row["depth"] = [_mean(losses[entry.key], chosen.mask(edges)) for edges in BINS]
            row["sample"] = text
            rows.append(row)
            bar.update()
    return {
        "about": _about(plan, corpus, runs),
        "models": rows,
        "depth": {
            "bins": [bin_name(edges) for edges in BINS],
            "tokens": chosen.counts(),
            "copied": int(copied.sum()),
            "copied_share": float(copied.sum() / (~chosen.enriched).sum() / (length - 1)),
            "from": COPYING,
        },
        "margins": _margins(losses, chosen),
        "kernel": _kernel(models["fsn"]),
        "snippet": _snippet(models, corpus, length),
        "prompt": prompt(corpus),
    }


def prompt(corpus: Corpus) -> str:
    """What the samples begin with, if the corpus has these symbols."""
    return PROMPT if _has(corpus, PROMPT) else ""


def repeated_line(corpus: Corpus, length: int) -> str:
    """The line that is shown twice: :data:`LINE`, or the beginning of the validation text if the corpus lacks
    its symbols or a window the room."""
    room = length // 2
    if _has(corpus, LINE) and len(LINE) <= room:
        return LINE
    tokens = corpus.valid[: min(room, len(LINE))]
    return "".join(chr(corpus.symbols[int(t)]) for t in tokens)


def _has(corpus: Corpus, text: str) -> bool:
    try:
        corpus.encode(text)
    except UserError:
        return False
    return True


def _mean(values: NDArray[np.float32], mask: NDArray[np.bool_]) -> float | None:
    return float(values[mask].mean(dtype=np.float64)) if mask.any() else None


def _results(entry: Entry, run: Run) -> dict[str, Any]:
    last = run.epochs[-1]
    steps = [line for line in run.metrics if line["kind"] == "step"]
    return {
        "key": entry.key,
        "name": entry.name,
        "about": entry.about,
        "preset": entry.job.preset,
        "config": entry.job.model,
        "parameters": entry.parameters,
        "valid_bits": last["valid_bits"],
        "tokens_per_s": last["tokens_per_s"],
        "seconds": last["train_s"],
        "train": [[line["step"], round(line["loss_bits"], 4)] for line in steps],
        "valid": [
            [line["step"], round(line["valid_bits"], 4), line["cumulative_s"]] for line in run.validations
        ],
        "folder": str(run.folder),
    }


def _margins(losses: dict[str, NDArray[np.float32]], chosen: Any) -> dict[str, Any]:
    """Bits against the transformer, paired token by token, with 95 % intervals over windows."""
    others = {key: loss for key, loss in losses.items() if key != REFERENCE}
    bins = (*BINS, (COPYING, 32))
    table = margin_table(others, losses[REFERENCE], chosen, bins=BINS, resamples=400)
    whole = margin_table(others, losses[REFERENCE], chosen, bins=bins[-1:], slices="standard", resamples=400)

    def columns(rows: Any) -> dict[str, list[float]]:
        return {name: [float(row[name]) for row in rows] for name in ("margin", "low", "high")}

    return {
        key: {
            "bins": columns(table.where(run=key).rows),
            "copied": {n: v[0] for n, v in columns(whole.where(run=key).rows).items()},
        }
        for key in others
    }


def _kernel(model: nn.Module) -> dict[str, Any]:
    """Coefficients w (field, layer, harmonic): the mean over coordinates, and each coordinate on its own.

    A coupling function is linear in w, so from these the page can draw any of them, with any number of
    harmonics.
    """
    reading = read_kernel(model)
    mean = reading.weights.mean(axis=-1)

    def pairs(w: NDArray[np.complex128]) -> list[Any]:
        return np.round(np.stack([w.real, w.imag], axis=-1), 4).tolist()

    return {
        "frame": reading.frame,
        "layers": reading.layers,
        "harmonics": reading.harmonics,
        "mean": pairs(mean),
        "coordinates": pairs(np.moveaxis(reading.weights, -1, 2)),
        "magnitude": np.round(reading.magnitude, 4).tolist(),
        "tau": reading.tau,
    }


def _snippet(models: dict[str, nn.Module], corpus: Corpus, length: int) -> dict[str, Any]:
    """A line, twice, through every model: what each character costs, and where attention goes."""
    line = repeated_line(corpus, length)
    tokens = corpus.encode((line + line).encode("latin-1")).long()
    period = len(tokens) // 2
    shown = {}
    for key, model in models.items():
        bits = per_token_losses(model, tokens[None].numpy(), description="snippet")[0]
        with evaluating(model), fsn.record(model, "layers.*.attention") as points:
            model(tokens[None])
        layers = [points[name][0].float() for name in sorted(points)]
        shown[key] = {
            "bits": np.round(bits, 3).tolist(),
            "first": float(bits[: period - 1].mean()),
            "second": float(bits[period - 1 :].mean()),
            "layers": [_attention(a, period) for a in layers],
        }
    return {"text": line + line, "period": period, "models": shown}


def _attention(weights: torch.Tensor, period: int) -> dict[str, Any]:
    """One layer's attention (T, T) as bytes, and how much of it lies where a copy would need it.

    For the characters t of the second copy, ``place`` is the mean weight on the same place in the first copy
    (t − P), and ``after`` that on the place after it (t − P + 1), which holds the symbol to be predicted.
    ``chance`` is what even attention would give. Bytes hold 255 √A, so that small weights stay visible.
    """
    t = torch.arange(period, 2 * period - 1)
    quantised = (weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
    return {
        "weights": base64.b64encode(quantised.contiguous().numpy().tobytes()).decode(),
        "place": float(weights[t, t - period].mean()),
        "after": float(weights[t, t - period + 1].mean()),
        "chance": float((1.0 / (t + 1)).mean()),
    }


def _about(plan: Plan, corpus: Corpus, runs: dict[str, Run]) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "corpus": corpus.name,
        "symbols": corpus.vocab_size,
        "characters": len(corpus),
        "sha256": corpus.sha256,
        "steps": plan.steps,
        "batch": recipe.batch_size,
        "length": recipe.length,
        "lr": recipe.lr,
        "seed": recipe.seed,
        "folder": str(plan.folder),
        "date": datetime.date.today().isoformat(),
        "fsn": fsn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "temperature": TEMPERATURE,
    }
