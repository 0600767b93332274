"""Documents packed into one window: none sees another, so the losses are those that each has alone."""

from __future__ import annotations

import pytest
import torch

from fsn import load
from fsn.data import Windows
from fsn.errors import UserError
from fsn.models import FAMILIES, LanguageModel, build

V, END = 40, 39
# float32 for a few, all others where rounding cannot hide a leak
CASES = [(family, torch.float64, 1e-13) for family in FAMILIES]
CASES += [
    (family, torch.float32, 1e-6) for family in ("fsn", "kuramoto", "fsn-mf", "fsn-score", "transformer")
]


def a_model(family: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    torch.manual_seed(0)
    width = {"width": 16} if family.startswith("transformer") else {"k": 16}
    model = build(f"{family}-1m", V, layers=3, dropout=0.0, **width)
    with torch.no_grad():  # away from the start, where much is still zero
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval().to(dtype)


@pytest.mark.parametrize(("family", "dtype", "close"), CASES)
def test_packed_equals_separate(family: str, dtype: torch.dtype, close: float) -> None:
    model = a_model(family, dtype)
    torch.manual_seed(1)
    texts = [torch.cat([torch.tensor([END]), torch.randint(0, END, (n,))]) for n in (7, 1, 20, 12)]
    stream = torch.cat([*texts, torch.tensor([END])])
    tokens, targets = stream[None, :-1], stream[None, 1:]
    documents = Windows(stream, len(stream), 1, END).documents(tokens)
    assert documents is not None and documents.unique().numel() == len(texts)
    packed = model.loss(tokens, targets, documents=documents)
    alone, first = [], 0
    for text in texts:
        whole = stream[first : first + len(text) + 1]
        alone.append(model.loss(whole[None, :-1], whole[None, 1:]))
        first += len(text)
    assert (packed - torch.cat(alone, dim=1)).abs().max() <= close
    joined = model.loss(tokens, targets)
    assert (joined - packed).abs().max() > 1e-4  # and without the boundaries they do see each other
    if dtype is torch.float32:
        return
    packed.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.cat(alone, dim=1).sum().backward()
    for one, other in zip(gradients, (p.grad for p in model.parameters() if p.grad is not None), strict=True):
        assert (one - other).abs().max() <= 10 * close * max(1.0, float(other.abs().max()))


def test_the_numbers_belong_to_the_tokens() -> None:
    with pytest.raises(UserError, match="documents has shape"):
        tokens = torch.zeros(1, 4, dtype=torch.int64)
        a_model("fsn").loss(tokens, tokens, documents=torch.zeros(1, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("name", "dtype", "close"),
    [
        ("fsn-1m", torch.float32, 5e-4),
        ("transformer-1m", torch.float32, 5e-4),
        ("fsn-1m", torch.float64, 1e-11),
        ("transformer-1m", torch.float64, 1e-11),
    ],
)
def test_packed_equals_separate_with_trained_weights(name: str, dtype: torch.dtype, close: float) -> None:
    """Scores of a trained model are large, and so is what rounding moves: up to 2e-4 nats for an FSN in float32."""
    model = load(name).to(dtype)
    text = (
        "The Roman Empire was founded long ago. " * 4 + "A symbol of the [[Roman Empire]] is the eagle. " * 2
    )
    tokens = model.encode(text)
    documents = (torch.arange(tokens.shape[1] - 1) >= 156)[None].long()
    with torch.no_grad():
        packed = model.loss(tokens[:, :-1], tokens[:, 1:], documents=documents)
        pairs = zip(tokens[:, :-1].split(156, dim=1), tokens[:, 1:].split(156, dim=1), strict=True)
        alone = [model.loss(x, y) for x, y in pairs]
    assert (packed - torch.cat(alone, dim=1)).abs().max() <= close
