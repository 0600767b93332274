"""The coupling kernel and the attention half of a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import ops
from .gates import Gates
from .past import Past
from .probe import NO_PROBE, Probe

SUCCESSOR_GATE = 1.5
"""The paper's "successor gate init": w1 starts at σ(1.5) ≈ 0.82, w0 at 1 − σ(1.5) ≈ 0.18."""


@dataclass(frozen=True)
class KernelSpec:
    """Which coefficients a kernel has and where they start. The coupling axis of the model grid."""

    harmonics: int
    present: bool
    delay: bool
    phases: bool
    frame: str
    noise: float
    learned: bool
    shared: bool


class CouplingKernel(nn.Module):
    """Coefficients w0⁽ⁿ⁾ (present) and w1⁽ⁿ⁾ (successor) of equation 2, per coordinate, as real pairs.

    Every magnitude is a harmonic gain and every angle a frustration angle (equation 3). At the start only the
    first harmonic is on; imaginary parts are small noise, so that the angles feel a gradient from the first
    step. With one of the two fields switched off the other starts at one: a plain sine.
    """

    def __init__(self, k: int, spec: KernelSpec) -> None:
        super().__init__()
        self.k, self.spec = k, spec
        self.fixed: dict[str, float] = {}
        both = spec.present and spec.delay
        gate = 1.0 / (1.0 + math.exp(-SUCCESSOR_GATE))
        self._make("present", 1.0 - gate if both else 1.0, spec.present)
        self._make("successor", gate if both else 1.0, spec.delay)

    def _make(self, name: str, first: float, exists: bool) -> None:
        spec = self.spec
        shape = (spec.harmonics, 1 if spec.shared else self.k)
        re = torch.zeros(shape)
        re[0] = first
        if not exists:
            self.register_parameter(f"{name}_re", None)
            self.register_parameter(f"{name}_im", None)
        elif not spec.learned:
            self.register_buffer(f"{name}_re", re[:, :1].clone(), persistent=False)
            self.register_parameter(f"{name}_im", None)
            self.fixed[name] = first
        else:
            self.register_parameter(f"{name}_re", nn.Parameter(re))
            im = nn.Parameter(torch.randn(shape) * spec.noise) if spec.phases else None
            self.register_parameter(f"{name}_im", im)

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
            full = like.new_zeros(self.spec.harmonics, self.k, 2)
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

    def __init__(self, k: int, spec: KernelSpec, round_scores: bool, dropout: float, site: int) -> None:
        super().__init__()
        self.kernel = CouplingKernel(k, spec)
        self.round_scores, self.dropout, self.site = round_scores, dropout, site
        self.register_buffer("rates", ops.rotary_rates(k), persistent=False)

    def restore_buffers(self) -> None:
        """Give the rotary rates their values, e.g. where a loader has made a model without any."""
        self.rates.copy_(ops.rotary_rates(self.kernel.k))

    def forward(
        self,
        theta: Tensor,
        gates: Gates,
        tau: Tensor,
        probe: Probe = NO_PROBE,
        key: ops.DropoutKey | None = None,
    ) -> Tensor:
        gate_q, gate_k, gate_v = gates(ops.phase_features(theta), probe)
        scores = ops.coherence_scores(theta, gate_q, gate_k, self.rates, tau, self.round_scores)
        return gate_v * self._couple(theta, scores, self._fields(theta), probe, key)

    def extend(
        self,
        theta: Tensor,
        gates: Gates,
        tau: Tensor,
        past: Past,
        first: int,
        hidden: Tensor | None,
        probe: Probe = NO_PROBE,
    ) -> Tensor:
        """The same for the positions from ``first`` on, with what ``past`` remembers of those before.

        The last position before them had no successor yet: its field is made again, now that it has one.

        theta (B, n, k), hidden (B, first + n) -> (B, n, k)
        """
        gate_q, gate_k, gate_v = gates(ops.phase_features(theta), probe)
        query = ops.rotary_features(theta, gate_q, self.rates, first)
        keys = past["keys"].write(first, ops.rotary_features(theta, gate_k, self.rates, first))
        phases = past["phases"].write(first, theta)
        again = max(first - 1, 0)
        field = past["fields"].write(again, self._fields(phases[:, again:]))
        if probe.active:
            field = field.clone()  # what is recorded, or changed in place, must not be the memory itself
        scores = ops.feature_scores(query, keys, tau, self.round_scores)
        return gate_v * self._couple(theta, scores, field, probe, first=first, hidden=hidden)

    def _fields(self, theta: Tensor) -> Tensor:
        return ops.fields(theta, self.kernel.w0, self.kernel.w1, self.kernel.spec.harmonics)

    def _couple(
        self,
        theta: Tensor,
        scores: Tensor,
        field: Tensor,
        probe: Probe = NO_PROBE,
        key: ops.DropoutKey | None = None,
        first: int = 0,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """From scores and fields to the update, before the value gate."""
        kernel, spec = self.kernel, self.kernel.spec
        columns = None if hidden is None else hidden[:, None]
        attention = ops.causal_softmax(probe("scores", scores), first, columns)
        attention = probe("attention", ops.dropout(attention, self.dropout, key, self.site))
        law = kernel.w0, kernel.w1, spec.harmonics, spec.frame
        return probe("coupling", ops.coupling(theta, attention, *law, probe("fields", field), first))
