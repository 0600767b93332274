"""Runs made of numbers, for instruments that read nothing but config and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fsn.data import Windows
from fsn.train.run import Run

SYMBOLS = bytes(range(205)).hex()


def made_up_run(
    name: str,
    losses: Sequence[float | None],
    epoch_s: float = 100.0,
    corpus: str = "enwik8",
    sha256: str = "aa",
    symbols: str = SYMBOLS,
    length: int = 256,
    **columns: Any,
) -> Run:
    """A run whose epoch i + 1 ended at ``losses[i]`` bits after (i + 1) · ``epoch_s`` seconds."""
    config = {
        "model": {"kind": "fsn", "vocab_size": len(symbols) // 2},
        "recipe": {"length": length},
        "corpus": {"name": corpus, "sha256": sha256, "symbols": symbols},
        "format": 1,
    }
    rows = [
        {
            "kind": "epoch",
            "epoch": i + 1,
            "step": 10 * (i + 1),
            "train_loss_bits": loss,
            "valid_bits": loss,
            "valid_bits_second_half": None if loss is None else loss - 0.1,
            "tokens_per_s": 1000.0,
            "eval_tokens_per_s": 4000.0,
            "train_s": 0.9 * epoch_s,
            "valid_s": 0.1 * epoch_s,
            "cumulative_s": epoch_s * (i + 1),
            "peak_memory_gb": 1.0,
            **{key: value[i] if isinstance(value, list) else value for key, value in columns.items()},
        }
        for i, loss in enumerate(losses)
    ]
    return Run(Path(name), config, rows)


def windows_from(rows: np.ndarray) -> Windows:
    """Windows already cut (n, T), end to end in one text."""
    return Windows(torch.from_numpy(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1], rows.shape[1])
