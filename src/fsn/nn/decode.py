"""Cached decoding: the attention half for a few positions that follow what a cache holds.

A cache keeps the keys of every position, its phases, and the fields of all but the last, as complex numbers

    F_u⁽ⁿ⁾ = −i (w0⁽ⁿ⁾ z_uⁿ + w1⁽ⁿ⁾ z_{u+1}ⁿ)

so that what a new position t reads for each earlier one is a key and a field, once, and its pull is the real product
Σ_n Re z̄_tⁿ Σ_{u<t} A_tu F_u⁽ⁿ⁾ (the −i makes Im of equation 2 Re). A field is made when its successor comes: from the
phases of both, so that a successor that was forgotten leaves no trace.

A lean cache keeps g^k e^{iθ} alone, k complex numbers, and makes keys and powers from it. It needs no fields, because

    Σ_{u<t} A_tu (w0 z_uⁿ + w1 z_{u+1}ⁿ) = w0 Σ_{u<t} A_tu z_uⁿ + w1 Σ_{u≤t} A_t,u−1 z_uⁿ

and one product of two rows with all powers serves both terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from ..errors import UserError
from ..ops.precision import autocasts, transformed
from .context import Context

if TYPE_CHECKING:
    from .coupling import CouplingKernel, Gates
    from .update import BoundedUpdate, Unbounded

SMALLEST = 1e-30
"""A lean cache holds key gates from here on, so that the phase of none is lost."""
LEAST = 1e-15
"""Norms from here on are those of numbers whose squares do not vanish."""
AT_ONCE = 1 << 16
"""A lean cache makes keys and powers for as many sequences at a time as have so many phases: a core's own cache."""


State = tuple[tuple[int, ...], ...]


def state_of(*weights: Tensor | None) -> State:
    """Which tensors these are, where they lie (a cast moves them), and how often they were written to; what is written
    through ``.data`` is not counted."""
    known = [w for w in weights if w is not None]
    try:
        written = tuple(map(attrgetter("_version"), known))
    except RuntimeError:  # tensors made in inference mode do not count it
        written = ()
    return tuple(map(id, known)), tuple(map(Tensor.data_ptr, known)), written


def applies(theta: Tensor, context: Context) -> bool:
    """Whether these positions are decoded here: float32 or float64 after a cache that holds some, no autocast."""
    if context.cache is None or context.first == 0 or context.probe.active or context.dropout_key is not None:
        return False
    exact = theta.dtype in (torch.float32, torch.float64)
    traced = torch.compiler.is_compiling() or torch._C._is_tracing() or transformed()
    return exact and not theta.is_meta and not traced and not autocasts(theta.device.type)


def coupling(
    theta: Tensor, gates: Gates, tau: Tensor, kernel: CouplingKernel, rates: Tensor, context: Context
) -> Tensor:
    """What :class:`fsn.nn.FrustratedCoupling` gives for positions that follow the cache.

    theta (B, n, k) -> (B, n, k)
    """
    past, cache, first, (batch, new, k) = context.past, context.cache, context.first, theta.shape
    assert past is not None and cache is not None
    state = state_of(tau, *kernel._parameters.values(), *kernel._buffers.values())
    if past.constants is None or past.constants.state != state:
        past.constants = Constants.of(tau, kernel, state)
    made, state = past.constants, state_of(gates.weight, gates.bias)
    if cache.gates is None or cache.gates[2] != state:  # for cosine and sine of a phase side by side
        weight = gates.weight.detach().unflatten(1, (2, k)).mT.flatten(1).mT
        cache.gates = gates.bias.detach(), weight.contiguous(), state
    if cache.lean:
        units = unit = torch.polar(made.one, theta)
    else:  # the last position before is there too: it gets its field now
        units = torch.polar(made.one, past["phases"].write(first, theta, first - 1))
        unit = units[:, 1:]
    bias, weight, _ = cache.gates
    raw = torch.addmm(bias, torch.view_as_real(unit).reshape(-1, 2 * k), weight).view(batch, new, 3, k)
    gate = ops.normalise_gate(raw[:, :, :2])
    value = F.softplus(raw[:, :, 2]) if gates.positive_value else raw[:, :, 2]
    turned = unit * cache.turns(rates, theta.dtype, first, first + new)
    powers = made.powers(units)
    if not cache.lean:
        query, key = _real(gate * turned.unsqueeze(2), 3).unbind(2)
        attention = _attention(query, past["keys"].write(first, key), made, first, context.masked)
        fields = past["fields"].write(first - 1, _real(made.fields(powers), 2))
        earlier, own = _split(attention, first)
        return value * _pull(powers[:, 1:], torch.bmm(earlier, fields), own, made)
    query = _real(gate[:, :, 0] * turned, 2)
    held = past["phasors"].write(first, gate[:, :, 1].clamp(min=SMALLEST) * unit)
    rotation = cache.turns(rates, theta.dtype, 0, first + new)
    owns, totals = [], []
    for some in torch.arange(batch).split(max(1, AT_ONCE // held[0].numel())):
        at = slice(int(some[0]), int(some[-1]) + 1)
        padding = None if context.masked is None else context.masked[at]
        attention = _attention(query[at], _real(held[at] * rotation, 2), made, first, padding)
        earlier, own = _split(attention, first)
        # between two zeros, the weight on each position's predecessor and that on itself
        both = F.pad(earlier, (1, 1)).unfold(2, first + new, 1).flatten(1, 2)
        totals.append(torch.bmm(both, _real(made.powers(held[at].sgn()), 2)))
        owns.append(own)
    total = torch.view_as_complex(torch.cat(totals).view(batch, new, 2, *powers.shape[2:], 2))
    total = _real((made.kernel.flip(0) * total).sum(2), 2)
    return value * _pull(powers, total, torch.cat(owns), made)


def moved(theta: Tensor, update: Tensor, bound: BoundedUpdate | Unbounded) -> Tensor:
    """θ + bound(x), for a single token on a CPU as θ + s x with a number s = |α| ‖tanh x‖ / ‖x‖

    theta, update (B, n, k) -> (B, n, k)
    """
    single = update.numel() == update.shape[-1] and update.device.type == "cpu"
    if single and bound.alpha is not None and not torch.is_grad_enabled():
        size = float(torch.linalg.vector_norm(update))
        if LEAST < size < math.inf:
            scale = abs(float(bound.alpha)) * float(torch.linalg.vector_norm(update.tanh())) / size
            return theta.add(update, alpha=scale)
    return theta + bound(update)


def remember(
    theta: Tensor, gate: Tensor, keys: Tensor, kernel: CouplingKernel, rates: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """The same memory for the reference: keys and fields of all positions so far, the new ones noted.

    theta, gate (B, n, k), keys (B, n, 2k) -> keys (B, U, 2k), fields (B, U, N, 2, k)
    """
    past, cache, first, law = context.past, context.cache, context.first, kernel.law
    assert past is not None and cache is not None
    exact = torch.promote_types(theta.dtype, torch.float32)
    if cache.lean:
        if context.probe.active and bool((gate < 0).any()):
            raise UserError(
                "a lean cache keeps no negative key gates, as a replacement made them; take a full one"
            )
        held = past["phasors"].write(first, torch.polar(gate.to(exact).clamp(min=SMALLEST), theta.to(exact)))
        phases = held.angle().to(theta.dtype)
        keys = ops.rotary_features(phases, held.abs().to(theta.dtype), rates)
        return keys, ops.fields(phases, kernel.w0, kernel.w1, law.harmonics)
    re, im = keys.to(exact).chunk(2, dim=-1)
    keys = past["keys"].write(first, torch.stack((re, im), dim=-1).flatten(2))
    begin = max(0, first - 1)
    phases = past["phases"].write(first, theta.to(exact), begin)
    made = ops.fields(phases, kernel.w0, kernel.w1, law.harmonics)  # re + i im is kept as im − i re
    made = torch.stack((made[..., 1, :], -made[..., 0, :]), dim=-1)
    kept = past["fields"].write(begin, made.flatten(2)).unflatten(2, made.shape[2:])
    field = torch.stack((-kept[..., 1], kept[..., 0]), dim=-2)
    return keys.unflatten(2, (-1, 2)).mT.flatten(2).to(theta.dtype), field.to(theta.dtype)


@dataclass(frozen=True)
class Constants:
    """What follows from the weights, made again where those have changed."""

    one: Tensor
    ones: Tensor
    """(2,)"""
    kernel: Tensor
    """−i w0 and −i w1: complex (2, N, k)"""
    turn: Tensor | None
    """The drift's rate (k,), which a token's weight on itself multiplies"""
    base: Tensor | None
    """What is added to it: (k,)"""
    score: Tensor | None
    """λ̄: complex (k,)"""
    cooling: float
    """1/τ"""
    state: State
    """Of the weights it was made from."""

    @classmethod
    @torch.no_grad()
    def of(cls, tau: Tensor, kernel: CouplingKernel, state: State) -> Constants:
        found = kernel.coefficients()
        w = torch.view_as_complex(torch.stack((found["w0"], found["w1"])))
        drift = kernel.law.drift
        turn = None if drift is None else (w[:1] if drift == "rest" else w).imag.sum((0, 1))
        score = None if kernel.score is None else torch.complex(*kernel.score).conj().resolve_conj()
        return cls(
            one=found["w0"].new_ones(()),
            ones=found["w0"].new_ones(2),
            kernel=-1j * w,
            turn=turn,
            base=None if turn is None else -turn if drift == "co-rotating" else torch.zeros_like(turn),
            score=score,
            cooling=1 / max(float(tau), ops.FLOOR),
            state=state,
        )

    def powers(self, unit: Tensor) -> Tensor:
        """zⁿ for n = 1..N: (B, U, k) -> (B, U, N, k)"""
        powers = [unit]
        for _ in range(self.kernel.shape[1] - 1):
            powers.append(powers[-1] * unit)
        return torch.stack(powers, dim=2)

    def fields(self, powers: Tensor) -> Tensor:
        """Those of all positions but the last: (B, U, N, k) -> (B, U − 1, N, k)"""
        if powers.shape[1] == 2:
            return (self.kernel * powers).sum(1, keepdim=True)
        present, successor = self.kernel
        return torch.addcmul(powers[:, :-1] * present, powers[:, 1:], successor)


def _real(x: Tensor, axis: int) -> Tensor:
    """Complex numbers as real ones side by side, ``axis`` and all behind it as one: (..., k) -> (..., 2k)"""
    return torch.view_as_real(x).flatten(axis)


def _attention(query: Tensor, keys: Tensor, made: Constants, first: int, padding: Tensor | None) -> Tensor:
    """query (B, n, 2k), keys (B, U, 2k) -> (B, n, U)"""
    scores = _scores(query, keys, made)
    if made.score is not None:
        # a successor's key adds to its predecessor's score, but not to the token's own
        own = scores.diagonal(first, -2, -1).clone()
        turned = torch.view_as_complex(query.unflatten(2, (-1, 2))) * made.score
        scores[..., :-1] += _scores(_real(turned, 2), keys, made)[..., 1:]
        scores.diagonal(first, -2, -1).copy_(own)
    return ops.causal_softmax(scores, first, padding)


def _scores(query: Tensor, keys: Tensor, made: Constants) -> Tensor:
    """Re(q̄ k) / τ, keys first, which is faster for few queries: (B, n, 2k), (B, U, 2k) -> (B, n, U)"""
    return torch.baddbmm(made.one, keys, query.mT, beta=0, alpha=made.cooling).mT


def _split(attention: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Attention to the positions before, and to the token itself: (B, n, U) -> (B, n, U − 1), (B, n, 1)"""
    if attention.shape[1] == 1:
        earlier, own = torch.split_with_sizes(attention, (first, 1), dim=-1)
        return earlier, own
    return attention[..., :-1].tril(first - 1), attention.diagonal(first, -2, -1).unsqueeze(-1)


def _pull(powers: Tensor, total: Tensor, own: Tensor, made: Constants) -> Tensor:
    """Σ_n Re z̄ⁿ G⁽ⁿ⁾ and the drift: powers (B, n, N, k), total (B, n, 2Nk), own (B, n, 1) -> (B, n, k)"""
    turned = torch.view_as_real(powers)
    pull = (turned * total.view(turned.shape)).sum(2) @ made.ones  # one dot product after the other is slow
    if made.turn is None or made.base is None:
        return pull
    return pull.add_(torch.addcmul(made.base, own, made.turn))
