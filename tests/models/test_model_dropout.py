"""Where dropout acts in the models, and what its masks depend on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fsn
from fsn import ops
from fsn.models import LanguageModel
from fsn.ops import DropoutKey
from tests.small import ALL_FAMILIES, random_tokens, small

FSN_RATES = ("dropout", "dropout_hidden", "dropout_attention", "dropout_update")
TRANSFORMER_RATES = ("dropout", "dropout_hidden", "dropout_attention", "dropout_embedding")


def key(counter: int = 3, first_row: int = 0) -> DropoutKey:
    return DropoutKey(torch.tensor(counter), first_row)


def losses(model: LanguageModel, tokens: Tensor, dropout_key: DropoutKey | None) -> Tensor:
    with torch.no_grad():
        return model.loss(tokens, tokens, dropout_key=dropout_key)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_the_recipe_has_no_dropout_in_any_model(family: str) -> None:
    model = small(family)
    tokens = random_tokens(model)
    evaluated = losses(model, tokens, key())
    assert torch.equal(evaluated, losses(model.train(), tokens, key()))
    assert {value for name, value in vars(model.config).items() if name.startswith("dropout")} == {0.0}


@pytest.mark.parametrize(
    ("family", "rate"),
    [("fsn", r) for r in FSN_RATES]
    + [("fsn-mf", "dropout")]
    + [("transformer", r) for r in TRANSFORMER_RATES],
)
def test_every_rate_acts_in_training_and_never_in_evaluation(family: str, rate: str) -> None:
    off: dict[str, Any] = {"dropout": 0.0}
    model = small(family, **(off | {rate: 0.3}))
    plain = small(family, **off)
    tokens = random_tokens(model)
    assert torch.equal(losses(model.eval(), tokens, key()), losses(plain.eval(), tokens, None))
    model.train()
    first = losses(model, tokens, key(3))
    assert not torch.equal(first, losses(plain, tokens, None))
    assert torch.equal(first, losses(model, tokens, key(3)))
    assert not torch.equal(first, losses(model, tokens, key(4)))


@pytest.mark.parametrize(
    ("family", "rates"),
    [("fsn", FSN_RATES), ("transformer", TRANSFORMER_RATES), ("fsn-dissolved", ("dropout",))],
)
def test_a_batch_split_over_processes_gives_the_same_losses(family: str, rates: tuple[str, ...]) -> None:
    every: dict[str, Any] = dict.fromkeys(rates, 0.3)
    model = small(family, **every).train()
    tokens = random_tokens(model, batch=6, length=5)
    whole = losses(model, tokens, key())
    parts = [losses(model, tokens[a : a + 2], key(first_row=a)) for a in (0, 2, 4)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-10)
    unaware = losses(model, tokens[2:4], key())
    assert not torch.allclose(unaware, whole[2:4])


def test_without_a_key_training_draws_one_from_the_generator() -> None:
    model = small("transformer", dropout=0.1).train()
    tokens = random_tokens(model)
    torch.manual_seed(1)
    first, second = losses(model, tokens, None), losses(model, tokens, None)
    torch.manual_seed(1)
    assert torch.equal(first, losses(model, tokens, None))
    assert not torch.equal(first, second)


def test_a_model_without_dropout_leaves_the_generator_alone() -> None:
    model = small("fsn").train()
    before = torch.get_rng_state()
    losses(model, random_tokens(model), None)
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_comes_before_the_bound() -> None:
    """Rescaling a bounded update would shift phases between training and evaluation."""
    model = small("fsn", dropout=0.4, k=40).train()
    tokens = random_tokens(model, length=20)
    with torch.no_grad(), fsn.record(model) as points:
        model(tokens, dropout_key=key())
    masks = []
    for i in range(2):
        raw, bounded = (points[f"layers.{i}.feedforward.{name}"] for name in ("raw", "bounded"))
        assert (raw == 0).double().mean().item() == pytest.approx(0.4, abs=0.05)
        alpha = model.get_parameter(f"layers.{i}.feedforward_bound.alpha")
        torch.testing.assert_close(bounded, ops.norm_matched_tanh(raw, alpha))
        masks.append(raw == 0)
    assert not torch.equal(masks[0], masks[1]), "layers must not share a mask"


def test_sites_of_a_layer_do_not_share_a_mask() -> None:
    """Attention output and SwiGLU output of the transformer have the same shape: their masks still differ."""
    model = small("transformer", layers=1, dropout=0.5, dropout_attention=0.5).train()
    tokens = random_tokens(model, length=20)
    with torch.no_grad(), fsn.record(model) as points:
        model(tokens, dropout_key=key())
    x, update = points["embedding"], points["layers.0.update.raw"]
    middle = points["layers.0.state"] - points["layers.0.feedforward.raw"] * 2
    # Where the SwiGLU output was kept, `middle` is the state between the halves: x, or x + 2 · update.
    kept = ((middle - x).abs() < 1e-9) | ((middle - x - 2 * update).abs() < 1e-9)
    attention_kept = (middle - x - 2 * update).abs() < 1e-9
    assert kept.double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert attention_kept[kept].double().mean().item() == pytest.approx(0.5, abs=0.1)


def test_dropped_attention_is_unbiased() -> None:
    """The mean over many keys of the dropped attention weights is the attention itself."""
    model = small("fsn", layers=1, dropout_attention=0.5).train()
    tokens = random_tokens(model, batch=1, length=6)
    total = torch.zeros(1, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        for counter in range(400):
            with fsn.record(model, "layers.0.attention") as points:
                model(tokens, dropout_key=key(counter))
            total += points["layers.0.attention"]
        with fsn.record(model.eval(), "layers.0.attention") as points:
            model(tokens)
    expected = points["layers.0.attention"]
    assert (total / 400 - expected).abs().max() < 5 * expected.max() / 400**0.5
