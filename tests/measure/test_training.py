"""What metrics alone can tell: losses at matched epochs, speed and memory, failed seeds."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fsn.errors import UserError
from fsn.measure import training
from fsn.train import Run, load_run
from fsn.train.run import SHIPPED
from tests.measure.example_runs import made_up_run


def test_seed_means_are_sample_statistics() -> None:
    runs = [made_up_run(f"s{i}", [2.0, value]) for i, value in enumerate((1.60, 1.61, 1.62))]
    summary = training.loss_at(runs, 2)
    assert summary.mean == pytest.approx(1.61) and summary.std == pytest.approx(0.01) and summary.count == 3
    (row,) = training.loss_table({"FSN": runs, "none": []}, 2).rows
    assert row["runs"] == "s0, s1, s2" and row["second_half"] == pytest.approx(1.51)
    with pytest.raises(UserError, match="needs 3"):
        training.loss_at(runs, 3)


def test_a_diverged_seed_is_left_out_of_the_mean_and_counted_out() -> None:
    runs = [made_up_run("a", [1.7, 1.6]), made_up_run("b", [1.7, None])]
    summary = training.loss_at(runs, 2)
    assert summary.mean == pytest.approx(1.6) and summary.count == 1
    assert training.loss_at(runs[1:], 2).count == 0
    assert training.best_epoch(runs[1]) == 1


def test_leads_and_crossings() -> None:
    reference = made_up_run("t", [1.8, 1.7, 1.65, 1.62])
    leader = made_up_run("mf", [1.75, 1.69, 1.66, 1.60])
    assert training.epochs_ahead(leader, reference) == 2
    below = made_up_run("fsn", [1.7, 1.6, 1.6, 1.55])
    assert training.epochs_ahead(below, reference) == 4
    crossings = [training.first_at(training.valid_bits(run), 1.61) for run in (leader, below, reference)]
    assert crossings == [4, 2, None]
    assert training.epoch_margins(leader, reference).tolist() == pytest.approx([-0.05, -0.01, 0.01, -0.02])
    assert training.epochs_ahead(made_up_run("late", [1.9, 1.6]), reference) == 0


def test_efficiency_is_the_mean_of_per_epoch_values() -> None:
    run = made_up_run(
        "f", [1.8, 1.7, 1.6], tokens_per_s=[100.0, 300.0, 500.0], peak_memory_gb=[1.0, 3.0, 2.0]
    )
    found = training.measure_efficiency(run)
    assert found["train_tokens_per_s"] == pytest.approx(300) and found["peak_memory_gb"] == 3.0
    assert found["epoch_s"] == pytest.approx(100) and found["eval_tokens_per_s"] == pytest.approx(4000)
    with pytest.raises(UserError, match="finished epochs"):
        training.measure_efficiency(made_up_run("none", []))


def test_a_loss_validated_in_bfloat16_says_so_and_what_it_is_in_float32() -> None:
    run, other = (load_run(SHIPPED / name) for name in ("fsn-1m", "transformer-1m"))
    said = training.rounding(run)
    assert training.valid_bits(run)[training.best_epoch(run) - 1] == pytest.approx(1.6010, abs=5e-5)
    assert "bfloat16" in said and "1.5977 in float32" in said and training.rounding(other) == ""


def test_a_number_that_was_not_logged_is_nan() -> None:
    run = made_up_run("cpu", [1.6], peak_memory_gb=None)
    assert math.isnan(training.measure_efficiency(run)["peak_memory_gb"])


def test_learning_rates_of_runs_in_which_they_change() -> None:
    def with_rates(*rates: float) -> Run:
        lines = [{"kind": "step", "epoch": 1, "step": 10 * i, "lr": lr} for i, lr in enumerate(rates, 1)]
        run = made_up_run("a", [1.7])
        return dataclasses.replace(run, metrics=[*run.metrics, *lines])

    runs = {
        "wsd": with_rates(0.1, 0.1, 0.05),
        "constant": with_rates(0.1, 0.1),
        "old": made_up_run("o", [1.7]),
    }
    found = training.learning_rates(runs)
    assert found.keys() == {"wsd"} and found["wsd"].tolist() == [[10, 0.1], [20, 0.1], [30, 0.05]]
    line = training.draw_learning_rates(found).axes[0].lines[0]
    assert line.get_ydata().tolist() == [0.1, 0.1, 0.05]


@pytest.mark.parametrize(
    ("values", "failed"),
    [
        ({"s0": 1.3421, "s1": 1.5493, "s2": 1.3379}, ["s1"]),  # the paper's code seeds, 256 characters
        ({"s0": 1.1872, "s1": 1.1806, "s2": 1.4100}, ["s2"]),  # and 512
        ({"s0": 1.3421, "s1": 1.3379}, []),
        ({"s0": 1.55, "s1": 1.56, "s2": 1.30}, ["s0", "s1"]),  # two failures do not excuse each other
        ({"s0": 1.9}, []),
        ({"s0": 1.30, "s1": math.nan}, []),
    ],
)
def test_plateaus_flag_the_failed_seeds_and_only_those(values: dict[str, float], failed: list[str]) -> None:
    runs = [made_up_run(name, [None if math.isnan(v) else v, 1.2]) for name, v in values.items()]
    found = training.check_runs(runs)
    assert [name for name, troubles in found.items() if "plateau" in troubles] == failed


def test_runs_of_another_configuration_are_not_siblings() -> None:
    fsn, transformer = made_up_run("fsn", [1.7]), made_up_run("transformer", [2.0])
    transformer.config["model"]["kind"] = "transformer"
    assert not any(training.check_runs([fsn, transformer]).values())
    transformer.config["model"]["kind"] = "fsn"
    transformer.config["recipe"]["seed"] = 1
    found = training.check_runs([fsn, transformer])
    assert [name for name, troubles in found.items() if troubles] == ["transformer"]


def test_divergence_and_worse_than_guessing() -> None:
    sudden = made_up_run("mf-s2", [1.7] * 15 + [1.6564, None])  # healthy through epoch 16, gone at 17
    assert training.check_runs([sudden]) == {"mf-s2": {"divergence": "not finite in epoch 17"}}
    unbounded = made_up_run("nobound", [10.19])  # above log2 205 = 7.68 bits
    ((kind, detail),) = training.check_runs([unbounded])["nobound"].items()
    assert kind == "worse than guessing" and "7.68" in detail
    table = training.health_table([made_up_run("fine", [1.7]), sudden])
    assert table.column("state") == ["healthy", "divergence"]
    assert list(training.check_runs([made_up_run("inf", [math.inf])])["inf"]) == ["divergence"]


def test_the_trainers_own_warning_counts_until_a_resumed_run_gets_past_it() -> None:
    run = made_up_run("mf", [1.7, 1.6])
    run.metrics.append({"kind": "warning", "what": "non-finite", "step": 25, "epoch": 3, "tensor": "logits"})
    assert training.check_runs([run]) == {"mf": {"divergence": "not finite in epoch 3"}}
    healthy = made_up_run("fine", [1.7, 1.6, 1.5])
    summary = training.loss_at([run, healthy], 3)  # the paper's FSN-MF row: two seeds of three
    assert summary.count == 1 and summary.mean == 1.5
    run.metrics.append({"kind": "step", "step": 30, "epoch": 3, "loss_bits": 1.6})
    assert training.check_runs([run]) == {"mf": {}}
    with pytest.raises(UserError, match="needs 3"):
        training.loss_at([run, healthy], 3)
