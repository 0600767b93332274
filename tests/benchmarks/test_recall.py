"""Recall: generators against their sources, answers only where a query stands, a grid that goes on where it was."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.recall import __main__ as command
from benchmarks.recall import models, report, tasks, train
from benchmarks.recall.tasks import Split
from fsn.demo.recall import mqar_rows
from fsn.models.base import IGNORED

CPU = torch.device("cpu")


def digest(split: Split) -> str:
    parts = (np.ascontiguousarray(part, np.int64).tobytes() for part in (split.tokens, split.targets))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


# Hashes of what the sources' own code gives for these seeds, at the commits that tasks.py names:
# docs/lab/2026-11-19-cpu/41-generators.log.
FROM_THE_SOURCES = {
    "mqar, empty": (lambda: Split(*mqar_rows(50, 512, 64, 4, "empty", 5)), "8c33ff8a0ee23302"),
    "mqar, random": (lambda: Split(*mqar_rows(50, 512, 64, 4, "random", 5)), "86fb2deb5d5f268d"),
    "fuzzy, train": (lambda: tasks.fuzzy(train=20, test=20).make(7)["train"], "8bec4d8a00c81cf1"),
    "fuzzy, test": (lambda: tasks.fuzzy(train=20, test=20).make(7)["test"], "3c354528276b32e2"),
    "selective, train": (
        lambda: tasks.selective_copying(train=20, test=20).make(7)["train"],
        "3a6c76f6b667c0d9",
    ),
    "selective, test": (
        lambda: tasks.selective_copying(train=20, test=20).make(7)["test"],
        "4c996c8da94bc2c3",
    ),
    "induction, train": (lambda: tasks.induction(16, 32, 200, 50).make(3)["train"], "86bf4d6d43bf4742"),
    "induction, test": (lambda: tasks.induction(16, 32, 200, 50).make(3)["test"], "97d888c48358d6f2"),
    "copy, train": (lambda: tasks.repeat("copy", train=20, test=2).make(11)["train"], "f8dec18cb4ec0459"),
    "suffix, train": (
        lambda: tasks.repeat("suffix-ngram", train=20, test=2).make(11)["train"],
        "21d972bce7568b35",
    ),
    "copy, test": (lambda: tasks.string_rows("copy", 20, 50, tasks.Strings(11)), "98eac917214ca93c"),
    "suffix, test": (
        lambda: tasks.string_rows("suffix-ngram", 20, 50, tasks.Strings(11)),
        "ee503b89cd2bc0ee",
    ),
    "duplicate, test": (
        lambda: tasks.string_rows("duplicate-ngram", 20, 50, tasks.Strings(11)),
        "9ed45e307b84e5df",
    ),
}


@pytest.mark.parametrize("name", FROM_THE_SOURCES)
def test_tokens_are_those_of_the_source(name: str) -> None:
    make, expected = FROM_THE_SOURCES[name]
    assert digest(make()) == expected


def test_a_distractor_is_a_key_that_a_filler_repeats() -> None:
    tokens = np.array([[1, 9, 2, 8, 1, 3, 1, 2]])
    targets = np.array([[IGNORED] * 6 + [9, 8]])
    parts = tasks.by_distractor(Split(tokens, targets))
    assert parts["distractor"].targets.tolist() == [[IGNORED] * 6 + [9, IGNORED]]
    assert parts["no distractor"].targets.tolist() == [[IGNORED] * 7 + [8]]


def test_a_language_row_is_made_of_words_of_its_automaton() -> None:
    split = tasks.language_rows(30, 20, 1000, np.random.default_rng(0))
    assert split.legal is not None
    asked = split.targets != IGNORED
    legal = np.take_along_axis(split.legal, np.where(asked, split.targets, 0)[..., None], 2)[..., 0]
    assert legal[asked].all() and (split.targets[asked] < 18).all()
    choices = split.legal.sum(-1)[asked]
    assert choices.min() >= 1 and choices.max() == 3  # one to three moves from every state
    words = (split.tokens == 19).sum(1) + 1
    assert words.min() >= 10 and words.max() <= 19


def test_every_task_of_the_grid_states_source_and_difference() -> None:
    for task in tasks.tasks().values():
        assert "@" in task.source and ".py" in task.source and task.differs
    assert {name for name in tasks.tasks() if name.startswith("mqar")} >= {
        f"mqar-{length}-{pairs}{fillers}"
        for length, pairs in ((64, 4), (128, 8), (256, 16), (512, 64))
        for fillers in ("", "-random")
    }
    assert tasks.tasks()["mqar-512-64"].rates == pytest.approx((1e-4, 4.6416e-4, 2.15443e-3, 1e-2), rel=1e-4)


def test_the_headline_is_zoologys_settings_on_every_seed_a_task_after_the_other() -> None:
    cells = command.plan(command.parse(["--headline", "--device", "cpu"]), CPU)
    assert len(cells) == len(set(cells)) == 4 * 2 * 3 * 2 * len(command.HEADLINE)
    assert {(cell.width, cell.warmup) for cell in cells} == {(64, command.HEADLINE_STEPS // 10)}
    assert [cell.rate for cell in cells[:: len(command.HEADLINE)][:2]] == pytest.approx(
        [2.15443e-3, 1e-2], rel=1e-4
    )
    order = list(dict.fromkeys((cell.layers, cell.task) for cell in cells))
    assert order == sorted(order, key=lambda place: (place[0], int(place[1].split("-")[1])))
    changed = command.plan(command.parse(["--headline", "--models", "gla", "--widths", "128"]), CPU)
    assert {(cell.model, cell.width) for cell in changed} == {("gla", 128)}


def test_published_values_stand_where_the_setting_is_the_sources() -> None:
    published = {name: task.published for name, task in tasks.tasks().items() if task.published}
    assert set(published) == {
        "mqar-64-4", "mqar-128-8", "mqar-256-16", "mqar-512-64", "induction", "fuzzy-recall", "selective-copy",
    }  # fmt: skip
    for values in published.values():
        assert all("arXiv" in value or "readme" in value for value in values.values())


def test_the_rate_rises_in_a_line_and_the_cell_says_so() -> None:
    task = tasks.tasks()["mqar-64-4"]
    plain = train.Cell("mqar-64-4", "fsn", 1, 64, 1e-2, 0)
    warm = dataclasses.replace(plain, warmup=40)
    assert warm.name == plain.name + "_w40"
    rates = [
        train.rate_at(task, warm, step, 400) / train.rate_at(task, plain, step, 400) for step in range(60)
    ]
    assert rates[:40] == pytest.approx([(step + 1) / 40 for step in range(40)]) and set(rates[40:]) == {1.0}
    quick = dataclasses.replace(warm, task="mqar-v256-64-4-random", rate=3e-3)
    assert train.rate_at(tasks.quick(), quick, 9, 800) == pytest.approx(3e-3 / 4)


def test_the_small_grid_has_every_task_and_stays_small() -> None:
    found = {task.name.removesuffix(tasks.SMALL): task for task in tasks.small()}
    assert set(found) == {
        "mqar", "mqar-random", "induction", "languages", "fuzzy-recall", "selective-copy", "copy", "suffix-ngram",
    }  # fmt: skip
    for task in found.values():
        assert task.length <= 64 and task.vocab <= 64 and task.rows[0] <= 32 * 400
        assert task.batch == 32 and task.epochs == 1 and task.rates == found["mqar"].rates
    options = command.parse(["--small", "--device", "cpu"])
    cells = command.plan(options, CPU)
    assert {cell.task for cell in cells} == {task.name for task in found.values()}
    assert {cell.model for cell in cells} == {*models.OURS, "fsn-score"}
    assert {(cell.width, cell.warmup) for cell in cells} == {(64, 0)}  # as the finished ones
    full = command.plan(command.parse(["--device", "cpu"]), CPU)
    assert not {cell.task for cell in cells} & {cell.task for cell in full}
    assert {cell.warmup for cell in full} == {command.STEPS // 10}


def test_small_induction_trains_on_the_answer_alone() -> None:
    rows = tasks.answer_alone(tasks.induction(16, 32, 20, 5)).make(3)["train"]
    assert (rows.targets != IGNORED).sum(1).tolist() == [1] * 20
    assert (rows.targets[:, -1] == tasks.induction(16, 32, 20, 5).make(3)["train"].targets[:, -1]).all()


def test_copying_is_tested_on_duplicates_that_were_not_trained_on() -> None:
    size = {"shortest": 6, "longest": 10, "context": 48, "lengths": (10, 20), "train": 8, "test": 4}
    copy, twice = tasks.repeat("copy", **size), tasks.repeat("duplicate-ngram", **size)
    both = tasks.with_duplicates(copy, twice).make(0)
    alone = twice.make(0)
    assert list(both) == ["train", "test", "length 20", "duplicate-ngram test", "duplicate-ngram length 20"]
    assert digest(both["train"]) == digest(copy.make(0)["train"]) == digest(alone["train"])
    assert digest(both["duplicate-ngram length 20"]) == digest(alone["length 20"])


def test_queries_are_found_and_short_rows_filled_up() -> None:
    targets = np.array([[IGNORED, 5, IGNORED, 6], [IGNORED, IGNORED, 7, IGNORED]])
    rows = train.rows_of(Split(np.zeros((2, 4), np.int64), targets), CPU)
    assert rows.places.tolist() == [[1, 3], [2, 0]]
    assert rows.targets.tolist() == [[5, 6], [7, IGNORED]]


@pytest.mark.parametrize("name", models.names(CPU))
def test_answers_are_the_models_logits_at_the_queries(name: str) -> None:
    torch.manual_seed(0)
    learner = models.Learner(name, 11, 8, 2, feedforward=True)
    tokens, places = torch.randint(11, (3, 9)), torch.randint(9, (3, 2))
    whole = learner.logits(learner.states(tokens)) if name == models.LAYER else learner.model(tokens)
    there = whole.gather(1, places[..., None].expand(-1, -1, 11))
    torch.testing.assert_close(learner.answers(tokens, places), there)


@pytest.mark.parametrize("name", models.names(CPU))
def test_without_feedforward_block_only_attention_is_left(name: str) -> None:
    bare = models.Learner(name, 11, 8, 1, feedforward=False)
    assert not [key for key in dict(bare.named_parameters()) if "feedforward" in key]
    assert bare.parameter_count() < models.Learner(name, 11, 8, 1, feedforward=True).parameter_count()


def test_the_state_is_counted_in_a_real_cache() -> None:
    assert models.Learner("transformer", 11, 8, 2, False).state_size(16, CPU) == 2 * 16 * 8 * 2
    one = models.Learner("fsn", 11, 8, 1, False)
    assert one.state_size(32, CPU) == 2 * one.state_size(16, CPU) > 0
    assert models.Learner(models.LAYER, 11, 8, 1, False).state_size(16, CPU) == one.state_size(16, CPU)


def test_accuracy_by_symbols_and_by_rows() -> None:
    class Parrot(models.Learner):
        def answers(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(tokens.gather(1, places), 11).float()

    parrot = Parrot("transformer", 11, 8, 1, False)
    tokens = np.array([[1, 2, 3], [4, 5, 6]])
    targets = np.array([[1, 2, IGNORED], [4, 9, 6]])
    rows = train.rows_of(Split(tokens, targets), CPU)
    assert train.accuracy(parrot, rows, "symbols", 1) == pytest.approx(4 / 5)
    assert train.accuracy(parrot, rows, "rows", 1) == pytest.approx(1 / 2)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A grid of one tiny task with two learning rates."""
    task = tasks.mqar(24, 16, 2, "random", train=64, test=16, batch=16, epochs=2, rates=(1e-3, 1e-2))
    found = {task.name: task}
    for module in (command, report):
        monkeypatch.setattr(module, "tasks", lambda: found)
    return [
        "--device", "cpu", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data"), "--seeds", "0", "1",
        "--models", "fsn", "transformer", "--layers", "1", "--widths", "8", "--tasks", task.name,
    ]  # fmt: skip


def test_a_grid_is_written_once_and_gone_on_with(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main(tiny) == 0
    cells = sorted((tmp_path / "out" / "cells").glob("*.json"))
    assert len(cells) == 2 * 2 * 2  # two models, two rates, two seeds
    found = json.loads(cells[0].read_text())
    assert found["history"][-1]["step"] == 8 and found["environment"]["packages"]["torch"]
    assert found["cell"]["seed"] == 0 and found["parameters"] > 0
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| fsn | 1 |" in table and "multiquery_ar.py" in table
    assert (tmp_path / "out" / "figure.svg").stat().st_size > 0

    def no_more(*_: object) -> None:
        raise AssertionError("a finished cell is trained again")

    monkeypatch.setattr(train, "train", no_more)
    assert command.main(tiny) == 0
    assert command.main([*tiny, "--steps", "4"]) == 2  # cells of other steps are not taken for these
    cells[0].unlink()
    with pytest.raises(AssertionError):
        command.main(tiny)


def test_worker_processes_find_what_they_run(tmp_path: Path) -> None:
    here = Path(command.__file__).parents[2]
    chosen = [
        "--tasks",
        "induction-small",
        "--models",
        "transformer",
        "--layers",
        "1",
        "--seeds",
        "0",
        "--steps",
        "8",
    ]
    where = [
        "--device",
        "cpu",
        "--workers",
        "2",
        "--out",
        str(tmp_path / "out"),
        "--data",
        str(tmp_path / "data"),
    ]
    run = [sys.executable, "-m", "benchmarks.recall", *chosen, *where, "--widths", "8"]
    subprocess.run(run, cwd=here, check=True, timeout=240)
    assert len(list((tmp_path / "out" / "cells").glob("*.json"))) == 2  # both learning rates


def test_several_tasks_are_drawn_as_panels(tmp_path: Path) -> None:
    def row(task: str, split: str, layers: int, *accuracies: float) -> report.Row:
        return report.Row(task, split, "fsn", layers, 64, 1e-3, accuracies, (8,), 1, 1)

    found = [row("copy-small", "test", 1, 0.9, 1.0), row("copy-small", "duplicate-ngram length 20", 2, 0.1)]
    assert [one.title(with_width=False) for one in found] == ["copy", "duplicate-ngram 20"]
    assert (
        row("mqar-random-small", "distractor", 1, 0.5).title(with_width=True)
        == "mqar-random, distractor, d 64"
    )
    assert report.draw(found, [], tmp_path / "figure").stat().st_size > 0


def test_what_there_was_no_time_for_is_named(tiny: list[str], tmp_path: Path) -> None:
    assert command.main([*tiny, "--minutes", "1e-9"]) == 0
    assert not (tmp_path / "out" / "table.md").exists()
    command.main([*tiny, "--seeds", "0"])
    command.main([*tiny, "--minutes", "1e-9"])
    table = (tmp_path / "out" / "table.md").read_text()
    assert "Left out (4 cells)" in table and "_s1" in table


def a_result(rate: float, seed: int, accuracy: float, warmup: int | None = None) -> dict[str, Any]:
    cell = {"task": "mqar-small", "model": "fsn", "layers": 1, "width": 64, "rate": rate, "seed": seed}
    cell |= {} if warmup is None else {"warmup": warmup}
    history = [{"step": 400}]
    return {
        "cell": cell,
        "accuracy": {"test": accuracy},
        "history": history,
        "parameters": 1,
        "state_size": 1,
    }


def test_a_seed_that_never_started_does_not_choose_the_rate() -> None:
    tried = {3e-3: (0.9, 0.9, 0.9), 1e-2: (0.02, 0.99, 0.99)}
    cells = [a_result(rate, seed, a) for rate, of in tried.items() for seed, a in enumerate(of)]
    assert report.best_rate(cells) == 1e-2  # where the first seed alone would take 0.003
    assert report.best_rate([cell for cell in cells if cell["cell"]["seed"] < 2]) == 1e-2
    cells += [a_result(3e-2, 0, 1.0)]
    assert report.best_rate(cells) == 1e-2  # a rate that one seed has tried is not compared with three


def test_cells_with_warm_up_are_rows_of_their_own() -> None:
    old = [a_result(1e-2, seed, 0.5) for seed in range(3)]
    new = [a_result(1e-2, seed, 0.9, warmup=40) for seed in range(3)]
    found = report.rows([*new, *old, a_result(1e-2, 3, 0.5, warmup=0)])
    assert [(row.warmup, len(row.accuracies), row.mean) for row in found] == [
        (0, 4, 0.5),
        (40, 3, pytest.approx(0.9)),
    ]
    assert found[0].column == "mqar-small, d 64" and found[1].column == "mqar-small, d 64, warm-up 40"


@pytest.mark.parametrize("wrong", [["--models", "fns"], ["--tasks", "mqr"]])
def test_a_wrong_name_is_one_sentence(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--out", str(tmp_path), "--device", "cpu", *wrong]) == 2
    said = capsys.readouterr().err
    assert wrong[1] in said and "choose of" in said and "Traceback" not in said


@pytest.mark.gpu
@pytest.mark.parametrize("name", models.names(torch.device("cuda")) if torch.cuda.is_available() else ["fsn"])
def test_a_captured_step_trains_like_an_eager_one(name: str) -> None:
    device = torch.device("cuda")
    task = tasks.mqar(64, 64, 4, "random", train=256, test=16)
    rows = train.rows_of(task.make(0)["train"], device)
    losses = []
    for captured in (True, False):
        torch.manual_seed(0)
        learner = models.Learner(name, 64, 64, 1, False).to(device)
        step = train.Step(learner, rows, 64, 0.1)
        step.steps = 0 if captured else -100
        seen = []
        for i in range(12):
            step(torch.arange(64, device=device) + 64 * (i % 4), 1e-3)
            seen.append(float(step.loss))
        assert (step.graph is not None) == captured
        losses.append(seen)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
