"""Associative recall with a single layer: pairs of a key and its value, then keys again; asked for is the value.

    k₁ v₁ k₂ v₂ k₃ v₃ k₄ v₄ · · k₃ · k₁ · · ·        after k₃ comes v₃, after k₁ comes v₁

Multi-query associative recall as zoology makes it (HazyResearch/zoology, zoology/data/multiquery_ar.py), with random
symbols between the queries. The layers have no feed-forward block. ``benchmarks/recall`` has the whole grid.
"""

from __future__ import annotations

import json
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from ..io import parse_json, read_file, write_text_atomic
from ..models import LanguageModel, build
from ..models.base import IGNORED
from ..nn import NoFeedForward
from ..progress import say, track

Rows = NDArray[np.int64]

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "fsn": ("FSN", {"k": 64, "feedforward": "none"}),
    "transformer": ("attention", {"width": 64}),
    "transformer-kvshift": ("attention with KV shift", {"width": 64}),
}
"""Families, their names on the page, their sizes."""
VOCAB, LENGTH, PAIRS = 256, 64, 4
STEPS, BATCH, RATE = 240, 64, 3e-3
TEST_ROWS = 256
MEASUREMENTS = 20
"""Points of a curve."""


def recall(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """What single layers learn, each in a process of its own; what is in ``folder`` already is not trained again."""
    steps = min(STEPS, steps)
    paths = {name: folder / f"recall-{name}.json" for name in MODELS}
    if not all(path.exists() for path in paths.values()):
        say(f"recall    {steps:,} steps of single layers, half a minute at most on two cores")
    context, before = get_context("spawn"), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:  # the processes leave Ctrl+C to this one, and end with it
        processes = [
            context.Process(target=learn, args=(name, steps, seed, path), daemon=True)
            for name, path in paths.items()
            if not path.exists()
        ]
        for process in processes:
            process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    for process in track(processes, "recall, models trained"):
        process.join()
    if any(process.exitcode for process in processes):
        raise UserError("training on recall failed; what is printed above says why")
    found = {name: parse_json(read_file(path), str(path)) for name, path in paths.items()}
    models = [{"key": name, "name": MODELS[name][0], **one} for name, one in found.items()]
    return {"models": models, "steps": steps, "pairs": PAIRS, "symbols": VOCAB, "length": LENGTH}


def learn(name: str, steps: int, seed: int, path: Path) -> None:
    """Train one model; its share of right answers on fresh rows, as it grows, is written to ``path``."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = one_layer(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    tokens, targets = rows(steps * BATCH, 2 * seed)
    fresh, wanted = rows(TEST_ROWS, 2 * seed + 1)
    curve = []
    for step in range(1, steps + 1):
        part = slice((step - 1) * BATCH, step * BATCH)
        asked = targets[part] != IGNORED
        F.cross_entropy(model(tokens[part])[asked], targets[part][asked]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // MEASUREMENTS) == 0 or step == steps:
            with torch.no_grad():
                right = model(fresh).argmax(-1)[wanted != IGNORED] == wanted[wanted != IGNORED]
            curve.append([step, round(float(right.float().mean()), 4)])
    found = {"curve": curve, "accuracy": curve[-1][1], "parameters": model.parameter_count()}
    write_text_atomic(path, json.dumps(found))


def one_layer(name: str) -> LanguageModel:
    """A model of one layer without feed-forward block."""
    model = build(f"{name}-1m", vocab_size=VOCAB, layers=1, dropout=0.0, **MODELS[name][1])
    if name.startswith("transformer"):
        (layer,) = model.layers  # type: ignore[misc]
        layer.feedforward, layer.feedforward_norm = NoFeedForward(), nn.Identity()
    return model


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    tokens, targets = mqar_rows(n, VOCAB, LENGTH, PAIRS, "random", seed)
    return torch.from_numpy(tokens), torch.from_numpy(targets)


def mqar_rows(
    n: int, vocab: int, length: int, pairs: int, fillers: str, seed: int, power: float = 0.01
) -> tuple[Rows, Rows]:
    """Tokens and targets (n, T): key-value pairs, then every key once more at a distance drawn from a power law.

    ``fillers``: ``empty`` leaves symbol 0 between the queries, ``random`` puts any symbol there, so that a key may
    occur a third time, followed by something else.
    """
    draw = np.random.RandomState(seed)
    keys = np.stack([draw.choice(np.arange(1, vocab // 2), size=pairs, replace=False) for _ in range(n)])
    values = np.stack(
        [draw.choice(np.arange(vocab // 2, vocab), size=pairs, replace=False) for _ in range(n)]
    )
    room = length // 2 - pairs
    weights = power * np.arange(1, room + 1) ** (power - 1)
    weights /= weights.sum()
    at = np.stack([draw.choice(room, size=pairs, replace=False, p=weights) for _ in range(n)])
    at = 2 * pairs + 2 * at
    tokens = np.zeros((n, length), np.int64)
    tokens[:, 0 : 2 * pairs : 2] = keys
    tokens[:, 1 : 2 * pairs : 2] = values
    np.put_along_axis(tokens, at, keys, axis=1)
    targets = np.full((n, length), IGNORED, np.int64)
    np.put_along_axis(targets, at, values, axis=1)
    if fillers == "random":
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randint(vocab, (n, length), generator=generator).numpy()
        tokens = np.where(tokens == 0, noise, tokens)
    return tokens, targets
