"""Models over seeds: what counts as one model, pairs by seed, intervals, and `fsn compare`."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fsn import UserError
from fsn.cli import main
from fsn.measure.seeds import CLOSE, Paired, compare, paired
from fsn.paper.needs import Need
from fsn.train import load_run, train
from tests.paper.made_up import write_run
from tests.test_cli import fails
from tests.train.tiny import MODELS, corpus, recipe

FSN, TRANSFORMER = Need("fsn"), Need("transformer")


def seeds(root: Path, need: Need, losses: dict[int, list[float | None]], **options: object) -> list[Path]:
    return [write_run(root, need, bits, seed=seed, **options) for seed, bits in losses.items()]  # type: ignore[arg-type]


def rows(folders: list[Path], reference: Path, epoch: int | None = None) -> dict[str, dict[str, object]]:
    found = compare([load_run(folder) for folder in folders], load_run(reference), epoch)
    return {str(row["model"]): dict(row) for row in found.tables["comparison"].rows}


def test_the_interval_is_students(tmp_path: Path) -> None:
    ours, theirs = {0: 1.60, 1: 1.61, 2: 1.605, 7: 9.0}, {0: 1.63, 1: 1.62, 2: 1.64, 5: 0.0}
    pair = paired(ours, theirs)
    assert list(pair.differences) == [0, 1, 2]
    expected = stats.ttest_rel([1.60, 1.61, 1.605], [1.63, 1.62, 1.64]).confidence_interval(0.95)
    assert pair.mean - pair.half == pytest.approx(expected.low)
    assert pair.mean + pair.half == pytest.approx(expected.high)
    assert pair.apart == (expected.high < 0)


def test_without_scipy_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert math.isnan(Paired({0: 0.1}).half)
    with pytest.raises(UserError, match="needs the package scipy"):
        assert Paired({0: 0.1, 1: 0.2}).half


@pytest.mark.parametrize(
    ("difference", "apart"), [(0.9 * CLOSE, False), (1.1 * CLOSE, True), (-1.1 * CLOSE, True)]
)
def test_single_runs_close_to_each_other_are_not_told_apart(difference: float, apart: bool) -> None:
    pair = Paired({0: difference})
    assert pair.apart is apart and math.isnan(pair.half)


def test_a_model_is_what_differs_in_nothing_but_the_seed(tmp_path: Path) -> None:
    reference, *more = seeds(tmp_path, TRANSFORMER, {0: [1.8, 1.7], 1: [1.82, 1.72]})
    own = seeds(tmp_path, FSN, {0: [1.7, 1.65], 1: [1.75, 1.66], 2: [1.0, 1.0]})
    quick = seeds(tmp_path, FSN, {0: [1.69]}, recipe={"lr": 0.004}, name="quick")
    begun = seeds(tmp_path, FSN, {0: [1.71]}, name="begun")
    text = (begun[0] / "config.yaml").read_text()
    (begun[0] / "config.yaml").write_text(text + "begin_with: {run: a, sha256: 0123456789}\n")
    found = rows([*more, *own, *quick, *begun], reference)
    assert set(found) == {"transformer-1m", "fsn-1m", "fsn-1m, lr 0.004", "fsn-1m, begun with a 0123456"}
    fsn = found["fsn-1m"]
    assert fsn["seeds"] == "0, 1, 2" and fsn["pairs"] == 2 and fsn["trained"] == "2 epochs"
    assert fsn["bits"] == pytest.approx(np.mean([1.65, 1.66, 1.0]))
    assert fsn["difference"] == pytest.approx(np.mean([1.65 - 1.7, 1.66 - 1.72]))
    assert found["transformer-1m"]["difference"] is None
    assert list(found) == sorted(found, key=lambda name: found[name]["bits"])  # type: ignore[arg-type,return-value]


def test_under_a_schedule_the_epochs_are_part_of_the_model(tmp_path: Path) -> None:
    cool = {"schedule": "wsd", "cooldown_epochs": 1.0}
    (short,) = seeds(tmp_path, FSN, {0: [1.7, 1.6]}, recipe=cool, name="short")
    (long,) = seeds(tmp_path, FSN, {1: [1.7, 1.6, 1.5]}, recipe=cool, name="long")
    assert len(rows([long], short)) == 2
    (one,) = seeds(tmp_path, FSN, {0: [1.7, 1.6]}, name="one")
    (other,) = seeds(tmp_path, FSN, {1: [1.7, 1.6, 1.5]}, name="other")
    assert set(rows([other], one)) == {"fsn-1m"}


def test_windows_shorter_than_the_papers_are_no_recipe_of_their_own(tmp_path: Path) -> None:
    short = {"length": 32, "train_stride": 8, "eval_stride": 16}
    (reference,) = seeds(tmp_path, TRANSFORMER, {0: [1.8]}, recipe=short)
    (ours,) = seeds(tmp_path, FSN, {0: [1.7]}, recipe=short)
    assert set(rows([ours], reference)) == {"fsn-1m", "transformer-1m"}
    (other,) = seeds(tmp_path, FSN, {1: [1.7]}, recipe=short | {"eval_stride": 32})
    with pytest.raises(UserError, match=r"were validated on different windows \(--eval-stride 16 and 32\)"):
        rows([other], reference)


def test_an_epoch_that_a_run_has_not_is_left_out(tmp_path: Path) -> None:
    reference, *_ = theirs = seeds(tmp_path, TRANSFORMER, {0: [1.8, 1.7, 1.6], 1: [1.8, 1.7]})
    ours = seeds(tmp_path, FSN, {0: [1.7, 1.6, 1.5], 1: [1.7, None, None]})
    found = rows([*theirs, *ours], reference, epoch=2)
    assert found["fsn-1m"]["bits"] == 1.6 and found["fsn-1m"]["left_out"] == "1"
    assert found["fsn-1m"]["pairs"] == 1 and found["transformer-1m"]["left_out"] is None
    assert rows([*theirs, *ours], reference, epoch=3)["transformer-1m"]["left_out"] == "1"


def test_rounded_curves_are_marked_and_the_better_of_two_counts(tmp_path: Path) -> None:
    (reference,) = seeds(tmp_path, TRANSFORMER, {0: [1.8, 1.7]})
    (old,) = seeds(tmp_path, FSN, {0: [1.7, 1.66]}, valid_precision="bf16", name="a-old")
    found = compare([load_run(old)], load_run(reference))
    assert "†: validated in bfloat16, which adds 0.002 to 0.005 bits" in found.sentence
    assert found.tables["comparison"].column("model") == ["fsn-1m (†)", "transformer-1m"]
    (new,) = seeds(tmp_path, FSN, {0: [1.7, 1.65]}, name="new")
    for folders in ([old, new], [new, old]):
        assert rows(folders, reference)["fsn-1m"]["bits"] == 1.65
    (old_reference,) = seeds(tmp_path, TRANSFORMER, {0: [1.8, 1.7]}, valid_precision="bf16", name="c")
    assert "transformer-1m" in rows([new], old_reference), "a transformer has no coherences to round"


def test_of_two_runs_of_one_seed_the_named_one_counts_and_else_the_further(tmp_path: Path) -> None:
    (short,) = seeds(tmp_path, TRANSFORMER, {0: [1.8]}, name="short")
    (long,) = seeds(tmp_path, TRANSFORMER, {0: [1.8, 1.7]}, name="long")
    for reference, other, bits in ((short, long, 1.8), (long, short, 1.7)):
        assert rows([other, reference], reference)["transformer-1m"]["bits"] == bits
    (ours,) = seeds(tmp_path, FSN, {0: [1.7]})
    for runs in ([short, long], [long, short]):
        assert rows(runs, ours)["transformer-1m"]["bits"] == 1.7


def test_a_run_that_diverged_is_named_and_counts_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    theirs = seeds(tmp_path, TRANSFORMER, {0: [1.8, 1.7], 1: [1.8, 1.75]})
    ours = seeds(tmp_path, FSN, {0: [1.7, 1.6], 1: [1.1, None], 3: [1.5, 1.5]})
    found = rows([*theirs, *ours], theirs[0])["fsn-1m"]
    assert found["bits"] == pytest.approx(1.55) and found["left_out"] == "1" and found["pairs"] == 1
    main(["compare", *map(str, [*theirs, *ours])])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "fsn-1m" in line and "1.55" in line)
    assert "(1 of 2 seeds)" in line and "0, 3 (no loss: 1)" in line


def test_what_rounding_may_have_made_is_not_told_apart(tmp_path: Path) -> None:
    theirs = seeds(tmp_path, TRANSFORMER, {0: [1.7], 1: [1.71], 2: [1.72]})
    for name, added, apart in (("level", 0.0035, False), ("behind", 0.02, True), ("ahead", -0.02, True)):
        losses: dict[int, list[float | None]] = {s: [1.7 + 0.01 * s + added + 1e-4 * s] for s in range(3)}
        ours = seeds(tmp_path / name, FSN, losses, valid_precision="bf16")
        found = rows([*theirs, *ours], theirs[0])["fsn-1m (†)"]
        assert found["apart"] is apart and abs(found["difference"]) > found["half"]  # type: ignore[operator,arg-type]
    new = seeds(tmp_path / "new", FSN, {s: [1.7035 + 0.01 * s + 1e-4 * s] for s in range(3)})
    assert rows([*theirs, *new], theirs[0])["fsn-1m"]["apart"] is True


def test_runs_that_ended_within_their_first_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        out = tmp_path / "runs" / name
        train("fsn-1m", corpus(), out, recipe(max_steps=2, seed=seed), overrides=MODELS["fsn-1m"], quiet=True)
    main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "page")])
    best = [load_run(tmp_path / "runs" / name).best for name in "ab"]
    said, mean = capsys.readouterr().out, np.mean([line["valid_bits"] for line in best if line])
    assert f"{mean:.4f} ± " in said and "2 steps" in said and "0, 1" in said
    assert not (tmp_path / "page" / "losses.svg").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    seeds(runs, TRANSFORMER, {0: [1.8, 1.7], 1: [1.82, 1.75], 2: [1.81, 1.72]})
    seeds(runs, FSN, {0: [1.7, 1.65], 1: [1.75, 1.69], 2: [1.7, 1.66]})
    (empty,) = seeds(runs, FSN, {3: []})
    against = next(path for path in sorted(runs.iterdir()) if "transformer" in path.name)
    main(["compare", str(runs), "--against", str(against), "--out", str(tmp_path / "page")])
    said = capsys.readouterr().out
    assert "1.6667 ± 0.0208" in said and "-0.0567 ± 0.0143" in said and empty.name in said
    with open(tmp_path / "page" / "comparison.csv", encoding="utf-8") as file:
        table = {row["model"]: row for row in csv.DictReader(file)}
    assert float(table["fsn-1m"]["difference"]) == pytest.approx(-0.0566667, abs=1e-6)
    html = (tmp_path / "page" / "comparison.html").read_text(encoding="utf-8")
    assert html.count("<svg") >= 2 and "fsn-1m" in html
    assert (tmp_path / "page" / "differences.svg").is_file() and (tmp_path / "page" / "losses.svg").is_file()
    assert "--epoch must be at least 1" in fails(capsys, "compare", runs, "--epoch", "0")
    assert "not a run folder" in fails(capsys, "compare", tmp_path / "page")
    other = write_run(tmp_path / "other", FSN, [1.0], corpus="codeparrot")
    with pytest.raises(SystemExit):
        main(["compare", str(runs), str(other)])
    assert "different vocabularies" in capsys.readouterr().err
