"""Going on in a folder that holds a run already: what is refused leaves every file as it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsn.errors import UserError
from fsn.train import Run, load_run, train
from tests.train.tiny import MODELS, corpus, recipe, unsigned

MODEL = MODELS["fsn-1m"]
OWN = {"lock", "log.txt"}
"""What opening a run folder writes in any case."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs, 25 steps each."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train("fsn-1m", corpus(), out, recipe(epochs=2), overrides=MODEL, quiet=True)
    return out


@pytest.fixture
def run(tmp_path: Path, finished: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def go(out: Path, resume: Any = "auto", extend: bool = False, quiet: bool = True, **changes: Any) -> Run:
    r = recipe(**changes)
    return train("fsn-1m", corpus(), out, r, overrides=MODEL, resume=resume, extend=extend, quiet=quiet)


def files(folder: Path) -> dict[str, bytes]:
    """What a run left behind."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in OWN]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def refused(out: Path, **call: Any) -> str:
    """The sentence of a call that must fail and change nothing."""
    before = files(out)
    with pytest.raises(UserError) as caught:
        go(out, **call)
    assert files(out) == before
    return str(caught.value)


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_results_without_a_checkpoint_are_never_written_over(run: Path, resume: str) -> None:
    shutil.rmtree(run / "last")
    said = refused(run, epochs=3, extend=True, resume=resume)
    assert "holds the results of a run but no checkpoint to go on from" in said
    assert f"give another --out, and --begin-with {run} to begin with its best weights" in said
    (run / "DONE").unlink()
    assert refused(run, epochs=2, resume=resume) == said
    (run / "best.safetensors").unlink()
    said = refused(run, epochs=2, resume=resume)
    assert said.endswith("give another --out"), "its epochs are results too, but nothing to begin with"


def test_results_without_a_config_are_never_written_over(run: Path) -> None:
    (run / "config.yaml").unlink()
    assert "holds a run without its config.yaml" in refused(run)
    (run / "best.safetensors").unlink()
    (run / "metrics.jsonl").unlink()
    assert "holds a run without its config.yaml" in refused(run), "its checkpoints are left"
    shutil.rmtree(run / "last")
    (run / "DONE").unlink()
    assert go(run, max_steps=2).step == 2


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_again(run: Path) -> None:
    shutil.rmtree(run / "last")
    for name in ("DONE", "best.safetensors", "metrics.jsonl"):
        (run / name).unlink()
    with pytest.raises(UserError, match="no checkpoint to resume from; use --resume auto to start it"):
        go(run, resume="must")
    assert go(run).finished


def test_a_finished_run_offers_only_what_works(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(run, quiet=False)
    assert "to train it longer give more --epochs and --extend" in capsys.readouterr().err
    shutil.rmtree(run / "last")
    go(run, quiet=False)
    said = capsys.readouterr().err
    assert "is finished: best" in said and "--extend" not in said
    assert f"give another --out, and --begin-with {run} to begin with its best weights" in said
    tuned = train(
        "fsn-1m",
        corpus(),
        run.parent / "tuned",
        recipe(max_steps=1),
        overrides=MODEL,
        begin_with=run,
        quiet=True,
    )
    assert tuned.finished


def test_metrics_that_were_lost_leave_a_finished_run_finished(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"")
    assert "is shorter" in refused(run, epochs=3, extend=True)
    (run / "metrics.jsonl").unlink()
    assert "is shorter" in refused(run, epochs=3, extend=True)


def test_a_run_is_not_made_shorter_than_it_is(run: Path) -> None:
    for shorter in ({"epochs": 1}, {"max_steps": 49}):
        said = refused(run, extend=True, **shorter)
        assert "has done 50 steps, and only" in said and "ask for more --epochs or --max-steps" in said
    assert go(run, epochs=3, extend=True).step == 75
    assert load_run(run).recipe.epochs == 3


def test_extend_is_offered_only_where_more_was_asked(run: Path) -> None:
    assert refused(run, epochs=3).endswith("--extend lets it go on longer")
    assert refused(run, epochs=1).endswith("give the same options, or choose another --out")
    assert refused(run, max_steps=60).endswith("give the same options, or choose another --out"), (
        "50 all the same"
    )
    assert refused(run, epochs=3, lr=0.1).endswith("give the same options, or choose another --out")


def test_a_run_from_before_a_field_existed_goes_on_and_can_be_fine_tuned(run: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["model"]["rounding"], config["recipe"]["deterministic"]
    (unsigned(run) / "config.yaml").write_text(yaml.safe_dump(config))
    tuned = train(
        "fsn-1m",
        corpus(),
        tmp_path / "tuned",
        recipe(max_steps=1),
        overrides=MODEL,
        begin_with=run,
        quiet=True,
    )
    assert tuned.finished
    assert go(run, epochs=3, extend=True).step == 75
