"""Losses token by token, and what is said about run folders that cannot be measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fsn.data import Corpus, Windows
from fsn.errors import UserError
from fsn.measure import copy_depth, losses
from fsn.measure.metrics import check_comparable, check_metrics
from fsn.train import Recipe, Run, load_run, train
from tests.measure.example_runs import made_up_run
from tests.small import small


def text(length: int = 700, symbols: int = 13) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(symbols, (length,), generator=generator).to(torch.uint8)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_losses_are_the_models_own_in_bits(family: str) -> None:
    model = small(family).float()
    tokens = text()
    cut = Windows(tokens, 32, 16)
    found = losses.token_losses(model, cut)
    windows = cut.gather(torch.arange(len(cut)))
    assert found.shape == (len(windows), 31) and found.dtype == np.float32
    with torch.no_grad():
        logits = model(windows[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none")
    np.testing.assert_allclose(found, expected.numpy() / math.log(2), rtol=2e-5, atol=2e-5)
    picked = losses.token_losses(model, cut, np.array([7, 2]))
    np.testing.assert_allclose(picked, found[[7, 2]], rtol=1e-5, atol=1e-5)
    for outside in (-1, len(cut)):
        with pytest.raises(UserError, match=f"window {outside} was asked for"):
            losses.token_losses(model, cut, np.array([7, outside]))


def test_dropout_is_off_and_the_mode_is_put_back() -> None:
    model = small("transformer", dropout=0.5).float().train()
    one = losses.token_losses(model, Windows(text(), 32, 64))
    two = losses.token_losses(model, Windows(text(), 32, 64))
    np.testing.assert_array_equal(one, two)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


def test_from_text_to_margins() -> None:
    """The whole instrument on small models: labels, battery, losses, margins, recombination."""
    tokens = text(3000)
    tokens[1500:1560] = tokens[1400:1460]
    labels = copy_depth.label(Windows(tokens, 128, 64))
    battery = copy_depth.battery(labels, standard=16, enriched=4)
    assert battery.counts()[-1] > 0
    ours = losses.battery_losses(small("fsn").float(), tokens, battery)
    theirs = losses.battery_losses(small("transformer").float(), tokens, battery)
    table = copy_depth.margin_table({"fsn": ours}, theirs, battery, slices="standard", resamples=50)
    whole = np.average(
        [row["loss"] for row in table.rows if row["tokens"]],
        weights=[row["tokens"] for row in table.rows if row["tokens"]],
    )
    assert whole == pytest.approx(ours[:16].mean(dtype=np.float64), abs=1e-9), "the bins add up"


def test_windows_and_symbols_that_do_not_fit() -> None:
    model = small("fsn").float()
    with pytest.raises(UserError, match="42"):
        losses.token_losses(model, Windows(text(), 32, 32), np.array([42]))
    with pytest.raises(UserError, match="13 symbols"):
        losses.token_losses(model, Windows(text(symbols=20), 32, 32))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Corpus, list[Run]]:
    """Two runs of a few steps, as the trainer leaves them."""
    folder = tmp_path_factory.mktemp("runs")
    corpus = Corpus.from_bytes("tiny", bytes(text(12_000).add(97).tolist()))
    recipe = Recipe(epochs=1, max_steps=2, length=32, train_stride=256, batch_size=4)
    sizes: dict[str, dict[str, int]] = {
        "fsn-1m": {"k": 6, "layers": 1},
        "transformer-1m": {"width": 8, "layers": 1},
    }
    for name, size in sizes.items():
        train(name, corpus, folder / name, recipe, overrides=size, device="cpu", quiet=True)
    return corpus, load_runs([folder / name for name in sizes])


def test_losses_of_a_run_are_those_of_its_best_weights(trained, tmp_path: Path) -> None:
    corpus, (run, other) = trained
    battery = copy_depth.battery(copy_depth.label_corpus(corpus, length=32, stride=32, cache=tmp_path), 8, 4)
    first = losses.run_losses(run, corpus, battery)
    np.testing.assert_array_equal(first, losses.battery_losses(run.load_model(), corpus.valid, battery))
    assert not np.array_equal(losses.run_losses(other, corpus, battery), first)


def test_a_run_is_measured_on_its_own_corpus(trained, tmp_path: Path) -> None:
    corpus, (run, _) = trained
    battery = copy_depth.battery(copy_depth.label(Windows(corpus.valid, 32, 32)), 8, 4)
    another = Corpus.from_bytes("another", bytes(range(97, 110)) * 100)
    with pytest.raises(UserError, match="trained on tiny"):
        losses.run_losses(run, another, battery)
    bare = Run(tmp_path / "bare", run.config, run.metrics)
    with pytest.raises(UserError, match=r"best\.safetensors"):
        losses.run_losses(bare, corpus, battery)


def load_runs(folders: list[Path]) -> list[Run]:
    runs = [load_run(folder) for folder in folders]
    for run in runs:
        check_metrics(run)
    check_comparable(runs)
    return runs


def write_run(folder: Path, metrics: str, **changes: object) -> Path:
    run = made_up_run("x", [1.8, 1.7])
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({**run.config, **changes}))
    (folder / "metrics.jsonl").write_text(metrics)
    return folder


def lines(*epochs: int) -> str:
    rows = made_up_run("x", [1.8] * max(epochs)).epochs
    return "".join(json.dumps(rows[e - 1]) + "\n" for e in epochs)


def test_good_folders_load(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, lines(1, 2)) for name in ("a", "b")]
    loaded = load_runs(folders)
    assert [run.name for run in loaded] == ["a", "b"] and len(loaded[0].epochs) == 2
    assert loaded[0].model_config.vocab_size == 205


@pytest.mark.parametrize(
    ("metrics", "changes", "sentence"),
    [
        (lines(1, 2)[:-20], {}, "cut off"),
        (lines(1)[:-9] + "\n" + lines(2), {}, "not JSON"),
        (lines(1, 3), {}, "holes"),
        (lines(1, 2), {"format": 99}, "format"),
        (lines(1, 2), {"corpus": None, "format": 1, "model": None}, ""),
    ],
)
def test_broken_folders_are_refused_in_one_sentence(
    tmp_path: Path, metrics: str, changes: dict[str, object], sentence: str
) -> None:
    folder = write_run(tmp_path / "run", metrics, **changes)
    if not sentence:
        (folder / "config.yaml").write_text("model: 1")
        sentence = "config"
    with pytest.raises(UserError, match=sentence) as error:
        load_runs([folder])
    assert "\n" not in str(error.value)


def test_missing_folders_and_metrics(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        load_runs([tmp_path / "nowhere"])
    folder = write_run(tmp_path / "run", lines(1))
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"no metrics\.jsonl"):
        load_runs([folder])
    with pytest.raises(UserError, match="at least one"):
        load_runs([])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"symbols": bytes(range(97)).hex(), "sha256": "bb", "corpus": "code"}, "vocabularies"),
        ({"sha256": "bb", "corpus": "enwik9"}, "different corpora"),
        ({"length": 512}, "windows of 256 and 512"),
    ],
)
def test_runs_that_cannot_be_compared(change: dict[str, object], word: str) -> None:
    one, other = made_up_run("one", [1.8]), made_up_run("other", [1.8], **change)
    with pytest.raises(UserError, match=word) as error:
        check_comparable([one, other])
    assert "one and other" in str(error.value)
    check_comparable([one, one])
