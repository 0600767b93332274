"""One line for each run of 36-falling-rate.yaml: its settings and its loss.

python docs/lab/2026-11-18-cpu/36-falling-rate.py runs/falling-rate > 36-falling-rate.jsonl
"""

import json
import sys
from pathlib import Path

from fsn.train import load_run

for folder in sorted(Path(sys.argv[1]).iterdir()):
    run = load_run(folder)
    if run.finished:
        (epoch,) = run.epochs
        names = ("schedule", "lr", "warmup_steps", "seed", "max_steps")
        line = {"run": run.name, "commit": run.environment["commit"][:7]}
        line |= {name: getattr(run.recipe, name) for name in names}
        line |= {"valid_bits": epoch["valid_bits"], "train_bits": epoch["train_loss_bits"]}
        print(json.dumps(line), flush=True)
