"""Coherences with prototypes, and the loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fsn import ops

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def test_coherences_are_sums_of_cosines() -> None:
    theta, prototypes = normal(2, 3, 5, scale=3.0), normal(7, 5, scale=3.0)
    expected = (theta[:, :, None] - prototypes).cos().sum(-1)
    torch.testing.assert_close(ops.coherences(theta, prototypes), expected, **EXACT)
    torch.testing.assert_close(ops.coherences(theta + 2 * math.pi, prototypes), expected, **EXACT)


def test_a_token_at_a_prototype_is_fully_coherent_with_it() -> None:
    prototypes = normal(7, 5)
    own = ops.coherences(prototypes[None], prototypes)[0]
    torch.testing.assert_close(own.diagonal(), torch.full((7,), 5.0, dtype=torch.float64), **EXACT)
    assert own.argmax(-1).tolist() == list(range(7))


def test_cross_entropy_is_the_negative_log_probability() -> None:
    logits, targets = normal(2, 3, 7), torch.randint(7, (2, 3))
    loss = ops.cross_entropy(logits, targets)
    for b in range(2):
        for t in range(3):
            expected = logits[b, t].exp().sum().log() - logits[b, t, targets[b, t]]
            torch.testing.assert_close(loss[b, t], expected, **EXACT)
    assert torch.equal(ops.cross_entropy(logits, targets.int()), loss)
    even = ops.cross_entropy(torch.zeros(1, 1, 205), torch.zeros(1, 1, dtype=torch.int64))
    torch.testing.assert_close(even, torch.full((1, 1), math.log(205)))
