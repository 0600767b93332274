"""Look inside a trained model while it copies, then change what is found there.

Every value on the way has a name (`fsn.record` lists them all), and a value that can be read can be replaced. Runs in a
few seconds on a CPU, on the weights that come with the package.
"""

import math

import torch

import fsn
from fsn.measure import without_field

SENTENCE = "The zorblat of Quokkahaven feeds on lupin leaves and moonlight. "
PERIOD = len(SENTENCE)

model = fsn.load("fsn-1m")
# (1, 128): no encyclopedia has these names, so the second time they must be copied.
tokens = model.encode(2 * SENTENCE)


@torch.no_grad()
def second_time() -> float:
    """Bits per character when the sentence comes again."""
    losses = model.loss(tokens[:, :-1], tokens[:, 1:])[0] / math.log(2)
    return float(losses[PERIOD + 8 :].mean())


# Where does each layer look while it copies? At the place one period back, or at the one after it?
with torch.no_grad(), fsn.record(model, "layers.*.attention") as points:
    model(tokens)
print("layer   attention to the same place, one sentence back")
for name, attention in points.items():
    back = attention[0].diagonal(-PERIOD)  # A[t, t - PERIOD] for every t of the repetition
    print(f"{name:20} {float(back[8:].mean()):6.1%}")


# Take that attention away from the last layer, and it no longer knows where it is.
def nearby(attention: torch.Tensor) -> torch.Tensor:
    """What is left without the places more than half a sentence back, rows summing to one again."""
    kept = attention - attention.tril(-PERIOD // 2)
    return kept / kept.sum(-1, keepdim=True)


whole = second_time()
with fsn.replace(model, {"layers.3.attention": nearby}):
    unseeing = second_time()

# Leave attention alone and take away the field of the successors: it knows where it is, but not what comes next.
with without_field(model, "successor", layer=3):
    unfrustrated = second_time()

# Repulsion: what if no coordinate could be pushed away?
with fsn.replace(model, {"layers.*.gates.value": lambda gate: gate.abs()}):
    attractive = second_time()

print(f"\nbits per character, the second time: {whole:.2f}")
print(f"  layer 4 looks half a sentence back  {unseeing:.2f}")
print(f"  layer 4 without its successor field {unfrustrated:.2f}")
print(f"  value gates made positive           {attractive:.2f}")
