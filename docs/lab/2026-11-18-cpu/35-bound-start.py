"""One line for each run of 35-bound-start.yaml: its settings, its loss, and how far its blocks move the phases.

python docs/lab/2026-11-18-cpu/35-bound-start.py runs/bound-start > 35-bound-start.jsonl
"""

import json
import sys
from pathlib import Path

from fsn import data
from fsn.measure.states import first_windows
from fsn.measure.updates import has_bounds, update_table
from fsn.train import load_run

corpus = data.load("enwik8")
for folder in sorted(Path(sys.argv[1]).iterdir()):
    run = load_run(folder)
    if not run.finished:
        continue
    (epoch,) = run.epochs
    recipe = {name: getattr(run.recipe, name) for name in ("lr", "warmup_steps", "seed", "max_steps")}
    line = {"run": run.name, "commit": run.environment["commit"][:7]} | recipe
    line |= {"valid_bits": epoch["valid_bits"], "train_bits": epoch["train_loss_bits"]}
    if has_bounds(run):
        tokens = first_windows(corpus.valid, run.recipe.length)[:, :-1]
        rows = update_table(run.load_model("best"), tokens).rows
        shown = ("layer", "block", "alpha", "raw", "moved", "passed", "differs")
        line["updates"] = [
            {name: float(f"{row[name]:.4g}") if isinstance(row[name], float) else row[name] for name in shown}
            for row in rows
        ]
    print(json.dumps(line), flush=True)
