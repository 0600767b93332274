"""Reading on: the attention half for a few positions that follow what a cache holds.

A cache keeps keys and the powers zⁿ of every position, as complex numbers. The delay needs no fields then, because

    Σ_{u<t} A_tu (w0 z_uⁿ + w1 z_{u+1}ⁿ) = w0 Σ_{u<t} A_tu z_uⁿ + w1 Σ_{u≤t} A_t,u−1 z_uⁿ

so one product of two rows with all powers serves both terms, and nothing has to be made again when the last
position gets its successor. A lean cache keeps g^k e^{iθ} alone, k complex numbers, and makes keys and powers from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .context import Context
from .gates import Gates

if TYPE_CHECKING:
    from .coupling import CouplingKernel

SMALLEST = 1e-30
"""A lean cache holds key gates from here on, so that the phase of none is lost."""
AT_ONCE = 1 << 16
"""A lean cache makes keys and powers for as many sequences at a time as have so many phases: a core's own cache."""


def applies(theta: Tensor) -> bool:
    """Whether :func:`coupling` takes these phases: single or double precision and no autocast."""
    exact = theta.dtype in (torch.float32, torch.float64)
    return exact and not torch.is_autocast_enabled(theta.device.type) and not torch.compiler.is_compiling()


def coupling(
    theta: Tensor, gates: Gates, tau: Tensor, kernel: CouplingKernel, rates: Tensor, context: Context
) -> Tensor:
    """What :class:`fsn.nn.FrustratedCoupling` gives for positions that follow the cache.

    theta (B, n, k) -> (B, n, k)
    """
    past, cache, first, k = context.past, context.cache, context.first, theta.shape[-1]
    assert past is not None and cache is not None
    made = past.constants = past.constants or Constants.of(tau, kernel)
    if cache.gates is None:  # cosine and sine of a phase side by side
        cache.gates = gates.weight.detach().unflatten(1, (2, k)).mT.flatten(1).mT
    unit = torch.polar(made.one, theta)
    raw = torch.addmm(gates.bias, torch.view_as_real(unit).view(-1, 2 * k), cache.gates)
    raw = raw.view(*theta.shape[:2], 3, k)
    gate = ops.normalise_gate(raw[:, :, :2])
    value = F.softplus(raw[:, :, 2]) if gates.positive_value else raw[:, :, 2]
    rotation = cache.turns(rates, theta.dtype, first + theta.shape[1])
    query, key = (gate * (unit * rotation[first:]).unsqueeze(2)).unbind(2)
    if not cache.lean:
        keys = past["keys"].write(first, key)
        powers = past["powers"].write(first, torch.stack(_powers(unit, kernel), dim=2))
        return value * _pull(query, keys, powers, made, first, context.masked)
    held = past["phasors"].write(first, gate[:, :, 1].clamp(min=SMALLEST) * unit)
    pulls = []
    for some in torch.arange(len(held)).split(max(1, AT_ONCE // held[0].numel())):
        at = slice(int(some[0]), int(some[-1]) + 1)
        powers = torch.stack(_powers(held[at].sgn(), kernel), dim=2)
        padding = None if context.masked is None else context.masked[at]
        pulls.append(_pull(query[at], held[at] * rotation, powers, made, first, padding))
    return value * (pulls[0] if len(pulls) == 1 else torch.cat(pulls))


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
        held = past["phasors"].write(first, torch.polar(gate.to(exact).clamp(min=SMALLEST), theta.to(exact)))
        phases = held.angle().to(theta.dtype)
        keys = ops.rotary_features(phases, held.abs().to(theta.dtype), rates)
        return keys, ops.fields(phases, kernel.w0, kernel.w1, law.harmonics)
    held = past["keys"].write(first, torch.complex(*keys.to(exact).chunk(2, dim=-1)))
    powers = past["powers"].write(first, torch.complex(*ops.harmonic_powers(theta.to(exact), law.harmonics)))
    field = ops.fold_powers(powers.real, powers.imag, kernel.w0, kernel.w1)
    return torch.cat((held.real, held.imag), dim=-1).to(theta.dtype), field.to(theta.dtype)


@dataclass(frozen=True)
class Constants:
    """What follows from the weights, which do not change while a cache is read on."""

    one: Tensor
    kernel: Tensor
    """i w̄0 and i w̄1: complex (2, 1, N, k)"""
    turn: Tensor | None
    """The drift's rate (k,), which a token's weight on itself multiplies"""
    base: Tensor | None
    """What is added to it: (k,)"""
    score: Tensor | None
    """λ̄: complex (k,)"""
    cooling: float
    """1/τ"""

    @classmethod
    @torch.no_grad()
    def of(cls, tau: Tensor, kernel: CouplingKernel) -> Constants:
        found = kernel.coefficients()
        w = torch.view_as_complex(torch.stack((found["w0"], found["w1"])))[:, None]
        drift = kernel.law.drift
        turn = None if drift is None else (w[:1] if drift == "rest" else w).imag.sum((0, 1, 2))
        score = None if kernel.score is None else torch.complex(*kernel.score).conj().resolve_conj()
        return cls(
            one=found["w0"].new_ones(()),
            kernel=1j * w.conj(),
            turn=turn,
            base=None if turn is None else -turn if drift == "co-rotating" else torch.zeros_like(turn),
            score=score,
            cooling=1 / max(float(tau), ops.FLOOR),
        )


def _powers(unit: Tensor, kernel: CouplingKernel) -> list[Tensor]:
    """zⁿ for n = 1..N: N of (B, U, k)"""
    powers = [unit]
    for _ in range(kernel.law.harmonics - 1):
        powers.append(powers[-1] * unit)
    return powers


def _pull(
    query: Tensor, keys: Tensor, powers: Tensor, made: Constants, first: int, padding: Tensor | None
) -> Tensor:
    """query (B, n, k), keys (B, U, k), powers (B, U, N, k), all complex -> (B, n, k)"""
    scores = _scores(query, keys, made)
    if (
        made.score is not None
    ):  # a successor's key adds to its predecessor's score, but not to the token's own
        own = scores.diagonal(first, -2, -1).clone()
        scores[..., :-1] += _scores(query * made.score, keys, made)[..., 1:]
        scores.diagonal(first, -2, -1).copy_(own)
    attention = ops.causal_softmax(scores, first, padding)
    earlier = attention.tril(
        first - 1
    )  # its last column is zero: rolled, it is the weight on each one's predecessor
    both = torch.stack((earlier, earlier.roll(1, -1)), dim=1).flatten(1, 2)
    total = torch.bmm(both, torch.view_as_real(powers).flatten(2))
    # Im(z̄ⁿ w G) is the real product of G with i w̄ zⁿ
    turned = torch.view_as_real(made.kernel * powers[:, None, first:])
    pull = (turned * total.view_as(turned)).sum((1, 3, 5))
    if made.turn is None or made.base is None:
        return pull
    return pull.add_(torch.addcmul(made.base, attention.diagonal(first, -2, -1).unsqueeze(-1), made.turn))


def _scores(query: Tensor, keys: Tensor, made: Constants) -> Tensor:
    """Re(q̄ k) / τ, keys first, which is faster for few queries: (B, n, k), (B, U, k) -> (B, n, U)"""
    rows, columns = (torch.view_as_real(x).flatten(2) for x in (keys, query))
    return torch.baddbmm(made.one, rows, columns.mT, beta=0, alpha=made.cooling).mT
