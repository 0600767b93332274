"""Inside trained models, in a form that a page can draw: coupling coefficients, attention, bits per character."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import fsn
from fsn.data import Corpus
from fsn.measure import per_token_losses, read_kernel
from fsn.measure.losses import evaluating


def read_coefficients(model: nn.Module) -> dict[str, Any]:
    """Coefficients w (field, layer, harmonic): the mean over coordinates, and each coordinate on its own.

    A coupling function is linear in w, so from these the page can draw any of them, with any number of
    harmonics.
    """
    reading = read_kernel(model)

    def pairs(w: NDArray[np.complex128]) -> list[Any]:
        return np.round(np.stack([w.real, w.imag], axis=-1), 4).tolist()

    return {
        "frame": reading.frame,
        "layers": reading.layers,
        "harmonics": reading.harmonics,
        "mean": pairs(reading.weights.mean(axis=-1)),
        "coordinates": pairs(np.moveaxis(reading.weights, -1, 2)),
    }


def show_snippet(models: Mapping[str, nn.Module], corpus: Corpus, text: str) -> dict[str, Any]:
    """A text that says the same thing twice, through every model: what each character costs, where attention
    goes."""
    tokens = corpus.encode(text.encode("latin-1")).long()
    period = len(tokens) // 2
    shown = {}
    for key, model in models.items():
        with evaluating(model), fsn.record(model, "layers.*.attention") as points:
            model(tokens[None])
        shown[key] = {
            **said_twice(model, tokens),
            "layers": [show_attention(points[name][0].float(), period) for name in sorted(points)],
        }
    return {"text": text, "period": period, "models": shown}


def said_twice(model: nn.Module, tokens: torch.Tensor) -> dict[str, Any]:
    """What every character of something said twice costs, and the means of both sayings: tokens (2P,)"""
    bits = per_token_losses(model, tokens[None].numpy(), description="said twice")[0]
    period = len(tokens) // 2
    return {
        "bits": np.round(bits.astype(np.float64), 3).tolist(),
        "first": float(bits[: period - 1].mean()),
        "second": float(bits[period:].mean()),
    }


def show_attention(weights: torch.Tensor, period: int) -> dict[str, Any]:
    """One layer's attention (T, T) as bytes, and how much of it lies where a copy would need it.

    For the characters t of the second saying, ``place`` is the mean weight on the same place in the first
    (t − P), and ``after`` that on the place after it (t − P + 1), which holds the symbol to be predicted.
    ``chance`` is what even attention would give. Bytes hold 255 √A, so that small weights stay visible.
    """
    t = torch.arange(period, 2 * period - 1)
    quantised = (weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
    return {
        "weights": base64.b64encode(quantised.contiguous().numpy().tobytes()).decode(),
        "place": float(weights[t, t - period].mean()),
        "after": float(weights[t, t - period + 1].mean()),
        "chance": float((1.0 / (t + 1)).mean()),
    }
