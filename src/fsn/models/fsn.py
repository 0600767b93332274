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

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .. import ops
from ..nn import (
    PLAIN,
    BoundedUpdate,
    CoherenceReadout,
    Context,
    CouplingKernel,
    FrustratedCoupling,
    Gates,
    MeanField,
    NoFeedForward,
    PhaseEmbedding,
    Register,
    SwiGLU,
    TorusSwiGLU,
    Unbounded,
    decode,
    ours,
)
from . import fused_stack
from .base import SITES_PER_LAYER, LanguageModel
from .config import FSNConfig


def feedforward_block(config: FSNConfig, site: int) -> nn.Module:
    """The block named by ``config.feedforward``."""
    k, register = config.k, config.register_size
    if config.feedforward == "swiglu":
        return SwiGLU(k, config.hidden_width, k, register, config.dropout_hidden, site)
    if config.feedforward == "torus-swiglu":
        return TorusSwiGLU(2 * k, config.hidden_width, k, register, config.dropout_hidden, site)
    if config.feedforward == "none":
        return NoFeedForward()
    return MeanField(k, config.collective_modes, config.winding_modes, register, config.modes_start)


class FSNLayer(nn.Module):
    """θ ← θ + bound(gate ⊙ coupling(θ)); θ ← θ + bound(feedforward(θ))."""

    def __init__(self, config: FSNConfig, index: int) -> None:
        super().__init__()
        site = index * SITES_PER_LAYER
        round_scores = config.rounding in ("both", "scores")
        self.coupling = FrustratedCoupling(
            config.k, config.coupling, round_scores, config.dropout_attention, site
        )
        tanh, alpha = config.bound == "tanh", config.alpha_start or 2 * math.pi
        self.attention_bound = BoundedUpdate(alpha) if tanh else Unbounded()
        self.feedforward = feedforward_block(config, site + 1)
        has_block = config.feedforward != "none"
        self.feedforward_bound = BoundedUpdate(alpha) if tanh and has_block else Unbounded()
        size = config.register_size
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
        context: Context = PLAIN,
    ) -> tuple[Tensor, Tensor | None]:
        if context.decodes and register is None:
            coupling, bounds = self.coupling, (self.attention_bound, self.feedforward_bound)
            if coupling.takes(gates) and ours(coupling, *bounds):
                raw = decode.coupling(theta, gates, tau, coupling.kernel, coupling.rates, context)
                theta = decode.moved(theta, raw, bounds[0])
                theta = decode.moved(theta, self.feedforward(theta), bounds[1])
                return ops.wrap(theta) if self.wrapped else theta, None
        probe, dropout_key = context.probe, context.dropout_key
        raw = probe("update.raw", self.coupling(theta, gates, tau, context))
        raw = ops.dropout(raw, self.dropout_update, dropout_key, self.site + 1)
        update = probe("update.bounded", self.attention_bound(raw))
        theta = theta + update
        if self.register is not None and register is not None:
            register = probe("register", register + self.register(update))
        raw = self.feedforward(theta, register, dropout_key)
        raw = probe("feedforward.raw", ops.dropout(raw, self.dropout, dropout_key, self.site))
        update = probe("feedforward.bounded", self.feedforward_bound(raw))
        theta = theta + update
        if self.register is not None and register is not None:
            register = register + self.register(update)
        if self.wrapped:
            theta = ops.wrap(theta)
        return probe("state", theta), register


class FSN(LanguageModel):
    """tokens (B, T) -> logits (B, T, V). See the module's text for what is unusual."""

    config: FSNConfig
    first_point = "phases"

    def __init__(self, config: FSNConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PhaseEmbedding(config.vocab_size, config.k)
        self.gates = Gates(config.k, positive_value=config.value_gate == "positive")
        self.tau = nn.Parameter(torch.empty(()))
        self.layers = nn.ModuleList(FSNLayer(config, i) for i in range(config.layers))
        self.readout = CoherenceReadout(
            config.vocab_size, config.k, config.readout_start, config.rounding in ("both", "logits")
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The temperature's start; each part of the model has its own."""
        self.tau.fill_(float(self.config.tau_start or self.config.k**0.5))

    @property
    def stack(self) -> Iterator[FSNLayer]:
        """The layers, typed."""
        for layer in self.layers:
            assert isinstance(layer, FSNLayer)
            yield layer

    def phases(self, tokens: Tensor, context: Context = PLAIN) -> Tensor:
        """The final phases, before the readout.

        tokens (B, T) -> (B, T, k)
        """
        theta = context.probe("phases", self.embedding(tokens))
        if context.cache is not None:
            context.decodes = decode.applies(theta, context)
        size = self.config.register_size
        register = theta.new_zeros(*theta.shape[:2], size) if size else None
        for i, layer in enumerate(self.layers):
            theta, register = layer(theta, register, self.gates, self.tau, context.layer(i))
        return theta

    def compute_logits(self, tokens: Tensor, context: Context) -> Tensor:
        if fused_stack.applies(self, tokens, context):
            return fused_stack.logits(self, tokens, context.dropout_key)
        return self.readout(self.phases(tokens, context), context)

    def compute_loss(self, tokens: Tensor, targets: Tensor, context: Context) -> Tensor:
        if fused_stack.applies(self, tokens, context):
            return fused_stack.loss(self, tokens, targets, context.dropout_key)
        return super().compute_loss(tokens, targets, context)
