"""How many parameters every model has: the paper's totals to the digit, and the matching behind the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fsn
from fsn import UserError
from fsn.models import (
    FAMILIES,
    MATCHES,
    Config,
    FSNConfig,
    TransformerConfig,
    body_parameters,
    build_from_config,
    count_parameters,
    match_width,
    preset,
)
from fsn.paper.rows import parameter_totals

SIZES = ("1m", "2m", "4m", "8m")
PHASES = {"1m": 176, "2m": 246, "4m": 352, "8m": 511}


def total(name: str, vocab_size: int = 205) -> int:
    return count_parameters(preset(name, vocab_size))


def block(name: str) -> int:
    """Parameters of one layer's feed-forward part, everything that replaces the SwiGLU included."""
    with torch.device("meta"):
        layer = fsn.build(name, vocab_size=2).get_submodule("layers.0")
    parts = [layer.get_submodule("feedforward")]
    if isinstance(getattr(layer, "register", None), nn.Module):
        parts.append(layer.get_submodule("register"))
    return sum(p.numel() for part in parts for p in part.parameters())


@pytest.mark.parametrize(
    ("name", "vocab_size", "expected"),
    [
        ("fsn-1m", 205, 1_011_834),
        ("fsn-1m", 97, 973_818),
        ("fsn-8m", 205, 8_073_299),
        ("transformer-1m", 205, 974_845),
        ("transformer-1m", 97, 1_012_185),
        ("transformer-8m", 205, 8_085_645),
    ],
)
def test_the_six_totals_of_the_paper(name: str, vocab_size: int, expected: int) -> None:
    assert total(name, vocab_size) == expected
    family, _, size = name.rpartition("-")
    assert parameter_totals()[family, size, vocab_size] == expected


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("fsn", 1_011_834),
        ("fsn-literal", 1_011_834),
        ("fsn-lean", 1_011_834),
        ("fsn-nophase", 1_007_610),
        ("fsn-noharmonics", 1_004_794),
        ("kuramoto", 1_003_386),
        ("daido", 1_005_498),
        ("successor", 1_005_498),
        ("fsn-nodelay", 1_007_610),
        ("fsn-nobound", 1_011_826),
        ("fsn-mf", 1_011_130),
        ("fsn-positive-gate", 1_011_834),
        ("fsn-score", 1_011_834 + 4 * 2 * 176),
        ("transformer", 974_845),
        ("transformer-kvshift", 974_861),
    ],
)
def test_totals_of_the_family(family: str, expected: int) -> None:
    assert total(f"{family}-1m") == expected


@pytest.mark.parametrize("size", SIZES)
def test_a_shared_kernel_saves_all_but_one_coefficient_per_harmonic(size: str) -> None:
    per_coordinate = 4 * 4 * 3  # layers, (w0, w1) × (real, imaginary), harmonics
    assert total(f"fsn-{size}") - total(f"fsn-shared-kernel-{size}") == per_coordinate * (PHASES[size] - 1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", ["fsn-mf", "fsn-mf-winding", "fsn-dissolved"])
def test_blocks_match_the_swiglu_to_a_tenth_of_a_percent(family: str, size: str) -> None:
    k = PHASES[size]
    swiglu = 3 * k * (2 * k) + 2 * k
    assert block(f"fsn-{size}") == swiglu
    assert abs(block(f"{family}-{size}") - swiglu) <= 0.001 * swiglu
    assert abs(total(f"{family}-{size}") - total(f"fsn-{size}")) <= 0.001 * total(f"fsn-{size}")


def test_the_plain_mean_field_block_has_as_many_modes_as_phases() -> None:
    assert block("fsn-1m") == 186_208
    assert block("fsn-mf-1m") == 186_032
    with torch.device("meta"):
        model = fsn.build("fsn-mf-1m", vocab_size=205)
    assert model.get_parameter("layers.0.feedforward.bias").shape == (176,)


@pytest.mark.parametrize("size", SIZES)
def test_the_register_is_small_against_the_phases(size: str) -> None:
    with torch.device("meta"):
        dissolved = fsn.build(f"fsn-dissolved-{size}", vocab_size=205)
        winding = fsn.build(f"fsn-mf-winding-{size}", vocab_size=205)
    k = PHASES[size]
    assert 1 <= dissolved.get_parameter("layers.0.register.weight").shape[0] <= k // 10
    assert 1 <= winding.get_parameter("layers.0.feedforward.winding_bias").shape[0] <= k // 10


@pytest.mark.parametrize("size", SIZES)
def test_the_periodic_swiglu_is_three_and_a_third_times_its_block(size: str) -> None:
    k = PHASES[size]
    assert block(f"fsn-torus-swiglu-{size}") == 2 * (2 * k) * (4 * k) + (4 * k) * k + 4 * k
    assert block(f"fsn-torus-swiglu-{size}") / block(f"fsn-nophase-{size}") == pytest.approx(
        10 / 3, rel=0.002
    )
    rest = total(f"fsn-nophase-{size}") - 4 * block(f"fsn-nophase-{size}")
    assert total(f"fsn-torus-swiglu-{size}") - 4 * block(f"fsn-torus-swiglu-{size}") == rest


def test_gates_are_one_set_for_all_layers() -> None:
    """Adding layers adds layers: kernel, two bounds, SwiGLU; never a gate."""
    k = 176
    four, five = (count_parameters(preset("fsn-1m", 205, layers=layers)) for layers in (4, 5))
    assert five - four == 4 * 3 * k + 2 + 3 * k * 2 * k + 2 * k


@pytest.mark.parametrize(("size", "width"), [("1m", 120), ("2m", 172), ("4m", 248), ("8m", 352)])
def test_the_search_finds_the_transformer_widths(size: str, width: int) -> None:
    assert match_width(int(size[0]) * 1_000_000, lambda d: TransformerConfig(205, d)) == width
    assert preset(f"transformer-{size}", 205) == preset(f"transformer-{size}", 205, width=width)


def test_the_search_follows_the_vocabulary() -> None:
    assert match_width(1_000_000, lambda d: TransformerConfig(97, d)) == 124


@pytest.mark.parametrize("kind", [FSNConfig, TransformerConfig])
@pytest.mark.parametrize(("target", "step"), [(1, 4), (5_000, 2), (300_000, 4), (3_141_592, 4)])
def test_the_search_finds_the_nearest_width_for_any_target(
    kind: type[FSNConfig | TransformerConfig], target: int, step: int
) -> None:
    def config(width: int) -> Config:
        return kind(50, width, layers=3)

    def off(width: int) -> int:
        return abs(count_parameters(config(width)) - target)

    width = match_width(target, config, step)
    assert width % step == 0
    others = (width - 2 * step, width - step, width + step, width + 2 * step)
    assert all(off(width) <= off(other) for other in others if other > 0)


@pytest.mark.parametrize("target", [0, -5])
def test_a_search_that_cannot_be_done_says_so(target: int) -> None:
    with pytest.raises(UserError, match="positive"):
        match_width(target, lambda k: FSNConfig(205, k))


@pytest.mark.parametrize(("size", "percent"), [("2m", 2.0), ("4m", 4.0)])
def test_the_fsn_is_the_lighter_one_in_the_middle_of_the_ladder(size: str, percent: float) -> None:
    ours, theirs = total(f"fsn-{size}"), total(f"transformer-{size}")
    assert round(100 * (theirs - ours) / theirs, 1) == percent


def test_presets_are_families_times_sizes() -> None:
    assert fsn.presets() == [f"{family}-{size}" for family in FAMILIES for size in SIZES]
    assert len(fsn.presets()) == 19 * 4


@pytest.mark.parametrize("vocab_size", [205, 97])
@pytest.mark.parametrize("name", fsn.presets())
def test_every_preset_builds(name: str, vocab_size: int) -> None:
    with torch.device("meta"):
        model = fsn.build(name, vocab_size=vocab_size)
    assert model.config == preset(name, vocab_size)
    assert model.parameter_count() == count_parameters(model.config)
    family, _, size = name.rpartition("-")
    if not family.startswith("transformer"):
        assert model.get_parameter("embedding.phases").shape == (vocab_size, PHASES[size])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_at_its_real_size(family: str) -> None:
    model = fsn.build(f"{family}-1m", vocab_size=205).eval()
    tokens = torch.arange(12).view(2, 6)
    with torch.no_grad():
        logits, loss = model(tokens, targets=tokens)
    assert logits.shape == (2, 6, 205) and logits.dtype == torch.float32 and logits.isfinite().all()
    assert loss.shape == (2, 6) and loss.isfinite().all()


def test_counting_and_searching_leave_the_generator_alone() -> None:
    """A seed gives the same transformer whether its width was searched for or written down."""
    torch.manual_seed(5)
    searched = fsn.build("transformer-1m", vocab_size=205)
    torch.manual_seed(5)
    named = fsn.build("transformer-1m", vocab_size=205, width=120)
    assert all(torch.equal(a, b) for a, b in zip(searched.parameters(), named.parameters(), strict=True))


def test_every_preset_has_its_total() -> None:
    assert set(fsn.presets()) == {f"{family}-{size}" for family in FAMILIES for size in SIZES}
    assert count_parameters(preset("fsn-1m", 205)) == 1_011_834
    assert count_parameters(preset("transformer-8m", 205)) == 8_085_645
    assert preset("transformer-8m", 205).width == 352 and preset("fsn-2m", 205).k == 246  # type: ignore[union-attr]
    assert all(about for _, about in FAMILIES.values())


def test_many_symbols_can_be_matched_by_body_or_by_total() -> None:
    """At 32,000 symbols embedding and readout outweigh the layers, and the paper's way makes unlike pairs."""
    symbols, names = 32_000, ("fsn-1m", "transformer-1m")
    paper = [preset(name, symbols) for name in names]
    assert paper[0].k == 176 and paper[1].width == 16  # type: ignore[union-attr]
    body = [preset(name, symbols, match="body") for name in names]
    assert body[0].k == 176 and body[1].width == 120  # type: ignore[union-attr]
    small = [preset(name, 205) for name in names]
    assert [body_parameters(c) for c in body] == [body_parameters(c) for c in small]
    for config in (preset(name, symbols, match="total") for name in names):
        assert abs(count_parameters(config) - 1_000_000) < 200_000
    for name, width in (("fsn-1m", {"k": 8}), ("transformer-1m", {"width": 8})):
        with pytest.raises(
            UserError, match=r"match chooses the width, and (k|width)=8 sets it: leave out one"
        ):
            preset(name, symbols, match="total", **width)
    for name in names:
        for match in MATCHES:
            if name == "transformer-1m" or match != "total":
                assert preset(name, 205, match=match) == preset(name, 205)
    with pytest.raises(UserError, match="no width comes near 1,000,000 parameters"):
        preset("fsn-1m", 2_000_000, match="total")
    with pytest.raises(UserError, match="match is 'width'; choose one of paper, total, body"):
        preset("fsn-1m", 205, match="width")


@pytest.mark.parametrize("family", ["fsn", "fsn-dissolved", "transformer"])
def test_the_body_is_what_does_not_grow_with_the_symbols(family: str) -> None:
    config = preset(f"{family}-1m", 205)
    model = build_from_config(config)
    rest = sum(p.numel() for p in model.parameters() if 205 in p.shape)
    assert body_parameters(config) == model.parameter_count() - rest


@pytest.mark.parametrize(
    "fields", [{"k": 100_000_000}, {"layers": 100_000_000}, {"hidden": 10**12}, {"harmonics": 10**12}]
)
def test_a_model_that_no_machine_can_hold_is_refused_at_once(fields: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"make it smaller|take at most 10,000"):
        fsn.build("fsn-1m", 205, **fields)


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_and_operations_are_counted_without_memory(family: str) -> None:
    """On the device "meta", which has no autocast to ask about: loss, gradients, and what a FLOP counter does."""
    with torch.device("meta"):
        model = fsn.build(f"{family}-1m", vocab_size=20, layers=1)
        tokens = torch.zeros(2, 5, dtype=torch.int64)
    logits, losses = model(tokens, targets=tokens)
    losses.mean().backward()
    assert logits.shape == (2, 5, 20) and all(p.grad is not None for p in model.parameters())
