"""A bit flipped in any file of a run folder: the same numbers, or one sentence that names the file."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fsn.data import Windows
from fsn.errors import UserError
from fsn.train import evaluate, load_run
from tests.faults.harness import Worker, end_of, is_one_sentence

NOT_READ = ("log.txt", "lock", "tensorboard", "CURRENT", "DONE")
"""For people, or there is only whether they exist."""


def files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file())


def flip(file: Path, source: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    file.write_bytes(data)


def numbers(folder: Path) -> dict[str, Any]:
    """All that is read of a run, each part a value or the sentence that came instead."""
    found: dict[str, Any] = {}

    def note(name: str, action: Any) -> None:
        try:
            found[name] = action()
        except UserError as error:
            found[name] = error

    note("run", lambda: load_run(folder))
    if isinstance(found["run"], UserError):
        return found
    run = found.pop("run")
    found |= {"metrics": run.metrics, "config": run.config, "finished": run.finished}
    tokens = torch.arange(400) % run.model_config.vocab_size
    windows = Windows(tokens, run.recipe.length, run.recipe.eval_stride)
    for which in ("best", "last"):
        note(which, lambda which=which: evaluate(run.load_model(which), windows).bits)
    note("kernels", lambda: [(epoch, coefficients(model)) for epoch, model in run.kernels()])
    note("environment", lambda: run.environment)
    return found


def coefficients(model: Any) -> list[float]:
    return [x for c in model.layers[0].kernel.coefficients().values() for x in c.flatten().tolist()]


def check_flip(run: Path, expected: dict[str, Any], file: Path, source: random.Random) -> None:
    before = file.read_bytes()
    flip(file, source)
    found = numbers(run)
    for name, value in found.items():
        if isinstance(value, UserError):
            sentence = str(value)
            assert file.name in sentence or file.parent.name in sentence, f"{file}: {sentence}"
        else:
            assert value == expected[name], f"{file}: {name} is another number"
    if not any(part in NOT_READ for part in file.relative_to(run).parts):
        older = file.parent.parent.name == "last" and file.parent.name != newest(run)
        wrong = [value for value in found.values() if isinstance(value, UserError)]
        assert wrong or older, f"nobody noticed that {file} was changed"
    file.write_bytes(before)


def newest(run: Path) -> str:
    return max(path.name for path in (run / "last").glob("step-*"))


def flips(reference: Path, tmp_path: Path, each: int) -> None:
    run = Path(shutil.copytree(reference, tmp_path / "run"))
    expected = numbers(run)
    assert not any(isinstance(value, UserError) for value in expected.values())
    source = random.Random(each)
    for file in files(run):
        for _ in range(each):
            check_flip(run, expected, file, source)
    assert numbers(run) == expected


def test_a_flipped_bit(reference: Path, tmp_path: Path) -> None:
    flips(reference, tmp_path, 2)


@pytest.mark.faults
def test_many_flipped_bits(reference: Path, tmp_path: Path) -> None:
    flips(reference, tmp_path, 100)


def resumed(worker: Worker, reference: Path, tmp_path: Path, names: list[str], seed: int) -> None:
    """An unfinished run in which a bit is flipped goes on to the same end, or says in a sentence why it cannot."""
    source = random.Random(seed)
    for name in names:
        run = Path(shutil.copytree(reference, tmp_path / "run"))
        (run / "DONE").unlink()
        flip(run / name, source)
        found = worker.train(run)
        if found["code"] == 0:
            assert end_of(run) == end_of(reference), f"{name}: other bits"
        else:
            assert found["code"] == 2 and is_one_sentence(found["said"]), f"{name}: {found}"
        shutil.rmtree(run)


@pytest.fixture
def names(reference: Path) -> list[str]:
    found = [path.relative_to(reference).as_posix() for path in files(reference)]
    return [
        name for name in found if not any(part in name for part in ("tensorboard", "log.txt", "lock", "DONE"))
    ]


def test_a_flipped_bit_and_a_resume(
    worker: Worker, reference: Path, tmp_path: Path, names: list[str]
) -> None:
    resumed(worker, reference, tmp_path, names[::3], 0)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_flips_and_resumes(
    worker: Worker, reference: Path, tmp_path: Path, names: list[str], seed: int
) -> None:
    resumed(worker, reference, tmp_path, names, seed)
