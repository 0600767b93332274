"""``fsn export``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def export(run: Path, out: Path, /, *, which: Literal["best", "last"] = "best") -> None:
    """Write a trained run as a model for Hugging Face tools: weights, configuration, tokenizer, card.

    For example:
      fsn export runs/fsn-seed0 hub/fsn-seed0

    and then, in Python, `import fsn.hub` and
    `transformers.pipeline("text-generation", "hub/fsn-seed0")("The city of ")`.

    Args:
        run: The run folder.
        out: The folder to write, which must not hold anything yet.
        which: The weights of the best epoch, or the last ones saved.
    """
    from ..progress import say
    from ..versions import untested
    from . import export_run

    odd = untested("CPU", ["transformers"])
    if odd:
        say(odd)
    written = export_run(run, out, which)
    print(f"exported: {written}")
    for file in sorted(written.iterdir()):
        print(f"  {file.name}  {file.stat().st_size:,} bytes")
