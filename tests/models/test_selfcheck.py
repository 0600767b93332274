"""A model checks its kernels before it relies on them: right ones pass unseen, wrong ones cost one line."""

from __future__ import annotations

import time
import warnings

import pytest
import torch

from fsn.models import fused_stack, preset, selfcheck
from fsn.ops.fused import check
from tests.ops.fused.interpreter import Interpreter

CHECK = "tests.models.fused_models:self_check"


@pytest.mark.parametrize(
    "case",
    [
        {"family": "fsn", "dtype": "float32"},
        {
            "family": "fsn",
            "dtype": "bfloat16",
            "dropout": 0.2,
            "dropout_attention": 0.2,
            "dropout_hidden": 0.2,
        },
        {"family": "fsn-mf", "dtype": "bfloat16"},
        {"family": "fsn", "dtype": "bfloat16", "backward": False},
    ],
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_right_kernels_pass_once_and_unseen(interpreter: Interpreter, case: dict[str, object]) -> None:
    found = interpreter(CHECK, **case)
    assert found["served"] == [True, True] and found["applies"] and found["finite"]
    assert found["checks"] == 1 and found["same random"] and not found["lines"]


@pytest.mark.parametrize(
    "kernel",
    [
        "scores:attention_kernel",
        "couple:couple_kernel",
        "swiglu:gate_and_up_kernel",
        "residual:residual_kernel",
        "readout:cross_entropy_backward_kernel",
        "swiglu:into_middle_kernel",
        "score_gradient:score_gradient_kernel",
        "attention:field_backward_kernel",
        "dropout:attention_dropout_kernel",
    ],
)
def test_a_wrong_kernel_costs_one_line_and_the_reference_computes(
    interpreter: Interpreter, kernel: str
) -> None:
    """What the kernel writes is 1.3 times what it should be."""
    found = interpreter(CHECK, dtype="bfloat16", broken=kernel, dropout_attention=0.2)
    assert found["served"] == [False, False] and not found["applies"] and found["finite"]
    assert found["checks"] == 1 and len(found["lines"]) == 1
    line = found["lines"][0]
    assert f"torch {torch.__version__}, Triton 3." in line and "the reference" in line
    assert "\n" not in line and "off by" in line


@pytest.mark.parametrize("name", ["fsn-1m", "fsn-mf-1m", "kuramoto-1m", "fsn-8m"])
def test_the_reference_passes_its_own_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding alone is far below the limit, whatever the initial values: else right kernels would fail by accident."""
    monkeypatch.setattr(fused_stack, "loss", lambda model, *given: model.loss(*given[:2]))
    monkeypatch.setattr(check, "in_words", lambda found, *_: found)
    errors = selfcheck.disagreement(preset(name, 205), torch.device("cpu"), torch.bfloat16, 200)
    assert errors["gradient"][1] < 0.5 * check.LIMIT[torch.bfloat16]
    assert max(plain for _, plain in errors.values()) < check.LIMIT[torch.bfloat16]


def test_a_check_is_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model is drawn from a seed of its own: a process begins with a random one."""
    drawn = []

    def disagreement(*_: object) -> None:
        drawn.append(torch.rand(3))

    monkeypatch.setattr(check, "_verdicts", {})
    for i in range(2):
        torch.manual_seed(i)
        before = torch.get_rng_state()
        assert check.agrees(i, torch.device("cpu"), torch.float32, 8, disagreement)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*drawn)


def test_a_kernel_that_does_not_compile_is_one_line_too(interpreter: Interpreter) -> None:
    found = interpreter(CHECK, broken="swiglu:middle_kernel", raises=True)
    assert found["served"] == [False, False] and found["finite"] and len(found["lines"]) == 1
    assert "RuntimeError: PassManager::run failed;" in found["lines"][0] and "\n" not in found["lines"][0]


def test_wrong_gradients_are_not_looked_for_where_none_are_needed(interpreter: Interpreter) -> None:
    found = interpreter(CHECK, dtype="bfloat16", broken="swiglu:into_middle_kernel", backward=False)
    assert found["served"] == [True, True] and not found["lines"]


def test_the_check_can_be_skipped(interpreter: Interpreter) -> None:
    found = interpreter(CHECK, dtype="bfloat16", broken="swiglu:into_middle_kernel", forced=True)
    assert found["served"] == [True, True] and found["applies"] and not found["checks"]


def test_no_check_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the answer is the reference, and the check is done at the next chance."""
    device, capturing = torch.device("cuda", 0), True
    monkeypatch.setattr(check, "_verdicts", {})
    monkeypatch.setattr(selfcheck, "disagreement", lambda *args: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    with pytest.warns(UserWarning, match="Run the model once before"):
        assert not selfcheck.agrees(preset("fsn-1m", 29), device, torch.bfloat16, 255)
    capturing = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert selfcheck.agrees(preset("fsn-1m", 29), device, torch.bfloat16, 255)
        capturing = True
        assert selfcheck.agrees(preset("fsn-1m", 29), device, torch.bfloat16, 255)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [255, 511, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["fsn-1m", "fsn-mf-1m", "kuramoto-1m", "fsn-8m"])
def test_the_kernels_of_this_gpu_pass(
    name: str, dtype: torch.dtype, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FSN_FUSED", raising=False)
    monkeypatch.setattr(check, "_verdicts", {})
    config, device, seconds = preset(name, 205), torch.device("cuda"), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            check._verdicts.clear()
            start = time.perf_counter()
            assert fused_stack.supports(config, device, dtype, length)
            seconds.append(time.perf_counter() - start)
    print(
        f"{name} {dtype} T={length}: check {seconds[0]:.2f} s the first time, {1e3 * seconds[1]:.0f} ms compiled"
    )
    assert seconds[1] < 2  # a few milliseconds, unless other tests keep the GPU busy
