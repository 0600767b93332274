"""Time to a target loss, checked on curves whose crossings are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fsn.errors import UserError
from fsn.measure import training
from tests.measure.example_runs import made_up_run


def reach(epoch: int, target: float, rate: float = 0.004, epochs: int = 30) -> list[float]:
    """A straight curve that first touches ``target`` exactly at the end of ``epoch``."""
    return [target + rate * (epoch - 1 - i) for i in range(epochs)]


def test_ratios_of_known_crossings() -> None:
    """3.68 times slower per epoch, 10 of 30 epochs needed: 3.68 · 10 / 30 = 1.23, the row of the paper."""
    transformers = [
        made_up_run(f"t{i}", np.linspace(1.8, end, 30)) for i, end in enumerate((1.62, 1.63, 1.61))
    ]
    mean = np.mean([1.62, 1.63, 1.61])
    runs = [made_up_run(f"f{e}", reach(e, mean), epoch_s=368.0) for e in (8, 10, 12)]
    found = training.time_to_target(runs, transformers, label="1M")
    assert found.slowdown == pytest.approx(3.68)
    assert [c.epoch for c in found.against_mean] == [8, 10, 12]
    assert [c.ratio for c in found.against_mean] == pytest.approx([3.68 * e / 30 for e in (8, 10, 12)])
    (row,) = training.wallclock_table([found]).rows
    assert row["vs_mean"] == pytest.approx(1.2267, abs=1e-4) and row["seeds"] == "3 × 3"
    assert (row["vs_mean_min"], row["vs_mean_max"]) == pytest.approx((0.9813, 1.472), abs=1e-4)
    # the lowest seed is t2 at 1.61, ten millibits below the mean: two and a half epochs later
    assert {c.reference for c in found.against_lowest} == {"t2"}
    assert [c.epoch for c in found.against_lowest] == [11, 13, 15]
    np.testing.assert_allclose(found.targets, [1.62, 1.63, 1.61])


def test_rates_and_gain_after_the_crossing() -> None:
    reference = made_up_run("t", [1.9 - 0.001 * i for i in range(30)])
    run = made_up_run("f", reach(10, 1.871, rate=0.005))
    (crossing,) = training.time_to_target([run], [reference]).against_mean
    assert crossing.rate_mbit == pytest.approx(5) and crossing.reference_rate_mbit == pytest.approx(1)
    assert crossing.gain_after == pytest.approx(0.005 * 20)
    (row,) = training.crossing_table([crossing]).rows
    assert row["rate_mbit"] == pytest.approx(5.0) and row["epoch"] == 10


def test_a_loss_is_reached_at_the_end_of_an_epoch_or_never() -> None:
    curve = training.Curve("c", np.array([10.0, 20.0, 30.0]), np.array([2.0, 1.0, 0.5]))
    assert training.first_at(curve.loss, 1.25) == 2 and training.first_at(curve.loss, 0.1) is None
    assert math.isnan(training.Curve("one", np.ones(1), np.ones(1)).rate(1))


def test_never_reaching_counts_as_infinite() -> None:
    reference = made_up_run("t", np.linspace(1.8, 1.6, 30))
    good, bad = made_up_run("good", reach(5, 1.6)), made_up_run("bad", [1.7] * 30)
    found = training.time_to_target([good, bad], [reference])
    (row,) = training.wallclock_table([found]).rows
    assert row["vs_mean"] == math.inf and row["vs_mean_max"] == math.inf and math.isfinite(row["vs_mean_min"])
    never = found.against_mean[1]
    assert never.epoch is None and math.isnan(never.gain_after) and math.isnan(never.rate_mbit)
    assert "∞" in training.wallclock_table([found]).to_markdown()
    assert "—" in training.crossing_table([never]).to_markdown()


def test_a_run_still_going_counts_up_to_where_it_got() -> None:
    """The paper's 8M rung: fourteen FSN epochs against a finished transformer."""
    reference = made_up_run("t", np.linspace(1.8, 1.6, 30))
    run = made_up_run("f", reach(7, 1.6, epochs=14), epoch_s=300.0)
    found = training.time_to_target([run], [reference])
    assert found.slowdown == pytest.approx(3.0) and found.against_mean[0].ratio == pytest.approx(0.7)


def test_an_epoch_cut_short_is_no_epoch() -> None:
    losses = [1.9, 1.8, 1.7]
    cut = made_up_run("f", losses, complete=[True, True, False])
    assert len(training.curve_of(cut).loss) == 2
    with pytest.raises(UserError, match="2 finished epochs"):
        training.time_to_target([cut], [cut], budget=3)


def test_diverged_references_and_missing_seconds_are_refused() -> None:
    run = made_up_run("f", [1.7] * 3)
    with pytest.raises(UserError, match="diverged"):
        training.time_to_target([run], [made_up_run("t", [1.8, 1.7, None])], budget=3)
    with pytest.raises(UserError, match="cumulative_s"):
        training.time_to_target([made_up_run("f", [1.7] * 3, cumulative_s=None)], [run], budget=3)
    with pytest.raises(UserError, match="at least one"):
        training.time_to_target([], [run])


def test_mean_curve_stops_with_the_shortest() -> None:
    a = training.Curve("a", np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    b = training.Curve("b", np.array([3.0, 4.0]), np.array([1.0, 0.0]))
    mean = training.mean_curve([a, b])
    assert mean.seconds.tolist() == [2.0, 3.0] and mean.loss.tolist() == [2.0, 1.0]
