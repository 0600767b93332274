"""A module that is not exactly ours acts on every path: a subclass, a wrapper, a method set on one module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fsn
from fsn.models import FSN, fused_stack
from fsn.nn import (
    BoundedUpdate,
    CoherenceReadout,
    Context,
    CouplingKernel,
    FrustratedCoupling,
    Gates,
    PhaseEmbedding,
    ours,
)
from fsn.ops import Pair
from tests.models.fused_models import build, path, text
from tests.ops.fused.inputs import relative
from tests.ops.fused.interpreter import Interpreter

PARTS = ["coupling", "bound", "kernel", "gates", "readout", "embedding", "wrapped", "method", "phases"]


class HalfCoupling(FrustratedCoupling):
    def forward(self, *inputs: Any) -> Tensor:
        return 0.5 * super().forward(*inputs)


class HalfBound(BoundedUpdate):
    def forward(self, update: Tensor) -> Tensor:
        return 0.5 * super().forward(update)


class HalfKernel(CouplingKernel):
    @property
    def w1(self) -> Pair | None:
        pair = super().w1
        assert pair is not None and pair.im is not None
        return Pair(0.5 * pair.re, 0.5 * pair.im)


class HalfGates(Gates):
    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().forward(*inputs)
        return query, key, 0.5 * value


class HalfReadout(CoherenceReadout):
    def forward(self, *inputs: Any) -> Tensor:
        return 0.5 * super().forward(*inputs)


class HalfEmbedding(PhaseEmbedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return 0.5 * super().forward(tokens)


class HalfPhases(FSN):
    def phases(self, tokens: Tensor, context: Context = fsn.nn.PLAIN) -> Tensor:
        return 0.5 * super().phases(tokens, context)


class Wrapped(nn.Module):
    """Gates with something beside them, as a low-rank adapter has it."""

    def __init__(self, gates: nn.Module) -> None:
        super().__init__()
        self.gates = gates

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.gates(*inputs)
        return query, key, 0.5 * value


def change(model: FSN, part: str) -> None:
    """Put something else in the place of one kind of module."""
    if part in ("gates", "readout", "embedding"):
        module = model.get_submodule(part)
        module.__class__ = {"gates": HalfGates, "readout": HalfReadout, "embedding": HalfEmbedding}[part]
    elif part == "wrapped":
        model.gates = Wrapped(model.gates)  # type: ignore[assignment]
    elif part == "phases":
        model.__class__ = HalfPhases
    for layer in model.stack:
        if part == "coupling":
            layer.coupling.__class__ = HalfCoupling
        elif part == "bound":
            layer.attention_bound.__class__ = HalfBound
        elif part == "kernel":
            layer.kernel.__class__ = HalfKernel
        elif part == "method":
            plain = layer.coupling.forward
            layer.coupling.forward = lambda *inputs, plain=plain: 0.5 * plain(*inputs)  # type: ignore[method-assign]


def errors(part: str) -> dict[str, float]:
    """How far whole sequences, pieces of them and the loss are from the reference, and the change from no change."""
    model = build("fsn", "cpu", k=9).eval()
    assert isinstance(model, FSN)
    tokens, targets = text(1, 7, "cpu")  # a single token has a bound of its own
    with torch.no_grad():
        with path("reference"):
            before = model(tokens)
            change(model, part)
            expected = model(tokens)
            losses = model.loss(tokens, targets).double()
        assert ours(model.gates, *model.layers) == (part in ("readout", "embedding", "phases"))
        cache = model.new_cache()
        read = torch.cat([model.extend(one, cache) for one in tokens.split([3, 1, 1, 2], dim=1)], dim=1)
        found = {"whole": model(tokens), "pieces": read}
        result = {name: relative(one, expected.double()) for name, one in found.items()}
        result["loss"] = relative(model.loss(tokens, targets), losses)
        return result | {"change": relative(before, expected.double())}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_not_ours_acts_in_pieces_as_in_the_whole(part: str) -> None:
    found = errors(part)
    assert found.pop("change") > 1e-2
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("part", PARTS)
def test_what_is_not_ours_acts_where_there_are_kernels(interpreter: Interpreter, part: str) -> None:
    found = interpreter("tests.models.test_overrides:errors", part=part)
    assert found.pop("change") > 1e-2
    assert max(found.values()) < 1e-5, found


def layer_errors(part: str) -> dict[str, Any]:
    """The same for the layer: one of two heads has other gates."""
    torch.manual_seed(0)
    layer, x = fsn.FrustratedAttention(16, heads=2), torch.randn(2, 5, 16)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        before = layer(x)
        if part == "wrapped":
            layer.gates[0] = Wrapped(layer.gates[0])
        else:
            layer.gates[0].__class__ = HalfGates
        found = layer(x)
        with path("reference"):
            expected = layer(x).double()
    return {"error": relative(found, expected), "change": relative(before, expected)}


@pytest.mark.parametrize("part", ["wrapped", "gates"])
def test_what_is_not_ours_in_a_layer_acts_where_there_are_kernels(
    interpreter: Interpreter, part: str
) -> None:
    found = interpreter("tests.models.test_overrides:layer_errors", part=part)
    assert found["change"] > 1e-2 and found["error"] < 1e-6, found


def test_modules_as_they_come_are_ours_and_run_fused(interpreter: Interpreter) -> None:
    assert interpreter("tests.models.test_overrides:fused") == {"ours": True, "applies": True}


def fused() -> dict[str, bool]:
    model = build("fsn", "cpu")
    assert isinstance(model, FSN)
    with path("fused"):
        applies = fused_stack.applies(model, text(1, 5, "cpu")[0])
    return {"ours": ours(model.embedding, model.gates, model.readout, *model.layers), "applies": applies}
