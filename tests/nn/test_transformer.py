"""The baseline's attention: the library's kernel and the plain formula are one function."""

from __future__ import annotations

import pytest
import torch

from fsn.nn import CausalSelfAttention
from fsn.nn import transformer as module


@pytest.mark.parametrize("heads", [1, 2])
def test_the_plain_formula_is_what_the_library_computes(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    attention = CausalSelfAttention(24, heads, 0.0, 0).double()
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    results = []
    for answer in (True, False):
        monkeypatch.setattr(module, "torch_attends", lambda head, device, answer=answer: answer)
        out = attention(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), list(attention.parameters()))))
    for library, plain in zip(*results, strict=True):
        torch.testing.assert_close(plain, library, rtol=1e-10, atol=1e-12)


def test_wide_heads_on_a_gpu_are_not_left_to_slow_kernels() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert module.torch_attends(120, gpu) and module.torch_attends(256, gpu)
    assert not module.torch_attends(352, gpu)
    assert module.torch_attends(352, cpu)
