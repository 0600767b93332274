"""The tail of a step in three kernels: the library's numbers, and weights that stand still once a run is broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.fused.interpreter import Interpreter

CASES = [
    {"clip": 1.0, "size": 0.1},  # every gradient is longer than the clip
    {"clip": 1.0, "size": 1e-4},  # none is
    {"clip": 0.0, "size": 0.1},
]
SLOTS = 8


class Tail:
    """All that a step changes, and the step."""

    def __init__(self, start: Any, clip: float) -> None:
        import torch

        from fsn.ops.fused.adamw import parts

        n, device = start.numel(), start.device
        self.values, self.clip = start.clone(), clip
        self.moment, self.square = torch.zeros(2, n, device=device)
        self.steps, self.broken, self.norm, self.loss = (torch.zeros((), device=device) for _ in range(4))
        self.lr = torch.tensor(1e-2, device=device)
        self.sums = torch.full((parts(n),), float("nan"), device=device)
        self.ring = torch.zeros(SLOTS, 2, device=device)
        self.counters = torch.tensor([3, 2**61, 0], device=device)

    def __call__(self, gradient: Any, loss: float) -> None:
        from fsn.ops.fused.adamw import adamw, count, squares

        self.loss.fill_(loss)
        squares(gradient, self.sums)
        adamw(
            self.values, gradient, self.moment, self.square,
            self.sums, self.loss, self.norm, self.steps, self.broken, self.lr,
            self.clip, 0.9, 0.99, 1e-8, 0.1,
        )  # fmt: skip
        count(self.loss, self.norm, self.broken, self.steps, self.ring, self.counters)

    def still(self) -> list[Any]:
        return [t.clone() for t in (self.values, self.moment, self.square, self.steps)]


def follow(clip: float, size: float, steps: int = 19, n: int = 2500, device: str = "cpu") -> dict[str, float]:
    """How far the tail is from ``torch.optim.AdamW`` after some steps, relative to how far the weights moved."""
    import torch

    start = torch.randn(n, device=device)
    tail, theirs = Tail(start, clip), torch.nn.Parameter(start.double())
    library = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    ring = torch.zeros(SLOTS, 2, dtype=torch.float64, device=device)
    for step in range(steps):
        gradient = size * torch.randn(n, device=device)
        theirs.grad = gradient.double()
        ring[step % SLOTS, 0], ring[step % SLOTS, 1] = 0.5 * step, theirs.grad.norm()
        if clip:
            torch.nn.utils.clip_grad_norm_([theirs], clip)
        library.step()
        tail(gradient, 0.5 * step)
    moved = (theirs.detach() - start.double()).norm()
    return {
        "weights": ((tail.values.double() - theirs.detach()).norm() / moved).item(),
        "ring": ((tail.ring.double() - ring).abs() / (ring + 1e-12)).max().item(),
        "steps": tail.steps.item() - steps,
        "broken": tail.broken.item(),
        "counters": (tail.counters.cpu() - torch.tensor([3, 2**61, 0]) - steps).abs().sum().item(),
    }


def break_down(where: str, value: float, n: int = 2500, device: str = "cpu") -> dict[str, bool]:
    """A number that is not finite in the loss or at one place of the gradient, between good steps."""
    import torch

    tail = Tail(torch.randn(n, device=device), 1.0)
    good = [torch.randn(n, device=device) for _ in range(SLOTS + 2)]
    tail(good[0], 1.0)
    before = tail.still()
    bad = good[1].clone()
    bad[-1] = value if where == "gradient" else bad[-1]
    tail(bad, value if where == "loss" else 2.0)

    def unmoved() -> bool:
        return all(torch.equal(a, b) for a, b in zip(before, tail.still(), strict=True))

    seen = {"stopped": unmoved(), "broken": tail.broken.item() == 1}
    finite = tail.ring.isfinite().tolist()
    seen["said where"] = finite[:2] == [[True, True], [where != "loss", where != "gradient"]]
    for i, gradient in enumerate(good[2:], 2):
        tail(gradient, float(i))
    seen["stays stopped"] = unmoved() and tail.broken.item() == 1
    seen["goes on counting"] = tail.counters.tolist() == [c + SLOTS + 2 for c in (3, 2**61, 0)]
    seen["round the ring"] = tail.ring[:, 0].tolist() == [8.0, 9.0, *map(float, range(2, SLOTS))]
    tail.broken.zero_()
    tail(good[1], 2.0)
    seen["goes on when mended"] = tail.steps.item() == 2 and not torch.equal(tail.values, before[0])
    return seen


def sum_up(n: int, parts: int) -> dict[str, float]:
    """Sums over more blocks than there are programs, and the loss."""
    import torch

    from fsn.ops.fused.adamw import mean, squares

    x, sums, out = torch.randn(n), torch.zeros(parts), torch.full((3,), 7.0)
    squares(x, sums)
    losses = torch.randn(n + 3)[3:].view(2, -1)
    mean(losses.t(), out, 5 * n)
    expected = losses.double().sum() / (5 * n)
    return {
        "squares": (sums.double().sum() / x.double().square().sum()).item() - 1,
        "mean": (out[0].double() - expected).abs().item(),
        "beside": (out[1:] - 7.0).abs().sum().item(),
    }


def check(found: dict[str, float]) -> None:
    assert found.pop("weights") < 1e-5
    assert found.pop("ring") < 1e-6
    assert not any(found.values()), found


@pytest.mark.parametrize("case", CASES)
def test_the_librarys_numbers_in_the_interpreter(interpreter: Interpreter, case: dict[str, Any]) -> None:
    check(interpreter("tests.ops.fused.test_adamw:follow", **case))


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stops_everything(interpreter: Interpreter, where: str, value: float) -> None:
    found = interpreter("tests.ops.fused.test_adamw:break_down", where=where, value=value)
    assert all(found.values()), found


@pytest.mark.parametrize(("n", "parts"), [(20_000, 3), (16, 1), (6144, 3)])
def test_sums_over_several_rounds(interpreter: Interpreter, n: int, parts: int) -> None:
    found = interpreter("tests.ops.fused.test_adamw:sum_up", n=n, parts=parts)
    assert abs(found["squares"]) < 1e-6 and found["mean"] < 1e-7 and found["beside"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_the_librarys_numbers_on_a_gpu(case: dict[str, Any]) -> None:
    check(follow(**case, n=1_500_001, device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_stops_everything_on_a_gpu(where: str) -> None:
    found = break_down(where, float("nan"), n=1_500_001, device="cuda")
    assert all(found.values()), found
