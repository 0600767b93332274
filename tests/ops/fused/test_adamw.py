"""Clipping and AdamW in one pass: the library's numbers, and weights that stand still once a run is broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.fused.interpreter import Interpreter

CASES = [
    {"clip": 1.0, "size": 0.1},  # every gradient is longer than the clip
    {"clip": 1.0, "size": 1e-4},  # none is
    {"clip": 0.0, "size": 0.1},
]


def follow(clip: float, size: float, steps: int = 25, n: int = 2500, device: str = "cpu") -> dict[str, Any]:
    """How far one pass is from ``torch.optim.AdamW`` after some steps, relative to how far the weights moved."""
    import torch

    from fsn.ops.fused.adamw import adamw

    start = torch.randn(n, device=device)
    mine, theirs = start.clone(), torch.nn.Parameter(start.double())
    moment, square = torch.zeros(2, n, device=device)
    step, broken = torch.zeros(2, device=device)
    lr = torch.tensor(1e-2, device=device)
    library = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    for _ in range(steps):
        gradient = size * torch.randn(n, device=device)
        theirs.grad = gradient.double()
        if clip:
            torch.nn.utils.clip_grad_norm_([theirs], clip)
        library.step()
        step += 1
        rest = (lr, clip, 0.9, 0.99, 1e-8, 0.1)
        adamw(mine, gradient, moment, square, gradient.norm(), step, broken, *rest)
    error = (mine.double() - theirs.detach()).norm() / (theirs.detach() - start.double()).norm()
    before = [t.clone() for t in (mine, moment, square)]
    broken.fill_(1.0)
    adamw(mine, gradient, moment, square, gradient.norm(), step, broken, *rest)
    still = all(torch.equal(a, b) for a, b in zip(before, (mine, moment, square), strict=True))
    return {"error": error.item(), "still": still}


def check(found: dict[str, Any]) -> None:
    assert found["error"] < 1e-5
    assert found["still"]


@pytest.mark.parametrize("case", CASES)
def test_the_librarys_numbers_in_the_interpreter(interpreter: Interpreter, case: dict[str, Any]) -> None:
    check(interpreter("tests.ops.fused.test_adamw:follow", **case))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_the_librarys_numbers_on_a_gpu(case: dict[str, Any]) -> None:
    check(follow(**case, n=1_000_001, device="cuda"))
