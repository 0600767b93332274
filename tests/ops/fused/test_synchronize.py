"""Scores, softmax and coupling as a custom op: value and every gradient against float64."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.fused.interpreter import shared

CASES: list[dict[str, Any]] = [
    {"length": 40, "k": 9, "N": 3},
    {"length": 40, "k": 9, "N": 3, "frame": "rest"},
    {"length": 21, "k": 16, "N": 2, "real": True, "heads": True},
    {"length": 150, "k": 5, "N": 4, "chunk": 64},
    {"length": 40, "k": 9, "N": 3, "score": True},
    {"length": 150, "k": 5, "N": 2, "score": True, "heads": True, "chunk": 64},
]
LIMIT = {"float32": 1e-5, "bfloat16": 0.03}


def errors(
    length: int, k: int, N: int, dtype: str = "float32", frame: str = "co-rotating", real: bool = False,
    heads: bool = False, score: bool = False, device: str = "cpu", **limits: int,
) -> dict[str, float]:  # fmt: skip
    """Relative errors of the update and of every gradient, by name. ``heads``: each sequence has its own kernel."""
    import torch

    from fsn import ops
    from fsn.ops.fused import synchronize as fused
    from tests.ops.fused.inputs import limited

    batch = 2
    shape = (batch, 1, N, k) if heads else (N, k)
    draw = torch.Generator().manual_seed(0)
    sizes = {"theta": (batch, length, k), "query": (batch, length, 2 * k), "keys": (batch, length, 2 * k)}
    sizes |= {"w0": shape, "im0": shape, "w1": shape, "im1": shape}
    if score:
        sizes["score"] = (2, batch, 1, k) if heads else (2, k)
    drawn = {name: torch.randn(size, generator=draw, dtype=torch.float64) for name, size in sizes.items()}
    drawn["tau"] = torch.full((batch, 1, 1) if heads else (), 1.7, dtype=torch.float64)
    if real:
        del drawn["im0"], drawn["im1"]
    arriving = torch.randn(batch, length, k, generator=draw, dtype=torch.float64)

    def run(function: Any, kind: torch.dtype) -> dict[str, torch.Tensor]:
        x = {name: value.to(device, kind).requires_grad_() for name, value in drawn.items()}
        w0, w1 = ops.Pair(x["w0"], x.get("im0")), ops.Pair(x["w1"], x.get("im1"))
        args = x["theta"], x["query"], x["keys"], x["tau"], w0, w1, N, frame, False, x.get("score")
        out = function(*args)
        grads = torch.autograd.grad((out * arriving.to(device, kind)).sum(), list(x.values()))
        return {"update": out.detach(), **dict(zip(x, grads, strict=True))}

    exact = run(ops.synchronize, torch.float64)
    with limited(**limits), torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
        found = run(fused.synchronize, torch.float32)
    drawn["tau"] = drawn["tau"].expand(batch, length, 1).clone()
    scale = {name: value.norm() for name, value in exact.items()}
    scale["tau"] = run(ops.synchronize, torch.float64)["tau"].abs().sum()  # a sum over tokens of both signs
    return {name: float((found[name] - exact[name]).norm() / scale[name]) for name in exact}


def checked(scored: bool) -> dict[str, str]:
    """What torch.library's own check says of the op: schema, shapes of the fake form, autograd."""
    import torch

    from fsn.ops.fused.synchronize import attend

    args = [torch.randn(size, requires_grad=True) for size in ((2, 20, 12), (2, 20, 12), (2, 20, 36))]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    diagonal = torch.randn(2, 20, requires_grad=True) if scored else None
    return torch.library.opcheck(attend, (*args, diagonal, 2, True), test_utils=tests)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_update_and_gradients_in_the_interpreter(case: dict[str, Any], dtype: str) -> None:
    found = shared()("tests.ops.fused.test_synchronize:errors", dtype=dtype, **case)
    assert max(found.values()) < LIMIT[dtype], found


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", [*CASES, {"length": 300, "k": 64, "N": 3}, {"length": 2500, "k": 32, "N": 3}], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_update_and_gradients_on_a_gpu(case: dict[str, Any], dtype: str) -> None:
    found = errors(device="cuda", dtype=dtype, **case)
    assert max(found.values()) < LIMIT[dtype], found


@pytest.mark.parametrize("scored", [False, True])
def test_the_op_passes_the_check_of_torch_library(scored: bool) -> None:
    found = shared()("tests.ops.fused.test_synchronize:checked", scored=scored)
    assert set(found.values()) == {"SUCCESS"}
