"""Whatever stands in a config, a line of metrics, a sweep or a command line: it works, or it is one sentence."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsn.cli import main
from fsn.errors import UserError
from fsn.io import parse_json, parse_yaml
from fsn.train import load_run
from fsn.train.recipe import Recipe, parse_fields
from fsn.train.sweep import read_sweep

QUICK = settings(
    max_examples=40,
    deadline=10_000,  # milliseconds: bounded, and no accident of a busy machine
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["auto", "1e-3", "2020-01-01", "~nosuchuser", "[", "\x1b[31m", "../..", "\0", "😀", "nan"]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
LETTERS = "abcdefghijklmnopqrstuvw"
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise(LETTERS))
"""Four million values in twenty lines."""
texts = st.text(max_size=60) | st.sampled_from(
    [
        "[" * 5000,
        "{a: " * 3000,
        BOMB,
        "&a [*a]",
        "!!int x",
        "!!python/object/apply:os.system [true]",
        "2020-13-45",
        "a: 1\na: 2",
        "? [1, 2]\n: 3",
        "1" * 5000,
        "\x00",
        "%YAML 9.9\n---\n",
        "a: !!binary x",
        "<<: 3",
    ]
)


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    """A run folder that anybody may write into: without hashes."""
    folder = Path(shutil.copytree(reference, tmp_path / "run", dirs_exist_ok=True))
    (folder / "hashes.json").unlink()
    return folder


def read(folder: Path) -> None:
    """Everything that a table reads of a run."""
    run = load_run(folder)
    _ = (
        run.epochs,
        run.validations,
        run.best,
        run.step,
        run.warnings,
        run.encoding,
        run.recipe,
        run.model_config,
    )


@QUICK
@given(text=texts)
def test_any_text_as_yaml_and_json(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        with contextlib.suppress(UserError):
            json.dumps(parse(text, "it"), default=_refuse)


def _refuse(value: Any) -> None:
    raise AssertionError(f"{value!r} is no plain value")


@contextlib.contextmanager
def replaced(file: Path, text: str) -> Iterator[None]:
    """Another text in a file, for as long as it is read; a refusal in one sentence is fine."""
    before = file.read_bytes()
    file.write_text(text, encoding="utf-8", errors="replace")
    try:
        with contextlib.suppress(UserError):
            yield
    finally:
        file.write_bytes(before)


@QUICK
@given(
    section=st.sampled_from(["model", "recipe", "corpus", "format", "preset"]), value=values, data=st.data()
)
def test_any_value_in_a_config(run: Path, section: str, value: Any, data: st.DataObject) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    if isinstance(config[section], dict) and data.draw(st.booleans()):
        config[section][data.draw(st.sampled_from(sorted(config[section])))] = value
    else:
        config[section] = value
    with replaced(run / "config.yaml", yaml.safe_dump(config, allow_unicode=True)):
        read(run)


@QUICK
@given(
    text=texts, name=st.sampled_from(["config.yaml", "metrics.jsonl", "timings.jsonl", "environment.json"])
)
def test_any_text_in_a_file(run: Path, text: str, name: str) -> None:
    with replaced(run / name, text):
        read(run)
        _ = load_run(run).environment


@QUICK
@given(
    line=st.dictionaries(st.sampled_from(["kind", "step", "epoch", "valid_bits", "complete", "x"]), values),
    kind=st.sampled_from(["epoch", "valid", "step", "warning"]),
)
def test_any_line_of_metrics(run: Path, line: dict[str, Any], kind: str) -> None:
    before = (run / "metrics.jsonl").read_text(encoding="utf-8")
    with replaced(run / "metrics.jsonl", before + json.dumps({"kind": kind, **line}) + "\n"):
        read(run)


@QUICK
@given(plan=st.dictionaries(st.sampled_from(["out", "defaults", "grid", "runs", "x"]), values) | values)
def test_any_sweep(tmp_path: Path, plan: Any) -> None:
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump(plan, allow_unicode=True), encoding="utf-8", errors="replace"
    )
    with contextlib.suppress(UserError):
        read_sweep(tmp_path / "sweep.yaml")


@QUICK
@given(text=texts)
def test_any_text_as_a_sweep(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(UserError):
        read_sweep(tmp_path / "sweep.yaml")


@QUICK
@given(name=st.sampled_from(sorted(Recipe.__dataclass_fields__)), value=values)
def test_any_value_in_a_recipe(name: str, value: Any) -> None:
    with contextlib.suppress(UserError):
        Recipe.from_dict({name: value})
    with contextlib.suppress(UserError):
        parse_fields((f"{name}={value}",))


WORDS = [
    "--out",
    "--lr",
    "--model",
    "--seed",
    "--budget-minutes",
    "--resume",
    "--epochs",
    "--begin-with",
    "--which",
]
WORDS += [
    "--corpus",
    "--length",
    "--batch-size",
    "--extend",
    "--symbols",
    "--as-json",
    "--dry-run",
    "--top-k",
    "train",
]
WORDS += [
    "k=8",
    "k=100000000",
    "nan",
    "1e400",
    "-1",
    "must",
    "1" + "0" * 23,
    "/dev/zero",
    "last",
    "fsn-1m",
    "~nosuchuser/x",
]


@settings(max_examples=25, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.sampled_from(["eval", "generate", "sweep", "train"]),
    words=st.lists(st.sampled_from(WORDS), max_size=6),
)
def test_any_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    with (
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
        pytest.raises(SystemExit) as end,
    ):
        main([command, *words, "--corpus", "no such text"] if command == "train" else [command, *words])
        raise SystemExit(0)
    lines = said.getvalue().splitlines()
    assert end.value.code in (0, 2) and (
        end.value.code == 0 or (len(lines) == 1 and lines[0].startswith("fsn: "))
    )
