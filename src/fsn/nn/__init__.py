"""Modules with parameters, each a named object of the paper."""

from __future__ import annotations

from .attention import FrustratedAttention
from .bound import BoundedUpdate, Unbounded
from .context import PLAIN, Context
from .coupling import CouplingKernel, FrustratedCoupling
from .embedding import PhaseEmbedding
from .feedforward import MeanField, NoFeedForward, SwiGLU, TorusSwiGLU
from .gates import Gates
from .past import Cache, Past
from .probe import NO_PROBE, Probe, record, replace
from .readout import CoherenceReadout
from .register import Register
from .transformer import CausalSelfAttention

__all__ = [
    "NO_PROBE",
    "PLAIN",
    "BoundedUpdate",
    "Cache",
    "CausalSelfAttention",
    "CoherenceReadout",
    "Context",
    "CouplingKernel",
    "FrustratedAttention",
    "FrustratedCoupling",
    "Gates",
    "MeanField",
    "NoFeedForward",
    "Past",
    "PhaseEmbedding",
    "Probe",
    "Register",
    "SwiGLU",
    "TorusSwiGLU",
    "Unbounded",
    "record",
    "replace",
]
