"""Cells of `python -m benchmarks.recall --small` that end at guessing, and as many that do not, with bounds from 1.

python docs/lab/2026-11-18-cpu/38-recall-alpha.py DATA > 38-recall-alpha.jsonl
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import fsn
from benchmarks.recall import models
from benchmarks.recall.tasks import tasks
from benchmarks.recall.train import Cell, run_cell

STORED = Path("benchmarks/results/recall/small/cells")
FAMILIES = ("fsn", "fsn-score", "fsn-nophase", "successor")
GUESSING = 0.1

known = [json.loads(file.read_text()) for file in sorted(STORED.glob("*.json"))]
ours = [one for one in known if one["cell"]["model"] in FAMILIES]
failed = [one for one in ours if one["best"] < GUESSING]
chosen = {(one["cell"]["task"], one["cell"]["rate"]) for one in failed}
healthy = [
    one for one in ours if one["best"] >= GUESSING and (one["cell"]["task"], one["cell"]["rate"]) in chosen
]
models.fsn.build = partial(fsn.build, alpha_start=1.0)

for one in failed + healthy[:: max(1, len(healthy) // len(failed))]:
    cell = Cell(**one["cell"])
    line = {**one["cell"], "as in the grid": one["accuracy"]["test"]}
    with tempfile.TemporaryDirectory() as out:
        found = run_cell(cell, tasks()[cell.task], "cpu", Path(out), Path(sys.argv[1]), 4000, float("inf"))
    assert found is not None and found["model"]["alpha_start"] == 1.0
    line["alpha from 1"] = found["accuracy"]["test"]
    print(json.dumps(line), flush=True)
