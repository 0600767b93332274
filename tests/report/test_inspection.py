"""All instruments on one run, from Python and from the command line."""

from __future__ import annotations

import ast
import csv
import errno
import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fsn.measure
from fsn.cli import main
from fsn.data import Corpus, Windows
from fsn.errors import UserError
from fsn.measure import Finding, Subject, Table, inspect_run, read_kernel, token_losses
from fsn.measure import finding as registry
from fsn.measure.coupling import KernelReading, start_of, thinned
from fsn.measure.finding import applicable, instrument, instruments
from fsn.measure.style import require_matplotlib
from fsn.report import inspection
from fsn.report.inspection import write_findings
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


def declared() -> dict[str, str]:
    """The decorators ``@instrument(...)`` of the package's source by the instrument's name, in order of names."""
    found = {}
    for file in Path(fsn.measure.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "instrument":
                    found[ast.literal_eval(decorator.args[0])] = ast.unparse(decorator)
    return dict(sorted(found.items()))


ALL = list(declared())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSN_CACHE", str(tmp_path / "cache"))


def one(name: str, run: Run, corpus: Corpus, **options: Any) -> Finding:
    """What one instrument finds."""
    return inspect_run(Subject(run, corpus, **options), [name])[name]


def test_every_instrument_says_something(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    found = inspect_run(Subject(runs[0], corpus, windows=8))
    assert len(ALL) > 5 and list(found) == ALL == list(instruments())
    assert all(f.sentence and f.tables and all(len(t) for t in f.tables.values()) for f in found.values())
    depth = found["depth"].tables["depth"]
    assert depth.columns[2:] == ("fsn-1m",) and sum(depth.column("targets")) > 100
    written = write_findings("Inspection", runs[0].name, "Two layers.", found, tmp_path / "out")
    assert written[0].name == "inspection.html" and all(p.is_file() for p in written)
    page = written[0].read_text("utf-8")
    assert "<h1>fsn-1m</h1>" in page and "Two layers." in page
    assert all(f'<section id="{name}">' in page for name in ALL)
    assert all(html.escape(f.sentence) in page for f in found.values())
    figures = {name for f in found.values() for name in f.figures}
    assert figures >= {"coupling", "coupling-history", "lesions", "looks", "states", "training", "updates"}
    assert page.count('<div class="scroll"><img') == page.count("data:image/svg+xml;base64,") == len(figures)
    assert all((tmp_path / "out" / f"{name}.svg").is_file() for name in figures)


def test_every_column_has_its_sentence(runs: tuple[Run, Run], corpus: Corpus) -> None:
    found = inspect_run(Subject(runs[0], corpus, runs[1], windows=8))
    bare = [
        f"{name}: {column}"
        for finding in found.values()
        for name, table in finding.tables.items()
        for column in table.columns
        if not table.about.get(column)
    ]
    assert not bare


def test_losses_are_those_of_the_weights(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    """With all windows in the standard slice the bins together are the mean loss."""
    cut = Windows(corpus.valid, 32, 16)
    found = one("depth", runs[0], corpus, windows=len(cut))
    rows = [row for row in found.tables["depth"].rows if row["targets"]]
    whole = token_losses(runs[0].load_model("best"), cut)
    assert sum(row["targets"] for row in rows) == whole.size
    mean = sum(row["targets"] * row["fsn-1m"] for row in rows) / whole.size
    assert mean == pytest.approx(float(whole.mean(dtype=np.float64)), abs=1e-5)


def test_against_another_run(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    ours, theirs = runs
    found = one("depth", ours, corpus, against=theirs, windows=12)
    levels, margins = found.tables["depth"], found.tables["margins"]
    for row in levels.rows:
        if row["targets"]:
            margin = margins.where(bin=row["depth"]).rows[0]
            assert margin["margin"] == pytest.approx(row["fsn-1m"] - row["transformer-1m"], abs=1e-5)
            assert margin["low"] <= margin["margin"] <= margin["high"]
    figure = found.figures["margins"]()
    assert "transformer-1m" in figure.axes[0].get_ylabel(), "the axis says against whom"
    same = one("depth", ours, corpus, against=ours, windows=12)
    assert same.tables["depth"].columns[2:] == ("fsn-1m", "fsn-1m (other)")


def test_time_until_the_other_run_is_reached(runs: tuple[Run, Run], corpus: Corpus) -> None:
    best = min(row["valid_bits"] for row in runs[0].epochs)
    assert f"{best:.4f} bits" in one("training", runs[0], corpus).sentence
    (row,) = one("training", runs[0], corpus, against=runs[1]).tables["crossing"].rows
    target = runs[1].epochs[-1]["valid_bits"]
    assert row["target"] == target and (row["epoch"] == 1) == (runs[0].epochs[0]["valid_bits"] <= target)


@pytest.mark.parametrize("part", ["depth", "looks"])
def test_a_run_on_another_text_is_refused_before_anything_is_measured(
    runs: tuple[Run, Run], corpus: Corpus, part: str
) -> None:
    made = runs[1].config
    elsewhere = Run(runs[1].folder, made | {"corpus": made["corpus"] | {"sha256": "0" * 64}}, runs[1].metrics)
    with pytest.raises(UserError, match="different corpora"):
        one(part, runs[0], corpus, against=elsewhere)


def test_a_transformer_is_asked_for_what_it_has(runs: tuple[Run, Run], corpus: Corpus) -> None:
    has = [name for name, how in declared().items() if "has_coupling" not in how and "has_bounds" not in how]
    assert len(has) < len(ALL) and not {"coupling", "updates"} & set(has)
    assert applicable(runs[1]) == has
    assert list(inspect_run(Subject(runs[1], corpus, windows=8))) == has


def test_where_both_runs_look(runs: tuple[Run, Run], corpus: Corpus) -> None:
    alone, both = one("looks", runs[0], corpus), one("looks", runs[0], corpus, against=runs[1])
    mine = [row for row in both.tables["looks"].rows if row["model"] == "fsn-1m"]
    assert mine == list(alone.tables["looks"].rows) and len(both.tables["looks"]) == 2 * len(mine)
    assert "transformer-1m" in both.sentence and "transformer-1m" not in alone.sentence
    same = one("looks", runs[0], corpus, against=runs[0])
    assert {row["model"] for row in same.tables["looks"].rows} == {"fsn-1m", "fsn-1m (other)"}


def test_documents_that_a_run_keeps_apart_stay_apart(tmp_path: Path) -> None:
    """The bins together are the run's own validation loss, which never looks into another document."""
    corpus = Corpus.from_documents("notes", [text(seed=i)[: 60 + i].decode("latin-1") for i in range(80)])
    run = train(
        "fsn-1m", corpus, tmp_path / "run", recipe(epochs=1, separate_documents=True),
        overrides=MODELS["fsn-1m"], quiet=True, device="cpu",
    )  # fmt: skip
    found = one("depth", run, corpus, windows=10_000)
    rows = [row for row in found.tables["depth"].rows if row["targets"]]
    mean = np.average([row["run"] for row in rows], weights=[row["targets"] for row in rows])
    assert run.best is not None and mean == pytest.approx(run.best["valid_bits"], abs=1e-4)
    mixed = token_losses(run.load_model("best"), Windows(corpus.valid, 32, 16)).mean(dtype=np.float64)
    assert abs(mixed - mean) > 1e-3, "where documents run together it is another number"


def test_lesions_side_by_side(runs: tuple[Run, Run], corpus: Corpus, tmp_path: Path) -> None:
    found = one("lesions", runs[0], corpus, windows=8)
    wide, table = found.tables["lesions"], found.tables["lesions-data"]
    assert len(wide) == 4 and wide.columns[:2] == ("field", "layer")
    assert len(table) == 4 * (len(wide.columns) - 2)
    for row in table.rows:
        cell = wide.where(field=row["field"], layer=row["layer"]).rows[0][row["depth"]]
        assert cell == row["rise"] or (np.isnan(cell) and np.isnan(row["rise"]))


def test_a_new_instrument_is_one_function(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Registered, it is on the page, on the terminal and among the names that a mistake is answered with."""
    instruments()
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))

    @instrument("letters")
    def count(subject: Subject) -> Finding:
        table = Table(
            ("letters",), [{"letters": len(subject.corpus)}], about={"letters": "Number of letters."}
        )
        return Finding("How many letters", f"{len(subject.corpus)} letters.", {"letters": table})

    words = ["inspect", str(place / "fsn-1m"), "--device", "cpu", "--out", str(tmp_path), "--parts"]
    main([*words, "letters"])
    assert "How many letters" in capsys.readouterr().out
    assert "Number of letters." in (tmp_path / "inspection.html").read_text("utf-8")
    with pytest.raises(SystemExit):
        main([*words, "words"])
    assert f"choose among {', '.join(sorted([*ALL, 'letters']))}" in capsys.readouterr().err


def test_the_command(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    start = ["inspect", str(place / "fsn-1m"), "--windows", "8", "--device", "cpu"]
    main([*start, "--against", str(place / "transformer-1m")])
    said = capsys.readouterr().out
    assert "Loss by copy depth, against transformer-1m" in said and "Which field does what" in said
    folder = place / "fsn-1m" / "inspection"
    assert f"written: {folder / 'inspection.html'}" in " ".join(said.split())
    with open(folder / "margins.csv", encoding="utf-8") as file:
        assert {row["run"] for row in csv.DictReader(file)} == {"fsn-1m"}
    assert load_run(place / "fsn-1m").finished, "what is written there does not disturb the run"
    main(["inspect", str(place / "transformer-1m"), *start[2:], "--out", str(tmp_path / "t")])
    lacks = [name for name, decorator in declared().items() if "has_coupling" in decorator]
    assert f"has no data for them: {', '.join(lacks)}" in capsys.readouterr().out
    assert (tmp_path / "t" / "states.svg").is_file()


def test_the_step_is_that_of_the_weights_read(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def trained_on(folder: Path) -> Run:
        run = load_run(folder)
        later = run.epochs[-1] | {"epoch": 2, "step": 999, "valid_bits": 7.0}
        return replace(run, metrics=[*run.metrics, later])

    best = load_run(place / "fsn-1m").step
    monkeypatch.setattr(inspection, "load_run", trained_on)
    for which, step in (("best", best), ("last", 999)):
        words = ["inspect", str(place / "fsn-1m"), "--parts", "training", "--which", which, "--device", "cpu"]
        main([*words, "--out", str(tmp_path / which)])
        assert f", step {step}.</p>" in (tmp_path / which / "inspection.html").read_text("utf-8")


def test_mistakes_get_a_sentence(place: Path, runs: tuple[Run, Run], corpus: Corpus) -> None:
    other = Corpus.from_bytes("other", text(seed=1))
    for broken, sentence in (
        (lambda: Subject(runs[0], corpus, windows=3), "too few"),
        (lambda: one("copies", runs[0], corpus), f"choose among {', '.join(ALL)}"),
        (lambda: Subject(runs[0], other), "trained on"),
    ):
        with pytest.raises(UserError, match=sentence):
            broken()


def test_without_matplotlib_nothing_is_computed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="need matplotlib"):
        require_matplotlib()
    monkeypatch.setattr(inspection, "load_run", lambda *_: pytest.fail("read"))
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(place / "fsn-1m")])
    assert ended.value.code == 2 and "pip install" in capsys.readouterr().err


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_place_that_cannot_be_written_is_told(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the way before anything is measured, a full disk when it fills."""
    (tmp_path / "file").touch()
    words = ["inspect", str(place / "fsn-1m"), "--parts", "coupling", "--device", "cpu", "--out"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(inspection, "inspect_run", lambda *_, **__: pytest.fail("measured"))
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
