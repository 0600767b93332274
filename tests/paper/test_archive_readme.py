"""Keeping runs, the README's table, and the two commands."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from fsn.cli import main
from fsn.data import Corpus
from fsn.errors import UserError
from fsn.measure.losses import FILE, stored_losses
from fsn.paper import needs
from fsn.paper.archive import add_measurements, archive_run
from fsn.paper.bench import MEASURED, Bench
from fsn.paper.sections import item_named
from fsn.paper.writing import make_report, write_report
from fsn.train import hashes, load_run, train
from fsn.train.evaluate import read_evaluations
from fsn.train.sweep import read_sweep
from tests.paper.made_up import bench_of, falling, write_run
from tests.paper.tiny import TINY, tiny_bench, train_all
from tests.train.tiny import TINY_FLAGS, text

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "site" / "readme_table.py"))
BEGIN, END, EVALUATIONS, NOTHING = (SCRIPT[name] for name in ("BEGIN", "END", "EVALUATIONS", "NOTHING"))
fill, results_block = SCRIPT["fill"], SCRIPT["results_block"]
READ_WEIGHTS = (
    "copy-depth-so-far",
    "copy-depth",
    "lesions",
    "looks",
    "coupling",
    "synchronization",
    "init-ramp",
)


def test_archive_copies_what_is_worth_keeping(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 2), weights=b"weights", name="a")
    (run / "log.txt").write_text(
        f"run {run} is new\nearlier /scratch/somebody/runs/a: goes on; 1.6/1.5, s/epoch, https://example.org/a/b\n"
    )
    for step in (7, 8):
        (run / "last" / f"step-{step:08d}").mkdir(parents=True)
        (run / "last" / f"step-{step:08d}" / "state.json").write_text('{"lines": {}}')
    (run / "last" / "CURRENT").write_text("step-00000008")
    (run / "tensorboard").mkdir()
    (run / "lock").touch()
    (run / "DONE").write_text("{}")
    target = archive_run(run, tmp_path / "results")
    thin = {"config.yaml", "metrics.jsonl", "environment.json", "log.txt", "DONE", "hashes.json"}
    assert {p.name for p in target.iterdir()} == thin
    assert load_run(target).finished and len(load_run(target).epochs) == 2
    assert (target / "log.txt").read_text() == (
        "run a is new\nearlier a: goes on; 1.6/1.5, s/epoch, https://example.org/a/b\n"
    )
    last = archive_run(run, tmp_path / "results", resume_state=True) / "last"
    assert {p.name for p in last.iterdir()} == {"CURRENT", "step-00000008"}
    kept = {*thin, "best.safetensors", "last"}  # an archive keeps what it had
    assert {p.name for p in archive_run(run, tmp_path / "results", weights=True).iterdir()} == kept
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["a"], "nothing half-made is left"


def test_archive_keeps_few_steps_and_few_kernels(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 12), name="a")
    epochs = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    steps = [json.dumps({"kind": "step", "step": 100 * i, "loss_bits": 2.0}) + "\n" for i in range(1, 61)]
    warning = json.dumps({"kind": "warning", "what": "slow", "step": 50, "epoch": 1}) + "\n"
    (run / "metrics.jsonl").write_text("".join([warning, *steps, *epochs]))
    (run / "kernel").mkdir()
    for epoch in range(1, 13):
        (run / "kernel" / f"epoch-{epoch:04d}.safetensors").touch()
    target = archive_run(run, tmp_path / "results")
    lines = [json.loads(line) for line in (target / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [2000, 4000, 6000]
    assert len([line for line in lines if line["kind"] == "epoch"]) == 12 and lines[0]["kind"] == "warning"
    kept = sorted(int(path.stem[-4:]) for path in (target / "kernel").iterdir())
    assert kept == [1, 2, 5, 11, 12], "the best epoch, the last here, is among them"


def test_the_old_archive_survives_a_rename_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "one", needs.FSN, falling(1.6, 0.3, 2), name="a")
    longer = write_run(tmp_path / "two", needs.FSN, falling(1.6, 0.3, 5), name="a")
    target = archive_run(run, tmp_path / "results")
    rename = Path.rename

    def failing(self: Path, place: Path) -> Path:
        if self.name == "run":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(UserError, match="Input/output error"):
        archive_run(longer, tmp_path / "results")
    assert len(load_run(target).epochs) == 2
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["a"]


def test_archive_keeps_the_longer_of_two_states(tmp_path: Path) -> None:
    first = write_run(tmp_path / "one", needs.FSN, falling(1.6, 0.3, 2), name="a")
    longer = write_run(tmp_path / "two", needs.FSN, falling(1.6, 0.3, 5), name="a")
    target = archive_run(first, tmp_path / "results")
    archive_run(longer, tmp_path / "results")
    assert len(load_run(target).epochs) == 5
    with pytest.raises(UserError, match="longer one is kept"):
        archive_run(first, tmp_path / "results")
    other = write_run(tmp_path / "three", needs.FSN, falling(1.6, 0.3, 9), seed=1, name="a")
    with pytest.raises(UserError, match="holds another run"):
        archive_run(other, tmp_path / "results")
    assert archive_run(other, tmp_path / "results", "b").name == "b"
    with pytest.raises(UserError, match="the archive itself"):
        archive_run(target, tmp_path / "results")


def test_archive_refuses_what_is_broken(tmp_path: Path) -> None:
    run = write_run(tmp_path, needs.FSN, falling(1.6, 0.3, 2))
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[:-9])
    with pytest.raises(UserError, match="middle of a line"):
        archive_run(run, tmp_path / "results")
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="no finished epoch"):
        archive_run(run, tmp_path / "results")
    with pytest.raises(UserError, match="has no last; archive it without asking"):
        archive_run(write_run(tmp_path, needs.KURAMOTO, [1.8]), tmp_path / "results", resume_state=True)
    assert not (tmp_path / "results" / run.name).exists()


@pytest.mark.parametrize("name", ["", ".", "..", "x/y", "a/", "../../escaped"])
def test_archive_takes_plain_names_only(tmp_path: Path, name: str) -> None:
    """A path could lie outside the results, or inside another archived run, which would be lost with it."""
    run = write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 2), name="a")
    with pytest.raises(UserError, match="no plain name; give one without slashes"):
        archive_run(run, tmp_path / "x" / "results", name)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_results_that_cannot_be_written_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was archived before stays."""
    run = write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 2), weights=b"weights", name="a")
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=r"file cannot be written \(Not a directory\); choose another --results"
    ):
        archive_run(run, tmp_path / "file")
    target = archive_run(run, tmp_path / "results", weights=True)
    (run / "kernel").mkdir()
    (run / "kernel" / "epoch-0001.safetensors").touch()
    write_bytes = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.parent.name == "kernel":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(
            UserError, match=r"a cannot be written \(No space left on device\); choose another"
        ):
            archive_run(run, tmp_path / "results")
    assert (target / "best.safetensors").read_bytes() == b"weights"
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["a"]
    assert (archive_run(run, tmp_path / "results") / "kernel" / "epoch-0001.safetensors").is_file()


def test_an_archive_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 2), weights=b"weights", name="a")
    target = archive_run(run, tmp_path / "results")
    before = (target / "hashes.json").read_bytes()
    rename = Path.rename

    def fails(self: Path, place: Path) -> Path:
        if self.name == "run":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(UserError, match=r"cannot be written \(Input/output error\)"):
        archive_run(run, tmp_path / "results")
    assert (target / "hashes.json").read_bytes() == before
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["a"]


def test_an_archive_is_signed_and_takes_no_links(tmp_path: Path) -> None:
    """A link may lead to what is none of the archive's business."""
    run = write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 2), weights=b"weights", name="a")
    target = archive_run(run, tmp_path / "results")
    (target / "metrics.jsonl").write_text((target / "metrics.jsonl").read_text().replace("1.6", "1.5"))
    with pytest.raises(UserError, match=r"metrics\.jsonl is not what the run wrote"):
        load_run(target)
    (tmp_path / "secret").write_text("secret")
    (run / "log.txt").unlink(missing_ok=True)
    (run / "log.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"log\.txt is a symbolic link"):
        archive_run(run, tmp_path / "other")
    assert not (tmp_path / "other" / "a").exists()


def test_losses_kept_beside_a_run_are_the_measured_ones(tmp_path: Path) -> None:
    need = needs.NO_BOUND
    corpus = TINY.load("python-stdlib-text", None)
    overrides, recipe = TINY.overrides(need), TINY.recipe(need, 0)
    run = train(
        "fsn-nobound-1m",
        corpus,
        tmp_path / "runs" / "a",
        recipe,
        overrides=overrides,
        quiet=True,
        device="cpu",
    )
    target = archive_run(run.folder, tmp_path / "results")
    assert add_measurements(target, run.folder, TINY, "cpu", tmp_path / "cache") == [FILE]
    assert not (target / "best.safetensors").exists()
    bench = bench_of(tmp_path / "results", TINY, tmp_path / "nothing")
    archived = bench.run(need)
    measured = bench_of(tmp_path / "runs", TINY, tmp_path / "other").losses(run, "text")
    kept = (target / FILE).read_bytes()
    archive_run(run.folder, tmp_path / "results")
    assert (target / FILE).read_bytes() == kept, "the weights are those it was measured on"
    assert stored_losses(load_run(target), bench.battery("text")) is not None, "and its hash is there"
    assert np.abs(bench.losses(archived, "text") - measured).max() < 0.01, "half precision"
    assert bench.losses(archived, "text").mean() == pytest.approx(measured.mean(), abs=1e-3)
    (target / "best.safetensors").write_bytes(b"other weights")
    assert stored_losses(archived, bench.battery("text")) is None, "they belong to the weights they came from"
    (target / FILE).write_bytes(b"broken")
    with pytest.raises(UserError, match=r"token_losses\.npz is not what the run wrote"):
        stored_losses(archived, bench.battery("text"))
    (target / "hashes.json").unlink()
    assert stored_losses(archived, bench.battery("text")) is None


def test_measurements_of_other_weights_are_not_kept(tmp_path: Path) -> None:
    """A run that went on and got better."""
    run = write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 2), weights=b"weights", name="a")
    target = archive_run(run, tmp_path / "results")
    (target / MEASURED).write_text(json.dumps({"weights": hashlib.sha256(b"weights").hexdigest()}))
    hashes.add(target, MEASURED)
    archive_run(run, tmp_path / "results")
    assert (target / MEASURED).is_file()
    (run / "best.safetensors").write_bytes(b"better")
    archive_run(run, tmp_path / "results")
    assert not (target / MEASURED).exists()


def test_tables_need_neither_text_nor_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is archived with its measurements is all the page reads."""
    need = needs.FSN.seed(0)
    runs, results = tmp_path / "runs", tmp_path / "results"
    train_all(tiny_bench(runs), runs, [need, needs.TRANSFORMER.seed(0)])
    for folder in sorted(runs.iterdir()):
        target = archive_run(folder, results)
        assert add_measurements(target, folder, TINY, "cpu", tmp_path / "cache") == [FILE, MEASURED]
        assert sum(file.stat().st_size for file in target.rglob("*") if file.is_file()) < 1_500_000
    before = {name: item_named(name).compute(tiny_bench(runs, tmp_path / "cache")) for name in READ_WEIGHTS}

    def nothing(self: Bench, role: str) -> Corpus:
        raise AssertionError("the text was read")

    bench = tiny_bench(results, tmp_path / "empty")
    monkeypatch.setattr(Bench, "corpus", nothing)
    for name, result in before.items():
        again = item_named(name).compute(bench)
        for row, other in zip(result.rows, again.rows, strict=True):
            assert row.state == other.state and (row.ours is None) == (other.ours is None), (name, row)
            if row.ours is not None:
                assert other.ours == pytest.approx(row.ours, abs=2e-3), (name, row)
        assert [title for title, _ in again.tables] == [title for title, _ in result.tables]
        assert [picture.name for picture in again.pictures] == [picture.name for picture in result.pictures]
    assert any(row.ours is not None for row in before["lesions"].rows)


def test_block_without_results(tmp_path: Path) -> None:
    assert results_block(tmp_path / "nothing") == NOTHING


def evaluated(results: Path, run: Path, bits: float, split: str = "valid", length: int = 256) -> None:
    line = {
        "run": run.name,
        "which": "best",
        "split": split,
        "length": length,
        "precision": "fp32",
        "bits": bits,
    }
    with open(results / EVALUATIONS, "a") as file:
        file.write(json.dumps({**line, "by_position": [9.0] * (length - 257) + [bits] * 256}) + "\n")


def test_block_shows_evaluated_runs_and_only_comparable_values(tmp_path: Path) -> None:
    fsn = [
        write_run(tmp_path, needs.FSN, falling(1.6, 0.3, 30), seed=seed, valid_precision="bf16")
        for seed in (0, 1)
    ]
    short = write_run(tmp_path, needs.TRANSFORMER, falling(1.69, 0.1, 11), valid_precision="bf16")
    shorter = write_run(tmp_path, needs.NO_PHASES, [1.8, 1.75, 1.7])
    write_run(tmp_path, needs.KURAMOTO, falling(1.7, 0.1, 30), valid_precision="bf16")
    write_run(tmp_path, needs.KV_SHIFT, falling(1.65, 0.1, 30))
    for run, bits in zip(fsn, (1.59, 1.61), strict=True):
        evaluated(tmp_path, run, bits)
        evaluated(tmp_path, run, bits + 1, length=1024)
    evaluated(tmp_path, short, 1.69)
    evaluated(tmp_path, short, 1.68, "test")
    evaluated(tmp_path, shorter, 1.7)
    rows = results_block(tmp_path).splitlines()[2:5]
    assert rows == [
        "| fsn-1m | 30 | 2 | 1.6000 ± 0.0141 | 1.6050 ± 0.0038 |  | 2.6000 ± 0.0141 |",
        "| transformer-kvshift-1m | 30 | 1 | 1.6533 |  |  |  |",
        "| transformer-1m | 11 | 1 | 1.6900 |  | 1.6800 |  |",
    ]
    assert "nophase" not in results_block(tmp_path), "much shorter than the longest"
    assert "kuramoto" not in results_block(tmp_path), "not evaluated in float32"


def test_a_run_archived_at_thirty_and_at_fifty_epochs_has_two_rows(tmp_path: Path) -> None:
    write_run(tmp_path, needs.TRANSFORMER, falling(1.7, 0.1, 30))
    write_run(tmp_path, needs.TRANSFORMER, falling(1.7, 0.1, 50), name="longer")
    rows = [row.split(" | ")[:3] for row in results_block(tmp_path).splitlines()[2:4]]
    assert rows == [["| transformer-1m", "50", "1"], ["| transformer-1m", "30", "1"]]


def test_fill_replaces_only_what_is_between() -> None:
    text = f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    assert fill(text, "new") == f"# Title\n\n{BEGIN}\nnew\n{END}\n\nmore\n"
    with pytest.raises(SystemExit, match="results:begin"):
        fill("no markers", "new")


def test_the_readme_is_up_to_date() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert fill(text, results_block(ROOT / "results")) == text, "run: python docs/site/readme_table.py"


def page_files(docs: Path) -> dict[str, bytes]:
    """The page and every file it shows or stands beside, but for what is not committed."""
    files = [docs / "reproduction.md", *(docs / "reproduction").iterdir()]
    return {path.name: path.read_bytes() for path in files if path.suffix in (".md", ".csv", ".svg")}


def differing(committed: dict[str, bytes], made: dict[str, bytes]) -> list[str]:
    """Files that are not the same to the byte; figures of another Matplotlib are compared in their words."""

    def seen(name: str, data: bytes) -> object:
        if name.endswith(".svg") and DRAWN_BY.findall(committed[name]) != DRAWN_BY.findall(made[name]):
            return re.findall(rb"<title>[^<]*</title>|<!--.*?-->", data, re.DOTALL)[1:]
        return data

    both = committed.keys() & made.keys()
    return sorted(
        (committed.keys() ^ made.keys()) | {n for n in both if seen(n, committed[n]) != seen(n, made[n])}
    )


DRAWN_BY = re.compile(rb"Matplotlib v[\d.]+")


@pytest.mark.slow
def test_the_committed_page_is_what_the_results_give(tmp_path: Path) -> None:
    """Page, tables and figures, from ``results/`` alone, and a byte of any of them that is otherwise is seen."""
    bench = bench_of(ROOT / "results", cache=tmp_path / "cache")
    write_report(make_report(bench), tmp_path)
    committed, made = page_files(ROOT / "docs"), page_files(tmp_path)
    assert not differing(committed, made), "run: fsn reproduce --all --where results"
    shown = set(re.findall(r"\]\(reproduction/([^)]+)\)", committed["reproduction.md"].decode()))
    assert shown and shown <= set(committed)
    for name in (
        "reproduction.md",
        "claims.csv",
        "copy-depth.csv",
        "recipes.csv",
        "dropout-data.csv",
        "looks.svg",
    ):
        data = committed[name]
        at = next(i for i in range(len(data) * 2 // 3, len(data)) if 48 < data[i] < 57)
        false = committed | {name: data[:at] + bytes([data[at] + 1]) + data[at + 1 :]}
        assert differing(false, made) == [name]
    old = {name: data.replace(b"Matplotlib v", b"Matplotlib v0.") for name, data in committed.items()}
    assert not differing(old, made), "drawn by another version, its words are the same"
    assert differing({**old, "looks.svg": old["looks.svg"].replace(b"<!-- ", b"<!-- x", 1)}, made) == [
        "looks.svg"
    ]
    assert differing(committed | {"stale.csv": b""}, made) == ["stale.csv"]


def test_the_list_of_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 30))
    broken = write_run(tmp_path / "results", needs.FSN, [1.7], seed=1)
    (broken / "metrics.jsonl").write_text('{"kind": ')
    main(["reproduce"])
    said = capsys.readouterr()
    assert (
        "0 of 29, 1 begun" in said.out
        and "1 of 8" in said.out
        and "needs none" in said.out
        and "1 run found" in said.out
    )
    left_out = [line for line in said.err.splitlines() if not line.startswith("warning: ")]
    assert len(left_out) == 1 and left_out[0].startswith("left out: ") and "middle of a line" in left_out[0]


def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    main(["reproduce", "early-transfer"])
    said = capsys.readouterr().out
    assert "0 of 2 runs are there" in said and "missing" in said
    assert "fsn train fsn-lean-1m --corpus enwik8 --out runs/fsn-lean-1m-enwik8-seed0 --epochs 11" in said
    main(["reproduce", "claims"])
    said = capsys.readouterr().out
    assert "not run yet" in said and "holds" in said
    assert list(tmp_path.iterdir()) == [], "nothing is written unless a place for it is named"
    main(["reproduce", "early-transfer", "--out", "docs"])
    assert (tmp_path / "docs" / "reproduction" / "early-transfer.csv").is_file()
    main(["reproduce", "early-transfer", "--sweep", "missing.yaml"])
    assert [job.name for job in read_sweep("missing.yaml")] == [
        "fsn-lean-1m-enwik8-seed0",
        "transformer-1m-enwik8-seed0",
    ]
    main(["reproduce", "early-transfer", "--where", "results", "--sweep", "missing.yaml"])
    assert {job.out.parent for job in read_sweep("missing.yaml")} == {Path("runs")}, "not into the archive"
    capsys.readouterr()
    (tmp_path / "file").touch()
    for words, sentence in (
        (["reproduce", "abblations"], "there is no item 'abblations'; did you mean ablations? the items are"),
        (["reproduce", "main", "--all"], "not both"),
        (["archive", "nowhere"], "no run folder"),
        (["reproduce", "--all", "--where", "nowhere"], "there is no folder nowhere"),
        (["reproduce", "parameters", "--where", "nowhere"], "there is no folder nowhere"),
        (["reproduce", "parameters", "--out", "file"], "file cannot be written (Not a directory)"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        error = capsys.readouterr().err
        assert ended.value.code == 2 and sentence in error and error.count("\n") == 1, error
    run = write_run(tmp_path / "runs", needs.FSN, [1.8, 1.75], name="a", valid_precision="bf16")
    main(["archive", str(run), "--name", "kept"])
    assert "results/kept" in capsys.readouterr().out
    assert json.loads((tmp_path / "results" / "kept" / "environment.json").read_text())["device"] == "a GPU"
    evaluated(tmp_path / "results", tmp_path / "results" / "kept", 1.7)
    assert "| fsn-1m | 2 | 1 | 1.7000 |" in results_block(tmp_path / "results")


def test_a_text_that_is_not_here_is_not_fetched(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    with pytest.raises(UserError, match="--fetch gets it"):
        bench.corpus("text")


def test_a_run_is_evaluated_under_the_name_of_its_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On both splits and in windows four times as long, as `fsn eval` does; a second time replaces the lines."""
    (tmp_path / "text.txt").write_bytes(text())
    run, results = tmp_path / "run", tmp_path / "results"
    words = ["--corpus", str(tmp_path / "text.txt"), "--out", str(run), *TINY_FLAGS, "--device", "cpu"]
    main(["train", "fsn-1m", *words, "--model", "k=8", "layers=1", "--max-steps", "2"])
    for _ in range(2):
        main(
            [
                "archive",
                str(run),
                "--name",
                "kept",
                "--results",
                str(results),
                "--evaluate",
                "--device",
                "cpu",
            ]
        )
    lines = read_evaluations(results / EVALUATIONS)
    length = load_run(run).recipe.length
    assert [(line["run"], line["split"], line["length"]) for line in lines] == [
        ("kept", "valid", length),
        ("kept", "test", length),
        ("kept", "valid", 4 * length),
    ]
    capsys.readouterr()
    main(["eval", str(run), "--split", "test", "--as-json", "--device", "cpu"])
    said = json.loads(capsys.readouterr().out)
    assert said["bits"] == lines[1]["bits"] and said["run"] == str(run)
    (results / EVALUATIONS).write_text("3\n")
    with pytest.raises(SystemExit):
        main(
            [
                "archive",
                str(run),
                "--name",
                "kept",
                "--results",
                str(results),
                "--evaluate",
                "--device",
                "cpu",
            ]
        )
    assert "JSON objects" in capsys.readouterr().err


def test_what_a_text_lacks_is_left_out_of_the_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Token files without a test split, and too short for windows four times as long."""
    for name, tokens in (("train", 600), ("val", 100)):
        (np.arange(tokens) % 7).astype(np.uint16).tofile(tmp_path / f"{name}.bin")
    corpus = ["--corpus", str(tmp_path), "--token-dtype", "uint16", "--vocab-size", "7"]
    run, results = tmp_path.parent / f"{tmp_path.name}-run", tmp_path.parent / f"{tmp_path.name}-results"
    words = [*corpus, "--out", str(run), *TINY_FLAGS, "--device", "cpu", "--model", "k=8", "layers=1"]
    main(["train", "fsn-1m", *words, "--max-steps", "2"])
    main(["archive", str(run), "--name", "kept", "--results", str(results), "--evaluate", "--device", "cpu"])
    said = capsys.readouterr().err
    assert said.count("left out: ") == 2 and "test split" in said
    assert [line["split"] for line in read_evaluations(results / EVALUATIONS)] == ["valid"]
