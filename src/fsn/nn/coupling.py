"""The coupling kernel and the attention half of a layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .. import ops
from .context import PLAIN, Context
from .gates import Gates

SUCCESSOR_GATE = 1.5
"""The paper's "successor gate init": w1 starts at σ(1.5) ≈ 0.82, w0 at 1 − σ(1.5) ≈ 0.18."""


class CouplingKernel(nn.Module):
    """Coefficients w0⁽ⁿ⁾ (present) and w1⁽ⁿ⁾ (successor) of equation 2, per coordinate, as real pairs.

    Every magnitude is a harmonic gain and every angle a frustration angle (equation 3). At the start only the
    first harmonic is on; imaginary parts (or angles: ``noise_on``) are small noise, so that the angles feel a gradient
    from the first step. With one of the two fields switched off the other starts at one: a plain sine.

    ``score`` (2, k) is λ, the successor's weight in the score, as a real pair: real parts, then imaginary ones; zero at
    the start, None where the law does without.
    """

    score: nn.Parameter | None

    def __init__(self, k: int, law: ops.CouplingLaw) -> None:
        super().__init__()
        self.k, self.law = k, law
        self.fixed: dict[str, float] = {}
        both = law.present and law.delay
        gate = 1.0 / (1.0 + math.exp(-SUCCESSOR_GATE))
        self._make("present", 1.0 - gate if both else 1.0, law.present)
        self._make("successor", gate if both else 1.0, law.delay)
        score = torch.zeros(2, 1 if law.shared else k)
        self.register_parameter("score", nn.Parameter(score) if law.score_successor else None)

    def _make(self, name: str, first: float, exists: bool) -> None:
        law = self.law
        shape = (law.harmonics, 1 if law.shared else self.k)
        re = torch.zeros(shape)
        re[0] = first
        if not exists:
            self.register_parameter(f"{name}_re", None)
            self.register_parameter(f"{name}_im", None)
        elif not law.learned:
            self.register_buffer(f"{name}_re", re[:, :1].clone(), persistent=False)
            self.register_parameter(f"{name}_im", None)
            self.fixed[name] = first
        else:
            im = torch.randn(shape) * law.noise if law.phases else None
            if im is not None and law.noise_on == "angles":
                re, im = re * im.cos(), re * im.sin()
            self.register_parameter(f"{name}_re", nn.Parameter(re))
            self.register_parameter(f"{name}_im", None if im is None else nn.Parameter(im))

    def restore_buffers(self) -> None:
        """Give coefficients that are not learned their values, e.g. where a loader has made a model without any."""
        for name, first in self.fixed.items():
            buffer = getattr(self, f"{name}_re")
            buffer.zero_()[0] = first

    def _pair(self, name: str) -> ops.Pair | None:
        re = getattr(self, f"{name}_re")
        return None if re is None else ops.Pair(re, getattr(self, f"{name}_im"))

    @property
    def w0(self) -> ops.Pair | None:
        return self._pair("present")

    @property
    def w1(self) -> ops.Pair | None:
        return self._pair("successor")

    @torch.no_grad()
    def coefficients(self) -> dict[str, Tensor]:
        """``w0`` and ``w1`` as (N, k, 2) real pairs; zeros stand for parts this kernel does not have."""
        result = {}
        like = next(pair.re for pair in (self.w0, self.w1) if pair is not None)
        for name, pair in (("w0", self.w0), ("w1", self.w1)):
            full = like.new_zeros(self.law.harmonics, self.k, 2)
            if pair is not None:
                full[..., 0] = pair.re
                if pair.im is not None:
                    full[..., 1] = pair.im
            result[name] = full
        return result


class FrustratedCoupling(nn.Module):
    """Scores, attention, coupling and value gate: phases in, raw update out.

    theta (B, T, k) -> (B, T, k)
    """

    rates: Tensor

    def __init__(self, k: int, law: ops.CouplingLaw, round_scores: bool, dropout: float, site: int) -> None:
        super().__init__()
        self.kernel = CouplingKernel(k, law)
        self.round_scores, self.dropout, self.site = round_scores, dropout, site
        self.register_buffer("rates", ops.rotary_rates(k), persistent=False)

    def restore_buffers(self) -> None:
        """Give the rotary rates their values, e.g. where a loader has made a model without any."""
        self.rates.copy_(ops.rotary_rates(self.kernel.k))

    def forward(self, theta: Tensor, gates: Gates, tau: Tensor, context: Context = PLAIN) -> Tensor:
        """With a cache, θ continues what it remembers.

        The last position there had no successor until now, so its key and field are made again. A lean cache keeps
        phases and key gates only, and everything is made again.
        """
        probe, past, first = context.probe, context.past, context.first
        kernel, law = self.kernel, self.kernel.law
        gate_q, gate_k, gate_v = gates(ops.phase_features(theta), probe)
        query = ops.rotary_features(theta, gate_q, self.rates, first)
        keys = ops.rotary_features(theta, gate_k, self.rates, first)
        own = None if kernel.score is None else keys
        if past is None:
            keys = keys if kernel.score is None else ops.fold_successors(keys, kernel.score)
            fields = ops.fields(theta, kernel.w0, kernel.w1, law.harmonics)
        elif context.cache is not None and context.cache.lean:
            phases = past["phases"].write(first, theta)
            keys = ops.rotary_features(phases, past["gates"].write(first, gate_k), self.rates)
            keys = keys if kernel.score is None else ops.fold_successors(keys, kernel.score)
            fields = ops.fields(phases, kernel.w0, kernel.w1, law.harmonics)
        else:
            again = max(first - 1, 0)
            keys = past["keys"].write(first, keys)
            if kernel.score is not None:
                keys = past["folded"].write(again, ops.fold_successors(keys[:, again:], kernel.score))
            phases = past["phases"].write(first, theta)[:, again:]
            fields = past["fields"].write(again, ops.fields(phases, kernel.w0, kernel.w1, law.harmonics))
            if probe.active:
                fields = (
                    fields.clone()
                )  # what is recorded, or changed in place, must not be the memory itself
        scores = probe("scores", ops.coherence_scores(query, keys, tau, self.round_scores, own, first))
        attention = ops.causal_softmax(scores, first, context.masked)
        attention = probe("attention", ops.dropout(attention, self.dropout, context.dropout_key, self.site))
        fields = probe("fields", fields)
        update = ops.coupling(theta, attention, kernel.w0, kernel.w1, law.harmonics, law.frame, fields, first)
        return gate_v * probe("coupling", update)
