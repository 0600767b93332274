"""Every fused function against the same mathematics in float64: forward and every gradient.

The same cases run under Triton's interpreter, small and everywhere, and compiled on a GPU, on a grid of
sizes.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import fsn.ops.fused
from fsn.ops.fused import tiles
from tests.ops.fused import interpreter as other

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
DTYPES = list(TOLERANCE)
PARITY = "tests.ops.fused.parity"


def check(errors: dict[str, float], dtype: str) -> None:
    wrong = {name: f"{error:.1e}" for name, error in errors.items() if not error < TOLERANCE[dtype]}
    assert errors and not wrong, f"beyond {TOLERANCE[dtype]:.0e}: {wrong}"


def name(case: tuple[str, dict[str, Any]]) -> str:
    function, arguments = case
    return "-".join([function, *(f"{k}={v}" for k, v in arguments.items())]).replace(" ", "+")


def attention(T: int, k: int, N: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "attention", {"T": T, "k": k, "N": N, **more}


SMALL = [
    attention(17, 17, 2),
    attention(1, 5, 2),
    attention(2, 1, 1, batch=4),
    attention(9, 5, 5, frame="rest"),
    attention(9, 5, 3, parts="w0 w1", gate="positive"),
    attention(9, 5, 1, parts="w0", bound=False),
    attention(9, 5, 2, parts="w1 im1"),
    attention(9, 5, 2, parts="w1 im1", frame="rest"),
    attention(9, 5, 2, parts="w0 im0", gate="positive", bound=False),
    attention(9, 5, 2, round_scores=True, batch=4),
    attention(9, 5, 2, winding=20.0),
    attention(17, 17, 2, score=True),
    attention(1, 5, 2, score=True),
    attention(9, 5, 2, score=True, frame="rest", gate="positive"),
    attention(9, 70, 1, score=True),
    attention(9, 5, 2, score=True, round_scores=True, batch=4),
    attention(200, 3, 2, batch=1, score=True),
    attention(560, 2, 1, batch=1, score=True),
    attention(330, 2, 1, chunk=128, batch=1, score=True, frame="rest", seed=1),
    attention(70, 3, 1, kept_attention=0, score=True),
    attention(5, 176, 1, score=True),
    attention(70, 3, 1, batch=1),
    attention(200, 3, 2, batch=1),
    attention(270, 2, 1, batch=1),
    attention(500, 2, 2, batch=1, frame="rest"),
    attention(560, 2, 1, batch=1),
    attention(130, 3, 2, chunk=64, batch=1),
    attention(330, 2, 1, chunk=128, batch=1),
    attention(600, 2, 1, chunk=256, batch=1, round_scores=True),
    attention(70, 3, 1, kept_attention=0),
    attention(270, 2, 1, batch=1, kept_attention=0),
    attention(9, 70, 2),  # rows in two pieces, in three, and in two without room for the column of ones
    attention(5, 176, 1, gate="positive"),
    attention(5, 120, 1, parts="w0 im0", frame="rest"),
    attention(9, 5, 2, dropout=0.3),
    attention(9, 5, 2, dropout=0.3, dropout_update=0.25, frame="rest", gate="positive"),
    attention(9, 70, 5, dropout_update=0.25, bound=False),
    attention(9, 5, 2, dropout=0.3, score=True, parts="w0 w1"),
    attention(200, 3, 2, dropout=0.3, batch=1),
    attention(270, 2, 1, dropout=0.3, batch=1, frame="rest", score=True),
    attention(330, 2, 1, dropout=0.3, chunk=128, batch=1, frame="rest"),
    attention(70, 3, 1, dropout=0.3, dropout_update=0.25, kept_attention=0),
    ("residual", {"T": 9, "k": 70}),
    ("residual", {"T": 5, "k": 176, "dropout": 0.25}),
    ("residual", {"T": 5, "k": 120, "bound": False}),
    ("residual", {"T": 5, "k": 70, "first": 66}),
    ("embedding", {"rows": 9, "k": 176, "symbols": 11}),
    ("embedding", {"rows": 9, "k": 120, "symbols": 11}),
    ("mean_field", {"rows": 9, "k": 70, "modes": 5}),
    ("residual", {"T": 9, "k": 17}),
    ("residual", {"T": 9, "k": 17, "bound": False, "dropout": 0.25}),
    ("residual", {"T": 5, "k": 17, "dropout": 0.25}),
    ("residual", {"T": 5, "k": 16, "scale": 1e-4, "outputs": "state"}),
    ("residual", {"T": 5, "k": 5, "scale": 30.0, "outputs": "features"}),
    ("swiglu", {"rows": 40, "k": 17, "hidden": 35}),
    ("swiglu", {"rows": 40, "k": 17, "hidden": 35, "keep": True}),
    ("swiglu", {"rows": 40, "k": 17, "hidden": 35, "T": 8, "dropout": 0.3}),
    ("swiglu", {"rows": 40, "k": 17, "hidden": 35, "T": 8, "dropout": 0.3, "keep": True}),
    ("mean_field", {"rows": 40, "k": 17, "modes": 17}),
    ("mean_field", {"rows": 37, "k": 19, "modes": 33}),
    ("mean_field", {"rows": 9, "k": 35, "modes": 5}),
    ("readout", {"rows": 37, "k": 17, "symbols": 41}),
    ("readout", {"rows": 37, "k": 17, "symbols": 41, "keep": False}),
    ("readout", {"rows": 37, "k": 17, "symbols": 41, "ignored": 20}),
    ("embedding", {"rows": 50, "k": 17, "symbols": 41}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SMALL, ids=name)
def test_in_the_interpreter(interpreter: other.Interpreter, case: tuple[str, Any], dtype: str) -> None:
    function, arguments = case
    check(interpreter(f"{PARITY}:{function}", dtype=dtype, **arguments), dtype)


def test_what_coherences_have_in_common_does_not_move_the_scale(interpreter: other.Interpreter) -> None:
    assert interpreter(f"{PARITY}:readout_scale", common=0.0) < 1e-5
    assert interpreter(f"{PARITY}:readout_scale", common=400.0) < 1e-4


def rows(T: int) -> int:
    """Sequences in a batch: more of the short ones, so that there is something to average over."""
    return max(2, 64 // T)


LENGTHS = {1: (1, 63, 511), 17: (2, 255, 1024), 176: (17, 256, 257), 511: (63, 255, 1024)}
HARMONICS = {1: 1, 17: 2, 176: 3, 511: 5}
LARGE = [
    *(attention(T, k, HARMONICS[k], batch=rows(T)) for k, lengths in LENGTHS.items() for T in lengths),
    attention(1500, 176, 3, batch=1),
    attention(2200, 17, 2, batch=2),
    attention(2200, 176, 3, batch=1),
    attention(255, 176, 3, kept_attention=0),
    attention(1024, 17, 2, kept_attention=0),
    attention(255, 17, 2, winding=100.0),
    attention(255, 176, 3, score=True),
    attention(256, 17, 2, score=True, frame="rest"),
    attention(512, 176, 3, score=True),
    attention(1024, 17, 2, score=True),
    attention(2200, 17, 2, batch=2, score=True),
    attention(255, 17, 2, frame="rest"),
    attention(255, 17, 2, parts="w0 w1", gate="positive"),
    attention(255, 17, 1, parts="w0", bound=False),
    attention(255, 17, 3, parts="w1 im1"),
    attention(255, 17, 2, parts="w0 im0", frame="rest"),
    attention(255, 176, 2, dropout=0.1, dropout_update=0.1),
    attention(255, 17, 2, dropout=0.1, dropout_update=0.1, frame="rest"),
    attention(511, 17, 2, dropout=0.1, score=True),
    attention(1024, 17, 2, dropout=0.1),
    attention(2200, 17, 2, dropout=0.1, batch=2),
    *(("residual", {"T": 255, "k": k}) for k in HARMONICS),
    ("residual", {"T": 255, "k": 176, "dropout": 0.1}),
    ("residual", {"T": 255, "k": 176, "bound": False}),
    *(("swiglu", {"rows": 510, "k": k, "hidden": 2 * k}) for k in HARMONICS),
    ("swiglu", {"rows": 510, "k": 176, "hidden": 352, "keep": True}),
    *(("swiglu", {"rows": 510, "k": k, "hidden": 2 * k, "T": 255, "dropout": 0.1}) for k in HARMONICS),
    *(("mean_field", {"rows": 510, "k": k, "modes": k}) for k in HARMONICS),
    ("mean_field", {"rows": 511, "k": 176, "modes": 168}),
    *(("readout", {"rows": 510, "k": k, "symbols": 205}) for k in HARMONICS),
    ("readout", {"rows": 510, "k": 176, "symbols": 2048, "keep": False}),
    *(("embedding", {"rows": 2040, "k": k, "symbols": 205}) for k in HARMONICS),
]


def test_the_grid_has_every_size_that_was_promised() -> None:
    sizes = [arguments for function, arguments in LARGE if function == "attention"]
    assert {s["T"] for s in sizes} >= {1, 2, 17, 63, 255, 256, 257, 511, 1024}
    assert {s["k"] for s in sizes} == {1, 17, 176, 511}
    assert {s["N"] for s in sizes} == {1, 2, 3, 5}
    assert max(s["T"] for s in sizes) > tiles.CHUNK


def test_every_fused_function_is_compared() -> None:
    """A file with an autograd function is one that parity.py compares, and each comparison has cases here."""
    comparisons = ast.parse((Path(__file__).parent / "parity.py").read_text("utf-8"))
    imported = {node.module for node in ast.walk(comparisons) if isinstance(node, ast.ImportFrom)}
    folder = Path(fsn.ops.fused.__file__).parent
    files = [file for file in folder.glob("*.py") if "(torch.autograd.Function)" in file.read_text("utf-8")]
    assert files and {f"fsn.ops.fused.{file.stem}" for file in files} <= imported
    functions = [node for node in comparisons.body if isinstance(node, ast.FunctionDef) and node.returns]
    compare = {node.name for node in functions if node.returns and ast.unparse(node.returns) == "Errors"}
    assert compare == {function for function, _ in SMALL} == {function for function, _ in LARGE}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", LARGE, ids=name)
def test_on_a_gpu(case: tuple[str, Any], dtype: str) -> None:
    from tests.ops.fused import parity

    assert torch.get_float32_matmul_precision() == "highest"
    function, arguments = case
    check(getattr(parity, function)(dtype=dtype, device="cuda", **arguments), dtype)
