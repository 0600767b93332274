"""A field that is taken out is out, the rest stays, and afterwards everything is as before."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fsn.errors import UserError
from fsn.measure import lesions
from fsn.measure.copy_depth import BINS, Battery, battery, bin_name, label
from tests.measure.example_runs import windows_from
from tests.small import FSN_FAMILIES, random_tokens, small


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("family", FSN_FAMILIES)
def test_what_is_taken_out_is_the_fields_coefficients_and_comes_back(family: str) -> None:
    model = small(family)
    before = state_of(model)
    tokens = random_tokens(model, length=9)
    whole = model(tokens)
    seen = 0
    for layer, kernel in enumerate(lesions.kernels_of(model)):
        for field, key in (("present", "w0"), ("successor", "w1")):
            if not lesions.coefficients_of(kernel, field):
                with (
                    pytest.raises(UserError, match=f"no {field} field"),
                    lesions.without_field(model, field, layer),
                ):
                    pass
                continue
            seen += 1
            with pytest.raises(KeyError), lesions.without_field(model, field, layer):
                assert not kernel.coefficients()[key].any(), "all zero"
                changed = {n for n, t in state_of(model).items() if not torch.equal(t, before[n])}
                assert changed and all(f"layers.{layer}." in n and f"kernel.{field}_" in n for n in changed)
                assert not torch.allclose(model(tokens), whole)
                raise KeyError  # whatever happens inside
    assert seen
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(model).items())
    assert torch.equal(model(tokens), whole)


def repeated(length: int = 24) -> tuple[torch.Tensor, Battery]:
    """Windows of which the second half repeats the first, and others that do not."""
    rng = np.random.default_rng(0)
    halves = rng.integers(0, 13, (8, length // 2))
    windows = np.concatenate([np.concatenate([halves, halves], 1), rng.integers(0, 13, (8, length))]).astype(
        np.uint8
    )
    cut = windows_from(windows)
    return cut.tokens, battery(label(cut), standard=10, enriched=4)


def test_the_table_is_the_difference_of_losses_by_depth() -> None:
    model = small("fsn").float()
    text, labelled = repeated()
    table = lesions.lesion_table(model, text, labelled)
    assert [(r["field"], r["layer"], r["depth"]) for r in table.rows] == [
        (f, y, d) for f in ("present", "successor") for y in (1, 2) for d in map(bin_name, BINS)
    ]
    windows = text.reshape(-1, 24)[torch.from_numpy(labelled.windows)].long()
    inside = labelled.mask((4, 7))

    def bits() -> float:
        with torch.no_grad():
            losses = model.loss(windows[:, :-1], windows[:, 1:]).numpy() / math.log(2)
        return float(losses[inside].mean())

    whole = bits()
    with lesions.without_field(model, "successor", 1):
        cut = bits()
    row = table.where(field="successor", layer=2, depth="4–7").rows[0]
    assert row["targets"] == inside.sum() > 0
    assert row["loss"] == pytest.approx(cut, abs=1e-5) and row["rise"] == pytest.approx(cut - whole, abs=1e-5)


def test_a_field_that_does_nothing_costs_nothing_and_an_empty_bin_has_no_number() -> None:
    model = small("fsn").float()
    text, labelled = repeated()
    with torch.no_grad():
        for part in lesions.coefficients_of(lesions.kernels_of(model)[0], "present"):
            part.zero_()
    table = lesions.lesion_table(model, text, labelled)
    assert table.where(field="present", layer=1, depth="0–1").rows[0]["rise"] == 0.0
    assert table.where(field="present", layer=2, depth="0–1").rows[0]["rise"] != 0.0
    empty = table.where(field="present", layer=1, depth="24–32").rows[0]
    assert empty["targets"] == 0 and math.isnan(empty["rise"])
    one = lesions.lesion_table(small("kuramoto").float(), text, labelled)
    assert set(one.column("field")) == {"present"}, "a field the model does not have is left out"


def test_a_sample_keeps_both_slices_and_their_order() -> None:
    _, labelled = repeated()
    few = labelled.sample(standard=4, enriched=2)
    assert few.enriched.tolist() == [False] * 4 + [True] * 2
    assert few.windows[:4].tolist() == [0, 3, 6, 9] and set(few.windows[4:]) <= set(labelled.windows[10:])
    for row, window in enumerate(few.windows):
        where = labelled.windows.tolist().index(window)
        assert np.array_equal(few.depth[row], labelled.depth[where])
        assert np.array_equal(few.distance[row], labelled.distance[where])
    everything = labelled.sample(standard=99, enriched=99)
    assert np.array_equal(everything.windows, labelled.windows)


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(UserError, match="a transformer has none"):
        lesions.kernels_of(small("transformer"))
    with (
        pytest.raises(UserError, match="no layer 2; the model has 2"),
        lesions.without_field(small("fsn"), "present", 2),
    ):
        pass
    with (
        pytest.raises(UserError, match="present and successor"),
        lesions.without_field(small("fsn"), "past", 0),
    ):
        pass
