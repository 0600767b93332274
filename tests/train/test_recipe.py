"""The recipe: the paper's defaults, errors when it is built, and the way through YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fsn.errors import UserError
from fsn.train import Recipe, train
from fsn.train.recipe import parse_fields


def test_defaults_are_the_papers() -> None:
    r = Recipe()
    assert (r.lr, r.weight_decay, r.clip, r.batch_size) == (1e-3, 0.01, 1.0, 64)
    assert (r.length, r.train_stride, r.eval_stride, r.epochs) == (256, 64, 128, 30)
    assert r.predictions == 255


def test_windows_shorter_than_the_strides_do_not_skip_text() -> None:
    def strides(**fields: Any) -> tuple[int, int]:
        return Recipe(**fields).train_stride, Recipe(**fields).eval_stride

    assert strides(length=512) == strides() == strides(length=128) == (64, 128)
    assert strides(length=64) == (64, 32) and strides(length=32) == (8, 16) and strides(length=2) == (1, 1)
    assert strides(length=32, train_stride=64, eval_stride=1024) == (64, 1024), "what is asked for stays"
    assert Recipe.from_dict(Recipe(length=32).to_dict()) == Recipe(length=32)
    assert Recipe() == Recipe(train_stride=64, eval_stride=128)


def test_enwik8_has_21972_steps() -> None:
    windows = (90_000_000 - 256) // 64 + 1
    assert windows == 1_406_247
    assert Recipe().steps_per_epoch(windows) == 21_972
    assert Recipe(drop_last=False).steps_per_epoch(windows) == 21_973
    assert Recipe(epochs=2).total_steps(windows) == 43_944
    assert Recipe(epochs=2, max_steps=4_394).total_steps(windows) == 4_394


def test_less_than_one_batch_is_kept() -> None:
    assert Recipe(batch_size=64).steps_per_epoch(10) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": "fast"},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"epochs": True},
        {"length": 1},
        {"max_steps": 0},
        {"beta1": 1.0},
        {"precision": "fp8"},
        {"engine": "steam"},
        {"checkpoint_minutes": 0},
        {"eval_at_steps": (0,)},
        {"eval_at_steps": ("soon", 3)},
        {"eval_at_steps": ([1],)},
        {"seed": -1},
        {"seed": 2**64},
        {"eps": -1e-8},
        {"drop_last": 1},
        {"schedule": "steps"},
        {"warmup_steps": -1},
        {"warmup_steps": 1.5},
        {"cooldown": 0.0, "schedule": "wsd"},
        {"cooldown": 1.5, "schedule": "wsd"},
        {"cooldown": float("nan"), "schedule": "wsd"},
        {"cooldown": 0.2},
        {"cooldown_epochs": 1.0, "schedule": "cosine"},
        {"cooldown_epochs": -1.0, "schedule": "wsd"},
        {"cooldown_epochs": 1.0, "cooldown": 0.2, "schedule": "wsd"},
        {"lr_floor": -1e-4, "schedule": "cosine"},
        {"lr_floor": 1e-4},
        {"lr_floor": 2e-3, "schedule": "linear"},
        {"accumulate": 0},
        {"accumulate": 65},
    ],
)
def test_mistakes_are_refused_with_the_name_of_the_field(fields: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(fields))):
        Recipe(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("eps", [0.0, 1e-60])
def test_an_eps_next_to_zero_can_be_read_but_not_trained_with(tmp_path: Path, eps: float) -> None:
    recipe = Recipe.from_dict({"eps": eps})
    with pytest.raises(UserError, match="eps must be at least 1e-37"):
        train("fsn-1m", "no such text", tmp_path / "run", recipe)
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_is_a_seed() -> None:
    assert Recipe(seed=2**64 - 1).seed == 2**64 - 1


def test_round_trip() -> None:
    r = Recipe(lr=3e-4, epochs=2, eval_at_steps=(4394, 10), max_steps=None, deterministic=True, seed=7)
    assert r.eval_at_steps == (10, 4394)
    assert (
        Recipe(schedule="wsd").cooldown == 0.2 and Recipe(schedule="wsd", cooldown_epochs=3).cooldown is None
    )
    assert Recipe.from_dict(yaml.safe_load(yaml.safe_dump(r.to_dict()))) == r


@pytest.mark.parametrize("wrong", [{"learning_rate": 1}, {"eval_at_steps": 7}])
def test_fields_that_make_no_sense_are_named(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Recipe.from_dict(wrong)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ((), {}),
        (("k=96", "bound=none"), {"k": 96, "bound": "none"}),
        (("readout-start=1e-3", "noise=.5"), {"readout_start": 0.001, "noise": 0.5}),
        (("partition=", "a=b=c"), {"partition": None, "a": "b=c"}),
    ],
)
def test_values_are_what_they_look_like(words: tuple[str, ...], fields: dict[str, Any]) -> None:
    assert parse_fields(words) == fields


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("k",), "'k' is not of the form field=value"),
        (("=8",), "'=8' is not of the form field=value"),
        (("k=8", "layers=2", "k=16"), "k is given twice, the second time as 'k=16'; give it once"),
        (("readout-start=1", "readout_start=1"), "readout_start is given twice"),
    ],
)
def test_what_means_nothing_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_fields(words)
