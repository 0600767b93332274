"""Make a folder of ``src/fsn/weights`` from a finished run.

python docs/site/ship.py results/fsn-1m-seed0 fsn-1m
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from fsn.checks import check
from fsn.io import write_bytes_atomic, write_text_atomic
from fsn.train import hashes, load_run
from fsn.train.checkpoint import first_not_finite, pack, unpack
from fsn.train.evaluate import EVALUATIONS, read_evaluations
from fsn.train.run import SHIPPED

KINDS = ("epoch", "valid", "warning")
"""The lines of metrics.jsonl that are shipped."""
EVALUATED = ("which", "split", "length", "stride", "precision", "bits")
"""What is shipped of its lines in evaluations.jsonl. They are of the weights before these were rounded to float16."""


def ship(run_folder: Path, target: Path) -> None:
    """Write a finished run to ``target``: its best weights in float16, its epochs, its config as it is; and its
    evaluations into the file beside."""
    run = load_run(run_folder)
    target.mkdir(parents=True, exist_ok=True)
    _, about = unpack(hashes.read(run.folder, "best.safetensors"), "best.safetensors")
    weights = {key: value.half() for key, value in run.load_model().state_dict().items()}
    bad = first_not_finite(weights.items())
    check(bad is None, f"{bad} of {run.folder} does not fit into float16; choose another run")
    write_bytes_atomic(target / "best.safetensors", pack(weights, about))
    lines = [json.dumps(line) for line in run.metrics if line.get("kind") in KINDS]
    write_text_atomic(target / "metrics.jsonl", "\n".join(lines) + "\n")
    for name in ("config.yaml", "environment.json", "DONE"):
        shutil.copyfile(run.folder / name, target / name)
    hashes.hash_files(target)
    name, shipped = target.name, target.parent / EVALUATIONS
    kept = [line for line in read_evaluations(shipped) if line["run"] != name]
    ours = [line for line in read_evaluations(run.folder.parent / EVALUATIONS) if line["run"] == run.name]
    kept += [{"run": name} | {key: line[key] for key in EVALUATED} for line in ours]
    write_text_atomic(shipped, "".join(json.dumps(line) + "\n" for line in kept))


if __name__ == "__main__":
    ship(Path(sys.argv[1]), SHIPPED / sys.argv[2])
