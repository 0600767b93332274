"""How models read on where windows are longer than those of training, as they are and with a sliding window.

    python -m benchmarks.reach results/fsn-1m-seed0 results/transformer-1m-nodrop-seed0 --length 1024 --reach 256

A transformer with rotary positions breaks down at distances that it has never seen. The usual remedy is to let every
position look back no further than in training. Both are measured here, on the same windows. The sliding window is an
intervention (``fsn.replace``): attention beyond the reach is taken away and the rest brought to a sum of one, which is
the softmax over what remains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

import fsn
from fsn.data import Windows
from fsn.io import write_text_atomic
from fsn.models import LanguageModel
from fsn.train import load_run
from fsn.train.evaluate import window_losses
from fsn.train.world import World, environment


@dataclass
class Options:
    runs: Annotated[list[Path], tyro.conf.Positional]
    """Run folders; the weights of the best epoch, or of the checkpoint where an archived run has only that."""
    length: int = 1024
    """Symbols in a window."""
    reach: int = 256
    """How many positions the sliding window holds, the own one included."""
    windows: int = 128
    """How many windows, evenly spread over the validation part."""
    parts: int = 4
    """Positions are averaged over so many parts of the window."""
    json: Path | None = None
    """Write the numbers here too."""


def sliding(reach: int) -> Callable[[Tensor], Tensor]:
    """Attention (B, T, T) on the last ``reach`` positions alone."""

    def cut(attention: Tensor) -> Tensor:
        near = torch.ones(attention.shape[-2:], dtype=torch.bool, device=attention.device).triu(1 - reach)
        left = attention * near
        return left / left.sum(-1, keepdim=True)

    return cut


def bits_by_position(
    model: LanguageModel, windows: Windows, starts: Tensor, reach: int | None, label: str | None = None
) -> Tensor:
    """Mean bits of every prediction, (T − 1,), of the windows with these numbers."""
    points = {} if reach is None else {"layers.*.attention": sliding(reach)}
    with fsn.replace(model, points):
        found = list(window_losses(model, windows, starts, batch_size=4, label=label))
    return torch.cat(found).double().mean(0) / math.log(2)


def main(options: Options) -> None:
    rows: list[dict[str, Any]] = []
    for folder in options.runs:
        run = load_run(folder)
        which: Literal["best", "last"] = "best" if (run.folder / "best.safetensors").exists() else "last"
        model, tokens = run.load_model(which), run.load_corpus().valid
        windows = Windows(tokens, options.length, stride=1)
        starts = torch.linspace(0, len(windows) - 1, options.windows).long()
        for reach in (None, options.reach):
            found = bits_by_position(model, windows, starts, reach, folder.name)
            parts = [part.mean().item() for part in found.tensor_split(options.parts)]
            rows.append({"run": folder.name, "which": which, "reach": reach, "bits": parts})
    print(f"{options.windows} windows of {options.length}; bits in {options.parts} parts of the window")
    for row in rows:
        how = "as it is" if row["reach"] is None else f"last {row['reach']}"
        print(f"{row['run']:40s} {how:10s}" + "".join(f"{bits:8.3f}" for bits in row["bits"]))
    if options.json is not None:
        about = environment(World())
        write_text_atomic(options.json, json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
