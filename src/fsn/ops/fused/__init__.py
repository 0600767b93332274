"""Fused forms of the reference ops: Triton kernels for the geometry, cuBLAS products in between.

Nothing here is imported unless it can run: see :func:`available`. The reference in ``ops`` stays the oracle; the tests
compare forward values and every gradient.

Switches: ``FSN_FUSED=0`` in the environment turns the fused path off, ``FSN_FUSED=force`` turns the check of the
kernels off that a model or a layer does before it first runs fused on a GPU (``check.py``). ``TRITON_INTERPRET=1`` runs
the kernels in Triton's interpreter on the CPU, for tests.
"""

from __future__ import annotations

import functools
import os
import warnings

import torch
from torch import Tensor

from ..precision import autocasts, transformed

WIDEST = 2048
"""Most phases, and most symbols, that a kernel holds in one row."""
DRIFT = {None: 0, "rest": 1, "co-rotating": 2}
"""How the kernels know ``CouplingLaw.drift``: the frame decides which weight of attention turns a token."""


@functools.cache
def _triton_works() -> bool:
    try:
        from . import attention, embedding, mean_field, readout, residual, swiglu  # noqa: F401
    except Exception as error:
        warnings.warn(f"fsn: Triton is missing or broken ({error}); using the reference path", stacklevel=2)
        return False
    return True


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def forced() -> bool:
    """Whether kernels run without the check at their first use."""
    return os.environ.get("FSN_FUSED") == "force"


def available(device: torch.device) -> bool:
    """Whether fused kernels can run for tensors on this device: CUDA with Triton, or the interpreter."""
    if os.environ.get("FSN_FUSED", "1") == "0":
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0) and _triton_works()
    return device.type == "cpu" and interpreting() and _triton_works()


def compute_dtype(tensor: Tensor) -> torch.dtype | None:
    """What products run in: bfloat16 under that autocast, float32 otherwise; None where no kernel fits."""
    if tensor.dtype != torch.float32 or transformed():
        return None
    kind = tensor.device.type
    if not autocasts(kind):
        return torch.float32
    return torch.bfloat16 if torch.get_autocast_dtype(kind) == torch.bfloat16 else None


__all__ = ["DRIFT", "WIDEST", "available", "compute_dtype", "forced", "interpreting"]
