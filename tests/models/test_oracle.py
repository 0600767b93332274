"""Every model of the family agrees with the loops of ``tests/oracle.py``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fsn.models import LanguageModel
from tests import oracle
from tests.small import ALL_FAMILIES, random_tokens, small


def agreement(model: LanguageModel, length: int = 9) -> float:
    tokens = random_tokens(model, batch=2, length=length)
    arrays = {name: value.numpy() for name, value in model.state_dict().items()}
    expected = oracle.logits(model.config, arrays, tokens.numpy())
    with torch.no_grad():
        got = model(tokens)
    assert got.dtype == torch.float64
    assert np.ptp(expected) > 0.1, "logits that are all alike would prove nothing"
    return float(np.abs(got.numpy() - expected).max())


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_every_family_agrees_with_the_oracle(family: str) -> None:
    width: dict[str, Any] = {"width": 16} if family.startswith("transformer") else {"k": 23}
    assert agreement(small(family, **width)) < 1e-9


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("fsn", {"k": 12, "layers": 3, "harmonics": 5}),
        ("fsn", {"feedforward": "none"}),
        ("fsn", {"state": "wrapped", "register": 3}),
        ("fsn-mf-winding", {"state": "wrapped", "winding": 2, "register": 4, "modes": 7, "frame": "rest"}),
        ("successor", {"phases": True, "frame": "rest", "value_gate": "positive", "shared": True}),
        ("kuramoto", {"present": False, "delay": True}),
        ("fsn-score", {"shared": True, "frame": "rest", "harmonics": 1}),
        ("successor", {"score_successor": True, "state": "wrapped", "register": 3}),
        ("fsn-dissolved", {"bound": "none"}),
        ("fsn-torus-swiglu", {"hidden": 5}),
        ("transformer", {"width": 12, "heads": 3, "hidden": 7}),
        ("transformer-kvshift", {"width": 12, "heads": 3}),
        ("transformer", {"width": 16, "heads": 2, "shift": "kv-coordinate"}),
        ("transformer", {"width": 16, "heads": 2, "shift": "key-offset"}),
    ],
)
def test_points_between_the_presets_agree_with_the_oracle(family: str, overrides: dict[str, Any]) -> None:
    """The axes are independent: combinations that have no name are as exact as those that do."""
    assert agreement(small(family, **overrides)) < 1e-9


@pytest.mark.parametrize("tau", [0.0, -3.0])
def test_the_floor_of_the_temperature_agrees_with_the_oracle(tau: float) -> None:
    model = small("fsn")
    model.get_parameter("tau").data.fill_(tau)
    assert agreement(model) < 1e-9


def test_the_oracle_shares_no_code_with_the_package() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text())
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"__future__", "cmath", "math", "collections.abc", "typing", "numpy", "numpy.typing"}
