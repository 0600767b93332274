"""Work beside the main stream is in order, whatever the GPU does meanwhile; found out by clocks, without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.fused.interpreter import Interpreter

STREAMS = "tests.models.fused_streams"


@pytest.mark.parametrize("trainer", [True, False], ids=["trainer", "autograd"])
@pytest.mark.parametrize(
    "case",
    [
        {"family": "fsn"},
        {"family": "fsn", "layers": 3, "kept": 0},
        {"family": "fsn", "dtype": "bfloat16"},
        {"family": "fsn", "T": 70, "chunk": 64},
        {"family": "fsn", "layers": 1, "dropout_attention": 0.2, "dropout_hidden": 0.2},
        {"family": "fsn-shared-kernel"},
        {"family": "fsn-score", "layers": 2, "kept": 0},
        {"family": "kuramoto"},
        {"family": "fsn-mf-winding"},
        {"family": "fsn-torus-swiglu", "layers": 1, "bound": "none", "tied": True},
    ],
    ids=lambda case: "-".join(str(value) for value in case.values()),
)
def test_nothing_races(interpreter: Interpreter, case: dict[str, Any], trainer: bool) -> None:
    found = interpreter(f"{STREAMS}:races", trainer=trainer, k=9, **case)
    assert found["streams"] == ["fields", "main", "packing", "weights"] and found["operations"] > 300
    assert not found["races"] and not found["running"]


@pytest.mark.parametrize(
    "case",
    [
        {"family": "fsn", "layers": 1},
        {"family": "fsn-torus-swiglu", "layers": 1, "bound": "none", "tied": True},
    ],
)
def test_nothing_races_between_the_parts_of_a_batch(interpreter: Interpreter, case: dict[str, Any]) -> None:
    found = interpreter(f"{STREAMS}:races", accumulate=2, k=9, **case)
    assert not found["races"] and not found["running"] and found["operations"] > 300


@pytest.mark.parametrize(
    ("rule", "family"),
    [
        ("the side waits for the main stream", "fsn"),
        ("the main stream waits for a mark", "fsn"),
        ("the main stream joins", "fsn"),
        ("what a block reads stays alive", "fsn"),
        ("what a block reads stays alive", "fsn-mf"),
        ("the optimizer waits for the gradients", "fsn"),
        ("results for autograd are joined", "fsn-shared-kernel"),
    ],
)
def test_a_rule_left_out_is_noticed(interpreter: Interpreter, rule: str, family: str) -> None:
    assert (
        len(interpreter(f"{STREAMS}:races", family=family, broken=rule, k=9, layers=3, kept=0)["races"]) >= 4
    )


def test_autograd_may_not_record_what_runs_beside() -> None:
    pytest.importorskip("triton")
    from fsn.ops.fused.common import Aside

    with pytest.raises(RuntimeError, match="no_grad"), Aside(torch.device("cpu")):
        pass
    with torch.no_grad(), Aside(torch.device("cpu")):
        pass
