"""The benchmark: counts that are true, a check that catches, a run that tells what it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import fsn
from benchmarks import gate, step
from benchmarks.floor import Ceilings, Work, evaluation, forward_flops, training
from benchmarks.measure import Case
from fsn.models import preset
from tests.ops.fused.interpreter import shared

SMALL: dict[str, Any] = {"layers": 2, "k": 22}


@pytest.mark.parametrize(
    "family",
    ["fsn", "kuramoto", "fsn-mf", "fsn-mf-winding", "fsn-dissolved", "fsn-torus-swiglu", "transformer"],
)
def test_flops_are_those_of_the_products(family: str) -> None:
    sizes = {"layers": 2, "width": 12} if family == "transformer" else SMALL
    model = fsn.build(f"{family}-1m", vocab_size=13, **sizes).eval()
    with FlopCounterMode(display=False) as counter, fsn.record(model), torch.no_grad():
        model(torch.zeros(3, 7, dtype=torch.int64))
    assert forward_flops(model.config, 3, 7, causal=False) == counter.get_total_flops()
    assert forward_flops(model.config, 3, 7) < counter.get_total_flops()


def test_the_step_of_the_paper() -> None:
    """FSN-1m, 64 windows of 256: about 0.22 TFLOP, counting half of each square; 0.3 counting all of it."""
    config = preset("fsn-1m", 205)
    assert training(config, 64, 255).flops == pytest.approx(0.22e12, rel=0.05)
    assert 3 * forward_flops(config, 64, 255, causal=False) == pytest.approx(0.3e12, rel=0.05)
    assert evaluation(config, 64, 255).flops == training(config, 64, 255).flops / 3
    assert evaluation(config, 64, 255).bytes < training(config, 64, 255).bytes / 2


def test_ceilings_that_were_too_low_at_first_are_mended(capsys: pytest.CaptureFixture[str]) -> None:
    """Another program was busy while they were measured: every row's floor follows the higher ones."""
    low, high = Ceilings(1e12, 1e9, "a product"), Ceilings(4e12, 2e9, "another")
    timed = {"ms": 4.0, "gflop": 2.0, "gbyte": 1e-4}
    rows: list[dict[str, Any]] = [{"training": dict(timed), "evaluation": dict(timed)}, {"check": "failed"}]
    assert step.check_ceilings(rows, low, high) == Ceilings(4e12, 2e9, "a product")
    for part in ("training", "evaluation"):
        assert rows[0][part]["floor_ms"] == pytest.approx(0.5)
        assert rows[0][part]["share_of_floor"] == pytest.approx(0.125)
        assert rows[0][part]["floor"] == "products"
    assert "else was using the device" in capsys.readouterr().out
    assert step.check_ceilings(rows, high, low) == Ceilings(4e12, 2e9, "another")
    assert step.check_ceilings([], Ceilings(1e12, 3e9, ""), Ceilings(2e12, 1e9, "")) == Ceilings(
        2e12, 3e9, ""
    )
    capsys.readouterr()
    step.check_ceilings(rows, high, Ceilings(4.2e12, 2e9, ""))
    assert capsys.readouterr().out == ""


def test_the_floor_is_the_larger_of_two_times() -> None:
    ceilings = Ceilings(flops=1e12, bandwidth=1e9, product="")
    assert Work(flops=2e9, bytes=1e6).floor_ms(ceilings) == pytest.approx(2.0)
    assert Work(flops=2e9, bytes=3e6).floor_ms(ceilings) == pytest.approx(3.0)
    assert Work(flops=2e9, bytes=3e6).limit(ceilings) == "traffic"


def test_the_check_passes_kernels_that_are_right_and_catches_wrong_ones() -> None:
    right = shared()("tests.benchmarks.gates:check")
    assert right["path"] == "fused" and right["failed"] is None
    assert set(right["errors"]) == {"fp32", "bf16"}
    wrong = shared()("tests.benchmarks.gates:check", factor=1.0001)
    assert "fp32" in wrong["failed"] and "off by 1.0e-04" in wrong["failed"]


def test_the_check_sees_what_the_step_leaves_in_its_vector() -> None:
    model = fsn.build("fsn-1m", vocab_size=13, **SMALL)
    right = {name: torch.randn(p.shape) for name, p in model.named_parameters()}
    expected = torch.cat([g.flatten() for g in right.values()])
    assert gate.check_written("fused", model, right, expected, "bf16").failed is None
    wrong = right | {"gates.weight": torch.zeros_like(right["gates.weight"])}
    assert "gates.weight" in str(gate.check_written("fused", model, wrong, expected, "bf16").failed)
    small = {n: g if n == "readout.scale" else g * 1e-6 for n, g in right.items()}
    expected = torch.cat([g.flatten() for g in small.values()])
    lost = small | {"layers.0.feedforward.bias": torch.zeros_like(small["layers.0.feedforward.bias"])}
    assert "feedforward.bias" in str(gate.check_written("fused", model, lost, expected, "bf16").failed)


def test_a_large_scalar_hides_no_weight() -> None:
    """The readout's scale can be nearly all of a gradient's length."""
    model = fsn.build("fsn-1m", vocab_size=13, **SMALL)
    named = dict(model.named_parameters())
    parts = {n: torch.ones(p.shape) * (1e5 if n == "readout.scale" else 1.0) for n, p in named.items()}
    losses, exact = torch.ones(2, 3), torch.cat([g.flatten() for g in parts.values()])
    for name, group in (("gates.weight", "weights"), ("tau", "scalars")):
        wrong = parts | {name: -parts[name]}
        found = torch.cat([g.flatten() for g in wrong.values()])
        assert gate.relative(found, exact) < 1e-2
        errors = gate.compare(model, ((losses, found), (losses, exact), (losses, exact)))
        assert set(errors) == {"losses", "weights", "scalars", "scale"}
        assert [n for n, e in errors.items() if e[:2] != [0.0, 0.0]] == [group]
        assert f"{group} off by" in str(gate.Check("fused", {"bf16": errors}).judge().failed)


def test_errors_are_taken_over_all_batches() -> None:
    """On one batch the reference is right by luck; over four it is as far off as the path."""
    model = fsn.build("fsn-1m", vocab_size=13, **SMALL)
    named = dict(model.named_parameters())

    def result(scale: float) -> gate.Result:
        parts = [torch.full(p.shape, scale if n == "readout.scale" else 1.0) for n, p in named.items()]
        return torch.ones(2, 3), torch.cat([g.flatten() for g in parts])

    exact, off = result(1.0), result(1.05)
    lucky = (off, exact, exact)
    usual = (off, off, exact)
    errors = gate.compare(model, lucky)
    assert errors["scale"] == pytest.approx([0.05, 0.0, 1.0]) and errors["scalars"][2] == 5.0
    assert "scale off by" in str(gate.Check("fused", {"bf16": errors}).judge().failed)
    errors = gate.compare(model, lucky, usual, usual, usual)
    assert errors["scale"] == pytest.approx([0.05, 0.05 * 0.75**0.5, 4.0])
    assert gate.Check("fused", {"bf16": errors}).judge().failed is None


def test_the_limit_leaves_room_for_chance_where_few_numbers_are_compared() -> None:
    """Two equal errors of four numbers each: one in a thousand pairs may be refused, not one in eight."""
    torch.manual_seed(0)
    for count in (4, 20):
        found, plain = (torch.randn(20_000, count).square().mean(1).sqrt() for _ in range(2))
        refused = [
            f >= gate.limit("bf16", p, count) for f, p in zip(found.tolist(), plain.tolist(), strict=True)
        ]
        assert sum(refused) / len(refused) < 4e-3
        if count == 4:
            assert (found > 2 * plain).double().mean() > 0.05, "what the plain rule would refuse"
    assert gate.limit("bf16", 0.1, 1e6) == pytest.approx(0.2) and gate.limit("bf16", 0.1) == pytest.approx(
        0.2
    )
    assert gate.limit("fp32", 1e-9, 4) == gate.TOLERANCE["fp32"]
    few, many = ({"bf16": {"scale": [0.3, 0.1, count]}} for count in (4.0, 1e6))
    assert gate.Check("fused", few).judge().failed is None and gate.Check("fused", many).judge().failed


def test_a_reference_that_overflows_allows_nothing() -> None:
    assert gate.Check("fused", {"bf16": {"weights": [0.9, float("inf")]}}).judge().failed
    assert gate.relative(torch.ones(2), torch.zeros(2)) == float("inf")
    assert gate.relative(torch.zeros(2), torch.zeros(2)) == 0.0


def test_checks_add_up() -> None:
    reference, passed = gate.Check("reference"), gate.Check("compiled", {"bf16": {"losses": [1e-3, 1e-3]}})
    failed = gate.Check("compiled", {"bf16": {"gradient": [1.0, 0.0]}}).judge()
    assert reference.joined(None) is reference
    both = reference.joined(passed).joined(failed)
    assert both.path == "compiled" and both.failed == failed.failed
    assert set(both.errors["bf16"]) == {"losses", "gradient"}


def test_a_tiny_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "step.json"
    assert step.main(["--models", "fsn", "transformer", "--lengths", "32", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("no CUDA GPU") == 1
    assert "fsn-1m" in shown and "÷ transformer" in shown
    results = json.loads(path.read_text())
    assert [row["model"] for row in results["rows"]] == ["fsn", "transformer"]
    for row in results["rows"]:
        for part in ("training", "evaluation"):
            assert 0 < row[part]["low"] <= row[part]["ms"] <= row[part]["high"]
            assert 0 < row[part]["share_of_floor"] < 1
    assert results["ratios"][0]["training_time"] > 0
    assert {"device", "packages", "commit"} <= set(results["environment"])
    assert path.with_suffix(".svg").exists()


def test_no_time_without_a_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    failed = gate.Check("fused", failed="fused path in fp32: gradient off by 1.0e-01, reference by 1.0e-06")
    monkeypatch.setattr(gate, "check_fused", lambda *arguments: failed)
    assert step.main(["--models", "fsn", "--lengths", "32"]) == 1
    shown = capsys.readouterr()
    assert "no time: fused path in fp32" in shown.out
    assert "failed the check" in shown.err


def test_what_does_not_fit_the_budget_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert step.main(["--models", "fsn", "--lengths", "32", "64", "--seconds", "0"]) == 0
    assert "skipped: fsn-1m at T = 32, fsn-1m at T = 64" in capsys.readouterr().out


def test_a_run_that_is_ended_leaves_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    measure = step.measure

    def once(case: Case, *arguments: Any) -> dict[str, Any]:
        if case.length == 64:
            raise KeyboardInterrupt
        return measure(case, *arguments)

    monkeypatch.setattr(step, "measure", once)
    path = tmp_path / "step.json"
    with pytest.raises(KeyboardInterrupt):
        step.main(["--models", "fsn", "--lengths", "32", "64", "--json", str(path)])
    results = json.loads(path.read_text())
    assert [row["length"] for row in results["rows"]] == [32]
    assert results["left"] == ["fsn-1m at T = 64"]


def test_a_row_that_breaks_does_not_take_the_others_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    measure = step.measure

    def broken(case: Case, *arguments: Any) -> dict[str, Any]:
        if case.model == "fsn":
            raise RuntimeError("no such kernel")
        return measure(case, *arguments)

    monkeypatch.setattr(step, "measure", broken)
    path = tmp_path / "step.json"
    assert step.main(["--models", "fsn", "kuramoto", "--lengths", "32", "--json", str(path)]) == 1
    assert "failed: fsn-1m at T = 32: RuntimeError: no such kernel" in capsys.readouterr().err
    results = json.loads(path.read_text())
    assert [row["model"] for row in results["rows"]] == ["kuramoto"] and not results["left"]


def test_mistakes_get_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert step.main(["--models", "fns", "--lengths", "32"]) == 2
    assert step.main(["--redraw", "nowhere.json"]) == 2
    assert step.main(["--models", "fsn", "--lengths", "32", "--warm-jobs", "-1"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 3
