"""Training: one loop for a laptop, a GPU, or many processes.

from fsn.train import Recipe, train, load_run

run = train("fsn-1m", "enwik8", "runs/fsn-seed0", Recipe(epochs=2))
model = load_run("runs/fsn-seed0").load_model("best")
"""

from __future__ import annotations

from .evaluate import Evaluation, evaluate
from .recipe import Recipe
from .run import Run, load_run
from .start import train
from .state import NonFinite

__all__ = ["Evaluation", "NonFinite", "Recipe", "Run", "evaluate", "load_run", "train"]
