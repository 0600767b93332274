"""Runs are found by what they are; what cannot be used is left out with one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fsn.errors import UserError
from fsn.measure.metrics import first_epochs
from fsn.paper import needs
from fsn.paper.bench import Bench, sweep_text
from fsn.paper.needs import Need, epochs_of
from fsn.paper.rows import FAILS_SO_FAR, HOLDS_SO_FAR, NOT_RUN, OPEN, Row, Verdict, judge
from fsn.paper.sections import CLAIMS, ITEMS, item_named, needs_of
from fsn.paper.writing import Report, top_markdown
from fsn.train.run import identity
from fsn.train.sweep import read_sweep
from tests.paper.made_up import bench_of, falling, write_run

ROOT = Path(__file__).resolve().parents[2]
FSN = Need("fsn", (0,), epochs=2)
BY_NAME = {claim.name: claim for claim in CLAIMS}


def test_found_by_config_not_by_name(tmp_path: Path) -> None:
    write_run(tmp_path, FSN, [1.8, 1.7], name="whatever")
    bench = Bench.open([tmp_path])
    run = bench.reached(FSN, 0)
    assert run is not None and run.name == "whatever"
    for other in (
        Need("fsn-nophase", epochs=2),
        Need("transformer", epochs=2),
        Need("fsn", epochs=2, size="2m"),
        Need("fsn", epochs=2, role="code"),
        Need("fsn", epochs=2, length=512),
        Need("fsn", epochs=2, overrides=(("feedforward", "none"),)),
    ):
        assert bench.find(other, 0) is None, other
    assert bench.find(FSN, 1) is None


@pytest.mark.parametrize("field", [{"lr": 2e-3}, {"batch_size": 32}, {"train_stride": 32}, {"clip": 0.5}])
def test_another_recipe_is_another_experiment(tmp_path: Path, field: dict[str, float]) -> None:
    write_run(tmp_path, FSN, [1.8, 1.7], recipe=field)
    assert Bench.open([tmp_path]).find(FSN, 0) is None


def test_precision_and_engine_may_differ(tmp_path: Path) -> None:
    write_run(tmp_path, FSN, [1.8, 1.7], recipe={"precision": "fp32", "engine": "eager", "log_steps": 7})
    assert Bench.open([tmp_path]).reached(FSN, 0) is not None


def test_a_longer_run_serves_unless_its_weights_are_of_a_later_epoch(tmp_path: Path) -> None:
    write_run(tmp_path, FSN, falling(1.6, 0.2, 12))
    write_run(tmp_path, needs.LEAN, falling(1.6, 0.2, 12), name="lean-12")
    bench = Bench.open([tmp_path])
    assert bench.reached(FSN, 0) is not None and bench.reached(needs.LEAN, 0) is not None
    assert bench.reached(FSN.after(30), 0) is None
    assert bench.reached(needs.LEAN.best, 0) is None, "its best weights are not those of eleven epochs"
    write_run(tmp_path, needs.LEAN, [*falling(1.6, 0.2, 11), 1.7], name="lean-worse-in-the-end")
    found = Bench.open([tmp_path]).reached(needs.LEAN.best, 0)
    assert found is not None and found.name == "lean-worse-in-the-end"


def test_a_run_that_went_on_changes_nothing_of_thirty_epochs(tmp_path: Path) -> None:
    """What asks for thirty epochs of a curve says the same whether a run has thirty or fifty, and better ones."""
    models = [need.after(30) for need in (needs.FSN, needs.TRANSFORMER, needs.NO_PHASES, needs.MEAN_FIELD)]
    for need in (*models, needs.CODE_FSN, needs.CODE_TRANSFORMER):
        losses = falling(1.6 + 0.01 * len(need.family), 0.3, 30)
        write_run(tmp_path / "thirty", need, losses)
        write_run(tmp_path / "fifty", need, [*losses, *(loss - 0.2 for loss in losses[:20])])

    def short(wanted: Iterable[Need]) -> bool:
        return all(need.epochs <= 30 and need.reads == "curve" for need in wanted)

    def said(bench: Bench) -> tuple[list[Row], dict[str, Verdict]]:
        items = [item for item in ITEMS if short(item.needs) and item.where != "beyond the paper"]
        rows = [row for item in items for row in item.compute(bench).rows]
        verdicts = {claim.name: judge(claim, bench) for claim in CLAIMS if claim.needs and short(claim.needs)}
        del verdicts["no-transformer-reaches-fsn"]  # however long it trains
        return [row for row in rows if "50" not in row.quantity], verdicts

    (rows, verdicts), (rows_after, verdicts_after) = (
        said(bench_of(tmp_path / name)) for name in ("thirty", "fifty")
    )
    assert list(map(repr, rows)) == list(map(repr, rows_after)), "as words: two NaN are not equal"
    assert verdicts == verdicts_after
    assert sum(row.ours is not None for row in rows) > 40
    assert sum(verdict.state != NOT_RUN for verdict in verdicts.values()) > 8


ROUNDED_RUNS = (needs.FSN.seed(0), needs.NO_PHASES.seed(0), needs.KURAMOTO.seed(0))


def rounded_bench(root: Path, fsn: float = 1.6) -> Bench:
    """Oscillator models validated in bfloat16, a transformer in float32: after 30 epochs 1.61, 1.66, 1.71 and 1.63."""
    for need, end in zip(ROUNDED_RUNS, (fsn, 1.65, 1.7), strict=True):
        write_run(root, need, falling(end, 0.3, 30), valid_precision="bf16")
    write_run(root, needs.TRANSFORMER, falling(1.62, 0.3, 30))
    return bench_of(root)


def test_what_rests_on_a_rounded_curve_is_marked(tmp_path: Path) -> None:
    bench = rounded_bench(tmp_path)
    rows = {row.quantity: row for row in item_named("main").compute(bench).rows if row.ours is not None}
    assert rows["FSN"].cells[2] == "1.6100†" and rows["Transformer"].cells[2] == "1.6300"
    rows = {row.quantity: row for row in item_named("ablations").compute(bench).rows if row.ours is not None}
    assert rows["no phases minus FSN, epoch 30"].cells[2] == "+0.0500", "of two such curves it cancels"
    rows = {row.quantity: row for row in item_named("efficiency").compute(bench).rows if row.ours is not None}
    assert rows and not any(row.rounded for row in rows.values()), "seconds are no bits"
    names = {row.quantity: row.cells[2] for row in item_named("recipes").compute(bench).rows}
    assert names["fsn-1m"].endswith("†") and not names["transformer-1m"].endswith("†")
    assert "†: validated in bfloat16" in top_markdown(Report(bench, [], []))
    assert "†" not in top_markdown(Report(bench_of(tmp_path / "nothing"), [], []))


@pytest.mark.parametrize(("ahead", "state"), [(0.012, HOLDS_SO_FAR), (-0.002, OPEN), (-0.012, FAILS_SO_FAR)])
def test_no_verdict_hangs_on_the_precision_of_a_validation(tmp_path: Path, ahead: float, state: str) -> None:
    """An FSN whose bfloat16 loss is 0.002 above the transformer's may be below it in float32."""
    rounded_bench(tmp_path, 1.62 - ahead)
    write_run(tmp_path, needs.FSN, falling(1.62 - ahead, 0.3, 30), seed=1, valid_precision="bf16")
    write_run(tmp_path, needs.TRANSFORMER, falling(1.62, 0.3, 30), seed=1)
    found = judge(BY_NAME["below-at-matched-epochs"], bench_of(tmp_path))
    assert found.state == state and "†" in found.evidence
    assert found.evidence.startswith("needs a curve validated in float32: ") == (state == OPEN)


def test_a_best_value_is_that_of_the_stored_weights_in_float32(tmp_path: Path) -> None:
    bench = rounded_bench(tmp_path)
    run = bench.run(needs.FSN.seed(0))
    assert bench.lowest(run) == pytest.approx(1.61), "not evaluated"
    line = {
        "run": run.name,
        "which": "best",
        "split": "valid",
        "precision": "fp32",
        "length": 256,
        "stride": 128,
        "bits": 1.606,
    }
    others = (
        {"split": "test"},
        {"length": 1024},
        {"stride": 64},
        {"precision": "bf16"},
        {"which": "last"},
        {"run": "another"},
    )
    lines = [*({**line, **other, "bits": 0.0} for other in others), line]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    bench = bench_of(tmp_path)
    assert bench.lowest(run) == 1.606
    assert bench.lowest(first_epochs(run, 10)) == pytest.approx(1.63), "those weights are of another epoch"
    assert bench.lowest(bench.run(needs.TRANSFORMER.seed(0))) == pytest.approx(1.63)
    (run.folder / "best.safetensors").write_bytes(b"other weights")
    assert bench_of(tmp_path).lowest(run) == 1.606, "it names no weights"
    (run.folder / "best.safetensors").unlink()
    another = {**line, "bits": 0.0, "weights_sha256": "its", "run_sha256": "another run of that name"}
    own = {**line, "weights_sha256": "kept elsewhere", "run_sha256": identity(run.config)}
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (another, own)))
    assert bench_of(tmp_path).lowest(run) == 1.606
    (run.folder / "best.safetensors").write_bytes(b"other weights")
    (tmp_path / "evaluations.jsonl").write_text(json.dumps({**line, "weights_sha256": "others"}))
    assert bench_of(tmp_path).lowest(run) == pytest.approx(1.61), "it names other weights"


def test_of_two_runs_as_long_that_validated_in_float32_serves(tmp_path: Path) -> None:
    """Whatever they are called, and wherever they lie."""
    write_run(tmp_path / "results", FSN, [1.8, 1.705], name="a", valid_precision="bf16")
    write_run(tmp_path / "runs", FSN, [1.8, 1.7], name="b")
    run = Bench.open([tmp_path]).reached(FSN, 0)
    assert run is not None and run.name == "b"
    write_run(tmp_path / "runs", FSN, [1.8, 1.7, 1.69], name="c", valid_precision="bf16")
    run = Bench.open([tmp_path]).find(FSN, 0)
    assert run is not None and run.name == "c", "the furthest"


def test_the_furthest_run_of_a_seed_is_taken(tmp_path: Path) -> None:
    write_run(tmp_path, FSN, [1.8, 1.7], name="short")
    write_run(tmp_path / "deep" / "er", FSN, [1.8, 1.7, 1.6], name="long")
    bench = Bench.open([tmp_path])
    run = bench.find(FSN, 0)
    assert run is not None and run.name == "long" and epochs_of(run) == 3
    assert [r.name for r in bench.matching(FSN, 0)] == ["long", "short"]


def test_a_run_that_diverged_counts_as_run(tmp_path: Path) -> None:
    write_run(tmp_path, needs.MEAN_FIELD, [1.8, 1.7, None])
    assert Bench.open([tmp_path]).reached(needs.MEAN_FIELD, 0) is not None


def test_what_cannot_be_used_is_said_in_one_sentence(tmp_path: Path) -> None:
    good = write_run(tmp_path, FSN, [1.8, 1.7], name="good")
    old = write_run(tmp_path, FSN, [1.8], name="old")
    cut = write_run(tmp_path, FSN, [1.8, 1.7], name="cut")
    strange = write_run(tmp_path, FSN, [1.8], name="strange")
    holes = write_run(tmp_path, FSN, [1.8, 1.7, 1.6], name="holes")
    config = yaml.safe_load((old / "config.yaml").read_text())
    (old / "config.yaml").write_text(yaml.safe_dump({**config, "format": 7}))
    config["model"]["windmills"] = 3
    (strange / "config.yaml").write_text(yaml.safe_dump(config))
    text = (cut / "metrics.jsonl").read_text()
    (cut / "metrics.jsonl").write_text(text[:-20])
    lines = (holes / "metrics.jsonl").read_text().splitlines(keepends=True)
    (holes / "metrics.jsonl").write_text(lines[0] + lines[2])
    bench = Bench.open([tmp_path])
    assert [run.name for run in bench.found] == [good.name]
    said = {name: [s for s in bench.refused if name in s] for name in ("old", "cut", "holes", "windmills")}
    assert all(len(sentences) == 1 and "\n" not in sentences[0] for sentences in said.values()), said
    assert "format 7" in said["old"][0] and "middle of a line" in said["cut"][0]


def test_a_text_that_was_cut_off_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    whole = (ROOT / "results" / "texts" / "enwik8.npz").read_bytes()
    for kept in (0, 3000):
        (tmp_path / "texts" / "enwik8.npz").write_bytes(whole[:kept])
        with pytest.raises(UserError, match=r"enwik8\.npz cannot be read .*; restore it, or delete it"):
            bench_of(tmp_path).text("text")


def test_one_text_in_each_role(tmp_path: Path) -> None:
    code = needs.CODE_FSN.after(1)
    write_run(tmp_path, code, [1.3], corpus="pypi-python", name="a")
    write_run(tmp_path, code, [1.3], corpus="pypi-python", seed=1, name="b")
    write_run(tmp_path, code, [1.3], corpus="codeparrot", seed=2, name="c")
    bench = Bench.open([tmp_path])
    assert bench.corpus_name("code") == "pypi-python"
    assert bench.corpus_said("code") == "pypi-python in place of codeparrot"
    assert any("pypi-python" in note and "codeparrot" in note for note in bench.notes)
    assert len(bench.refused) == 1 and "another text" in bench.refused[0]
    assert bench.reached(code, 2) is None and bench.reached(code, 1) is not None


def test_the_papers_own_corpus_wins_a_tie(tmp_path: Path) -> None:
    code = needs.CODE_FSN.after(1)
    write_run(tmp_path, code, [1.3], corpus="pypi-python", name="a")
    write_run(tmp_path, code, [1.3], corpus="codeparrot", name="b")
    assert Bench.open([tmp_path]).corpus_name("code") == "codeparrot"


def test_the_code_corpus_can_be_named(tmp_path: Path) -> None:
    code = needs.CODE_FSN.after(1)
    write_run(tmp_path, code, [1.3], corpus="codeparrot", name="a")
    bench = Bench.open([tmp_path], prefer={"code": "pypi-python"})
    assert bench.corpus_name("code") == "pypi-python" and bench.stands_in("code")
    assert not bench.found and len(bench.refused) == 1
    write_run(tmp_path, code, [1.3], corpus="pypi-python", name="b")
    assert [run.name for run in Bench.open([tmp_path], prefer={"code": "pypi-python"}).found] == ["b"]
    assert [run.name for run in Bench.open([tmp_path], prefer={"code": "codeparrot"}).found] == ["a"]


def test_standing_counts_each_run_once(tmp_path: Path) -> None:
    write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 30))
    write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 4), seed=1)
    bench = bench_of(tmp_path)
    standing = bench.standing([needs.FSN, needs.FSN_CONVERGED])
    assert standing.total == 5 and not standing.complete
    assert len(standing.there) == 0 and len(standing.begun) == 2, "seed 0 is wanted for fifty epochs too"
    said = standing.absent()
    assert "seeds 3, 4, 30 epochs" in said and "seed 1, 50 epochs (has 4)" in said
    assert len(bench.standing([needs.FSN]).there) == 1


def test_missing_runs_as_jobs_of_a_sweep(tmp_path: Path) -> None:
    write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 4), seed=1)
    wanted = [needs.FSN.seed(0, 1), needs.FSN_CONVERGED.seed(1), needs.NO_FEEDFORWARD, needs.LONG_FSN]
    jobs = {job.name: job for job in bench_of(tmp_path).standing(wanted).jobs(tmp_path)}
    assert {name: (job.recipe.seed, job.recipe.epochs, job.extend) for name, job in jobs.items()} == {
        "fsn-1m-text-s1": (1, 50, True),
        "fsn-1m-enwik8-seed0": (0, 30, False),
        "fsn-1m-feedforward-none-enwik8-seed0": (0, 10, False),
        "fsn-1m-codeparrot-length512-seed0": (0, 30, False),
    }, "what was begun goes on where it is"
    assert jobs["fsn-1m-enwik8-seed0"].arguments()[:3] == ["fsn-1m", "--corpus", "enwik8"]
    assert jobs["fsn-1m-feedforward-none-enwik8-seed0"].arguments()[-2:] == ["--model", "feedforward=none"]
    assert jobs["fsn-1m-codeparrot-length512-seed0"].recipe.length == 512
    file = tmp_path / "sweep.yaml"
    file.write_text(sweep_text(list(jobs.values()), "What is missing.", tmp_path))
    read = {job.name: job for job in read_sweep(file)}
    assert {name: replace(job, extend=False) for name, job in jobs.items()} == read, (
        "a sweep makes the same runs"
    )


def test_the_committed_sweep_is_what_the_results_still_lack() -> None:
    """``fsn sweep sweeps/paper.yaml`` makes just the runs that items and claims ask for and ``results/`` has not."""
    jobs = bench_of(ROOT / "results").standing(needs_of()).jobs(Path("runs"))
    assert read_sweep(ROOT / "sweeps" / "paper.yaml") == [replace(job, extend=False) for job in jobs], (
        "run: fsn reproduce --where results --sweep sweeps/paper.yaml"
    )


def test_what_says_the_most_is_trained_first(tmp_path: Path) -> None:
    write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 50))
    write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 4), seed=2)
    jobs = bench_of(tmp_path).standing(needs_of()).jobs(tmp_path)
    names = [job.name.replace("-enwik8", "") for job in jobs[:6]]
    assert names == [
        *("fsn-1m-seed1", "fsn-1m-text-s2", *(f"transformer-1m-seed{seed}" for seed in (0, 1, 2))),
        "transformer-kvshift-1m-seed0",
    ], "begun or not"
    asked = {need for item in ITEMS for need in item.needs} | {
        need for claim in CLAIMS for need in claim.needs
    }
    every = bench_of(tmp_path).standing(asked)
    assert len(jobs) == len(every.rest), "the order asks for nothing of its own"
