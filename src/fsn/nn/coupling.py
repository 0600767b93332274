"""The attention half of a layer, its gates and its coupling kernel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from . import decode
from .context import PLAIN, Context
from .probe import NO_PROBE, Probe, ours
from .rotary import Restored, Rotary

SUCCESSOR_GATE = 1.5
"""The paper's "successor gate init": w1 starts at σ(1.5) ≈ 0.82, w0 at 1 − σ(1.5) ≈ 0.18."""


class CouplingKernel(Restored):
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
        self.first = {"present": 1.0 - gate if both else 1.0, "successor": gate if both else 1.0}
        """The first harmonic's coefficient at the start."""
        self._make("present", law.present)
        self._make("successor", law.delay)
        score = torch.empty(2, 1 if law.shared else k)
        self.register_parameter("score", nn.Parameter(score) if law.score_successor else None)
        self.reset_parameters()

    def _make(self, name: str, exists: bool) -> None:
        law = self.law
        shape = (law.harmonics, 1 if law.shared else self.k)
        re: nn.Parameter | None = None
        im: nn.Parameter | None = None
        if exists and law.learned:
            re = nn.Parameter(torch.empty(shape))
            im = nn.Parameter(torch.empty(shape)) if law.phases else None
        if exists and not law.learned:
            self.register_buffer(f"{name}_re", torch.empty(law.harmonics, 1), persistent=False)
            self.fixed[name] = self.first[name]
        else:
            self.register_parameter(f"{name}_re", re)
        self.register_parameter(f"{name}_im", im)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        for name, first in self.first.items():
            re, im = self._parameters.get(f"{name}_re"), self._parameters[f"{name}_im"]
            if re is None:
                continue
            re.zero_()[0] = first
            if im is not None:
                im.normal_().mul_(self.law.noise)
            if im is not None and self.law.noise_on == "angles":
                angle = im.clone()
                torch.mul(re, angle.sin(), out=im)
                re.mul_(angle.cos())
        if self.score is not None:
            self.score.zero_()

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """Coefficients that are not learned."""
        for name, first in self.fixed.items():
            buffer = getattr(self, f"{name}_re")
            if buffer.is_inference():  # nothing can be written to it any more
                buffer = torch.empty_like(buffer)
                setattr(self, f"{name}_re", buffer)
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


class Gates(nn.Module):
    """The query, key and value gates, one set shared by all layers.

    Three linear maps of [cos θ, sin θ] with weights zero and biases one at the start.

    Query and key gates pass through softplus and are divided by their mean over coordinates, so they are
    nonnegative and average to one. The value gate is the linear map itself, signed: a coordinate may be
    attracted or repelled. ``positive_value`` gives it a softplus instead.

    The three maps are stored as one matrix, query then key then value, so that one product serves all.

    features (B, T, 2k) -> three gates (B, T, k)
    """

    def __init__(self, k: int, positive_value: bool = False) -> None:
        super().__init__()
        self.k, self.positive_value = k, positive_value
        self.weight = nn.Parameter(torch.empty(3 * k, 2 * k))
        self.bias = nn.Parameter(torch.empty(3 * k))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.zero_()
        self.bias.fill_(1.0)

    def forward(self, features: Tensor, probe: Probe = NO_PROBE) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = self.weight.to(features.dtype), self.bias.to(features.dtype)
        raw = F.linear(features, weight, bias).to(features.dtype)
        query, key, value = raw.split(self.k, dim=-1)
        query = probe("gates.query", ops.normalise_gate(query))
        key = probe("gates.key", ops.normalise_gate(key))
        value = probe("gates.value", F.softplus(value) if self.positive_value else value)
        return query, key, value


class FrustratedCoupling(Rotary):
    """Scores, attention, coupling and value gate: phases in, raw update out.

    theta (B, T, k) -> (B, T, k)
    """

    def __init__(self, k: int, law: ops.CouplingLaw, round_scores: bool, dropout: float, site: int) -> None:
        super().__init__()
        self.kernel = CouplingKernel(k, law)
        self.round_scores, self.dropout, self.site = round_scores, dropout, site
        self.fast = law.fast
        self.make_rates(k)

    def takes(self, gates: Gates) -> bool:
        """Whether the shorter paths compute this law with this kernel and these gates, which are ours and unhooked. Who
        passes over :meth:`forward` asks that of this module too."""
        return self.fast and ours(gates, self.kernel)

    def forward(self, theta: Tensor, gates: Gates, tau: Tensor, context: Context = PLAIN) -> Tensor:
        """With a cache, θ continues what it remembers."""
        if context.decodes and self.takes(gates):
            return decode.coupling(theta, gates, tau, self.kernel, self.rates, context)
        probe, past, first = context.probe, context.past, context.first
        kernel = self.kernel
        law = kernel.law
        drops = self.dropout > 0 and context.dropout_key is not None
        plain = self.takes(gates) and not (drops or probe.active)
        if plain and past is None and context.masked is None and ops.cpu.applies(theta):
            return ops.cpu.attention_half(
                theta, gates.weight, gates.bias, self.rates, tau, kernel.w0, kernel.w1, law.harmonics, law.frame,
                kernel.score, gates.positive_value,
            )  # fmt: skip
        gate_q, gate_k, gate_v = gates(ops.phase_features(theta), probe)
        query = ops.rotary_features(theta, gate_q, self.rates, first)
        keys, field = ops.rotary_features(theta, gate_k, self.rates, first), None
        if past is not None:
            keys, field = decode.remember(theta, gate_k, keys, kernel, self.rates, context)

        def point(name: str, value: Tensor) -> Tensor:
            if name == "attention":
                value = ops.dropout(value, self.dropout, context.dropout_key, self.site)
            return probe(name, value)

        return gate_v * ops.synchronize(
            theta, query, keys, tau, kernel.w0, kernel.w1, law.harmonics, law.frame, self.round_scores, kernel.score,
            field=field, first=first, padding=context.masked, point=point,
        )  # fmt: skip
