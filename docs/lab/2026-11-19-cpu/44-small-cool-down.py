"""One line for each run of 44-small-cool-down.yaml: its settings and its losses.

python docs/lab/2026-11-19-cpu/44-small-cool-down.py runs/small-cool-down > 44-small-cool-down.jsonl
"""

import json
import sys
from pathlib import Path

from fsn.train import load_run

for folder in sorted(Path(sys.argv[1]).iterdir()):
    run = load_run(folder)
    if not run.finished:
        continue
    (epoch,) = run.epochs
    recipe = {name: getattr(run.recipe, name) for name in ("lr", "seed", "max_steps", "cooldown")}
    line = {"run": run.name, "commit": run.environment["commit"][:7]} | recipe
    line |= {"valid_bits": epoch["valid_bits"], "train_bits": epoch["train_loss_bits"]}
    print(json.dumps(line), flush=True)
