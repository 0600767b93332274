"""Train on a text of your own: any file or folder. Without one, entries of Python's manual are taken.

    python examples/own_text.py my-notes/ --steps 2000

Half a minute on a CPU for a small model and few steps: it learns letters, not sense. The run folder holds config,
curves, weights and checkpoints; the same command goes on where it stopped, and `fsn eval`, `fsn generate` and
`fsn inspect` read it.
"""

import argparse
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import fsn
from fsn.train import Recipe, train

parser = argparse.ArgumentParser()
parser.add_argument("text", nargs="?", help="a file, or a folder of text files")
parser.add_argument("--out", help="the run folder; by default one that is thrown away")
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

with tempfile.TemporaryDirectory() as scratch:
    path = options.text
    if path is None:
        path = str(Path(scratch) / "manual.txt")
        Path(path).write_text("\n".join(topics.values()), encoding="utf-8")

    corpus = fsn.data.load(path)  # every byte value that occurs is a symbol
    print(corpus)

    # A preset, made narrow and shallow so that a laptop is enough; leave `overrides` out for the model of the paper.
    run = train(
        "fsn-1m",
        corpus,
        options.out or str(Path(scratch) / "run"),
        Recipe(max_steps=options.steps, length=128, batch_size=16, lr=3e-3),
        overrides={"k": 48, "layers": 2},
    )
    print(f"{run.best['valid_bits']:.3f} bits per symbol on the validation part of the text")

    model = fsn.load(run.folder)
    print("\n" + model.generate("The ", 200, temperature=0.7))
