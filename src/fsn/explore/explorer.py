"""What two models make of a text, and how: losses, copy depth, attention, pulls, phases."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Alphabet, Encoding, Subwords, Windows
from ..data.encoding import TokenIds
from ..errors import UserError
from ..measure.copy_depth import label
from ..measure.coupling import FIELDS, kernels_of, read_kernel
from ..measure.lesions import coefficients_of, without_field
from ..measure.losses import NATS_PER_BIT, evaluating
from ..models import FSN, LanguageModel
from ..models.generate import first_token
from ..nn import record

LIKELIEST = 5
MOST_LETTERS = 32
"""Letters of a symbol, at most."""
CURVE_POINTS = 73
INSIDE = ("layers.*.attention", "layers.*.state")
INSIDE_PHASES = ("phases", "layers.*.update.bounded", "layers.*.gates.value")

Cut = tuple[int, str]
"""A field of a layer that is switched off: the layer, counted from 0, and ``present`` or ``successor``."""


@dataclass(frozen=True)
class ForwardPass:
    """A model's forward pass over n symbols: position 0 is the line break before them, position i symbol i."""

    log_probabilities: Tensor
    """(n + 1, V) in bits, row t for what follows position t"""
    points: dict[str, Tensor]

    def attention(self, layer: int) -> Tensor:
        """(n + 1, n + 1), the mean of several heads"""
        weights = self.points[f"layers.{layer}.attention"][0]
        return weights.mean(dim=0) if weights.dim() == 3 else weights


class Explorer:
    """A model, perhaps another one to compare it with, and a memory for the text that was read last.

    One question is answered at a time: switching a field off changes the weights while the answer is worked out.
    """

    def __init__(self, models: Mapping[str, LanguageModel]) -> None:
        self.models = dict(models)
        if "cut" in self.models:  # the page's name for the first model with fields off
            self.models = {f"{n} (run)" if n == "cut" else n: model for n, model in self.models.items()}
        self.name, self.model = next(iter(self.models.items()))
        encodings = [meaning(model) for model in self.models.values()]
        if any(other != encodings[0] for other in encodings):
            raise UserError(
                f"{' and '.join(self.models)} read different symbols; compare runs of the same corpus"
            )
        self.longest = min(model.window for model in self.models.values()) - 1
        self._lock = threading.Lock()
        self._last: tuple[Any, dict[str, ForwardPass]] = (None, {})

    # -- what is asked -------------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """What the page has to know before any text: names, sizes, fields, coupling functions."""
        models = [
            {
                "name": name,
                "parameters": model.parameter_count(),
                "layers": model.config.layers,
                "phases": isinstance(model, FSN),
            }
            for name, model in self.models.items()
        ]
        return {
            "models": models,
            "longest": self.longest,
            "bytes": isinstance(self.model.tokenizer, Alphabet),
            "fields": self.fields(),
            "coupling": self.coupling(),
        }

    def fields(self) -> list[list[str]]:
        """For every layer of the first model the fields that can be switched off."""
        if not isinstance(self.model, FSN):
            return []
        return [[f for f in FIELDS if coefficients_of(kernel, f)] for kernel in kernels_of(self.model)]

    def coupling(self) -> dict[str, Any] | None:
        """The coupling functions f(Δ) of every layer, mean over coordinates: (2, layers, points)."""
        if not isinstance(self.model, FSN):
            return None
        delta = np.linspace(-np.pi, np.pi, CURVE_POINTS)
        reading = read_kernel(self.model)
        return {"delta": rounded(delta), "curves": rounded(reading.functions(delta))}

    def read(self, text: str, cuts: Sequence[Cut] = ()) -> dict[str, Any]:
        """Every symbol's loss in each model, what each would have written, and the copy depth."""
        tokens, passes = self._passes(text, cuts)
        depth, distance = copy_depth(tokens)
        models = {name: self._losses(one, tokens) for name, one in passes.items()}
        return {"labels": self._labels(tokens), "depth": depth, "distance": distance, "models": models}

    def look(self, text: str, at: int, cuts: Sequence[Cut] = ()) -> dict[str, Any]:
        """How symbol ``at`` came to be predicted: where every layer looked, what pulled, how the phases moved."""
        tokens, passes = self._passes(text, cuts)
        if not 0 <= at < len(tokens):
            raise UserError(f"there is no symbol {at}; the text has {len(tokens)}")
        layers = {
            name: [
                rounded(one.attention(i)[at, : at + 1])
                for i in range(self.models.get(name, self.model).config.layers)
            ]
            for name, one in passes.items()
        }
        main = "cut" if "cut" in passes else self.name
        inside = None
        if isinstance(self.model, FSN):
            with self._lock, self._without(cuts):
                inside = pulls(self.model, passes[main], at, int(tokens[at]))
        return {"at": at, "attention": layers, "main": main, "inside": inside}

    # -- how it is answered --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _without(self, cuts: Sequence[Cut]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for layer, field in dict.fromkeys(cuts):
                stack.enter_context(without_field(self.model, field, layer))
            yield

    def _passes(self, text: str, cuts: Sequence[Cut]) -> tuple[Tensor, dict[str, ForwardPass]]:
        """The text's tokens, and every model's way through them; the last answer is kept for the next question."""
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        if not text:
            raise UserError("type at least one character")
        enough = MOST_LETTERS * self.longest  # a text that could not fit is not even encoded
        if len(text) > enough or len(tokens := tokenizer.encode(text).long()) > self.longest:
            raise UserError(
                f"this text is too long: the models read at most {self.longest} symbols at a time; shorten it"
            )
        key = (text, tuple(sorted(set(cuts))))
        with self._lock:
            if self._last[0] != key:
                passes = {name: forward_pass(model, tokens) for name, model in self.models.items()}
                if cuts:
                    with self._without(cuts):
                        passes["cut"] = forward_pass(self.model, tokens)
                self._last = (key, passes)
            return tokens, self._last[1]

    def _losses(self, one: ForwardPass, tokens: Tensor) -> dict[str, Any]:
        bits = -one.log_probabilities[:-1].gather(1, tokens[:, None])[:, 0]
        top = one.log_probabilities.topk(LIKELIEST)
        names = {token: self._labels(torch.tensor([token]))[0] for token in top.indices.unique().tolist()}
        likeliest = [
            [[names[token], round(2**p, 4)] for token, p in zip(row, ps, strict=True)]
            for row, ps in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        return {"bits": rounded(bits), "likeliest": likeliest}

    def _labels(self, tokens: Tensor) -> list[str]:
        """A character for every symbol; of characters that take several, the last has it and the others are empty."""
        assert isinstance(self.model.tokenizer, Encoding)
        take = self.model.tokenizer.streamed()
        return [take(token) for token in tokens.tolist()]


def meaning(model: LanguageModel) -> Any:
    """What a model's tokens mean, to be compared; a model that reads no text is refused."""
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, Encoding) or isinstance(tokenizer, TokenIds):
        raise UserError(
            "one of the models does not know what its tokens mean; give runs on text, or what `fsn export` wrote"
        )
    if not isinstance(tokenizer, Subwords):
        return tokenizer.record()
    # what `fsn export` wrote names the end of a text, and has a token for padding behind the model's
    whole, own = (
        json.loads(tokenizer.tokenizer.to_str()),
        set(range(model.config.vocab_size)) - {tokenizer.end},
    )
    added = [one for one in whole["added_tokens"] if one["id"] in own]
    return tokenizer.end, added, *(whole[part] for part in ("model", "normalizer", "pre_tokenizer"))


def forward_pass(model: LanguageModel, tokens: Tensor) -> ForwardPass:
    """A model reads a line break and then the tokens (n,); everything the page shows is recorded."""
    assert model.tokenizer is not None
    device = next(model.parameters()).device
    start = torch.tensor([first_token(model.tokenizer)])
    points = (*INSIDE, *INSIDE_PHASES) if isinstance(model, FSN) else INSIDE
    with evaluating(model), record(model, *points) as seen:
        logits = model(torch.cat((start, tokens))[None].to(device))
    return ForwardPass(
        logits[0].double().log_softmax(-1).cpu() / NATS_PER_BIT, {k: v.cpu() for k, v in seen.items()}
    )


def copy_depth(tokens: Tensor) -> tuple[list[int], list[int]]:
    """Copy depth of every symbol (n,), and the distance back to the place it could be copied from; 0 for none."""
    if len(tokens) < 2:
        return [0], [0]
    labels = label(Windows(tokens, len(tokens), len(tokens)))
    return [0, *labels.depth[0].tolist()], [0, *labels.distance[0].tolist()]


def pulls(model: FSN, one: ForwardPass, at: int, target: int) -> dict[str, Any]:
    """How the phases of the position before symbol ``at`` moved from layer to layer, and what pulled them.

    The pull of the token at u is the part of the update that comes with A_tu: its size over all coordinates, for the
    token itself (present) and for its successor. The goal is the position of the successor that pulls hardest, 0
    where none pulls.
    """
    t, layers = at, model.config.layers
    states = [one.points["phases"][0], *(one.points[f"layers.{i}.state"][0] for i in range(layers))]
    found, goals = [], []
    for i in range(layers):
        theta, weights = states[i], one.attention(i)[t, :t]
        gate = one.points[f"layers.{i}.gates.value"][0, t]
        kernel, turning = kernels_of(model)[i].coefficients(), model.config.coupling.frame == "co-rotating"
        sizes = {}
        for field, name, shift in (("present", "w0", 0), ("successor", "w1", 1)):
            force = coupling_force(kernel[name].cpu(), theta[shift : t + shift] - theta[t], turning)
            sizes[field] = (weights[:, None] * gate * force).norm(dim=-1)
        strongest = int(sizes["successor"].argmax()) + 1 if sizes["successor"].any() else 0
        goals.append(strongest)
        found.append({field: rounded(size) for field, size in sizes.items()} | {"goal": strongest})
    moves = [one.points[f"layers.{i}.update.bounded"][0, t] for i in range(layers)]
    order = torch.stack(moves).abs().sum(0).argsort(descending=True)
    return {
        "layers": found,
        "states": [rounded(state[t]) for state in states],
        "moves": [rounded(move) for move in moves],
        "goals": [rounded(states[i][goal]) for i, goal in enumerate(goals)],
        "prototype": rounded(model.readout.prototypes[target].detach().cpu()),
        "order": order.tolist(),
    }


def coupling_force(pairs: Tensor, delta: Tensor, turning: bool) -> Tensor:
    """Σ_n Im[w⁽ⁿ⁾ e^{inΔ}], less the constant Σ_n Im w⁽ⁿ⁾ in the co-rotating frame.

    pairs (N, k, 2), delta (u, k) -> (u, k)
    """
    n = torch.arange(1, len(pairs) + 1)[:, None, None]
    re, im = pairs[:, None].unbind(-1)  # each (N, 1, k)
    return (re * (n * delta).sin() + im * ((n * delta).cos() - float(turning))).sum(0)


def rounded(values: Any) -> Any:
    """Numbers as lists, short enough for a page."""
    array = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return np.round(array, 4).tolist()
