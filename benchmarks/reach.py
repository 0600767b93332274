"""How models read on where windows are longer than those of training, as they are and with two remedies.

    python -m benchmarks.reach results/fsn-1m-seed0 results/transformer-1m-nodrop-seed0 --length 1024 --reach 256

A transformer with rotary positions breaks down at distances that it has never seen. Two remedies need no training:

- a *sliding* window: every position looks back no further than in training. Attention beyond the reach is taken away,
  and the rest brought to a sum of one: the softmax over what remains.
- *clamped* distances: a position looks back as far as there is text, but what lies beyond the reach is scored as if it
  lay at its end, which is the idea of ReRoPE. The text is used, and no distance is new.

All are measured on the same windows. Beside the bits stands how much attention goes beyond the reach.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest import mock

import torch
import tyro
from torch import Tensor

import fsn
from fsn import ops
from fsn.data import Windows
from fsn.io import write_text_atomic
from fsn.models import LanguageModel
from fsn.nn import Context
from fsn.nn.transformer import CausalSelfAttention
from fsn.train import load_run
from fsn.train.evaluate import window_losses
from fsn.train.world import World, environment

WAYS = ("as it is", "sliding", "clamped")


@dataclass
class Options:
    runs: Annotated[list[Path], tyro.conf.Positional]
    """Run folders; the weights of the best epoch, or of the checkpoint where an archived run has only that."""
    length: int = 1024
    """Symbols in a window."""
    reach: int = 256
    """How many distances the remedies allow, the own position included."""
    windows: int = 128
    """How many windows, evenly spread over the validation part."""
    parts: int = 4
    """Positions are averaged over so many parts of the window."""
    json: Path | None = None
    """Write the numbers here too, with those of every window's last part."""


def sliding(reach: int) -> Callable[[Tensor], Tensor]:
    """Attention (B, T, T) on the last ``reach`` positions alone."""

    def cut(attention: Tensor) -> Tensor:
        left = attention * near(attention, reach)
        return left / left.sum(-1, keepdim=True)

    return cut


def near(attention: Tensor, reach: int) -> Tensor:
    """Where the distance is below the reach: (T, T)"""
    return torch.ones(attention.shape[-2:], dtype=torch.bool, device=attention.device).triu(1 - reach)


def clamped_products(query: Tensor, keys: Tensor, rates: Tensor, reach: int) -> Tensor:
    """Products of rotated queries and keys, (..., T, 2c), with no distance above reach − 1: (..., T, T)

    The rotations of both sides are undone; then the query alone is turned, by the largest distance.
    """
    positions = torch.arange(query.shape[-2], dtype=rates.dtype)
    plain = query @ keys.mT
    far = (
        turned(query, (reach - 1 - positions)[:, None] * rates) @ turned(keys, -positions[:, None] * rates).mT
    )
    return torch.where(near(plain, reach), plain, far)


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Coordinate pairs (c, c + d/2) of x (..., T, d) turned by angle (T, d/2)."""
    return ops.turn_half(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))


@contextlib.contextmanager
def clamped(model: LanguageModel, reach: int) -> Iterator[None]:
    """Inside, the model's scores know no distance above reach − 1."""
    rates = next(module.rates for module in model.modules() if hasattr(module, "rates"))
    assert isinstance(rates, Tensor)

    def coherence_scores(
        query: Tensor, keys: Tensor, tau: Tensor, _: bool, own: Tensor | None, first: int
    ) -> Tensor:
        assert own is None and first == 0, "clamped distances are for scores without the successor"
        return clamped_products(query, keys, rates, reach) / tau

    def mix(
        self: CausalSelfAttention, q: Tensor, k: Tensor, v: Tensor, _: torch.dtype, context: Context
    ) -> Tensor:
        scores = clamped_products(q, k, rates, reach) * q.shape[-1] ** -0.5
        return context.probe("attention", ops.causal_softmax(scores).squeeze(1)).view_as(scores) @ v

    with (
        mock.patch.object(sys.modules["fsn.ops.synchronize"], "coherence_scores", coherence_scores),
        mock.patch.object(CausalSelfAttention, "_mix", mix),
    ):
        yield


def bits_by_position(
    model: LanguageModel, windows: Windows, starts: Tensor, way: str, reach: int, label: str | None = None
) -> tuple[Tensor, list[float]]:
    """Bits of every prediction, (windows, T − 1), and each layer's attention beyond the reach in the last quarter."""
    far: list[float] = []

    def look(attention: Tensor) -> Tensor:
        last = attention.shape[-1] - attention.shape[-1] // 4
        share = (attention * ~near(attention, reach))[:, last:].sum(-1).mean()
        far.append(float(share))
        return sliding(reach)(attention) if way == "sliding" else attention

    how = clamped(model, reach) if way == "clamped" else contextlib.nullcontext()
    with how, fsn.replace(model, {"layers.*.attention": look}):
        found = list(window_losses(model, windows, starts, batch_size=4, label=label))
    layers = model.config.layers
    shares = [sum(far[i::layers]) / len(far[i::layers]) for i in range(layers)]
    return torch.cat(found).double() / math.log(2), shares


def main(options: Options) -> None:
    rows: list[dict[str, Any]] = []
    for folder in options.runs:
        run = load_run(folder)
        which: Literal["best", "last"] = "best" if (run.folder / "best.safetensors").exists() else "last"
        model, tokens = run.load_model(which), run.load_corpus().valid
        windows = Windows(tokens, options.length, stride=1)
        starts = torch.linspace(0, len(windows) - 1, options.windows).long()
        for way in WAYS:
            found, far = bits_by_position(model, windows, starts, way, options.reach, folder.name)
            parts = found.tensor_split(options.parts, dim=1)
            row: dict[str, Any] = {"run": folder.name, "which": which, "way": way, "reach": options.reach}
            row |= {"bits": [part.mean().item() for part in parts], "far": far}
            rows.append(row | {"last_part": [round(x, 5) for x in parts[-1].mean(1).tolist()]})
    print(
        f"{options.windows} windows of {options.length}, reach {options.reach}; bits in {options.parts} parts of"
    )
    print("the window; its last part minus the first row's, ± two standard errors over windows; each layer's")
    print("attention beyond the reach in the last quarter, before a sliding window takes it away\n")
    base = torch.tensor(rows[0]["last_part"])
    for row in rows:
        behind = torch.tensor(row["last_part"]) - base
        error = 2 * float(behind.std()) / len(base) ** 0.5
        print(
            f"{row['run']:36s}{row['way']:9s}" + "".join(f"{bits:7.3f}" for bits in row["bits"])
            + f"{float(behind.mean()):+9.3f} ±{error:.3f}  " + "".join(f"{share:5.2f}" for share in row["far"])
        )  # fmt: skip
    if options.json is not None:
        about = {"environment": environment(World()), "length": options.length}
        write_text_atomic(options.json, json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
