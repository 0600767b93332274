"""What each of two processes does in test_processes.py: train in parts, at one global batch.

Run by torchrun with the folder for the runs as its argument.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from fsn.data import Corpus
from fsn.errors import UserError
from fsn.train import train
from fsn.train.world import open_world
from tests.train.test_processes import ODD
from tests.train.tiny import MODELS, corpus, recipe


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    text = corpus()
    with open_world("cpu") as world:  # the calls below find it and leave it open
        work(folder, text, world.rank)


def work(folder: Path, text: Corpus, rank: int) -> None:
    for preset, overrides in MODELS.items():
        out = folder / f"{preset}-two"
        for steps in (ODD["max_steps"] // 2, ODD["max_steps"]):  # the second call resumes
            r = recipe(**{**ODD, "max_steps": steps, "accumulate": 4})
            run = train(preset, text, out, r, overrides=overrides, extend=True, quiet=True)
            assert run.finished
    try:
        train(preset, text, out, recipe(**{**ODD, "lr": 0.5}), overrides=overrides, quiet=True)
    except UserError as error:
        assert "recipe.lr" in str(error)
        (folder / f"refused-{rank}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
