"""``fsn.load``: weights that come with the package, run folders, exported folders; what is said of anything else."""

from __future__ import annotations

import json
import math
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import fsn
from fsn.cli import main
from fsn.errors import UserError
from fsn.pretrained import SHIPPED, shipped
from fsn.train import find_run, load_run
from fsn.train.evaluate import read_evaluations

ROOT = Path(__file__).resolve().parents[1]
TEXT = "The [[Roman Empire]] was a city of the Roman Empire, and the Roman Empire was an empire. " * 2


def bits(model: fsn.models.LanguageModel) -> float:
    tokens = model.encode(TEXT)
    with torch.no_grad():
        return float(model.loss(tokens[:, :-1], tokens[:, 1:]).mean()) / math.log(2)


@pytest.mark.parametrize(
    ("name", "archived"),
    [("fsn-1m", "fsn-1m-seed0"), ("transformer-1m", "transformer-1m-nodrop-seed0")],
)
def test_shipped_weights_are_those_of_the_archived_run(name: str, archived: str) -> None:
    """float16 keeps them to a few 1e-4, and the loss to far less than seeds differ."""
    model = fsn.load(name)
    assert not model.training and {p.dtype for p in model.parameters()} == {torch.float32}
    run = load_run(ROOT / "results" / archived)
    for key, value in run.load_model().state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=5e-4, atol=1e-6)
    assert bits(model) == pytest.approx(bits(fsn.load(run.folder)), abs=2e-3)
    kept = load_run(SHIPPED / name)
    assert kept.config == run.config and kept.epochs == run.epochs and kept.best == run.best


def test_text_in_text_out() -> None:
    model = fsn.load("fsn-1m")
    text = model.generate("The Roman ", 40, seed=1)
    assert text.startswith("The Roman ") and len(text.encode()) >= 50
    assert text == model.generate("The Roman ", 40, seed=1) != model.generate("The Roman ", 40, seed=2)
    assert model.decode(model.encode("naïve\n")) == "naïve\n" and model.encode("ab").shape == (1, 2)
    assert not model.generate("", 5).startswith("\n\n\n\n\n") and model.window == 256
    with pytest.raises(UserError, match="symbols must be a whole number, at least 1"):
        model.generate("a", 0)
    with pytest.raises(UserError, match="not among the 205 symbols"):
        model.generate("\x00")


def test_a_new_model_says_how_it_could_speak() -> None:
    model = fsn.build("fsn-1m", vocab_size=3, k=8, layers=1)
    with pytest.raises(UserError, match=r"fsn\.load"):
        model.generate("a")
    model.tokenizer = fsn.data.Alphabet(b"abc")
    assert set(model.generate("ab", 20)) <= set("abc")


def test_an_exported_folder_and_the_run_are_one_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from fsn.hub import export_run

    folder = export_run(SHIPPED / "transformer-1m", tmp_path / "model")
    exported, run = fsn.load(folder), fsn.load("transformer-1m")
    assert exported.generate("The ", 20) == run.generate("The ", 20) and exported.window == 256
    config = json.loads((folder / "config.json").read_text())
    for change, sentence in (
        ({"model_type": "llama"}, "not a model of this version"),
        ({"symbols": None}, "not a model of this version"),
        ({"symbols": "zz"}, "cannot be read"),
        ({"architecture": {**config["architecture"], "layers": 2}}, "do not fit its config.json"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(UserError, match=sentence):
            fsn.load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    weights = (folder / "model.safetensors").read_bytes()
    for damaged in (weights[:1000], b"", weights[: len(weights) - 4] + b"\x00\x00\xc0\x7f"):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot be read|NaN or Inf"):
            fsn.load(folder)


def test_what_there_is_is_said_of_a_name_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped() == ["fsn-1m", "transformer-1m"]
    for name in ("fsn-8m", "", "no such model", str(tmp_path / "nothing")):
        with pytest.raises(UserError, match="fsn-1m and transformer-1m come with fsn") as error:
            fsn.load(name)
        assert "\n" not in str(error.value)
    for wrong in (None, 5, ["fsn-1m"]):
        with pytest.raises(UserError, match=rf"a {type(wrong).__name__} names no model"):
            fsn.load(wrong)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match='sees no CUDA GPU; pass device="cpu"'):
        fsn.load("fsn-1m", device="cuda")
    with pytest.raises(UserError, match="neither a run folder nor"):
        fsn.load(tmp_path)
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def refuse(name: str, allow_patterns: list[str]) -> str:
        raise OSError(f"no route to host\nand much more about {name}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(
        UserError, match=r"no folder someone/model here.*\(no route to host\).*come with fsn$"
    ):
        fsn.load("someone/model")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(SHIPPED / "fsn-1m"))
    with pytest.raises(UserError, match="cannot be read"):
        fsn.load("someone/model")  # a folder without config.json


def test_commands_take_the_names_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a folder of that name goes before what comes with the package."""
    monkeypatch.chdir(tmp_path)
    main(["generate", "fsn-1m", "--prompt", "The Roman ", "--symbols", "20"])
    assert capsys.readouterr().out.startswith("The Roman ")
    (tmp_path / "notes.txt").write_text(40 * TEXT)
    words = ["train", "transformer-1m", "--begin-with", "transformer-1m", "--corpus", "notes.txt"]
    main(
        [*words, "--out", "transformer-1m", "--max-steps", "1", "--batch-size", "2", "--eval-stride", "4096"]
    )
    assert load_run("transformer-1m").config["begin_with"]["run"] == "transformer-1m"
    assert find_run("transformer-1m") == Path("transformer-1m") and find_run("fsn-1m") == SHIPPED / "fsn-1m"
    own, ours = fsn.load("transformer-1m"), fsn.load(SHIPPED / "transformer-1m")
    assert not torch.equal(own.head.weight, ours.head.weight)  # type: ignore[union-attr, arg-type]
    with pytest.raises(UserError, match="no run folder fsn-2m"):
        load_run(find_run("fsn-2m"))


def test_shipping_makes_what_is_shipped(tmp_path: Path) -> None:
    made, ship = tmp_path / "again", runpy.run_path(str(ROOT / "docs" / "site" / "ship.py"))["ship"]
    ship(ROOT / "results" / "fsn-1m-seed0", made)
    ours = SHIPPED / "fsn-1m"
    assert {f.name for f in made.iterdir()} == {f.name for f in ours.iterdir()}
    one, two = load_run(made), load_run(ours)
    assert one.config == two.config and one.metrics == two.metrics
    weights, expected = one.best_weights()[0], two.best_weights()[0]
    assert all(torch.equal(weights[key], value) for key, value in expected.items())
    evaluated, known = (read_evaluations(f / "evaluations.jsonl") for f in (tmp_path, SHIPPED))
    assert [{**line, "run": "fsn-1m"} for line in evaluated] == [x for x in known if x["run"] == "fsn-1m"]
    ship(ROOT / "results" / "fsn-1m-seed0", made)
    assert read_evaluations(tmp_path / "evaluations.jsonl") == evaluated


def test_a_wheel_in_an_empty_folder_without_network(tmp_path: Path) -> None:
    """The wheel itself is built and unpacked; nothing else of this repository is in reach."""
    pytest.importorskip("hatchling")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr[-1000:]
    (wheel,) = tmp_path.glob("fsn-*.whl")
    assert wheel.stat().st_size < 6_000_000
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    assert {f.name for f in (tmp_path / "site" / "fsn" / "explore").glob("page.*")} == {
        f"page.{x}" for x in ("css", "html", "js")
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    script = (
        "import socket, fsn\n"
        "def refuse(*_): raise OSError('no network')\n"
        "socket.socket.connect = refuse\n"
        "print(fsn.__file__)\n"
        "print(fsn.load('fsn-1m').generate('The Roman ', 30))\n"
    )
    path = os.pathsep.join([str(tmp_path / "site")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": path, "HOME": str(empty)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    where, text = done.stdout.split("\n", 1)
    assert where.startswith(str(tmp_path)) and text.startswith("The Roman ")
    assert not list(empty.iterdir())
    shutil.rmtree(tmp_path / "site")
