"""The same models at full size, if the repository holds finished ones: what thirty epochs on a GPU make of them.

Nothing is trained here. The curves are read from the runs' metrics; a sentence said twice goes through the trained
models, and through the FSN once more without the field that should do the copying.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fsn.measure import best_epoch, curve_of, loss_at, pace_notes, per_token_losses, without_field
from fsn.measure.lesions import kernels_of
from fsn.models import count_parameters
from fsn.paper import needs
from fsn.paper.library import Library, device_of
from fsn.paper.scales import scale_named
from fsn.paper.values import cite
from fsn.train import Run
from fsn.train.sample import sample

SENTENCE = "The zorblat of Quokkahaven feeds on lupin leaves and moonlight. "
"""Two names that no encyclopedia has: the second time they can only come from the first."""
PROMPT = "The Roman Empire "
SYMBOLS = 320
TEMPERATURE = 0.7
MODELS = {"fsn": ("FSN", needs.FSN.seed(0)), "transformer": ("transformer", needs.REFERENCE.after(30))}


def grown(results: Path) -> dict[str, Any] | None:
    """What the page shows of the finished runs in ``results``; nothing if FSN and transformer are not both there."""
    library = Library.open(scale_named("paper"), [results])
    runs = {key: library.reached(need, need.seeds[0]) for key, (_, need) in MODELS.items()}
    found = {key: run for key, run in runs.items() if run and (run.folder / "best.safetensors").is_file()}
    if len(found) < len(MODELS):
        return None
    models = {key: run.load_model("best") for key, run in found.items()}
    fsn = found["fsn"]
    return {
        "models": [_curve(key, run) for key, run in found.items()],
        "device": device_of(fsn),
        "even": not pace_notes(found.values()),
        "text": fsn.config["corpus"]["name"],
        "snippet": _twice(fsn, models),
        "prompt": PROMPT,
        "sample": sample(
            models["fsn"], fsn.alphabet, PROMPT, symbols=SYMBOLS, temperature=TEMPERATURE, context=255, seed=0
        ),
    }


def _curve(key: str, run: Run) -> dict[str, Any]:
    curve = curve_of(run, 30, steady=True)
    return {
        "key": key,
        "name": MODELS[key][0],
        "parameters": count_parameters(run.model_config),
        "bits": loss_at([run], 30).mean,
        "best_epoch": best_epoch(run).epoch,
        "paper": cite("main_table", "enwik8@30", key, "mean").value,
        "curve": [
            [round(s / 60, 3), round(float(b), 4)] for s, b in zip(curve.seconds, curve.loss, strict=True)
        ],
    }


def _twice(fsn: Run, models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """The sentence, twice: bits of every character, under each model and under the FSN with its last layer cut."""
    tokens = fsn.alphabet.encode(2 * SENTENCE).long()[None].numpy()
    period = len(SENTENCE)

    def bits(model: nn.Module) -> dict[str, Any]:
        found = per_token_losses(model, tokens, description="a sentence, twice")[0].astype(np.float64)
        return {
            "bits": np.round(found, 3).tolist(),
            "first": float(found[: period - 1].mean()),
            "second": float(found[period:].mean()),
        }

    shown = {key: bits(model) for key, model in models.items()}
    with without_field(models["fsn"], "successor", len(kernels_of(models["fsn"])) - 1):
        shown["cut"] = bits(models["fsn"])
    return {"text": 2 * SENTENCE, "period": period, "models": shown}
