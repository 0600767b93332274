"""The attention half as a layer for anybody's network."""

from __future__ import annotations

import math
import numbers

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..checks import check
from ..errors import UserError
from ..ops.fused.heads import applies, frustrated_update
from ..ops.precision import autocasts
from .coupling import CouplingKernel, Gates
from .decode import SMALLEST
from .past import Cache, Past
from .probe import NO_PROBE, Probe, ours
from .rotary import Rotary, leave_meta
from .selfcheck import trusted

UNNUMBERED = torch.iinfo(torch.int64).min
"""The document of positions before the first that has a number: nobody's number."""


class FrustratedAttention(Rotary):
    """Frustrated synchronization in place of causal self-attention: x (B, T, d) -> the update (B, T, d).

        attention = fsn.FrustratedAttention(512, heads=8)
        x = x + attention(norm(x))

    A projection turns x into d phases, k = d / heads for each head; every head has gates, a temperature τ, a coupling
    kernel and a bound of its own; a projection leads back. Residual and norm are the caller's. Only distances
    between positions count, and there is no longest sequence.

    ``dropout`` acts on attention weights; what follows it are fields of :class:`fsn.ops.CouplingLaw` with the paper's
    values, whether updates are bounded, and where the bound's scale begins. On a GPU whole sequences run through
    kernels, in float32 or in bfloat16 autocast, with memory linear in T from 2,048 on. Padding, packed documents,
    dropout, a cache, a layer in another type (its phases stay in float32 at least) and other devices take the reference
    path, whose memory grows with T².

    ``fsn.record(layer)`` and ``fsn.replace`` reach its named points, with an axis of heads behind that of the batch.
    """

    probe: Probe = NO_PROBE

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        harmonics: int = 3,
        dropout: float = 0.0,
        *,
        present: bool = True,
        delay: bool = True,
        phases: bool = True,
        frame: str = "co-rotating",
        noise: float = 0.05,
        noise_on: str = "imaginary",
        score_successor: bool = False,
        bounded: bool = True,
        alpha_start: float = 2 * math.pi,
    ) -> None:
        super().__init__()
        for name, count in (("d_model", d_model), ("heads", heads)):
            whole = isinstance(count, numbers.Integral) and not isinstance(count, bool)
            check(whole, f"{name} is {count!r}; it takes a whole number")
            check(count >= 1, f"{name} is {count}; take at least 1")
        check(
            d_model % heads == 0,
            f"d_model is {d_model}; it is split over the heads: take a multiple of {heads}",
        )
        number = isinstance(dropout, numbers.Real) and 0.0 <= dropout < 1.0
        check(number, f"dropout is {dropout!r}; a dropout rate lies in [0, 1)")
        positive = isinstance(alpha_start, numbers.Real) and 0.0 < alpha_start < math.inf
        check(positive, f"alpha_start is {alpha_start!r}; the bound's scale is a positive number")
        check(isinstance(bounded, bool), f"bounded is {bounded!r}; it takes true or false")
        check(
            bounded or alpha_start == 2 * math.pi,
            f"alpha_start is {alpha_start!r}, and a layer without a bound has no scale: leave it out",
        )
        d_model, heads = int(d_model), int(heads)  # numpy's, say
        self.d_model, self.heads, self.dropout = d_model, heads, float(dropout)
        self.k = d_model // heads
        self.law = ops.CouplingLaw(
            harmonics, present, delay, phases, frame, noise, noise_on, score_successor=score_successor
        )
        self.to_phases = nn.Linear(d_model, d_model, bias=False)
        self.gates = nn.ModuleList(Gates(self.k) for _ in range(heads))
        self.tau = nn.Parameter(torch.empty(heads))
        self.kernel = CouplingKernel(d_model, self.law)
        self.alpha = nn.Parameter(torch.empty(heads)) if bounded else None
        self.alpha_start = float(alpha_start)
        self.from_phases = nn.Linear(d_model, d_model, bias=False)
        self.make_rates(self.k)
        self.register_load_state_dict_post_hook(leave_meta)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The temperatures' and bounds' start; each part of the layer has its own."""
        super().reset_parameters()
        self.tau.fill_(math.sqrt(self.k))
        if self.alpha is not None:
            self.alpha.fill_(self.alpha_start)

    def extra_repr(self) -> str:
        return f"{self.d_model}, heads={self.heads}, harmonics={self.law.harmonics}, dropout={self.dropout}"

    def new_cache(self, lean: bool = False) -> Cache:
        """An empty memory, for this layer alone: pass it to every call, with the positions that follow, one or more at
        a time.

        A lean one keeps 2 d numbers a position, not (3 + 2 N) d, and makes the rest again in every call.
        """
        return Cache(1, lean)

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The update of every position, from those before it.

        padding_mask (B, T) bool: true for padding, which no other position looks at, and which looks at none.
        documents (B, T) integers: a packed batch; a position looks only at its own document, a run of equal numbers.
        Padding inside a document divides it. Both are as exact as separate sequences: positions count from the start
        of each. With a cache, positions without a number continue the last document of their sequence; those before the
        first number are a document of their own.
        cache: what was seen before; x continues it, and is added to it.

        x (B, T, d) -> (B, T, d)
        """
        self._check(x, padding_mask, documents, cache)
        if cache is not None:
            cache.claim(self)
        first = 0 if cache is None else cache.length
        past = None if cache is None else cache.layers[0]
        apart, positions = _divide(_marks(x, padding_mask, documents, past, first), past, first)
        phases = self.to_phases(x).to(torch.promote_types(x.dtype, torch.float32))
        drops = self.dropout > 0 and self.training
        # kernels read weights in float32; of a layer in bfloat16 only the phases are
        whole = past is None and apart is None and x.shape[1] > 0 and not (drops or self.probe.active)
        whole = whole and phases.dtype == self.tau.dtype and self.law.fast and ours(*self.gates)
        if whole and applies(phases, self.heads) and trusted(self, phases, FrustratedAttention):
            update = self._fused(phases)
        else:
            update = self._reference(phases, apart, positions, cache)
        if cache is not None:
            cache.grow(x[..., 0], None)
        if not autocasts(x.device.type):  # which casts by itself
            update = update.to(x.dtype)
        out: Tensor = self.from_phases(update)
        return out

    def _fused(self, phases: Tensor) -> Tensor:
        """Whole sequences through kernels: (B, T, d) -> (B, T, d)"""
        theta = phases.unflatten(-1, (self.heads, self.k)).permute(2, 0, 1, 3).contiguous()
        gates = []
        for gate in self.gates:
            assert isinstance(gate, Gates)
            gates.append(torch.cat((gate.weight, gate.bias[:, None]), dim=1))
        features = F.pad(ops.phase_features(theta), (0, 8), value=1.0)  # a column of ones adds the bias
        raw = features.flatten(1, 2) @ F.pad(torch.stack(gates), (0, 7)).mT
        raw = raw.unflatten(1, theta.shape[1:3])
        kernel = self.kernel
        update = frustrated_update(
            theta, raw, self.rates, self.tau, kernel.w0, kernel.w1, self.alpha, self.law, kernel.score
        )
        return update.permute(1, 2, 0, 3).flatten(2)

    def _reference(
        self,
        phases: Tensor,
        apart: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Everything, in plain PyTorch: (B, T, d) -> (B, T, d)"""
        batch, drops = phases.shape[0], self.dropout > 0 and self.training

        def point(name: str, value: Tensor) -> Tensor:
            if drops and name == "attention":
                value = F.dropout(value, self.dropout)
            if not self.probe.active:
                return value
            return self.probe(name, value.unflatten(0, (batch, self.heads))).flatten(0, 1)

        theta = point("phases", self._heads(phases))
        first = 0 if cache is None else cache.length
        names = ("gates.query", "gates.key", "gates.value")
        gate_q, gate_k, gate_v = map(point, names, self._gates(theta))
        places = None if positions is None else self._per_head(positions)
        at = first if places is None else places[:, first:]
        query = ops.rotary_features(theta, gate_q, self.rates, at)
        w0, w1 = (self._coefficients(pair, batch) for pair in (self.kernel.w0, self.kernel.w1))
        score, field = self.kernel.score, None
        if cache is not None and cache.lean:
            held = torch.polar(gate_k.to(theta.dtype).clamp(min=SMALLEST), theta)
            held = cache.layers[0]["phasors"].write(first, held)
            everywhere = 0 if places is None else places
            keys = ops.rotary_features(held.angle(), held.abs(), self.rates, everywhere)
            field = ops.fields(held.angle(), w0, w1, self.law.harmonics)
        else:
            keys = ops.rotary_features(theta, gate_k, self.rates, at)
            if cache is not None:
                past, again = cache.layers[0], max(first - 1, 0)  # that one had no successor until now
                known = past["phases"].write(first, theta, again)
                field = past["fields"].write(again, ops.fields(known, w0, w1, self.law.harmonics))
                keys = past["keys"].write(first, keys)
        pull = ops.synchronize(
            theta, query, keys, self._per_row(self.tau, batch), w0, w1, self.law.harmonics, self.law.frame,
            score=None if score is None else self._columns(score, batch), field=field, first=first,
            padding=None if apart is None else self._per_head(apart), point=point,
        )  # fmt: skip
        update = point("update.raw", gate_v * pull)
        if self.alpha is not None:
            update = point("update.bounded", ops.norm_matched_tanh(update, self._per_row(self.alpha, batch)))
        return update.unflatten(0, (batch, self.heads)).transpose(1, 2).flatten(2)

    def _heads(self, theta: Tensor) -> Tensor:
        """(B, T, d) -> (B·H, T, k)"""
        return theta.unflatten(-1, (self.heads, self.k)).transpose(1, 2).flatten(0, 1)

    def _per_head(self, x: Tensor) -> Tensor:
        """What all heads of a row share: (B, ...) -> (B·H, ...)"""
        return x.repeat_interleave(self.heads, dim=0)

    def _per_row(self, x: Tensor, batch: int) -> Tensor:
        """A number of each head: (H,) -> (B·H, 1, 1)"""
        return x.repeat(batch)[:, None, None]

    def _columns(self, x: Tensor, batch: int) -> Tensor:
        """Each head's own columns: (n, d) -> (n, B·H, 1, k); a single head's serve all rows, (n, 1, 1, k)"""
        return x.unflatten(-1, (self.heads, self.k)).repeat(1, batch if self.heads > 1 else 1, 1)[:, :, None]

    def _coefficients(self, pair: ops.Pair | None, batch: int) -> ops.Pair | None:
        """Those of each head: (N, d) -> (B·H, 1, N, k)"""
        if pair is None:
            return None
        re, im = (None if part is None else self._columns(part, batch).movedim(0, 2) for part in pair)
        assert re is not None
        return ops.Pair(re, im)

    def _gates(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value gates: theta (B·H, T, k) -> three (B·H, T, k)"""
        features = ops.phase_features(theta)
        if self.heads == 1:  # to stack one would copy it
            query, key, value = self.gates[0](features)
            return query, key, value
        by_head = features.unflatten(0, (-1, self.heads)).unbind(1)
        made = [gate(part) for gate, part in zip(self.gates, by_head, strict=True)]
        query, key, value = (torch.stack(parts, dim=1).flatten(0, 1) for parts in zip(*made, strict=True))
        return query, key, value

    def _check(
        self, x: Tensor, padding_mask: Tensor | None, documents: Tensor | None, cache: Cache | None
    ) -> None:
        """Sentences are made only where there is one to say: to read a shape into one would fix it for a compiler."""
        for name, given in (("x", x), ("padding_mask", padding_mask), ("documents", documents)):
            if not isinstance(given, Tensor) and (given is not None or name == "x"):
                raise UserError(
                    f"{name} is a {type(given).__name__}; pass a tensor, e.g. torch.tensor({name})"
                )
        if cache is not None and not isinstance(cache, Cache):
            raise UserError(f"cache is a {type(cache).__name__}; pass layer.new_cache()")
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise UserError(f"x has shape {tuple(x.shape)}; pass (batch, positions, {self.d_model})")
        for name, given in (("padding_mask", padding_mask), ("documents", documents)):
            if given is not None and given.shape != x.shape[:2]:
                raise UserError(f"{name} has shape {tuple(given.shape)}; make it {tuple(x.shape[:2])}")
        if padding_mask is not None and padding_mask.dtype != torch.bool:
            raise UserError(
                "padding_mask is not bool; pass a mask that is true for padding, e.g. tokens == pad"
            )
        if documents is not None and (documents.is_floating_point() or documents.dtype == torch.bool):
            raise UserError("documents are not integers; pass the number of each position's document")
        if cache is not None and cache.batch not in (None, x.shape[0]):
            raise UserError(f"the cache holds {cache.batch} sequences and x {x.shape[0]}; make them equal")


def _marks(
    x: Tensor, padding_mask: Tensor | None, documents: Tensor | None, past: Past | None, first: int
) -> Tensor | None:
    """What tells neighbours apart: (B, T, 2), the document and whether this is padding; None where nothing was ever
    marked."""
    before = past["marks"].buffer if past is not None and first and "marks" in past.rows else None
    if padding_mask is None and documents is None and before is None:
        return None
    same = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
    if documents is None:
        documents = same + UNNUMBERED if before is None else same + before[:, first - 1, :1]
    padding = same if padding_mask is None else padding_mask.to(torch.int64)
    return torch.stack((documents.to(torch.int64), padding), dim=-1)


def _divide(marks: Tensor | None, past: Past | None, first: int) -> tuple[Tensor | None, Tensor | None]:
    """Which pairs of positions are apart, and each position's place in its own sequence; None: all are together.

    marks (B, T, 2) -> apart (B, T, first + T), positions (B, first + T)
    """
    if marks is None:
        return None, None
    if past is not None:
        if "marks" not in past.rows and first:
            earlier = torch.tensor([UNNUMBERED, 0], device=marks.device)
            past["marks"].write(0, earlier.expand(marks.shape[0], first, 2))
        marks = past["marks"].write(first, marks)
    begins = F.pad((marks[:, 1:] != marks[:, :-1]).any(-1), (1, 0), value=True) | (marks[..., 1] > 0)
    own = begins.cumsum(1)
    place = torch.arange(marks.shape[1], device=marks.device)
    starts = torch.where(begins, place, 0).cummax(1).values
    return own[:, first:, None] != own[:, None, :], place - starts
