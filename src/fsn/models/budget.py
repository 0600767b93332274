"""How many parameters, and which widths meet a target."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import UserError
from .config import Config, FSNConfig, TransformerConfig

PINNED_K = {"1m": 176, "2m": 246, "4m": 352, "8m": 511}
"""The FSN's width per rung of the ladder: pinned by the paper, not searched."""
TARGETS = {"1m": 1_000_000, "2m": 2_000_000, "4m": 4_000_000, "8m": 8_000_000}
WIDTH_STEP = 4
SMALL_SHARE = 11
"""Registers and winding modes are k // 11: 16 at k = 176, small against k at every rung."""


def swiglu_parameters(k: int, hidden: int) -> int:
    """Gate, up and down projection, and the gate's bias."""
    return 3 * k * hidden + hidden


def register_size(config: FSNConfig) -> int:
    """m of the wrapped state; 0 for the lifted one."""
    if config.state == "lifted":
        return 0
    return config.register or max(1, config.k // SMALL_SHARE)


def winding_count(config: FSNConfig) -> int:
    """W real modes that read the lifted phases; 0 unless the block is mean-field-winding."""
    if config.feedforward != "mean-field-winding":
        return 0
    return config.winding or max(1, config.k // SMALL_SHARE)


def modes_for(config: FSNConfig) -> int:
    """H such that the block, with its winding modes and register, costs what SwiGLU with h = 2k costs.

        H (6k + 1 + m) + W (3k + 1) + m k  ≈  6k² + 2k

    At k = 176 the plain block gets 176 modes: 186,032 parameters against 186,208.
    """
    if config.modes is not None:
        return config.modes
    k, m, w = config.k, register_size(config), winding_count(config)
    budget = swiglu_parameters(k, 2 * k) - w * (3 * k + 1) - m * k
    return max(1, round(budget / (6 * k + 1 + m)))


def count_parameters(config: Config) -> int:
    """The exact total, from a model built without memory."""
    from .family import build_from_config

    with torch.device("meta"):
        model: nn.Module = build_from_config(config)
    return sum(p.numel() for p in model.parameters())


def match_width(target: int, vocab_size: int, kind: str = "transformer", step: int = WIDTH_STEP) -> int:
    """The width, in steps of ``step``, whose total lands nearest the target.

    ``kind`` is ``transformer`` (d = 120, 172, 248, 352 for 1, 2, 4, 8M at V = 205) or ``fsn`` (k).
    """
    if target < 1:
        raise UserError(f"the parameter target is {target}; give a positive number")
    if kind not in ("transformer", "fsn"):
        raise UserError(f"kind is {kind!r}; choose transformer or fsn")

    def total(width: int) -> int:
        if kind == "transformer":
            return count_parameters(TransformerConfig(vocab_size, width))
        return count_parameters(FSNConfig(vocab_size, width))

    low, high = 1, 2
    while total(high * step) < target:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle * step) < target else (low, middle)
    return min((low * step, high * step), key=lambda width: abs(total(width) - target))
