"""What bfloat16 autocast rounds in a model, and that it rounds nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fsn
from fsn.models import LanguageModel
from tests.small import ALL_FAMILIES, randomise

CHOICES = ("both", "scores", "logits", "none")


def model_with(rounding: str) -> LanguageModel:
    model = fsn.build("fsn-1m", vocab_size=13, k=24, layers=2, rounding=rounding).eval()
    randomise(model)
    return model


def tokens() -> Tensor:
    return torch.randint(13, (2, 20), generator=torch.Generator().manual_seed(4))


def is_bfloat16(x: Tensor) -> bool:
    return torch.equal(x, x.to(torch.bfloat16).to(x.dtype))


@pytest.mark.parametrize("rounding", CHOICES)
def test_scores_and_coherences_are_rounded_as_asked(rounding: str) -> None:
    model = model_with(rounding)
    model.get_parameter("tau").data.fill_(1.0)  # so that the division does not hide the rounding
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), fsn.record(model) as points:
        model(tokens())
    for i in range(2):
        assert is_bfloat16(points[f"layers.{i}.scores"]) == (rounding in ("both", "scores"))
    assert is_bfloat16(points["coherences"]) == (rounding in ("both", "logits"))


def test_choices_differ_under_autocast_and_not_without() -> None:
    plain, cast = {}, {}
    for rounding in CHOICES:
        model = model_with(rounding)
        with torch.no_grad():
            plain[rounding] = model(tokens())
            with torch.autocast("cpu", torch.bfloat16):
                cast[rounding] = model(tokens())
    for rounding in CHOICES[1:]:
        assert torch.equal(plain["both"], plain[rounding])
        assert not torch.equal(cast["both"], cast[rounding])
    assert not torch.equal(cast["scores"], cast["logits"])


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_the_state_stays_in_float32(family: str) -> None:
    """Phases accumulate: bfloat16 would lose them. Logits and losses leave as float32 too."""
    size = {"width": 16} if family.startswith("transformer") else {"k": 16}
    model = fsn.build(f"{family}-1m", vocab_size=13, layers=2, **size).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), fsn.record(model) as points:
        logits, loss = model(tokens(), targets=tokens())
    assert logits.dtype == loss.dtype == torch.float32
    for name, value in points.items():
        if not name.endswith("fields"):
            assert value.dtype == torch.float32, name
        if name.endswith(("state", "phases", "embedding")):
            assert not is_bfloat16(value), name


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_bfloat16_is_close_to_float32_at_the_start(family: str) -> None:
    size = {"width": 16} if family.startswith("transformer") else {"k": 16}
    model = fsn.build(f"{family}-1m", vocab_size=13, layers=2, **size).eval()
    with torch.no_grad():
        plain = model.loss(tokens(), tokens())
        with torch.autocast("cpu", torch.bfloat16):
            cast = model.loss(tokens(), tokens())
    torch.testing.assert_close(cast, plain, rtol=0.02, atol=0.02)
