"""Train on subwords: make a tokenizer, pack documents so that none sees another, and compare in bits per byte.

    python examples/subwords.py --steps 400

Two small models read the same documents, one byte by byte, the other in byte pairs. Bits per token say nothing about
which is better, since their tokens are not alike; bits per byte do. Less than a minute on a CPU. From the command line:
`fsn train fsn-1m --corpus articles.jsonl --text-column text --tokenizer tokenizer.json --separate-documents --out RUN`.
"""

import argparse
import json
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import fsn
from fsn.data import ReadOptions
from fsn.train import Recipe, train

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    documents = folder / "manual.jsonl"  # a row for each entry of Python's manual
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in topics.values()))

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))

    recipe = Recipe(
        max_steps=options.steps, length=64, train_stride=32, batch_size=16, lr=3e-3, separate_documents=True
    )
    for name, file in (("bytes", None), ("byte pairs", str(folder / "tokenizer.json"))):
        run = train(
            "fsn-1m",
            str(documents),
            folder / name,
            recipe,
            overrides={"k": 48, "layers": 2},
            reading=ReadOptions(tokenizer=file, text_column="text"),
            quiet=True,
        )
        best = run.best
        print(
            f"{name}: {len(run.encoding)} tokens, {best['valid_bits']:.3f} bits per token, "
            f"{best['valid_bits_per_byte']:.3f} bits per byte"
        )

    model = fsn.load(folder / "byte pairs")  # the run folder keeps the tokenizer
    print("\n" + model.generate("The ", 60, temperature=0.7))
