"""The mathematics, without parameters.

Every function here is the *reference*: plain PyTorch, any device, any float type, written to be read beside
the paper. Nothing in these modules calls a kernel. Fused forms of the same mathematics live in ``ops/fused``.

Notation: B batch, T positions, k phases, N harmonics, V symbols, m register size, H collective modes.
"""

from __future__ import annotations

from . import cpu
from .bound import norm_matched_tanh
from .coupling import (
    Pair,
    aggregate_fields,
    contract_fields,
    coupling,
    drift,
    fields,
    successor_advance,
)
from .dropout import DropoutKey, dropout
from .feedforward import mean_field, swiglu, winding_modes
from .harmonics import harmonic_powers, phase_features, wrap
from .law import FRAMES, CouplingLaw, covered
from .precision import product
from .readout import coherences, cross_entropy
from .scores import (
    FLOOR,
    causal_softmax,
    coherence_scores,
    fold_successors,
    normalise_gate,
    rotary_features,
    rotary_rates,
    rotary_turns,
    turn_half,
)
from .synchronize import synchronize

__all__ = [
    "FLOOR",
    "FRAMES",
    "CouplingLaw",
    "DropoutKey",
    "Pair",
    "aggregate_fields",
    "causal_softmax",
    "coherence_scores",
    "coherences",
    "contract_fields",
    "coupling",
    "covered",
    "cpu",
    "cross_entropy",
    "drift",
    "dropout",
    "fields",
    "fold_successors",
    "harmonic_powers",
    "mean_field",
    "norm_matched_tanh",
    "normalise_gate",
    "phase_features",
    "product",
    "rotary_features",
    "rotary_rates",
    "rotary_turns",
    "successor_advance",
    "swiglu",
    "synchronize",
    "turn_half",
    "winding_modes",
    "wrap",
]
