"""What researchers do with a model besides training it: second derivatives, torch.func, checkpoints, hooks, casts,
caches that change their mode. Every path gives the reference's numbers or one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import fsn
from fsn.errors import UserError
from fsn.measure.lesions import without_field
from fsn.models import FSN, LanguageModel, build_from_config
from fsn.nn import Gates
from tests.ops.fused.interpreter import Interpreter
from tests.small import randomise, small

FAMILIES = ["fsn", "fsn-score", "fsn-mf", "kuramoto", "transformer-kvshift"]


def float_model(family: str = "fsn", seed: int = 1) -> LanguageModel:
    """In float32, where a CPU has backward passes written by hand."""
    return small(family, seed).float()


def text(model: LanguageModel, batch: int = 3, length: int = 9, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator)


def mean_loss(model: LanguageModel, tokens: Tensor) -> Tensor:
    return model.loss(tokens[:, :-1], tokens[:, 1:]).mean()


# -- derivatives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gradient_that_can_be_differentiated_is_the_gradient(family: str) -> None:
    """Through several layers that share their gates: what a layer owes to the one before must not count twice."""
    model = float_model(family)
    tokens, weights = text(model), list(model.parameters())
    plain = torch.autograd.grad(mean_loss(model, tokens), weights, allow_unused=True)
    again = torch.autograd.grad(mean_loss(model, tokens), weights, create_graph=True, allow_unused=True)
    for one, two in zip(plain, again, strict=True):
        if one is not None:
            torch.testing.assert_close(two.detach(), one, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_hessian_times_vector(family: str) -> None:
    """In float32 as in float64, where the reference alone computes."""
    found = []
    for model in (float_model(family), float_model(family).double()):
        tokens, weights = text(model), list(model.parameters())
        with sdpa_kernel(SDPBackend.MATH):  # PyTorch's fast attention has no second derivatives on a CPU
            loss = mean_loss(model, tokens)
        first = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
        generator = torch.Generator().manual_seed(3)
        along = [torch.randn(w.shape, generator=generator).to(w.dtype) for w in weights]
        dot = sum((g * v).sum() for g, v in zip(first, along, strict=True) if g is not None)
        second = torch.autograd.grad(dot, weights, allow_unused=True)
        found.append(torch.cat([s.flatten().double() for s in second if s is not None]))
    assert (found[0] - found[1]).norm() < 1e-3 * found[1].norm()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_single_sequences(family: str) -> None:
    """PyTorch's recipe, vmap over grad over functional_call, against one backward pass for each sequence."""
    model = float_model(family)
    tokens, weights = text(model), dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        logits_and_loss = functional_call(model, weights, (row[None, :-1], row[None, 1:]))
        return logits_and_loss[1].mean()

    each = vmap(grad(loss), (None, 0))({name: w.detach() for name, w in weights.items()}, tokens)
    for i, row in enumerate(tokens):
        model.zero_grad()
        mean_loss(model, row[None]).backward()
        for name, w in weights.items():
            if w.grad is not None:
                error = float((each[name][i] - w.grad).norm() / w.grad.norm().clamp(min=1e-3))
                assert error < 1e-2, name


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_jacobian(vectorize: bool) -> None:
    layer, x = fsn.FrustratedAttention(8, heads=2), torch.randn(1, 4, 8)
    found = torch.autograd.functional.jacobian(layer, x, vectorize=vectorize)
    expected = torch.autograd.functional.jacobian(layer.double(), x.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
    model = float_model()
    theta = torch.randn(1, 4, model.config.k)  # type: ignore[union-attr]
    coupling = next(model.stack).coupling if isinstance(model, FSN) else None
    assert coupling is not None

    def update(theta: Tensor) -> Tensor:
        return coupling(theta, model.gates, model.tau)

    found = torch.autograd.functional.jacobian(update, theta, vectorize=vectorize)
    expected = torch.autograd.functional.jacobian(update, theta, vectorize=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_forward_mode() -> None:
    model = float_model()
    assert isinstance(model, FSN)
    coupling, theta, along = next(model.stack).coupling, torch.randn(1, 4, 11), torch.randn(1, 4, 11)

    def update(theta: Tensor) -> Tensor:
        return coupling(theta, model.gates, model.tau)

    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(theta, along)
        found = torch.autograd.forward_ad.unpack_dual(update(dual)).tangent
    expected = torch.autograd.functional.jacobian(update, theta).flatten(3).flatten(0, 2) @ along.flatten()
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_checkpointing(family: str, reentrant: bool) -> None:
    model = float_model(family)
    tokens = text(model)
    x, y = tokens[:, :-1], tokens[:, 1:]

    def gradients(loss: Callable[[], Tensor]) -> list[Tensor]:
        model.zero_grad()
        loss().mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    scale = torch.ones((), requires_grad=True)  # reentrant checkpoints want an input that has a gradient
    plain = gradients(lambda: model.loss(x, y))
    saved = gradients(lambda: checkpoint(lambda one: one * model.loss(x, y), scale, use_reentrant=reentrant))
    for one, two in zip(plain, saved, strict=True):
        assert torch.equal(one, two)


# -- the same through kernels, in the interpreter's process ----------------------------------------------------


def kernels_transformed() -> dict[str, float | str]:
    """How far the layer and the model with kernels are from the reference under transforms."""
    torch.manual_seed(0)
    layer, x, v = fsn.FrustratedAttention(16, heads=2), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    model = float_model()
    tokens = text(model)

    def all_of() -> dict[str, Tensor]:
        found = {"jvp": torch.func.jvp(layer, (x,), (v,))[1]}
        found["grad"] = grad(lambda x: layer(x).square().sum())(x)
        weights = {name: p.detach() for name, p in model.named_parameters()}

        def loss(weights: dict[str, Tensor]) -> Tensor:
            return functional_call(model, weights, (tokens[:, :-1], tokens[:, 1:]))[1].mean()

        found["model"] = grad(loss)(weights)["gates.weight"]
        y = x.clone().requires_grad_()
        checkpoint(layer, y, use_reentrant=False).sum().backward()
        assert y.grad is not None
        found["checkpoint"] = y.grad
        found["empty"] = layer(x[:, :0])
        handle = layer.gates[1].register_forward_hook(lambda module, inputs, out: (*out[:2], 0 * out[2]))  # type: ignore[union-attr]
        found["hooked"] = layer(x)
        handle.remove()
        return found

    here = all_of()
    second = {}
    y = x.clone().requires_grad_()
    for name, loss in (("layer", lambda: layer(y).sum()), ("model", lambda: mean_loss(model, tokens))):
        wanted = [y] if name == "layer" else [next(model.parameters())]
        try:
            (first,) = torch.autograd.grad(loss(), wanted, create_graph=True)
            torch.autograd.grad(first.square().sum(), wanted)
            second[name] = "no error"
        except RuntimeError as error:
            second[name] = str(error)
    os.environ["FSN_FUSED"] = "0"
    try:
        there = all_of()
    finally:
        del os.environ["FSN_FUSED"]
    return {name: float((here[name] - there[name]).abs().sum()) for name in here} | {
        f"second {name}": said for name, said in second.items()
    }


def test_kernels_under_transforms(interpreter: Interpreter) -> None:
    found = interpreter("tests.models.test_transforms:kernels_transformed")
    for name in ("layer", "model"):
        assert "FSN_FUSED=0" in found.pop(f"second {name}")
    assert all(value < 1e-2 for value in found.values()), found


# -- padding and documents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_inside_documents(family: str) -> None:
    """Padding in front of a packed row: both count."""
    model = small(family)
    tokens, targets = text(model, 1, 8, 1), text(model, 1, 8, 2)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    documents = torch.tensor([[0] * 6 + [1] * 2])
    found = model.loss(tokens, targets, documents=documents, attention_mask=mask)
    alone = [model.loss(tokens[:, part], targets[:, part]) for part in (slice(2, 6), slice(6, 8))]
    torch.testing.assert_close(found[:, 2:], torch.cat(alone, dim=1), rtol=1e-9, atol=1e-9)
    assert (found[:, :2] == 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_is_a_run_of_equal_numbers(family: str) -> None:
    model = small(family)
    tokens, targets = text(model, 1, 6, 1), text(model, 1, 6, 2)
    found = model.loss(tokens, targets, documents=torch.tensor([[0, 0, 1, 1, 0, 0]]))
    alone = [model.loss(tokens[:, i : i + 2], targets[:, i : i + 2]) for i in (0, 2, 4)]
    torch.testing.assert_close(found, torch.cat(alone, dim=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_padding_between_real_positions_is_refused(family: str) -> None:
    model = small(family)
    tokens = text(model, 2, 6)
    cache = model.new_cache()
    with torch.no_grad():
        before = model.extend(tokens[:, :3], cache)
        with pytest.raises(UserError, match="padding is true inside a sequence"):
            model.extend(tokens[:, 3:], cache, torch.tensor([[True, True, False], [False, False, False]]))
        assert cache.length == 3
        model.extend(
            tokens[:, 3:], cache, torch.tensor([[False, True, True], [False, False, False]])
        )  # one ends
        assert cache.length == 6 and before.shape == (2, 3, 13)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"targets": torch.zeros(2, 5, dtype=torch.int64), "attention_mask": torch.ones(2, 4)},
            "make them equal",
        ),
        ({"targets": [[1]], "attention_mask": torch.ones(2, 4)}, "targets are a list"),
        ({"tokens": torch.zeros(4, dtype=torch.int64), "attention_mask": torch.ones(4)}, "pass two axes"),
        ({"attention_mask": [[1] * 4] * 2}, "attention_mask is a list"),
        ({"documents": [[1] * 4] * 2}, "documents is a list"),
        ({"documents": torch.zeros(2, 4)}, "not integers"),
        ({"targets": None}, "targets are missing"),
    ],
)
def test_bad_marks_are_one_sentence(change: dict[str, object], said: str) -> None:
    model = small("fsn")
    zeros = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(UserError, match=said):
        model.loss(**{"tokens": zeros, "targets": zeros, **change})  # type: ignore[arg-type]


# -- caches --------------------------------------------------------------------------------------------------


def pieces(model: LanguageModel, tokens: Tensor, *modes: Callable[[], object]) -> Tensor:
    """Logits of one symbol at a time, each in the next of these modes."""
    cache, found = model.new_cache(), []
    for i in range(tokens.shape[1]):
        with modes[i % len(modes)]():  # type: ignore[attr-defined]
            found.append(model.extend(tokens[:, i : i + 1], cache).detach().clone())
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_goes_from_one_mode_to_another(family: str) -> None:
    model = float_model(family)
    tokens = text(model)
    with torch.no_grad():
        whole = model(tokens)
    for modes in ([torch.inference_mode, torch.inference_mode, torch.no_grad], [torch.no_grad, nullcontext]):
        torch.testing.assert_close(pieces(model, tokens, *modes), whole, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_a_cache_begun_under_autocast(family: str) -> None:
    model = float_model(family)
    tokens = text(model)

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    with torch.no_grad():
        found, whole = pieces(model, tokens, autocast, autocast, nullcontext), model(tokens)
    error = float((found - whole).abs().mean() / whole.abs().mean())
    assert error < 0.3  # bfloat16


@pytest.mark.parametrize("sizes", [[4, 1, 1, 1, 2], [4, 5], [1] * 9])
def test_gradients_through_the_layers_cache(sizes: list[int]) -> None:
    torch.manual_seed(0)
    layer, x = fsn.FrustratedAttention(8, heads=2).double(), torch.randn(2, 9, 8).double()
    found = []
    for parts in (sizes, [9]):
        layer.zero_grad()
        cache, out = layer.new_cache(), []
        for part in x.split(parts, dim=1):
            out.append(layer(part, cache=cache))
        torch.cat(out, dim=1).square().sum().backward()
        found.append([p.grad for p in layer.parameters()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_an_empty_cache_takes_any_batch_again() -> None:
    model = small("fsn")
    tokens, cache = text(model), model.new_cache()
    with torch.no_grad(), pytest.raises(ZeroDivisionError), fsn.replace(model, {"phases": lambda x: 1 / 0}):
        model.extend(tokens, cache)
    with torch.no_grad():
        assert model.extend(tokens[:2], cache).shape[0] == 2
        cache.cut(0)
        torch.testing.assert_close(model.extend(tokens[:1], cache), model(tokens[:1]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lean", [False, True])
def test_weights_that_change_while_a_cache_is_read_on(lean: bool) -> None:
    """What was seen stays as it was; what is read after the change is read with the new weights alone."""
    model = small("fsn")
    assert isinstance(model, FSN)
    tokens = text(model, 1, 9)
    logits = []
    for fresh in (False, True):
        cache = model.new_cache(lean)
        with torch.no_grad():
            model.extend(tokens[:, :5], cache)
            model.extend(tokens[:, 5:6], cache)  # makes what follows from the weights
            with without_field(model, "successor", 1):
                if fresh:
                    for past in cache.layers:
                        past.constants = None
                    cache.gates = cache.prototypes = None
                logits.append(model.extend(tokens[:, 6:], cache))
    assert torch.equal(*logits)
    with torch.no_grad():
        assert (logits[0] - model(tokens)[:, 6:]).abs().max() > 1e-4


def test_a_lean_cache_refuses_negative_key_gates() -> None:
    model = small("fsn")
    tokens = text(model)
    with torch.no_grad(), fsn.replace(model, {"layers.*.gates.key": lambda gate: -gate}):
        torch.testing.assert_close(model.extend(tokens, model.new_cache()), model(tokens))
        with pytest.raises(UserError, match="no negative key gates"):
            model.extend(tokens, model.new_cache(lean=True))


# -- hooks and casts -------------------------------------------------------------------------------------------


def test_hooks_on_the_gates_act_on_every_path() -> None:
    model = float_model()
    assert isinstance(model, FSN)
    tokens, seen = text(model), []
    with torch.no_grad():
        before = model(tokens)
        handle = model.gates.register_forward_hook(lambda module, inputs, out: (*out[:2], 0 * out[2]))
        hooked = model(tokens)
        with fsn.replace(model, {"layers.*.gates.value": torch.zeros_like}):
            torch.testing.assert_close(hooked, model(tokens))
        torch.testing.assert_close(pieces(model, tokens, torch.no_grad), hooked, rtol=1e-4, atol=1e-4)
        handle.remove()
        torch.testing.assert_close(model(tokens), before)
        for layer in model.stack:
            layer.coupling.register_forward_hook(lambda module, inputs, out: seen.append(1) or 0 * out)
        torch.testing.assert_close(pieces(model, tokens, torch.no_grad), model(tokens), rtol=1e-4, atol=1e-4)
    assert len(seen) == 2 * (tokens.shape[1] + 1)


def test_other_gates_act_on_every_path() -> None:
    class Closed(Gates):
        def forward(self, *inputs: object) -> tuple[Tensor, Tensor, Tensor]:
            query, key, value = super().forward(*inputs)  # type: ignore[arg-type]
            return query, key, 0 * value

    model = float_model()
    assert isinstance(model, FSN)
    tokens = text(model)
    with torch.no_grad():
        with fsn.replace(model, {"layers.*.gates.value": torch.zeros_like}):
            expected = model(tokens)
        gates = Closed(11)
        gates.load_state_dict(model.gates.state_dict())
        model.gates = gates
        torch.testing.assert_close(model(tokens), expected)
        torch.testing.assert_close(pieces(model, tokens, torch.no_grad), expected, rtol=1e-4, atol=1e-4)


def test_weights_that_are_loaded_leave_buffers_where_they_are() -> None:
    """A captured CUDA graph reads them there."""
    for module in (
        fsn.FrustratedAttention(8, heads=2),
        *(small(family) for family in ("fsn", "transformer")),
    ):
        where = {name: buffer.data_ptr() for name, buffer in module.named_buffers()}
        assert any(name.endswith("rates") for name in where)
        module.load_state_dict(module.state_dict())
        assert {name: buffer.data_ptr() for name, buffer in module.cpu().named_buffers()} == where


@torch.no_grad()
@pytest.mark.parametrize("family", ["fsn", "kuramoto", "transformer"])
def test_a_model_made_in_inference_mode_is_cast(family: str) -> None:
    config = float_model(family).config
    with torch.inference_mode():
        model = build_from_config(config)
    tokens = torch.arange(5)[None]
    expected = model(tokens)
    assert torch.equal(model.float().cpu()(tokens), expected)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("family", ["fsn", "fsn-score", "transformer"])
def test_a_cast_in_the_middle_of_a_cache(family: str, lean: bool) -> None:
    model = float_model(family)
    tokens, cache = text(model, 1, 6), model.new_cache(lean)
    with torch.no_grad():
        expected = model(tokens)
        for position in range(6):
            last = model.extend(tokens[:, position : position + 1], cache)
            if position == 3:
                model.double()
    torch.testing.assert_close(last[:, 0].float(), expected[:, -1], rtol=1e-4, atol=1e-4)


def layers() -> Iterator[tuple[nn.Module, Callable[[nn.Module], Tensor]]]:
    torch.manual_seed(0)
    x = torch.randn(1, 300, 16)
    yield fsn.FrustratedAttention(16, heads=2), lambda layer: layer(x)
    for family in ("fsn", "kuramoto", "transformer"):
        model = float_model(family)
        randomise(model)
        yield model, lambda model: model(torch.arange(300)[None] % 13)


@pytest.mark.parametrize(("module", "run"), list(layers()), ids=["layer", "fsn", "kuramoto", "transformer"])
def test_a_cast_and_back_leaves_buffers_as_they_were(
    module: nn.Module, run: Callable[[nn.Module], Tensor]
) -> None:
    with torch.no_grad():
        module.bfloat16().float()  # the weights are those of bfloat16 from here on
        there = run(module)
        assert torch.equal(run(module.bfloat16().float()), there)
        names = {name: (b.dtype, b.clone()) for name, b in module.named_buffers()}
        rates = [dtype for name, (dtype, _) in names.items() if name.endswith("rates")]
        assert rates and set(rates) == {torch.float64}
        state = module.state_dict()
        module.to_empty(device="meta").to_empty(device="cpu")
        for _, parameter in module.named_parameters():
            parameter.fill_(7.0)
        module.load_state_dict(state)
        assert torch.equal(run(module), there)
        for name, buffer in module.named_buffers():
            assert torch.equal(buffer, names[name][1])


def test_weights_assigned_to_a_module_without_memory() -> None:
    def net(family: str) -> nn.Module:
        if family == "layer":
            return nn.Sequential(nn.Linear(16, 16), fsn.FrustratedAttention(16, heads=2))
        return build_from_config(small(family).config)

    for family in ("layer", "fsn", "kuramoto", "transformer"):
        model, x = net(family), torch.randn(1, 5, 16) if family == "layer" else torch.arange(5)[None]
        with torch.device("meta"):
            empty = net(family)
        assert not empty.load_state_dict(model.state_dict(), assign=True).missing_keys
        assert torch.equal(empty(x), model(x))


def test_dropout_that_compiles_with_dynamic_shapes() -> None:
    layer = fsn.FrustratedAttention(16, heads=2)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    x = torch.randn(2, 8, 16)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)


# -- numbers and devices -----------------------------------------------------------------------------------


def test_numpys_numbers() -> None:
    model = fsn.build("fsn-1m", np.int64(13), k=np.int64(8), layers=1)
    assert type(model.config.vocab_size) is int and type(model.config.k) is int  # type: ignore[union-attr]
    loaded = fsn.load("fsn-1m")
    assert loaded.generate("The ", 3, seed=np.int64(3)) == loaded.generate("The ", 3, seed=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(UserError, match=r"device|GPU"):
        fsn.load("fsn-1m", device=device)


def test_a_model_without_memory_reads_on() -> None:
    model = fsn.load("fsn-1m", device="meta")
    cache, tokens = model.new_cache(), torch.zeros(1, 4, dtype=torch.int64, device="meta")
    with torch.no_grad():
        assert model.extend(tokens, cache).shape == model.extend(tokens, cache).shape == (1, 4, 205)


def test_kernels_say_what_they_take() -> None:
    from fsn.ops.fused import synchronize

    theta, side, tau = torch.zeros(1, 4, 8), torch.zeros(1, 4, 16), torch.ones(1, 1, 1)
    with pytest.raises(ValueError, match=r"fsn\.ops\.synchronize takes it"):
        synchronize.synchronize(theta, side, side, tau, None, None, 1)
