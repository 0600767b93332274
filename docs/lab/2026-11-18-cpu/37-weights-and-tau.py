"""What weights in half precision cost a shipped model; how the init ramp depends on where τ starts; how large
coherences get.

python docs/lab/2026-11-18-cpu/37-weights-and-tau.py
"""

import torch

from fsn import data
from fsn.data import Windows
from fsn.measure.losses import evaluating, token_losses
from fsn.models import build
from fsn.nn import record
from fsn.train import find_run, load_run

WINDOWS = 512
corpus = data.load("enwik8")

for name in ("fsn-1m-seed0", "transformer-1m-nodrop-seed0"):
    run = load_run(find_run(f"results/{name}"))
    windows = Windows(corpus.valid[: (WINDOWS - 1) * 128 + 256], 256, 128)
    model = run.load_model()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    before = token_losses(model, windows).astype("float64")
    for dtype in (torch.float16, torch.bfloat16):
        model.load_state_dict({key: value.to(dtype).float() for key, value in weights.items()})
        change = (token_losses(model, windows) - before).mean(1)
        error = 2 * change.std(ddof=1) / len(change) ** 0.5
        print(
            f"{name}, {dtype}: {change.mean():+.6f} ± {error:.6f} bits (two standard errors over {len(change)} windows)"
        )

tokens = windows.gather(torch.arange(16))[:, :-1]
for factor in (0.75, 1.0, 1.4):
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = build("fsn-nophase-1m", vocab_size=205, tau_start=factor * 176**0.5)
        with evaluating(model), record(model, "layers.*.feedforward.raw") as points:
            model(tokens)
        first, last = (
            points[f"layers.{i}.feedforward.raw"].double().pow(2).mean().sqrt().item() for i in (0, 3)
        )
        found.append(last / first)
    growth = ", ".join(f"{x:.1f}" for x in found)
    print(f"tau from {factor:.2f} sqrt(k): raw feed-forward output grows {growth}-fold (seeds 0 to 2)")

tokens = windows.gather(torch.arange(64))[:, :-1]
for name in ("fsn-1m-seed0", "kuramoto-1m-seed0"):
    model = load_run(find_run(f"results/{name}")).load_model()
    with evaluating(model), record(model, "coherences") as points:
        model(tokens)
    print(
        f"{name}: the largest coherence on 64 windows is {points['coherences'].max():.1f}, of at most k = 176"
    )
