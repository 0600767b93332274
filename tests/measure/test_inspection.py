"""All instruments on one run, from Python and from the command line."""

from __future__ import annotations

import csv
import errno
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fsn.cli import main
from fsn.data import Corpus
from fsn.errors import UserError
from fsn.measure import KernelReading, command, inspection, per_token_losses, read_kernel, thinned
from fsn.measure.inspection import PARTS, Part, applicable, inspect_run, shown, write_findings
from fsn.measure.kernel import start_of
from fsn.train import Run, load_run, train
from tests.train.tiny import MODELS, recipe, text

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text and two runs on it."""
    folder = tmp_path_factory.mktemp("inspection")
    (folder / "text.txt").write_bytes(text())
    for name in MODELS:
        train(
            name,
            str(folder / "text.txt"),
            folder / name,
            recipe(epochs=1),
            overrides=MODELS[name],
            quiet=True,
            device="cpu",
        )
    return folder


@pytest.fixture
def runs(place: Path) -> tuple[Run, Run]:
    return load_run(place / "fsn-1m"), load_run(place / "transformer-1m")


@pytest.fixture
def corpus(place: Path) -> Corpus:
    from fsn import data

    return data.load(str(place / "text.txt"))


def test_every_instrument_says_something(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    found = inspect_run(runs[0], corpus, windows=8, cache=str(tmp_path))
    assert [f.part for f in found] == list(PARTS)
    assert all(f.about and f.tables and all(len(t) for t in f.tables.values()) for f in found)
    depth = next(f for f in found if f.part == "depth").tables["depth"]
    assert depth.columns[2:] == ("fsn-1m",) and sum(depth.column("targets")) > 100
    written = write_findings(runs[0], found, tmp_path / "out")
    assert written[0].name == "inspection.md" and all(p.is_file() for p in written)
    page = written[0].read_text("utf-8")
    assert page.startswith("# fsn-1m\n") and all(f.title in page for f in found)
    drawn = re.findall(r"\]\((.+?\.svg)\)", page)
    assert {"coupling.svg", "coupling-history.svg", "lesions.svg", "looks.svg", "states.svg"} == set(drawn)
    assert all((tmp_path / "out" / name).is_file() for name in drawn)


def test_losses_are_those_of_the_weights(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    """With all windows in the standard slice the bins together are the mean loss."""
    windows = (len(corpus.valid) - 32) // 16 + 1
    (found,) = inspect_run(runs[0], corpus, parts=("depth",), windows=windows, cache=str(tmp_path))
    rows = [row for row in found.tables["depth"].rows if row["targets"]]
    whole = per_token_losses(runs[0].load_model("best"), corpus.valid, length=32, stride=16)
    assert sum(row["targets"] for row in rows) == whole.size
    mean = sum(row["targets"] * row["fsn-1m"] for row in rows) / whole.size
    assert mean == pytest.approx(float(whole.mean(dtype=np.float64)), abs=1e-5)


def test_against_another_run(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    ours, theirs = runs
    (found,) = inspect_run(ours, corpus, against=theirs, parts=("depth",), windows=12, cache=str(tmp_path))
    levels, margins = found.tables["depth"], found.tables["margins"]
    for row in levels.rows:
        if row["targets"]:
            margin = margins.where(bin=row["depth"]).rows[0]
            assert margin["margin"] == pytest.approx(row["fsn-1m"] - row["transformer-1m"], abs=1e-5)
            assert margin["low"] <= margin["margin"] <= margin["high"]
    (same,) = inspect_run(ours, corpus, against=ours, parts=("depth",), windows=12, cache=str(tmp_path))
    assert same.tables["depth"].columns[2:] == ("fsn-1m", "fsn-1m (other)")


@pytest.mark.parametrize("part", ["depth", "looks"])
def test_a_run_on_another_text_is_refused_before_anything_is_measured(
    runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path, part: Part
) -> None:
    shutil.copytree(runs[1].folder, tmp_path / "elsewhere")
    settings = tmp_path / "elsewhere" / "config.yaml"
    settings.write_text(settings.read_text("utf-8").replace(corpus.sha256, "0" * 64), encoding="utf-8")
    with pytest.raises(UserError, match="different corpora"):
        inspect_run(runs[0], corpus, parts=(part,), against=load_run(tmp_path / "elsewhere"))


def test_a_transformer_is_asked_for_what_it_has(
    runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path
) -> None:
    assert applicable(runs[1]) == ["depth", "looks", "states"]
    found = inspect_run(runs[1], corpus, windows=8, cache=str(tmp_path))
    assert [f.part for f in found] == ["depth", "looks", "states"]


def test_where_both_runs_look(runs: tuple[Run, Run], corpus: Corpus) -> None:
    (alone,) = inspect_run(runs[0], corpus, parts=("looks",))
    (both,) = inspect_run(runs[0], corpus, parts=("looks",), against=runs[1])
    mine = [row for row in both.tables["looks"].rows if row["model"] == "fsn-1m"]
    assert mine == list(alone.tables["looks"].rows) and len(both.tables["looks"]) == 2 * len(mine)
    assert "transformer-1m" in both.about and "transformer-1m" not in alone.about
    (same,) = inspect_run(runs[0], corpus, parts=("looks",), against=runs[0])
    assert {row["model"] for row in same.tables["looks"].rows} == {"fsn-1m", "fsn-1m (other)"}


def test_lesions_side_by_side(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    (found,) = inspect_run(runs[0], corpus, parts=("lesions",), windows=8, cache=str(tmp_path))
    table = found.tables["lesions"]
    wide = shown("lesions", table)
    assert (
        len(wide) == 4
        and wide.columns[:2] == ("field", "layer")
        and len(table) == 4 * (len(wide.columns) - 2)
    )
    for row in table.rows:
        cell = wide.where(field=row["field"], layer=row["layer"]).rows[0][row["depth"]]
        assert cell == row["rise"] or (np.isnan(cell) and np.isnan(row["rise"]))


def test_the_command(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(
        [
            "inspect",
            str(place / "fsn-1m"),
            "--against",
            str(place / "transformer-1m"),
            "--windows",
            "8",
            "--device",
            "cpu",
        ]
    )
    said = capsys.readouterr().out
    assert "Loss by copy depth, against transformer-1m" in said and "Which field does what" in said
    folder = place / "fsn-1m" / "inspection"
    assert f"written: {folder / 'inspection.md'}" in " ".join(said.split())
    with open(folder / "margins.csv", encoding="utf-8") as file:
        assert {row["run"] for row in csv.DictReader(file)} == {"fsn-1m"}
    assert load_run(place / "fsn-1m").finished, "what is written there does not disturb the run"
    words = [
        "inspect",
        str(place / "transformer-1m"),
        "--windows",
        "8",
        "--out",
        str(tmp_path / "t"),
        "--device",
        "cpu",
    ]
    main(words)
    assert (
        "no coupling and no lesions" in capsys.readouterr().out and (tmp_path / "t" / "states.svg").is_file()
    )


def test_mistakes_get_a_sentence(place: Path, runs: tuple[Run, Run], corpus: Corpus) -> None:
    other = Corpus.from_bytes("other", text(seed=1))
    for broken, sentence in (
        (lambda: inspect_run(runs[0], corpus, windows=3), "too few"),
        (lambda: inspect_run(runs[0], corpus, parts=("copies",)), "choose among coupling, depth"),  # type: ignore[arg-type]
        (lambda: inspect_run(runs[0], other), "trained on"),
    ):
        with pytest.raises(UserError, match=sentence):
            broken()


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_place_that_cannot_be_written_is_told(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the way before anything is measured, a full disk when it fills."""
    (tmp_path / "file").touch()
    words = ["inspect", str(place / "fsn-1m"), "--parts", "coupling", "--device", "cpu", "--out"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(command, "inspect_run", lambda *_, **__: pytest.fail("measured"))
        main([*words, str(tmp_path / "file")])
    said = f"fsn: {tmp_path / 'file'} cannot be written (Not a directory); choose another --out\n"
    assert ended.value.code == 2 and capsys.readouterr().err == said
    monkeypatch.setattr(inspection, "write_text_atomic", full_disk)
    with pytest.raises(SystemExit) as ended:
        main([*words, str(tmp_path / "out")])
    said = f"fsn: {tmp_path / 'out'} cannot be written (No space left on device); choose another --out\n"
    assert ended.value.code == 2 and capsys.readouterr().err == said


def test_the_start_is_what_the_seed_drew(tmp_path: Path) -> None:
    """A run that cannot move ends where it began."""
    still = recipe(seed=3, lr=1e-30, weight_decay=0.0, epochs=1, max_steps=1)
    run = train(
        "fsn-1m", Corpus.from_bytes("tiny", text()), tmp_path / "still", still,
        overrides=MODELS["fsn-1m"], quiet=True, device="cpu",
    )  # fmt: skip
    assert np.allclose(start_of(run).weights, read_kernel(run.load_model("best")).weights, atol=1e-12)


def test_few_of_many_readings_are_first_and_last_and_between() -> None:
    many = [
        KernelReading(np.zeros((2, 1, 1, 1), np.complex128), np.ones(1), np.ones(1), 1.0, 1.0, label=str(i))
        for i in range(31)
    ]
    assert [r.label for r in thinned(many)] == ["0", "4", "9", "13", "17", "21", "26", "30"]
    assert [r.label for r in thinned(many[:3])] == ["0", "1", "2"]
