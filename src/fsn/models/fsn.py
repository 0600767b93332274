"""The Frustrated Synchronization Network.

What is unusual, read beside a transformer:
- the state of a token is a vector of phases θ, never normalised and never wrapped (except where asked for);
- scores are phase coherences; rotary position is a drift of the phases;
- the value pathway pulls a token toward the *successors* of what it attends to, through a kernel over harmonics;
- query, key and value gates are one set shared by all layers;
- every update passes a bound that keeps its direction and limits its norm;
- the readout compares phases with one prototype per symbol.

One class is the whole family: a model is a choice on four axes (coupling law, feed-forward block, state, bound).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .. import ops
from ..nn import (
    NO_PROBE,
    BoundedUpdate,
    Cache,
    CoherenceReadout,
    CouplingKernel,
    FrustratedCoupling,
    Gates,
    KernelSpec,
    MeanField,
    NoFeedForward,
    Past,
    PhaseEmbedding,
    Probe,
    Register,
    SwiGLU,
    TorusSwiGLU,
    Unbounded,
)
from . import fused
from .base import LanguageModel
from .budget import modes_for, register_size, winding_count
from .config import FSNConfig

SITES_PER_LAYER = 4


def kernel_spec(config: FSNConfig) -> KernelSpec:
    c = config.coupling
    return KernelSpec(c.harmonics, c.present, c.delay, c.phases, c.frame, c.noise, c.learned, c.shared)


def feedforward_block(config: FSNConfig, site: int) -> nn.Module:
    """The block named by ``config.feedforward``, sized as the config says or as the budget asks."""
    k = config.k
    register = register_size(config)
    if config.feedforward == "swiglu":
        return SwiGLU(k, config.hidden or 2 * k, k, register, config.dropout_hidden, site)
    if config.feedforward == "torus-swiglu":
        return TorusSwiGLU(2 * k, config.hidden or 4 * k, k, register, config.dropout_hidden, site)
    if config.feedforward == "none":
        return NoFeedForward()
    return MeanField(k, modes_for(config), winding_count(config), register)


class FSNLayer(nn.Module):
    """θ ← θ + bound(gate ⊙ coupling(θ)); θ ← θ + bound(feedforward(θ))."""

    def __init__(self, config: FSNConfig, index: int) -> None:
        super().__init__()
        site = index * SITES_PER_LAYER
        round_scores = config.rounding in ("both", "scores")
        self.coupling = FrustratedCoupling(
            config.k, kernel_spec(config), round_scores, config.dropout_attention, site
        )
        self.attention_bound = BoundedUpdate() if config.bound == "tanh" else Unbounded()
        self.feedforward = feedforward_block(config, site + 1)
        has_block = config.feedforward != "none"
        self.feedforward_bound = BoundedUpdate() if config.bound == "tanh" and has_block else Unbounded()
        size = register_size(config)
        self.register = Register(config.k, size) if size else None
        self.wrapped = config.state == "wrapped"
        self.dropout, self.dropout_update, self.site = config.dropout, config.dropout_update, site + 2

    @property
    def kernel(self) -> CouplingKernel:
        return self.coupling.kernel

    def forward(
        self,
        theta: Tensor,
        register: Tensor | None,
        gates: Gates,
        tau: Tensor,
        probe: Probe = NO_PROBE,
        key: ops.DropoutKey | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        return self._move(theta, register, self.coupling(theta, gates, tau, probe, key), probe, key)

    def extend(
        self,
        theta: Tensor,
        register: Tensor | None,
        gates: Gates,
        tau: Tensor,
        past: Past,
        first: int,
        hidden: Tensor | None,
        probe: Probe = NO_PROBE,
    ) -> tuple[Tensor, Tensor | None]:
        """The same for the positions from ``first`` on; only the coupling looks at those before."""
        raw = self.coupling.extend(theta, gates, tau, past, first, hidden, probe)
        return self._move(theta, register, raw, probe)

    def _move(
        self,
        theta: Tensor,
        register: Tensor | None,
        raw: Tensor,
        probe: Probe = NO_PROBE,
        key: ops.DropoutKey | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """What follows the coupling, each position by itself."""
        raw = ops.dropout(probe("update.raw", raw), self.dropout_update, key, self.site + 1)
        update = probe("update.bounded", self.attention_bound(raw))
        theta = theta + update
        if self.register is not None and register is not None:
            register = probe("register", register + self.register(update))
        raw = ops.dropout(self.feedforward(theta, register, key), self.dropout, key, self.site)
        update = probe("feedforward.bounded", self.feedforward_bound(probe("feedforward.raw", raw)))
        theta = theta + update
        if self.register is not None and register is not None:
            register = register + self.register(update)
        if self.wrapped:
            theta = ops.wrap(theta)
        return probe("state", theta), register


class FSN(LanguageModel):
    """tokens (B, T) -> logits (B, T, V). See the module's text for what is unusual."""

    config: FSNConfig

    def __init__(self, config: FSNConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PhaseEmbedding(config.vocab_size, config.k)
        self.gates = Gates(config.k, positive_value=config.value_gate == "positive")
        self.tau = nn.Parameter(torch.tensor(config.tau_start or config.k**0.5))
        self.layers = nn.ModuleList(FSNLayer(config, i) for i in range(config.layers))
        self.readout = CoherenceReadout(
            config.vocab_size, config.k, config.readout_start, config.rounding in ("both", "logits")
        )

    @property
    def stack(self) -> Iterator[FSNLayer]:
        """The layers, typed."""
        for layer in self.layers:
            assert isinstance(layer, FSNLayer)
            yield layer

    def phases(self, tokens: Tensor, key: ops.DropoutKey | None = None, probe: Probe = NO_PROBE) -> Tensor:
        """The final phases, before the readout.

        tokens (B, T) -> (B, T, k)
        """
        theta = probe("phases", self.embedding(tokens))
        register = self._register(theta)
        for i, layer in enumerate(self.layers):
            theta, register = layer(theta, register, self.gates, self.tau, probe.at(f"layers.{i}"), key)
        return theta

    def _register(self, theta: Tensor) -> Tensor | None:
        """The empty register, for a state that has one."""
        size = register_size(self.config)
        return theta.new_zeros(*theta.shape[:2], size) if size else None

    def compute_extension(self, tokens: Tensor, cache: Cache, first: int, probe: Probe) -> Tensor:
        theta = probe("phases", self.embedding(tokens))
        register = self._register(theta)
        for i, (layer, past) in enumerate(zip(self.stack, cache.layers, strict=True)):
            theta, register = layer.extend(
                theta, register, self.gates, self.tau, past, first, cache.hidden, probe.at(f"layers.{i}")
            )
        return self.readout(theta, probe)

    def compute_logits(self, tokens: Tensor, key: ops.DropoutKey | None, probe: Probe) -> Tensor:
        if fused.applies(self, tokens):
            return fused.logits(self, tokens, key)
        return self.readout(self.phases(tokens, key, probe), probe)

    def compute_loss(self, tokens: Tensor, targets: Tensor, key: ops.DropoutKey | None) -> Tensor:
        if fused.applies(self, tokens):
            return fused.loss(self, tokens, targets, key)
        return super().compute_loss(tokens, targets, key)
