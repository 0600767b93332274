"""Run folders in which a file was changed: every command says so in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsn.errors import UserError
from fsn.hub import export_run
from fsn.train import load_run, train
from fsn.train.commands import evaluate, generate
from tests.train.tiny import MODELS, corpus, recipe, text, unhashed

MODEL = MODELS["fsn-1m"]
MISFIT = r"best\.safetensors and the config\.yaml beside it do not belong together \(.*\): .* restore the right one"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "text.txt").write_bytes(text())
    train(
        "fsn-1m", str(folder / "text.txt"), folder / "run", recipe(max_steps=2), overrides=MODEL, quiet=True
    )
    return folder / "run"


@pytest.fixture
def run(tmp_path: Path, whole: Path) -> Path:
    """Without hashes: what is found in a folder that has them is in test_hashes.py."""
    return unhashed(Path(shutil.copytree(whole, tmp_path / "run")))


def change(run: Path, section: str, **fields: Any) -> None:
    """Write fields of a section of the run's config; None takes a field away."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    config[section] = {k: v for k, v in {**config[section], **fields}.items() if v is not None}
    (run / "config.yaml").write_text(yaml.safe_dump(config))


COMMANDS: dict[str, Callable[[Path], object]] = {
    "eval": lambda run: evaluate(run, device="cpu"),
    "generate": lambda run: generate(run, device="cpu", symbols=2),
    "export": lambda run: export_run(run, run.parent / "exported"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_weights_of_another_model_are_one_sentence(run: Path, command: str) -> None:
    change(run, "model", layers=3)
    with pytest.raises(UserError, match=MISFIT):
        COMMANDS[command](run)
    assert not (run.parent / "exported").exists()


def test_weights_of_another_run_are_one_sentence(run: Path, tmp_path: Path) -> None:
    name = "transformer-1m"
    other = train(name, corpus(), tmp_path / "o", recipe(max_steps=1), overrides=MODELS[name], quiet=True)
    shutil.copy(other.folder / "best.safetensors", run)
    with pytest.raises(UserError, match=MISFIT):
        load_run(run).load_model()
    with pytest.raises(UserError, match=MISFIT):
        train(
            "fsn-1m",
            corpus(),
            tmp_path / "n",
            recipe(max_steps=1),
            overrides=MODEL,
            begin_with=run,
            quiet=True,
        )
    shutil.rmtree(run / "last")
    shutil.copytree(other.folder / "last", run / "last")
    with pytest.raises(UserError, match=r"the last weights in .*run do not fit"):
        load_run(run).load_model("last")


def test_a_checkpoint_of_another_run_is_not_gone_on_with(run: Path, tmp_path: Path) -> None:
    smaller = {**MODEL, "layers": 1}
    other = train("fsn-1m", corpus(), tmp_path / "o", recipe(max_steps=2), overrides=smaller, quiet=True)
    shutil.rmtree(run / "last")
    shutil.copytree(other.folder / "last", run / "last")
    for name in ("metrics.jsonl", "timings.jsonl"):
        shutil.copy(other.folder / name, run)
    with pytest.raises(UserError, match=r"the last weights in .*run do not fit"):
        train("fsn-1m", corpus(), run, recipe(max_steps=3), overrides=MODEL, extend=True, quiet=True)


def test_a_kernel_of_another_model_is_named(run: Path) -> None:
    change(run, "model", k=12)
    with pytest.raises(UserError, match=r"the weights in .*epoch-0001\.safetensors do not fit"):
        list(load_run(run).kernels())


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"corpus": 3}, "corpus"),
        ({"model": "fsn"}, "model"),
        ({"recipe": [1]}, "recipe"),
        ({"corpus": {"name": "x", "sha256": "y"}}, r"corpus\.symbols"),
        ({"corpus": {"name": "x", "sha256": "y", "symbols": "xyz"}}, r"corpus\.symbols"),
        ({"corpus": {"name": "x", "sha256": "y", "symbols": ""}}, r"corpus\.symbols"),
        ({"corpus": {"name": 3, "sha256": "y", "symbols": "61"}}, r"corpus\.name"),
        ({"corpus": {"name": "x", "symbols": "61"}}, r"corpus\.sha256"),
    ],
)
def test_a_config_that_was_changed_names_what_is_wrong(run: Path, content: dict[str, Any], part: str) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, **content}))
    with pytest.raises(
        UserError, match=rf"config\.yaml was changed: its {part} is missing or makes no sense"
    ):
        load_run(run)
