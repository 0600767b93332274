"""The same models at full size, if the repository holds finished ones: what thirty epochs on a GPU make of them.

Nothing is trained here. The curves are read from the runs' metrics; a sentence said twice goes through the trained
models, and through the FSN once more without the field that should do the copying.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fsn.demo.inside import said_twice
from fsn.measure import Looks, curve_of, look, pace_notes, time_to_target, without_field
from fsn.models.generate import sample
from fsn.paper import runs as needs
from fsn.paper.rows import cite
from fsn.paper.runs import Library, device_of
from fsn.train import Run

SENTENCE = "The zorblat of Quokkahaven feeds on lupin leaves and moonlight. "
"""Two names that no encyclopedia has: the second time they can only come from the first."""
PROMPT = "The Roman Empire "
SYMBOLS = 320
TEMPERATURE = 0.7
EPOCHS = 30
MODELS = {
    "fsn": ("FSN", needs.FSN.seed(0)),
    "kuramoto": ("Kuramoto", needs.KURAMOTO.seed(0).after(EPOCHS)),
    "transformer": ("transformer", needs.REFERENCE.after(EPOCHS)),
}
REQUIRED = {"fsn", "transformer"}


def grown(results: Path) -> dict[str, Any] | None:
    """What the page shows of the finished runs in ``results``; nothing if FSN and transformer are not both there.

    Kuramoto attention joins them where it has run as long.
    """
    library = Library.open([results])
    runs = {key: library.reached(need, need.seeds[0]) for key, (_, need) in MODELS.items()}
    found = {key: run for key, run in runs.items() if run and (run.folder / "best.safetensors").is_file()}
    if not found.keys() >= REQUIRED:
        return None
    models = {key: run.load_model("best") for key, run in found.items()}
    fsn = found["fsn"]
    crossing = time_to_target([fsn], [found["transformer"]], EPOCHS, steady=True).against_mean[0]
    return {
        "models": [_curve(key, run) for key, run in found.items()],
        "crossing": {"epoch": crossing.epoch, "ratio": crossing.ratio},
        "device": device_of(fsn),
        "even": not pace_notes(found.values()),
        "text": fsn.config["corpus"]["name"],
        "snippet": _twice(fsn, models),
        "prompt": PROMPT,
        "sample": sample(
            models["fsn"],
            fsn.alphabet,
            PROMPT,
            symbols=SYMBOLS,
            temperature=TEMPERATURE,
            context=fsn.recipe.length - 1,
        ),
    }


def _curve(key: str, run: Run) -> dict[str, Any]:
    curve = curve_of(run, EPOCHS, steady=True)
    losses = [float(loss) for loss in curve.loss]
    return {
        "key": key,
        "name": MODELS[key][0],
        "bits": losses[-1],
        "paper": cite("main_table", "enwik8@30", key, "mean").value if key in REQUIRED else None,
        "curve": [[round(s / 60, 3), round(b, 4)] for s, b in zip(curve.seconds, losses, strict=True)],
    }


def _twice(fsn: Run, models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """The sentence, twice, under each model and under the FSN with its last layer cut."""
    tokens = fsn.alphabet.encode(2 * SENTENCE).long()
    shown = {key: said_twice(model, tokens) for key, model in models.items()}
    seen = {key: look(model, tokens[None], len(SENTENCE), key) for key, model in models.items()}
    with without_field(models["fsn"], "successor", fsn.model_config.layers - 1):
        shown["cut"] = said_twice(models["fsn"], tokens)
    return {"text": 2 * SENTENCE, "period": len(SENTENCE), "models": shown, "looks": _looks(seen)}


def _looks(seen: Mapping[str, Looks]) -> dict[str, Any]:
    """Of every model the layer that looks back most sharply: its attention by offset from the same place."""
    found = {}
    for key, one in seen.items():
        layer = int(one.weights.max(axis=1).argmax())
        found[key] = {"layer": layer + 1, "weights": [round(float(w), 4) for w in one.weights[layer]]}
    return {"offsets": next(iter(seen.values())).offsets, "models": found}
