"""The CPU's own form of the attention half against the reference: values, every gradient, and second derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fsn
from fsn import ops
from fsn.ops import Pair, cpu

K, N = 5, 3
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape, dtype=torch.float64)).requires_grad_()


def same(
    fast: Callable[..., tuple[Tensor, ...]], plain: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor]
) -> None:
    """Outputs, and the gradient of every input, against random gradients of every output."""
    found, right = fast(*inputs), plain(*inputs)
    weights = [torch.randn_like(x) for x in right]
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    grads = [torch.autograd.grad(out, inputs, weights) for out in (found, right)]
    for i, (one, other) in enumerate(zip(*grads, strict=True)):
        torch.testing.assert_close(one, other, **CLOSE, msg=lambda text, i=i: f"input {i}: {text}")


Law = tuple[str, bool, bool, bool, bool, bool]
"""frame, present, delay, phases, score_successor, shared"""
LAWS: list[Law] = [
    ("co-rotating", True, True, True, False, False),
    ("rest", True, True, True, True, False),
    ("co-rotating", False, True, True, True, True),
    ("rest", False, True, True, False, False),
    ("co-rotating", True, False, False, False, False),
    ("co-rotating", True, True, True, False, True),
]


def case(
    law: Law, batch: int, length: int, positive: bool = False, shut: float = 0.0
) -> tuple[list[Tensor], Callable[..., tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]]]:
    """Inputs that have gradients, the CPU's form and the reference's."""
    frame, present, delay, phases, scored, shared = law
    exist = [present, present and phases, delay, delay and phases]
    wide = 1 if shared else K
    inputs = [normal(batch, length, K, scale=3.0), normal(3 * K, 2 * K), (normal(3 * K) - shut).detach()]
    inputs += [torch.tensor(1.3, dtype=torch.float64)] + [normal(N, wide) for there in exist if there]
    inputs += [normal(2, wide)] if scored else []
    rates = ops.rotary_rates(K)

    def split(rest: tuple[Tensor, ...]) -> tuple[Pair | None, Pair | None, Tensor | None]:
        left = list(rest)
        parts = [left.pop(0) if there else None for there in exist]
        w0, w1 = (None if re is None else Pair(re, im) for re, im in (parts[:2], parts[2:]))
        return w0, w1, left.pop(0) if scored else None

    def fast(theta: Tensor, weight: Tensor, bias: Tensor, tau: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        w0, w1, score = split(rest)
        return (cpu.attention_half(theta, weight, bias, rates, tau, w0, w1, N, frame, score, positive),)

    def plain(theta: Tensor, weight: Tensor, bias: Tensor, tau: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        w0, w1, score = split(rest)
        query, key, value = F.linear(ops.phase_features(theta), weight, bias).chunk(3, dim=-1)
        query, keys = (ops.rotary_features(theta, ops.normalise_gate(raw), rates) for raw in (query, key))
        pull = ops.synchronize(theta, query, keys, tau, w0, w1, N, frame, score=score)
        return ((F.softplus(value) if positive else value) * pull,)

    return [x.requires_grad_() for x in inputs], fast, plain


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("batch", "length", "positive"), [(3, 1, False), (5, 150, False), (5, 40, True)])
def test_attention_half(law: Law, batch: int, length: int, positive: bool) -> None:
    """Lengths of one block and of several, with a last one that is not full; one sequence at a time and several."""
    torch.manual_seed(0)
    inputs, fast, plain = case(law, batch, length, positive)
    same(fast, plain, inputs)


def test_gates_whose_mean_is_held_at_its_floor() -> None:
    torch.manual_seed(0)
    inputs, fast, plain = case(LAWS[0], 2, 9, shut=40.0)
    same(fast, plain, inputs)


@pytest.mark.parametrize("shape", [(), (2, 1, 1)])
def test_bound(shape: tuple[int, ...]) -> None:
    """Zero, tiny, large and huge rows among ordinary ones."""
    torch.manual_seed(0)
    scales = torch.tensor([0.0, 1e-30, 1e-8, 1.0, 30.0, 1e6], dtype=torch.float64)
    x = (torch.randn(2, 6, K, dtype=torch.float64) * scales[:, None]).requires_grad_()
    alpha = (torch.randn(shape, dtype=torch.float64) - 2).requires_grad_()

    def bounds(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        return lambda *inputs: (function(*inputs),)

    same(bounds(cpu.norm_matched_tanh), bounds(ops.norm_matched_tanh), [x, alpha])


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1.0, 30.0, 1e20, 1e30])
def test_bound_of_one_token(scale: float) -> None:
    """What decoding does; its norm may be zero, tiny, or beyond float32 when squared."""
    torch.manual_seed(0)
    x, alpha = scale * torch.randn(1, 1, K), torch.tensor(-2.0)
    with torch.no_grad():
        found = cpu.norm_matched_tanh(x, alpha)
    torch.testing.assert_close(found, ops.norm_matched_tanh(x, alpha), rtol=1e-6, atol=0.0)


def test_a_norm_that_overflows_goes_to_the_reference() -> None:
    x = torch.full((1, 1, 4), 1e30)
    torch.testing.assert_close(
        cpu.norm_matched_tanh(x, torch.tensor(2.0)), ops.norm_matched_tanh(x, torch.tensor(2.0))
    )


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    inputs, fast, _ = case(LAWS[1], 2, 4)
    assert torch.autograd.gradgradcheck(fast, inputs)
    assert torch.autograd.gradgradcheck(cpu.norm_matched_tanh, [normal(1, 3, K), normal()])


def test_where_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 1, 2)
    assert cpu.applies(x) and not cpu.applies(x.double()) and not cpu.applies(x.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not cpu.applies(x)
    seen = []
    torch.func.vmap(lambda y: (seen.append(cpu.applies(y)), y)[1])(x)
    assert seen == [False]
    monkeypatch.setenv("FSN_FUSED", "0")
    assert not cpu.applies(x)


def test_a_law_that_is_not_computed_here_is_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever adds a field to the law gets a fast path at its default, and none that leaves another value out."""
    tokens, called = torch.zeros(1, 4, dtype=torch.int64), []
    monkeypatch.setattr(cpu, "attention_half", lambda *_: called.append(1) or torch.zeros(1, 4, 8))
    monkeypatch.setattr(ops.law, "FAST", ops.law.FAST - {"delay"})
    fsn.build("fsn-1m", 20, k=8, layers=1)(tokens)
    assert called == [1]
    fsn.build("fsn-1m", 20, k=8, layers=1, delay=False)(tokens)
    assert called == [1]
