"""The benchmark's check, called with plain values so that it can run under Triton's interpreter."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from unittest import mock

import torch

from benchmarks import gate
from fsn.models import fused_stack, preset


def check(factor: float = 1.0) -> dict[str, Any]:
    """The check of a small model whose fused losses are a ``factor`` off."""
    loss = fused_stack.loss
    config = preset("fsn-1m", 29, k=9, layers=1)
    with mock.patch.object(fused_stack, "loss", lambda *arguments: factor * loss(*arguments)):
        return asdict(gate.check_fused(config, 7, torch.device("cpu")))
