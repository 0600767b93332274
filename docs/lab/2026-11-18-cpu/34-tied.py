"""Do tied queries and keys keep a small transformer from breaking down beyond its training length?

    python docs/lab/2026-11-18-cpu/34-tied.py

Two layers, windows of 64, 1,500 steps of 32 windows on enwik8, one thread; then windows of 256, as they are and with a
sliding window of 64. ``-tied``: the queries' projection serves the keys too.
"""

from __future__ import annotations

import json
import math
from unittest import mock

import torch
from torch import Tensor

from benchmarks.reach import bits_by_position
from fsn import ops
from fsn.data import Windows, load
from fsn.models import build_from_config, preset
from fsn.nn import Context
from fsn.nn.transformer import CausalSelfAttention

LENGTH, BATCH, STEPS = 64, 32, 1500
MODELS = ("transformer", "transformer-tied", "fsn", "kuramoto", "transformer-kvshift")


def tied(self: CausalSelfAttention, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    width = x.shape[-1]
    weight = torch.cat((self.qkv[:width], self.qkv[:width], self.qkv[2 * width :]))
    q, k, v = (x @ weight.mT).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    turns = ops.rotary_turns(self.rates, x.dtype, 0, x.shape[1])
    return ops.turn_half(q, *turns), ops.turn_half(k, *turns), v


def run(name: str, seed: int, train: Tensor, valid: Tensor) -> dict[str, object]:
    torch.manual_seed(seed)
    family = name.removesuffix("-tied")
    width = {"width": 72} if family.startswith("transformer") else {"k": 96}
    model = build_from_config(preset(f"{family}-1m", 205, layers=2, **width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    order, last = torch.Generator().manual_seed(seed), []
    split = tied if name.endswith("-tied") else CausalSelfAttention._split
    with mock.patch.object(CausalSelfAttention, "_split", split):
        for step in range(STEPS):
            starts = torch.randint(len(train) - LENGTH - 1, (BATCH,), generator=order)
            text = torch.stack([train[i : i + LENGTH + 1] for i in starts.tolist()]).long()
            loss = model.loss(text[:, :-1], text[:, 1:]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            last += [loss.item() / math.log(2)] if step >= STEPS - 200 else []
        model.eval()
        windows = Windows(valid, 4 * LENGTH, stride=1)
        picked = torch.linspace(0, len(windows) - 1, 256).long()
        bits, far = bits_by_position(model, windows, picked, "as it is", LENGTH)
        near, _ = bits_by_position(model, windows, picked, "sliding", LENGTH)
    quarters = [[round(part.mean().item(), 3) for part in x.tensor_split(4, dim=1)] for x in (bits, near)]
    return {
        "model": name,
        "seed": seed,
        "params": sum(p.numel() for p in model.parameters()),
        "train": round(sum(last) / len(last), 3),
        "bits": quarters[0],
        "sliding": quarters[1][-1],
        "far": [round(share, 3) for share in far],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    corpus = load("enwik8")
    for seed in (0, 1):
        for name in MODELS:
            print(json.dumps(run(name, seed, corpus.train, corpus.valid)), flush=True)
