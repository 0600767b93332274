"""Modules with parameters, each a named object of the paper."""

from __future__ import annotations

from .attention import FrustratedAttention
from .context import PLAIN, Context
from .coupling import CouplingKernel, FrustratedCoupling, Gates
from .feedforward import MeanField, NoFeedForward, SwiGLU, TorusSwiGLU
from .past import Cache, Past
from .probe import NO_PROBE, Probe, hooked, ours, record, replace
from .symbols import CoherenceReadout, PhaseEmbedding
from .transformer import CausalSelfAttention
from .update import BoundedUpdate, Register, Unbounded

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
    "hooked",
    "ours",
    "record",
    "replace",
]
