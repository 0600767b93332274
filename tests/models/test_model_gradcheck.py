"""The derivative of whole models with respect to every parameter, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from fsn.models import LanguageModel
from fsn.ops import DropoutKey
from tests.small import random_tokens, small


def check(model: LanguageModel, key: DropoutKey | None = None) -> None:
    names = [name for name, _ in model.named_parameters()]
    tokens = random_tokens(model, batch=1, length=4)
    targets = random_tokens(model, batch=1, length=4, seed=3)

    def loss(*values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        _, per_token = functional_call(model, parameters, (tokens,), {"targets": targets, "dropout_key": key})
        return per_token

    values = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    assert gradcheck(loss, values, eps=1e-6, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "family",
    ["fsn", "fsn-literal", "kuramoto", "fsn-mf", "fsn-mf-winding", "fsn-dissolved", "fsn-torus-swiglu"],
)
def test_fsn(family: str) -> None:
    check(small(family, vocab_size=4, k=3))


def test_transformer() -> None:
    check(small("transformer", vocab_size=4, width=4))
    check(small("transformer-kvshift", vocab_size=4, width=4))


def test_with_dropout_under_a_fixed_key() -> None:
    key = DropoutKey(torch.tensor(5))
    check(small("fsn", vocab_size=4, k=3, layers=1, dropout=0.4, dropout_attention=0.3).train(), key)
    check(small("transformer", vocab_size=4, width=4, layers=1, dropout=0.4).train(), key)
