"""Fine-tune a trained model on texts of different lengths, with nothing but PyTorch.

The texts are entries of Python's own manual, which every Python brings along. They come in padded batches:
`attention_mask` says what is padding, and a target of -100 counts nothing. Less than a minute on a CPU; `--steps` makes
it longer. For a whole corpus, checkpoints and a GPU:
`fsn train fsn-1m --begin-with results/fsn-1m-seed0 --corpus FILE`.
"""

import argparse
import math
import random
from pydoc_data.topics import topics

import torch
from safetensors.torch import save_model

import fsn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--out", help="write the weights there, as safetensors")
options = parser.parse_args()

torch.manual_seed(0)
model = fsn.load("fsn-1m")
texts = [p for entry in topics.values() for p in entry.split("\n\n") if 20 < len(p) < 100 and p.isascii()]
random.Random(0).shuffle(texts)
held_out, texts = texts[:32], texts[32:]
print(f"{len(texts)} paragraphs to learn from, {len(held_out)} to test on")


def batch(some: list[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets and mask (B, T): every text begins after a line break and ends with one."""
    rows = [model.encode("\n" + text + "\n")[0] for text in some]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    return tokens[:, :-1], tokens[:, 1:], tokens[:, :-1] != -100


def bits(some: list[str]) -> torch.Tensor:
    """Mean over all predictions that count."""
    inputs, targets, mask = batch(some)
    losses = model.loss(inputs, targets, attention_mask=mask)
    return losses.sum() / (targets != -100).sum() / math.log(2)


def report(step: int) -> None:
    model.eval()
    with torch.no_grad():
        print(f"step {step:3d}: {float(bits(held_out)):.3f} bits per character on what it has not seen")


optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
report(0)
for step in range(1, options.steps + 1):
    model.train()
    loss = bits(random.Random(step).sample(texts, 8))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0 or step == options.steps:
        report(step)

print("\n" + model.generate("The statement ", 120, temperature=0.6))
if options.out:
    save_model(model, options.out)
