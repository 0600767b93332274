"""What each of two processes does in test_processes.py: train in parts, at one global batch.

Run by torchrun with the folder for the runs as its argument.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from fsn.errors import UserError
from fsn.train import train
from tests.train.test_processes import ODD
from tests.train.tiny import MODELS, corpus, recipe


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = corpus()
    for preset, overrides in MODELS.items():
        out = folder / f"{preset}-two"
        for steps in (ODD["max_steps"] // 2, ODD["max_steps"]):  # the second call resumes
            r = recipe(**{**ODD, "max_steps": steps})
            run = train(preset, text, out, r, overrides=overrides, extend=True, quiet=True)
            assert run.finished
    try:
        train("fsn-1m", text, out, recipe(**{**ODD, "lr": 0.5}), overrides=MODELS["fsn-1m"], quiet=True)
    except UserError as error:
        assert "recipe.lr" in str(error)
        (folder / f"refused-{dist.get_rank()}").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
