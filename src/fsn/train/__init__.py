"""Training: one loop for a laptop, a GPU, or many processes.

from fsn.train import Recipe, train, load_run

run = train("fsn-1m", "enwik8", "runs/fsn-seed0", Recipe(epochs=2))
model = load_run("runs/fsn-seed0").load_model("best")
"""

from __future__ import annotations

from .checkpoint import NonFinite
from .evaluate import Evaluation, evaluate
from .loop import train
from .recipe import Recipe
from .run import Run, find_run, load_run

__all__ = ["Evaluation", "NonFinite", "Recipe", "Run", "evaluate", "find_run", "load_run", "train"]
