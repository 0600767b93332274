"""The layer for anybody's network: the model's own attention half, causal, masked, cached, compiled, exported."""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib.util
import inspect
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fsn
from fsn import FrustratedAttention, ops
from fsn.models import FSN
from fsn.zoology import Mixer
from tests.small import small

HEADS = [1, 3]
SIZES = [(12, 1, 14), (12, 3, 14), (64, 1, 1024), (64, 4, 1024), (128, 1, 1024), (128, 4, 1024)]
"""Width, heads, positions."""


def made(heads: int = 1, width: int = 12, **options: object) -> fsn.FrustratedAttention:
    """A layer with nothing left at its start, in evaluation mode; with several heads the score sees successors."""
    torch.manual_seed(heads)
    options.setdefault("score_successor", heads > 1)
    layer = fsn.FrustratedAttention(width, heads, **options).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def rows(batch: int = 2, length: int = 14, width: int = 12) -> Tensor:
    torch.manual_seed(7)
    return torch.randn(batch, length, width)


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    """In float32: the largest difference as a part of the largest output, or of 1 where that is smaller."""
    assert (found - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1.0)


@pytest.mark.parametrize(
    "family",
    ["fsn", "fsn-score", "fsn-literal", "fsn-nodelay", "fsn-noharmonics", "successor", "fsn-nobound"],
)
def test_one_head_between_identities_is_the_models_attention_half(family: str) -> None:
    model = small(family)
    assert isinstance(model, FSN)
    half = next(model.stack)
    law, k = half.coupling.kernel.law, model.config.k
    layer = fsn.FrustratedAttention(
        k, 1, law.harmonics, present=law.present, delay=law.delay, phases=law.phases, frame=law.frame,
        score_successor=law.score_successor, bounded=model.config.bound == "tanh",
    ).double()  # fmt: skip
    with torch.no_grad():
        layer.to_phases.weight.copy_(torch.eye(k))
        layer.from_phases.weight.copy_(torch.eye(k))
        layer.gates[0].load_state_dict(model.gates.state_dict())  # type: ignore[union-attr]
        layer.kernel.load_state_dict(half.coupling.kernel.state_dict())
        layer.tau.fill_(model.tau)
        if layer.alpha is not None:
            layer.alpha.fill_(half.attention_bound.alpha)  # type: ignore[arg-type]
    theta = torch.randn(2, 17, k, dtype=torch.float64)
    expected = half.attention_bound(half.coupling(theta, model.gates, model.tau))
    assert torch.equal(layer(theta), expected)


@pytest.mark.parametrize("heads", HEADS)
def test_heads_are_layers_of_their_own(heads: int) -> None:
    """Each head alone, as a layer of one head between the columns of the projections that belong to it."""
    layer, x = made(heads).double(), rows().double()
    k = layer.k
    total = torch.zeros_like(x)
    for h in range(heads):
        mine = slice(h * k, (h + 1) * k)
        alone = fsn.FrustratedAttention(k, score_successor=heads > 1).double()
        with torch.no_grad():
            alone.to_phases.weight.copy_(torch.eye(k))
            alone.from_phases.weight.copy_(torch.eye(k))
            alone.gates[0].load_state_dict(layer.gates[h].state_dict())  # type: ignore[union-attr]
            for name, parameter in alone.kernel.named_parameters():
                parameter.copy_(getattr(layer.kernel, name)[:, mine])
            alone.tau.copy_(layer.tau[h : h + 1])
            assert alone.alpha is not None and layer.alpha is not None
            alone.alpha.copy_(layer.alpha[h : h + 1])
        update = alone(x @ layer.to_phases.weight[mine].mT)
        total = total + update @ layer.from_phases.weight[:, mine].mT
    torch.testing.assert_close(layer(x), total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("heads", HEADS)
def test_gradients_in_float32_are_those_of_float64(heads: int) -> None:
    layer, x = made(heads), rows()
    wide = made(heads).double()
    ours, exact = (
        torch.autograd.grad(form(given).square().sum(), list(form.parameters()))
        for form, given in ((layer, x), (wide, x.double()))
    )
    for a, b in zip(ours, exact, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm() + 1e-7


def test_gradcheck() -> None:
    layer = made(2, 4, harmonics=2).double()
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    documents = torch.tensor([[0, 0, 1, 1, 1]])
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradcheck(lambda x: layer(x, documents=documents), (x,))


@pytest.mark.parametrize("heads", HEADS)
def test_nothing_later_reaches_an_earlier_position(heads: int) -> None:
    layer, x = made(heads), rows()
    changed = x.clone()
    changed[:, 6:] += 1.0
    before, after = layer(x), layer(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6], after[:, 6])


def separately(layer: fsn.FrustratedAttention, x: Tensor, *cuts: int) -> Tensor:
    return torch.cat([layer(part) for part in torch.tensor_split(x, cuts, dim=1)], dim=1)


@torch.no_grad()
@pytest.mark.parametrize(("width", "heads", "length"), SIZES)
def test_packed_documents_are_separate_sequences(width: int, heads: int, length: int) -> None:
    layer, x, first = made(heads, width), rows(2, length, width), length * 5 // 14
    documents = torch.tensor([[3] * first + [1] * 1 + [3] * (length - first - 1)] * 2)
    assert_close(layer(x, documents=documents), separately(layer, x, first, first + 1))


def test_a_document_far_behind_is_as_exact_as_the_first() -> None:
    """Positions count from the start of each: at 1,500 the angle of a position in float32 is off by 1e-4."""
    layer, x = made(), rows(1, 1514)
    documents = (torch.arange(1514) >= 1500).long()[None]
    assert_close(layer(x, documents=documents)[:, 1500:], layer(x[:, 1500:]))


@torch.no_grad()
@pytest.mark.parametrize(("width", "heads", "length"), SIZES)
def test_padding_in_front_and_behind_changes_nothing(width: int, heads: int, length: int) -> None:
    layer, x, front, behind = made(heads, width), rows(2, length, width), length * 6 // 14, length * 9 // 14
    padding = torch.zeros(2, length, dtype=torch.bool)
    padding[0, :front] = True
    padding[1, behind:] = True
    found = layer(x, padding_mask=padding)
    assert_close(found[0, front:], layer(x[:1, front:])[0])
    assert_close(found[1, :behind], layer(x[1:, :behind])[0])
    assert not found[padding].any()  # padding looks at nothing, so nothing pulls it
    elsewhere = torch.where(padding[..., None], torch.full_like(x, 50.0), x)
    assert torch.equal(layer(elsewhere, padding_mask=padding)[~padding], found[~padding])


@torch.no_grad()
@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("width", "heads", "length"), SIZES)
def test_a_cache_read_in_pieces_is_the_whole(width: int, heads: int, length: int, lean: bool) -> None:
    layer, x, cut = made(heads, width), rows(2, length, width), length * 6 // 14
    documents = torch.tensor([[0] * cut + [1] * (length - cut), [0] * length])
    padding = torch.zeros(2, length, dtype=torch.bool)
    padding[1, :2] = True
    for marks in ({}, {"documents": documents}, {"documents": documents, "padding_mask": padding}):
        cache, pieces = layer.new_cache(lean), []
        for start, end in ((0, 1), (1, 4), (4, 5), (5, length)):
            part = {name: mark[:, start:end] for name, mark in marks.items()}
            pieces.append(layer(x[:, start:end], cache=cache, **part))
        assert cache.length == length
        # phases and gates that a lean cache makes again from their phasors are rounded once more
        assert_close(torch.cat(pieces, dim=1), layer(x, **marks), 2e-6 if lean else 1e-6)


@pytest.mark.parametrize("lean", [False, True])
def test_what_is_written_later_leaves_an_earlier_graph_alone(lean: bool) -> None:
    layer, x = made(2), rows()
    cache = layer.new_cache(lean)
    pulled = layer(x, cache=cache)
    expected = torch.autograd.grad(pulled.sum(), layer.tau, retain_graph=True)
    with torch.no_grad():
        cache.cut(2)
        layer(torch.zeros_like(x[:, :2]), cache=cache)
    assert torch.equal(*torch.autograd.grad(pulled.sum(), layer.tau), *expected)


def test_a_lean_cache_trains_like_the_whole() -> None:
    layer, x = made(3), rows()
    cache = layer.new_cache(lean=True)
    pieces = torch.cat([layer(part, cache=cache) for part in torch.tensor_split(x, (1, 5), dim=1)], dim=1)
    parameters = list(layer.parameters())
    found, expected = (torch.autograd.grad(y.square().sum(), parameters) for y in (pieces, layer(x)))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_marks_that_come_late_and_rows_that_are_taken_twice(heads: int, lean: bool) -> None:
    layer, x = made(heads), rows()
    documents = torch.tensor([[0] * 5 + [1] * 9] * 2)
    cache = layer.new_cache(lean)
    layer(x[:, :5], cache=cache)
    late = layer(x[:, 5:], cache=cache, documents=documents[:, 5:])
    assert_close(late, layer(x, documents=documents)[:, 5:])
    cache = layer.new_cache(lean)
    layer(x[:, :9], cache=cache)
    cache.reorder(torch.tensor([1, 1, 0]))
    index = torch.tensor([1, 1, 0])
    assert_close(layer(x[index, 9:], cache=cache), layer(x)[index, 9:])
    cache = layer.new_cache(lean)
    layer(x[:1, :9], cache=cache, documents=documents[:1, :9])
    cache.reorder(torch.tensor([0]))
    found = layer(x[:1, 9:], cache=cache, documents=documents[:1, 9:])
    assert_close(found, layer(x[:1], documents=documents[:1])[:, 9:])


@torch.no_grad()
@pytest.mark.parametrize("lean", [False, True])
def test_positions_without_a_number_continue_the_last_document(lean: bool) -> None:
    """Whatever its number is: zero is a number like any other, and each sequence has its own last one."""
    layer, x = made(2), rows()
    for number in (0, 1, -7):
        documents = torch.tensor([[number] * 5, [number + 1] * 3 + [number] * 2])
        cache = layer.new_cache(lean)
        numbered = layer(x[:, :5], cache=cache, documents=documents)
        later = [numbered, *(layer(part, cache=cache) for part in (x[:, 5:6], x[:, 6:9]))]
        ends = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        later.append(layer(x[:, 9:], cache=cache, padding_mask=ends))  # marked, but not numbered
        everywhere = torch.cat((documents, documents[:, -1:].expand(2, 9)), dim=1)
        padding = torch.cat((torch.zeros(2, 9, dtype=torch.bool), ends), dim=1)
        expected = layer(x, documents=everywhere, padding_mask=padding)
        assert_close(torch.cat(later, dim=1), expected, 2e-6 if lean else 1e-6)


@torch.no_grad()
def test_positions_before_the_first_number_are_a_document_of_their_own() -> None:
    layer, x = made(2), rows()
    for number in (0, 1):
        for begin in ({}, {"padding_mask": torch.zeros(2, 5, dtype=torch.bool)}):
            cache = layer.new_cache()
            layer(x[:, :5], cache=cache, **begin)
            found = layer(x[:, 5:], cache=cache, documents=torch.full((2, 9), number))
            assert_close(found, layer(x[:, 5:]))


@torch.no_grad()
def test_a_document_that_was_forgotten_is_not_continued() -> None:
    layer, x = made(2), rows()
    documents = torch.tensor([[4] * 3 + [5] * 4] * 2)
    cache = layer.new_cache()
    layer(x[:, :7], cache=cache, documents=documents)
    cache.cut(2)
    layer(x[:, 2:], cache=cache)
    assert_close(layer(x[:, :1], cache=cache), layer(torch.cat((x, x[:, :1]), dim=1))[:, -1:])


@torch.no_grad()
@pytest.mark.parametrize("lean", [False, True])
def test_a_cache_belongs_to_the_layer_that_fills_it(lean: bool) -> None:
    layer, other, x = made(2), made(2), rows()
    cache = layer.new_cache(lean)
    with pytest.raises(fsn.UserError, match="12"):
        other(x[..., :3], cache=cache)  # which fills nothing
    layer(x[:, :5], cache=cache)
    for stranger in (other, copy.deepcopy(layer)):
        with pytest.raises(fsn.UserError, match="another layer; make one for each"):
            stranger(x[:, 5:], cache=cache)
    assert_close(layer(x[:, 5:], cache=cache), layer(x)[:, 5:], 2e-6)
    cache.cut(0)
    assert_close(other(x, cache=cache), other(x), 2e-6)


@torch.no_grad()
def test_a_cache_is_copied_and_saved_without_its_layer(tmp_path: Path) -> None:
    layer, x = made(2), rows()
    cache = layer.new_cache()
    layer(x[:, :5], cache=cache)
    expected = layer(x)[:, 5:]
    alone = copy.deepcopy(cache)
    both, others = copy.deepcopy((layer, cache)), copy.deepcopy(layer)
    torch.save(cache, tmp_path / "cache.pt")
    assert (tmp_path / "cache.pt").stat().st_size < 40_000  # no weights
    read = torch.load(tmp_path / "cache.pt", weights_only=False)
    assert_close(layer(x[:, 5:], cache=alone), expected)
    assert_close(both[0](x[:, 5:], cache=both[1]), expected)
    assert_close(
        others(x[:, 5:], cache=read), expected
    )  # whose it is no file says: the first that continues it
    for given in (both[1], read):
        with pytest.raises(fsn.UserError, match="another layer"):
            layer(x[:, 5:], cache=given)
    gone = weakref.ref(others)
    del others
    gc.collect()
    assert gone() is None
    with pytest.raises(fsn.UserError, match="another layer"):
        layer(x[:, 5:], cache=read)


def test_dropout_acts_in_training_alone() -> None:
    layer, x = made(dropout=0.5), rows()
    assert torch.equal(layer(x), made()(x))
    layer.train()
    assert not torch.allclose(layer(x), layer(x))
    assert torch.equal(layer(x)[:, 0], torch.zeros(2, 12))  # the first has nobody to be pulled by


def test_traced_in_one_piece() -> None:
    layer, x = made(3), rows()
    documents = torch.tensor([[0] * 6 + [1] * 8] * 2)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(compiled(x, documents=documents), layer(x, documents=documents))


@pytest.mark.slow
def test_compiled_in_one_piece() -> None:
    layer, x = made(2), rows()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    found, expected = (
        [out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))]
        for out in (compiled(x), layer(x))
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_exported_for_any_batch_and_length() -> None:
    layer, x = made(2), rows()
    sizes = {0: torch.export.Dim("B", max=64), 1: torch.export.Dim("T", min=3, max=512)}
    program = torch.export.export(layer, (x,), dynamic_shapes={"x": sizes}).module()
    for given in (x, rows(3, 33)):
        torch.testing.assert_close(program(given), layer(given))


@pytest.mark.parametrize("heads", HEADS)
def test_bfloat16_autocast(heads: int) -> None:
    layer, x = made(heads), rows()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    exact = layer(x)
    assert (out - exact).norm() <= 0.03 * exact.norm()
    out.float().square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", HEADS)
def test_a_layer_in_half_precision(heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``network.to(torch.bfloat16)`` or sharded training with half-precision parameters makes it."""
    exact = made(heads)(x := rows())
    layer, x = made(heads).to(dtype), x.to(dtype)
    monkeypatch.setattr("fsn.nn.attention.applies", lambda *_: True)
    monkeypatch.setattr("fsn.nn.attention.trusted", lambda *_: True)
    monkeypatch.setattr(layer, "_fused", lambda *_: pytest.fail("kernels read float32"))
    out = layer(x)
    assert out.dtype == dtype and (out - exact).norm() <= 0.03 * exact.norm()
    out.float().square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    for lean in (False, True):
        cache = layer.new_cache(lean)
        pieces = [layer(part, cache=cache) for part in torch.tensor_split(x, (1, 5), dim=1)]
        assert (torch.cat(pieces, dim=1) - exact).norm() <= 0.03 * exact.norm()


def test_wrong_arguments_are_one_sentence() -> None:
    with pytest.raises(fsn.UserError, match="multiple of 5"):
        fsn.FrustratedAttention(12, 5)
    with pytest.raises(fsn.UserError, match="d_model is 0; take at least 1"):
        fsn.FrustratedAttention(0)
    with pytest.raises(fsn.UserError, match=r"d_model is 12\.0; it takes a whole number"):
        fsn.FrustratedAttention(12.0)  # type: ignore[arg-type]
    with pytest.raises(fsn.UserError, match="heads is '3'; it takes a whole number"):
        fsn.FrustratedAttention(12, "3")  # type: ignore[arg-type]
    with pytest.raises(fsn.UserError, match=r"dropout is '0\.1'; a dropout rate"):
        fsn.FrustratedAttention(12, dropout="0.1")  # type: ignore[arg-type]
    with pytest.raises(fsn.UserError, match="alpha_start is 0; the bound's scale"):
        fsn.FrustratedAttention(12, alpha_start=0)
    assert fsn.FrustratedAttention(12, heads=2, alpha_start=1).alpha.tolist() == [1.0, 1.0]
    with pytest.raises(fsn.UserError, match="frame"):
        fsn.FrustratedAttention(12, frame="moving")
    with pytest.raises(fsn.UserError, match="bounded is 1; it takes true or false"):
        fsn.FrustratedAttention(12, bounded=1)  # type: ignore[arg-type]
    with pytest.raises(
        fsn.UserError, match=r"alpha_start is 1\.0, and a layer without a bound .* leave it out"
    ):
        fsn.FrustratedAttention(12, bounded=False, alpha_start=1.0)
    layer, x = made(), rows()
    with pytest.raises(fsn.UserError, match=r"x is a ndarray; pass a tensor, e\.g\. torch\.tensor\(x\)"):
        layer(x.numpy())
    with pytest.raises(fsn.UserError, match="documents is a list; pass a tensor"):
        layer(x, documents=[[0] * 14] * 2)
    with pytest.raises(fsn.UserError, match="padding_mask is a list; pass a tensor"):
        layer(x, padding_mask=[[False] * 14] * 2)
    with pytest.raises(fsn.UserError, match=r"cache is a list; pass layer\.new_cache\(\)"):
        layer(x, cache=[])
    with pytest.raises(fsn.UserError, match=r"pass \(batch, positions, 12\)"):
        layer(x[0])
    with pytest.raises(fsn.UserError, match=r"make it \(2, 14\)"):
        layer(x, padding_mask=torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(fsn.UserError, match="true for padding"):
        layer(x, padding_mask=torch.zeros(2, 14))
    with pytest.raises(fsn.UserError, match="integers"):
        layer(x, documents=torch.zeros(2, 14))
    cache = layer.new_cache()
    layer(x, cache=cache)
    with pytest.raises(fsn.UserError, match="2 sequences and x 1"):
        layer(x[:1], cache=cache)


def test_zoology_builds_it_by_import_path() -> None:
    mixer = Mixer(d_model=12, layer_idx=1, heads=2)
    assert mixer(rows()).shape == (2, 14, 12)
    assert mixer.state_size(sequence_length=20) == 20 * 2 * 12  # a gated phasor a coordinate
    cache = mixer.new_cache()
    mixer(rows(), cache=cache)
    assert cache.numbers() == 2 * 14 * (2 + 1 + 2 * 3) * 12  # keys, phases, fields of three harmonics


def test_the_example_trains() -> None:
    path = Path(__file__).parents[2] / "examples" / "own_network.py"
    assert len(path.read_text("utf-8").splitlines()) < 40
    spec = importlib.util.spec_from_file_location("own_network", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main(steps=15, device="cpu") < 0.7 * math.log(256)  # the loss of guessing any byte


def test_arguments_that_are_the_laws_reach_it_and_its_other_fields_have_their_defaults() -> None:
    other = {"harmonics": 2, "present": False, "delay": False, "phases": False, "frame": "rest", "noise": 0.1}
    other |= {"noise_on": "angles", "score_successor": True}
    fields = {f.name: f.default for f in dataclasses.fields(ops.CouplingLaw)}
    assert other.keys() == fields.keys() & set(inspect.signature(FrustratedAttention).parameters)
    for name, value in other.items():
        assert vars(FrustratedAttention(8, **{name: value}).law) == {**fields, name: value}


# -- looking inside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2])
def test_the_layers_points_can_be_recorded_and_replaced(heads: int) -> None:
    layer, x = FrustratedAttention(8, heads).eval(), torch.randn(3, 5, 8)
    plain = layer(x)
    with fsn.record(layer) as points:
        assert torch.equal(layer(x), plain)
    attention = points["attention"]
    assert attention.shape == (3, heads, 5, 5) and torch.equal(attention, attention.tril())
    assert torch.allclose(attention.sum(-1), torch.ones(3, heads, 5))
    assert torch.allclose(layer.from_phases(points["update.bounded"].transpose(1, 2).flatten(2)), plain)
    with fsn.replace(layer, {"update.raw": torch.zeros_like}):
        assert layer(x).abs().max() == 0
    assert torch.equal(layer(x), plain), "nothing stays behind"
