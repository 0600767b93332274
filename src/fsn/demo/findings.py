"""What the demo's page shows, measured on the finished runs: one plain dict, ready for JSON.

- ``about``: text, recipe, machine
- ``recall``: single layers on associative recall: the share of right answers as it grows
- ``models``: the models of the text: size, losses, speed, curves, loss by copy depth and a sample of each
- ``depth``: the copy-depth bins and how many characters each holds
- ``margins``: bits against the transformer by bin, with intervals
- ``kernel``: the coupling of the FSN
- ``full_size``: finished runs of a million parameters, or null: their curves, a repeated sentence, what the FSN writes
"""

from __future__ import annotations

import base64
import datetime
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import __version__
from ..data import Corpus
from ..measure import (
    BINS,
    battery,
    battery_losses,
    bin_name,
    coupling_data,
    curve_of,
    evaluating,
    finished_epochs,
    label_corpus,
    look,
    margin_table,
    read_kernel,
    time_to_target,
    without_field,
)
from ..measure.copy_depth import CAP
from ..measure.metrics import validated_in
from ..models import LanguageModel, preset
from ..nn import record
from ..progress import track
from ..train import Run, load_run
from ..train.run import SHIPPED
from .plan import MODELS, Plan
from .recall import recall

PROMPT = "def "
SYMBOLS = 280
TEMPERATURE = 0.7
STRIDE = 128
STANDARD, ENRICHED = 768, 64
"""Windows of the copy-depth measurement: the first ones, and the ones richest in long copies."""
COPYING = 4
"""Copy depth from which a character of the text counts as copied."""
RESAMPLES = 400
REFERENCE = "transformer"

Losses = NDArray[np.float32]
Models = Mapping[str, LanguageModel]


def measure(plan: Plan, runs: dict[str, Run], results: Path = Path("results")) -> dict[str, Any]:
    """Everything the page needs; ``results`` is where finished runs of full size may lie, or the shipped ones serve."""
    models = {key: run.load_model() for key, run in runs.items()}
    start = prompt_for(plan.corpus)
    return {
        "about": _about(plan, runs),
        "recall": recall(plan.folder, plan.steps, plan.recipe.seed),
        **_text(plan, runs, models, start),
        "kernel": coupling_data([read_kernel(models["fsn"], "trained")], coordinates=True),
        "full_size": full_size(results) or full_size(SHIPPED),
        "prompt": start,
    }


def prompt_for(corpus: Corpus) -> str:
    """What the samples begin with, if the corpus has these symbols."""
    return PROMPT if set(PROMPT.encode()) <= set(corpus.symbols) else ""


def _text(plan: Plan, runs: dict[str, Run], models: Models, start: str) -> dict[str, Any]:
    """Loss, loss by copy depth, and what each model writes."""
    corpus = plan.corpus
    labels = label_corpus(corpus, "valid", plan.recipe.length, STRIDE)
    chosen = battery(labels, STANDARD, ENRICHED)
    losses = {
        key: battery_losses(model, corpus.valid, chosen, label=f"copy depth, {MODELS[key][0]}")
        for key, model in models.items()
    }
    copied = chosen.mask((COPYING, CAP), "standard")
    rows = []
    for key, model in track(models.items(), "writing samples"):
        depth = [_mean(losses[key], chosen.mask(edges)) for edges in BINS]
        own = {"copied_bits": _mean(losses[key], copied), "depth": depth}
        written = _write(model, start, SYMBOLS, plan.recipe.seed)
        rows.append(_row(key, model, runs[key]) | own | {"sample": written})
    others = {key: loss for key, loss in losses.items() if key != REFERENCE}
    by_bin = margin_table(others, losses[REFERENCE], chosen, resamples=RESAMPLES)
    return {
        "models": rows,
        "depth": {"bins": [bin_name(edges) for edges in BINS], "tokens": chosen.counts(), "from": COPYING},
        "margins": {
            key: {name: by_bin.where(run=key).column(name) for name in ("margin", "low", "high")}
            for key in others
        },
    }


def _write(model: LanguageModel, start: str, symbols: int, seed: int) -> str:
    """What a model adds to ``start``."""
    return model.generate(start, symbols, temperature=TEMPERATURE, seed=seed)[len(start) :]


def _mean(values: Losses, mask: NDArray[np.bool_]) -> float | None:
    return float(values[mask].mean(dtype=np.float64)) if mask.any() else None


def _row(key: str, model: LanguageModel, run: Run) -> dict[str, Any]:
    last, (name, about) = run.epochs[-1], MODELS[key]
    steps = [line for line in run.metrics if line["kind"] == "step"]
    return {
        "key": key,
        "name": name,
        "about": about,
        "parameters": model.parameter_count(),
        "valid_bits": last["valid_bits"],
        "tokens_per_s": last["tokens_per_s"],
        "train": [[line["step"], round(line["loss_bits"], 4)] for line in steps],
        "valid": [
            [line["step"], round(line["valid_bits"], 4), line["cumulative_s"]] for line in run.validations
        ],
    }


def _about(plan: Plan, runs: dict[str, Run]) -> dict[str, Any]:
    corpus, recipe = plan.corpus, plan.recipe
    name = Path(corpus.name).name
    return {
        "corpus": name,
        "steps": plan.steps,
        "seconds": sum(run.epochs[-1]["cumulative_s"] for run in runs.values()),
        "folder": str(plan.folder),
        "temperature": TEMPERATURE,
        "facts": f"{name}: {len(corpus):,} characters, {corpus.vocab_size} symbols, sha256 {corpus.sha256[:12]}. "
        f"{plan.steps:,} steps of {recipe.batch_size} windows of {recipe.length} characters, AdamW {recipe.lr:g}, "
        f"seed {recipe.seed}. fsn {__version__}, PyTorch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {datetime.date.today().isoformat()}.",
    }


# -- something repeated --------------------------------------------------------------------------------------


def snippet(models: Models, text: str) -> dict[str, Any]:
    """A text and the same again, through every model: what each character costs, where attention goes."""
    period, shown = len(text), {}
    for key, model in models.items():
        tokens = model.encode(2 * text)
        seen = look(model, tokens, period, key)
        first, second = (float(part.mean()) for part in (seen.bits[: period - 1], seen.bits[period:]))
        shown[key] = {"bits": seen.bits.round(3).tolist(), "first": first, "second": second}
        shown[key] |= {"offsets": seen.offsets, "looks": seen.weights.round(4).tolist()}
        with evaluating(model), record(model, "layers.*.attention") as points:
            model(tokens)
        shown[key]["maps"] = [attention_map(weights) for weights in points.values()]
    return {"text": 2 * text, "period": period, "models": shown}


def attention_map(weights: torch.Tensor) -> str:
    """One layer's attention (1, T, T) as bytes 255 √A, so that small weights stay visible."""
    bytes_ = (weights[0].float().clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
    return base64.b64encode(bytes_.contiguous().numpy().tobytes()).decode()


# -- at full size --------------------------------------------------------------------------------------------

SENTENCE = "The zorblat of Quokkahaven feeds on lupin leaves and moonlight. "
"""Two names that no encyclopedia has: the second time they can only come from the first."""
FULL_PROMPT = "The Roman Empire "
FULL_SYMBOLS = 320
EPOCHS = 30
FULL_MODELS = MODELS | {
    "transformer-kvshift": ("KV shift", "a transformer; keys and values are mixed with their predecessors'")
}
"""Their names on the page, and what they do; KV shift is the transformer's own way to successors."""


def full_size(results: Path) -> dict[str, Any] | None:
    """What the page shows of finished runs in ``results``; nothing if FSN and transformer are not both there.

    Nothing is trained. The curves are read from the runs' metrics; a repeated sentence goes through the trained
    models, and through the FSN once more without the field that should do the copying.
    """
    found = {key: run for key in FULL_MODELS if (run := finished(results, f"{key}-1m"))}
    if not {"fsn", "transformer"} <= found.keys():
        return None
    ours = found["fsn"]
    models = {key: run.load_model() for key, run in found.items()}
    crossings = time_to_target([*found.values()], [found["transformer"]], EPOCHS, steady=True).against_mean
    shown = snippet(models, SENTENCE)
    with without_field(models["fsn"], "successor", ours.model_config.layers - 1):
        shown["models"] |= snippet({"cut": models["fsn"]}, SENTENCE)["models"]
    return {
        "models": [
            _curve(key, run) | {"epoch": crossing.epoch, "share": crossing.ratio}
            for (key, run), crossing in zip(found.items(), crossings, strict=True)
        ],
        "device": str(ours.environment.get("device") or "unknown device"),
        "text": ours.config["corpus"]["name"],
        "snippet": shown,
        "prompt": FULL_PROMPT,
        "sample": _write(models["fsn"], FULL_PROMPT, FULL_SYMBOLS, ours.recipe.seed),
    }


def finished(results: Path, name: str) -> Run | None:
    """A run in ``results`` of just this preset, seed 0, thirty epochs, with its weights."""
    for weights in sorted(results.glob("*/best.safetensors")):
        run = load_run(weights.parent)
        same = run.model_config == preset(name, run.model_config.vocab_size)
        if same and run.recipe.seed == 0 and len(finished_epochs(run)) >= EPOCHS:
            return run
    return None


def _curve(key: str, run: Run) -> dict[str, Any]:
    curve = curve_of(run, EPOCHS, steady=True)
    losses = curve.loss.tolist()
    return {
        "key": key,
        "name": FULL_MODELS[key][0],
        "about": FULL_MODELS[key][1],
        "bits": losses[-1],
        "validated_in": {"fp32": "float32", "bf16": "bfloat16"}.get(
            validated := validated_in(run), validated
        ),
        "curve": [
            [round(s / 60, 3), round(b, 4)] for s, b in zip(curve.seconds.tolist(), losses, strict=True)
        ],
    }
