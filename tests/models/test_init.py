"""Where every parameter starts, and the init ramp that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import fsn
from fsn import UserError
from tests.small import ALL_FAMILIES, law_of, layers_of

# A page in the style of an encyclopedia's source: headings, links, entities, lists, a table. The ramp depends
# on the text through how often symbols recur, so it wants text that looks like the corpus.
PAGE = """\
  <page>
    <title>Synchronization of clocks</title>
    <revision>
      <text xml:space="preserve">'''Synchronization of clocks''' is the problem of making two or more
[[clock]]s agree. The oldest account of clocks that agree by themselves is a letter of [[Christiaan Huygens]]
from [[1665]]: two [[pendulum]] clocks hung from one beam were found, after about half an hour, to swing in
opposite directions, and when disturbed they came back to the same motion. Huygens called it &quot;an odd kind
of sympathy&quot; and traced it to small movements of the beam.

== History ==
* In the [[19th century]] railways needed one time for a whole country; the [[telegraph]] carried it.
* [[Lord Rayleigh]] described two organ pipes that stand side by side and sound as one.
* [[Balthasar van der Pol]] studied [[electronic oscillator|oscillators]] made of vacuum tubes, which can be
entrained by a weak signal of nearly the same [[frequency]].

== Many oscillators ==
In [[1967]] [[Arthur Winfree]] asked what happens when a great many oscillators with slightly different
frequencies influence each other. Above a certain strength of the coupling a part of them locks together, much
as water freezes. [[Yoshiki Kuramoto]] gave a form of the problem that can be solved on paper:

:''d&theta;/dt = &omega; + (K/N) &Sigma; sin(&theta;&lt;sub&gt;j&lt;/sub&gt; - &theta;)''

where ''K'' is the strength of the coupling and ''N'' the number of oscillators; see [[phase transition]].

== See also ==
* [[Firefly|Fireflies]] that flash together
* [[Phase-locked loop]]
* [[Metronome]]

{| border=1
! Year !! Who !! What
|-
| 1665 || Huygens || pendulum clocks
|-
| 1967 || Winfree || populations of oscillators
|}

[[Category:Time]]
[[Category:Physics]]
[[de:Synchronisation]]
[[fr:Synchronisation]]</text>
    </revision>
  </page>
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_init_ramp(seed: int) -> None:
    """The raw SwiGLU output grows about thirtyfold over four layers: 0.0001 in the first, 0.003 in the last.

    It is a sharp test of the initial values: with τ = √k · 0.75 the ratio is 1, with √k · 1.4 it is 77.
    """
    torch.manual_seed(seed)
    model = fsn.build("fsn-nophase-1m", vocab_size=205).eval()
    symbols = torch.tensor([byte % 205 for byte in PAGE.encode()])
    starts = torch.linspace(0, len(symbols) - 255, 4).long()
    windows = torch.stack([symbols[start : start + 255] for start in starts])
    with torch.no_grad(), fsn.record(model, "layers.*.feedforward.raw") as points:
        model(windows)
    first, last = (points[f"layers.{i}.feedforward.raw"].square().mean().sqrt().item() for i in (0, 3))
    assert 0.00009 < first < 0.00012
    assert 26 < last / first < 38


def spread(values: torch.Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std().item()


def test_where_the_fsn_starts() -> None:
    model = fsn.build("fsn-1m", vocab_size=205)
    k = 176
    for name in ("embedding.phases", "readout.prototypes"):
        assert spread(model.get_parameter(name)) == pytest.approx((0.0, 0.02), abs=0.001)
    assert not torch.equal(model.get_parameter("embedding.phases"), model.get_parameter("readout.prototypes"))
    assert model.get_parameter("gates.weight").eq(0).all() and model.get_parameter("gates.bias").eq(1).all()
    assert model.get_parameter("tau").item() == pytest.approx(math.sqrt(k))
    assert model.get_parameter("readout.scale").item() == pytest.approx(1 / math.sqrt(k))
    for i in range(4):
        layer = model.get_submodule(f"layers.{i}")
        for bound in ("attention_bound", "feedforward_bound"):
            assert layer.get_parameter(f"{bound}.alpha").item() == pytest.approx(2 * math.pi)
        assert layer.get_parameter("feedforward.bias").eq(0).all()
        for name, fan_in in (("gate_up", k), ("down", 2 * k)):
            values = layer.get_parameter(f"feedforward.{name}")
            assert values.abs().max().item() == pytest.approx(fan_in**-0.5, rel=0.01)
            assert spread(values) == pytest.approx((0.0, (3 * fan_in) ** -0.5), abs=0.001)


def test_where_the_kernel_starts() -> None:
    kernel = layers_of(fsn.build("fsn-1m", vocab_size=2))[0].kernel.coefficients()
    successor = 1 / (1 + math.exp(-1.5))
    for name, first in (("w0", 1 - successor), ("w1", successor)):
        real, imaginary = kernel[name].unbind(-1)
        assert real.shape == (3, 176)
        assert real[0].eq(torch.tensor(first)).all() and real[1:].eq(0).all()
        assert spread(imaginary) == pytest.approx((0.0, 0.05), abs=0.006)


@pytest.mark.parametrize(
    ("family", "present", "successor", "angles"),
    [
        ("fsn-literal", 0.18242552, 0.81757448, True),
        ("fsn-lean", 0.18242552, 0.81757448, False),
        ("fsn-nophase", 0.18242552, 0.81757448, False),
        ("fsn-noharmonics", 0.18242552, 0.81757448, False),
        ("kuramoto", 1.0, 0.0, False),
        ("daido", 1.0, 0.0, False),
        ("successor", 0.0, 1.0, False),
        ("fsn-nodelay", 1.0, 0.0, True),
        ("fsn-shared-kernel", 0.18242552, 0.81757448, True),
    ],
)
def test_where_the_other_kernels_start(family: str, present: float, successor: float, angles: bool) -> None:
    """Every kernel starts as a sine of the first harmonic; a field alone starts at one."""
    model = fsn.build(f"{family}-1m", vocab_size=2)
    harmonics = law_of(model).harmonics
    for layer in layers_of(model):
        kernel = layer.kernel.coefficients()
        for name, first in (("w0", present), ("w1", successor)):
            real, imaginary = kernel[name].unbind(-1)
            assert real.shape == imaginary.shape == (harmonics, 176)
            assert real[0].sub(first).abs().max() < 1e-6 and real[1:].eq(0).all()
            assert bool(imaginary.ne(0).any()) == (angles and first > 0)


def test_where_collective_modes_start() -> None:
    block = fsn.build("fsn-mf-winding-1m", vocab_size=2).get_submodule("layers.0.feedforward")
    assert block.get_parameter("bias").eq(0).all() and block.get_parameter("winding_bias").eq(0).all()
    for name, bound in (("gate_modes", 352**-0.5), ("value_modes", 352**-0.5), ("winding_gate", 176**-0.5)):
        assert block.get_parameter(name).abs().max().item() == pytest.approx(bound, rel=0.02)


@pytest.mark.parametrize(("start", "of_equals"), [("uniform", False), ("centred", True), ("zero", True)])
def test_phases_that_agree_are_left_alone_from_a_centred_or_zero_start(start: str, of_equals: bool) -> None:
    torch.manual_seed(0)
    model = fsn.build("fsn-mf-1m", vocab_size=2, k=8, modes_start=start)
    block = model.get_submodule("layers.0.feedforward")
    equal = block(torch.full((1, 3, 8), 0.7))
    assert bool(equal.abs().max() < 1e-6) == of_equals
    different = block(torch.linspace(-1, 1, 8).expand(1, 3, 8))
    assert bool(different.eq(0).all()) == (start == "zero")
    different.sum().backward()
    assert block.get_parameter("projection").grad is not None
    torch.manual_seed(0)
    plain = fsn.build("fsn-mf-1m", vocab_size=2, k=8)
    for name, value in model.named_parameters():
        changed = name.endswith(
            {"centred": ("gate_modes", "value_modes"), "zero": "projection"}.get(start, "-")
        )
        assert torch.equal(value, plain.get_parameter(name)) != changed, name
    with pytest.raises(UserError, match="modes_start is for mean-field blocks"):
        fsn.build("fsn-1m", vocab_size=2, modes_start="zero")


def test_where_the_transformer_starts() -> None:
    model = fsn.build("transformer-1m", vocab_size=205)
    assert spread(model.get_parameter("embedding.weight")) == pytest.approx((0.0, 1.0), abs=0.02)
    assert model.get_parameter("head.bias").eq(0).all()
    for name, fan_in in (
        ("head.weight", 120),
        ("layers.0.attention.qkv", 120),
        ("layers.0.attention.out", 120),
        ("layers.3.feedforward.gate_up", 120),
        ("layers.3.feedforward.down", 480),
    ):
        assert model.get_parameter(name).abs().max().item() == pytest.approx(fan_in**-0.5, rel=0.01)
    layer = model.get_submodule("layers.0")
    assert layer.get_parameter("feedforward.bias").eq(0).all()
    for norm in ("attention_norm", "feedforward_norm"):
        assert layer.get_parameter(f"{norm}.weight").eq(1).all()
        assert layer.get_parameter(f"{norm}.bias").eq(0).all()


def test_the_transformers_other_initialisation() -> None:
    model = fsn.build("transformer-1m", vocab_size=205, init="normal")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            assert spread(parameter) == pytest.approx((0.0, 0.02), abs=0.001)


@pytest.mark.parametrize("readout", [0.0, 0.5, -1.0])
def test_starts_can_be_chosen(readout: float) -> None:
    """Zero is a scale like any other, not a way to say "the default"; a temperature has to be positive."""
    model = fsn.build("fsn-1m", vocab_size=5, k=4, tau_start=0.25, readout_start=readout)
    assert model.get_parameter("tau").item() == 0.25
    assert model.get_parameter("readout.scale").item() == readout
    for tau in (0.0, -1.0):
        with pytest.raises(UserError, match="tau_start"):
            fsn.build("fsn-1m", vocab_size=5, tau_start=tau)


@pytest.mark.parametrize("name", ["tau_start", "readout_start", "alpha_start"])
def test_starts_may_be_whole_numbers(name: str) -> None:
    whole, exact = (fsn.build("fsn-1m", vocab_size=5, k=4, **{name: start}) for start in (1, 1.0))
    for key, value in whole.state_dict().items():
        assert value.dtype == exact.state_dict()[key].dtype, key


@pytest.mark.parametrize(("chosen", "alpha"), [({}, 2 * math.pi), ({"alpha_start": 1.0}, 1.0)])
@pytest.mark.parametrize(("family", "bounds"), [("fsn", 8), ("kuramoto", 8), ("fsn-nobound", 0)])
def test_where_the_bounds_start(family: str, bounds: int, chosen: dict[str, float], alpha: float) -> None:
    """Both bounds of a layer, from the paper's 2π or another α; nothing else changes."""
    if not bounds and chosen:
        pytest.skip("refused: tests/models/test_config.py")
    torch.manual_seed(0)
    model = fsn.build(f"{family}-1m", vocab_size=5, k=4, **chosen)
    torch.manual_seed(0)
    paper = fsn.build(f"{family}-1m", vocab_size=5, k=4)
    scales = {name: p.item() for name, p in model.named_parameters() if name.endswith("bound.alpha")}
    assert len(scales) == bounds and all(value == pytest.approx(alpha) for value in scales.values())
    for name, value in model.named_parameters():
        assert name in scales or torch.equal(value, paper.get_parameter(name)), name


@pytest.mark.parametrize("family", ["fsn", "fsn-dissolved", "transformer"])
def test_a_seed_gives_one_model(family: str) -> None:
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in fsn.build(f"{family}-1m", vocab_size=7).parameters()])

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


@pytest.mark.parametrize("family", ["fsn", "fsn-mf-winding", "fsn-dissolved"])
def test_the_order_of_random_draws(family: str) -> None:
    """Which numbers a seed gives: published runs are trained from these."""
    model = fsn.build(f"{family}-1m", vocab_size=7, layers=2, k=8)

    def uniform(name: str) -> tuple[str, Tensor]:
        parameter = model.get_parameter(name)
        complex_pair = 2 if parameter.dim() == 3 else 1
        bound = (complex_pair * parameter.shape[-1]) ** -0.5
        return name, torch.empty(parameter.shape).uniform_(-bound, bound)

    torch.manual_seed(5)
    drawn = {"embedding.phases": torch.randn(7, 8) * 0.02}
    for i in range(2):
        for name in ("present", "successor"):
            drawn[f"layers.{i}.coupling.kernel.{name}_im"] = torch.randn(3, 8) * 0.05
        modes = ["gate_modes", "value_modes", "projection"]
        blocks = {
            "fsn": ["feedforward.gate_up", "feedforward.down"],
            "fsn-mf-winding": [f"feedforward.{name}" for name in modes]
            + [f"feedforward.winding_{name}" for name in ("gate", "value", "projection")],
            "fsn-dissolved": [
                *(f"feedforward.{name}" for name in [*modes, "register_in"]),
                "register.weight",
            ],
        }
        drawn |= dict(uniform(f"layers.{i}.{name}") for name in blocks[family])
    drawn["readout.prototypes"] = torch.randn(7, 8) * 0.02
    torch.manual_seed(5)
    model = fsn.build(f"{family}-1m", vocab_size=7, layers=2, k=8)
    for name, value in drawn.items():
        assert torch.equal(model.get_parameter(name), value), name


def materialised(make: Callable[[], nn.Module]) -> nn.Module:
    """Made without memory, then given some and started part by part, as sharded training does."""
    with torch.device("meta"):
        module = make()
    for part in module.modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        part.to_empty(device="cpu", recurse=False)
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            tensor.data.fill_(math.nan)
        if own:
            part.reset_parameters()  # type: ignore[operator]
    return module


def check_materialised(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    plain = make()
    torch.manual_seed(3)
    found = materialised(make)

    def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        yield from module.named_parameters()
        yield from module.named_buffers()

    for (name, expected), (other, value) in zip(tensors(plain), tensors(found), strict=True):
        assert name == other and value.dtype == expected.dtype and torch.equal(value, expected), name
    again = torch.rand(())
    torch.manual_seed(3)
    make()
    assert torch.rand(()) == again  # as many numbers were drawn


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_model_made_without_memory_starts_like_any_other(family: str) -> None:
    width = "width" if family.startswith("transformer") else "k"
    check_materialised(lambda: fsn.build(f"{family}-1m", vocab_size=7, layers=2, **{width: 8}))


@pytest.mark.parametrize(
    "options",
    [
        {"noise_on": "angles", "alpha_start": 1.0, "tau_start": 0.5, "readout_start": 2.0},
        {"feedforward": "mean-field", "modes_start": "centred"},
        {"feedforward": "mean-field", "modes_start": "zero"},
    ],
    ids=lambda options: "-".join(options),
)
def test_chosen_starts_are_those_of_a_model_made_without_memory(options: dict[str, object]) -> None:
    check_materialised(lambda: fsn.build("fsn-1m", vocab_size=7, layers=2, k=8, **options))


@pytest.mark.parametrize(
    "options", [{}, {"heads": 2, "score_successor": True, "alpha_start": 1.0}, {"bounded": False}]
)
def test_a_layer_made_without_memory_starts_like_any_other(options: dict[str, object]) -> None:
    check_materialised(lambda: fsn.FrustratedAttention(24, **options))  # type: ignore[arg-type]


def test_an_initialisation_of_the_whole_is_not_made_part_by_part() -> None:
    model = fsn.build("transformer-1m", vocab_size=7, width=8, init="normal")
    with pytest.raises(UserError, match="build it on a device"):
        model.reset_parameters()  # type: ignore[operator]
