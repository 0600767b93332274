"""Epochs that shared their device do not count as slow."""

from __future__ import annotations

import pytest

from fsn.measure import metrics, training
from fsn.train.run import Run
from tests.measure.example_runs import made_up_run


def shared(name: str, seconds: list[float], losses: list[float]) -> Run:
    """A run whose epochs took ``seconds``, at a speed that goes with them."""
    ends = [sum(seconds[: i + 1]) for i in range(len(seconds))]
    return made_up_run(
        name,
        losses,
        cumulative_s=ends,
        train_s=[0.9 * s for s in seconds],
        valid_s=[0.1 * s for s in seconds],
        tokens_per_s=[1e5 / s for s in seconds],
        peak_memory_gb=[9.0, *[1.0] * (len(seconds) - 1)],
    )


def test_slow_epochs_are_those_clearly_slower_than_the_median() -> None:
    run = shared("f", [250.0, 300.0, 100.0, 100.0, 110.0, 112.0, 100.0, 90.0, 99.0], [1.7] * 9)
    assert metrics.slow_epochs(run) == [1, 2, 6]
    assert metrics.median_epoch(run) == pytest.approx(100.0)
    ends = metrics.steady_seconds(run)
    assert ends[:4] == pytest.approx([100.0, 200.0, 300.0, 400.0]) and ends[-1] == pytest.approx(899.0)
    (note,) = metrics.pace_notes([run])
    assert note.startswith("f: epochs 1 to 2, 6 took over 1.11 times its median epoch (100.0 s)")


def test_a_run_alone_on_its_device_is_left_as_it_is() -> None:
    run = made_up_run("f", [1.8, 1.7, 1.6])
    assert metrics.slow_epochs(run) == [] and metrics.pace_notes([run]) == []
    assert metrics.steady_seconds(run) == pytest.approx([100.0, 200.0, 300.0])
    plain, steady = (training.curve_of(run, steady=s) for s in (False, True))
    assert steady.seconds.tolist() == pytest.approx(plain.seconds.tolist())
    assert training.measure_efficiency(run, steady=True) == training.measure_efficiency(run)


def test_time_to_target_without_the_hold_up() -> None:
    """The run reaches the target after two epochs of 100 seconds; the reference takes three of 50."""
    run = shared("f", [400.0, 100.0, 100.0, 100.0], [1.8, 1.6, 1.59, 1.58])
    reference = shared("t", [50.0, 50.0, 50.0], [1.8, 1.7, 1.65])
    measured, steady = (
        training.time_to_target([run], [reference], budget=3, steady=s).against_mean[0].ratio
        for s in (False, True)
    )
    assert measured == pytest.approx(500 / 150) and steady == pytest.approx(200 / 150)
    assert training.time_to_target([run], [reference], 3, steady=True).slowdown == pytest.approx(2.0)


def test_speed_without_the_hold_up_but_memory_of_all() -> None:
    run = shared("f", [400.0, 100.0, 100.0], [1.8, 1.7, 1.6])
    found = training.measure_efficiency(run, steady=True)
    assert found["train_tokens_per_s"] == pytest.approx(1000.0) and found["epoch_s"] == pytest.approx(100.0)
    assert found["peak_memory_gb"] == 9.0
    assert training.measure_efficiency(run)["train_tokens_per_s"] == pytest.approx((250 + 1000 + 1000) / 3)


def test_seconds_that_were_not_logged_hold_nobody_up() -> None:
    run = made_up_run("f", [1.8, 1.7], cumulative_s=None)
    assert metrics.slow_epochs(run) == [] and metrics.pace_notes([run]) == []
