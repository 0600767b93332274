"""Configurations: frozen, checked when built, and the same after a trip through YAML."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import fsn
from fsn import UserError
from fsn.models import (
    CouplingLaw,
    FSNConfig,
    TransformerConfig,
    build_from_config,
    config_from_dict,
    config_to_dict,
    preset,
    preset_with,
)

RESULTS = Path(__file__).resolve().parents[2] / "results"


def one_sentence(error: BaseException) -> str:
    """What is wrong, a semicolon, what to do; on one line, with no type names of ours in it."""
    text = str(error)
    assert isinstance(error, UserError)
    assert "\n" not in text and "; " in text and len(text) < 400 and "Traceback" not in text
    return text


@pytest.mark.parametrize("name", fsn.presets())
def test_every_preset_survives_yaml(name: str) -> None:
    config = preset(name, 205)
    plain = yaml.safe_load(yaml.safe_dump(config_to_dict(config)))
    assert config_from_dict(plain) == config
    assert config_to_dict(config_from_dict(plain)) == config_to_dict(config)
    assert plain["kind"] == ("transformer" if name.startswith("transformer") else "fsn")
    assert config_from_dict(json.loads(json.dumps(plain))) == config


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/config.yaml")), ids=lambda path: path.parent.name)
def test_committed_runs_still_load(path: Path) -> None:
    """A field that a run's file does not know has the value that changes nothing."""
    kept = yaml.safe_load(path.read_text())
    config = config_from_dict(kept["model"])
    changed = {
        name: value
        for name, value in kept["model"].items()
        if name.startswith("dropout") or name == "alpha_start"
    }
    changed |= {
        name: value for name, value in kept["model"].get("coupling", {}).items() if name == "noise_on"
    }
    assert config == preset(kept["preset"], config.vocab_size, **changed)
    assert (
        config_to_dict(config).items() >= {k: v for k, v in kept["model"].items() if k != "coupling"}.items()
    )


def test_every_field_survives_yaml() -> None:
    """Values other than the defaults, in every field."""
    law = CouplingLaw(5, False, True, False, "rest", 0.2, "angles", False, True)
    configs: list[FSNConfig | TransformerConfig] = [
        FSNConfig(
            7, 9, 3, law, "mean-field-winding", "wrapped", "none", "positive", None, 5, 2, 3,
            0.1, 0.0, 0.2, "none", 0.5, 1.5, 0.3, "centred",
        ),
        FSNConfig(7, 9, 3, law, "torus-swiglu", hidden=11, dropout_hidden=0.3),
        TransformerConfig(7, 12, 2, 3, 17, 0.2, 0.3, 0.4, 0.5, "normal"),
    ]  # fmt: skip
    for config in configs:
        assert config_from_dict(yaml.safe_load(yaml.safe_dump(config_to_dict(config)))) == config
        assert build_from_config(config).config == config


def test_configs_cannot_be_changed() -> None:
    for config, field in ((preset("fsn-1m", 205), "k"), (preset("transformer-1m", 205), "width")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        CouplingLaw().harmonics = 5  # type: ignore[misc]
    assert hash(preset("fsn-1m", 205)) == hash(preset("fsn-1m", 205))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"k": 0}, "k is 0"),
        ({"layers": 0}, "layers is 0"),
        ({"feedforward": "mlp"}, "swiglu, torus-swiglu"),
        ({"state": "folded"}, "lifted, wrapped"),
        ({"bound": "relu"}, "tanh, none"),
        ({"value_gate": "negative"}, "signed, positive"),
        ({"rounding": "some"}, "both, scores"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"dropout_attention": 2.0}, "dropout_attention is 2.0"),
        ({"dropout_hidden": 0.1, "feedforward": "mean-field"}, "dropout_hidden"),
        ({"hidden": 0}, "hidden is 0"),
        ({"hidden": 8, "feedforward": "mean-field"}, "hidden is for swiglu"),
        ({"modes": 8}, "modes is for mean-field"),
        ({"modes": 0, "feedforward": "mean-field"}, "modes is 0"),
        ({"winding": 8, "feedforward": "mean-field"}, "mean-field-winding"),
        ({"register": 8}, "state='wrapped'"),
        ({"register": 0, "state": "wrapped"}, "register is 0"),
        ({"state": "wrapped", "feedforward": "none"}, "other than 'none'"),
        ({"tau_start": 0.0}, "tau_start is 0.0"),
        ({"alpha_start": 0.0}, "alpha_start is 0.0"),
        ({"alpha_start": 1.0, "bound": "none"}, "for bound='tanh' only"),
        ({"harmonics": 0}, "harmonics is 0"),
        ({"present": False, "delay": False}, "both off"),
        ({"frame": "inertial"}, "co-rotating, rest"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"learned": False}, "phases=False or learned=True"),
    ],
)
def test_an_impossible_fsn_says_what_to_change(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(UserError) as caught:
        fsn.build("fsn-1m", vocab_size=205, **fields)
    assert names in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"width": 0}, "multiple of 2"),
        ({"width": 7}, "width is 7"),
        ({"width": 12, "heads": 4}, "multiple of 8"),
        ({"heads": 0}, "heads is 0"),
        ({"layers": 0}, "layers is 0"),
        ({"hidden": 0}, "hidden is 0"),
        ({"init": "xavier"}, "pytorch, normal"),
        ({"dropout_embedding": 1.5}, "dropout_embedding is 1.5"),
    ],
)
def test_an_impossible_transformer_says_what_to_change(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(UserError) as caught:
        fsn.build("transformer-1m", vocab_size=205, **fields)
    assert names in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("name", "fields", "names"),
    [
        ("fsn-1m", {"k": 12.5}, "k is 12.5; it takes a whole number"),
        ("fsn-1m", {"k": "12"}, "k is '12'"),
        ("fsn-1m", {"layers": True}, "layers is True"),
        ("fsn-1m", {"register": "small", "state": "wrapped"}, "a whole number or nothing (null)"),
        ("fsn-1m", {"dropout": "a little"}, "it takes a finite number"),
        ("fsn-1m", {"coupling": {"harmonics": 2}}, "it takes a CouplingLaw"),
        ("fsn-1m", {"harmonics": 2.0}, "harmonics is 2.0"),
        ("fsn-1m", {"delay": "yes"}, "it takes true or false"),
        ("transformer-1m", {"width": 12.0}, "width is 12.0"),
        ("transformer-1m", {"init": None}, "init is None"),
    ],
)
def test_a_value_of_the_wrong_type_says_what_it_takes(name: str, fields: dict[str, Any], names: str) -> None:
    with pytest.raises(UserError) as caught:
        fsn.build(name, vocab_size=205, **fields)
    assert names in one_sentence(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("name", "kinds"), [("fsn-1m", (FSNConfig, CouplingLaw)), ("transformer-1m", (TransformerConfig,))]
)
def test_every_number_is_finite(name: str, kinds: tuple[Any, ...], value: float) -> None:
    """Nothing equals nan, so a run with one could never be resumed."""
    fields = [f.name for kind in kinds for f in dataclasses.fields(kind) if "float" in str(f.type)]
    assert len(fields) >= 4
    for field in fields:
        with pytest.raises(UserError) as caught:
            fsn.build(name, vocab_size=205, **{field: value})
        assert f"{field} is {value}; it takes a finite number" in one_sentence(caught.value)


def test_a_whole_number_will_do_for_a_fraction() -> None:
    assert isinstance(preset("fsn-1m", 205, dropout=0, readout_start=1, tau_start=3), FSNConfig)


@pytest.mark.parametrize("name", ["fsn-1m", "transformer-1m"])
@pytest.mark.parametrize("vocab_size", ["205", 205.0, None])
def test_a_vocabulary_is_a_whole_number(name: str, vocab_size: Any) -> None:
    with pytest.raises(UserError) as caught:
        fsn.build(name, vocab_size=vocab_size)
    assert f"vocab_size is {vocab_size!r}" in one_sentence(caught.value)


@pytest.mark.parametrize("name", ["fsn-1m", "transformer-1m"])
def test_a_vocabulary_needs_a_symbol(name: str) -> None:
    for size in (0, -3):
        with pytest.raises(UserError) as caught:
            fsn.build(name, vocab_size=size)
        assert "vocab_size" in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("fns-1m", "fsn-1m"),
        ("transfomer-1m", "transformer-1m"),
        ("fsn-disolved-2m", "fsn-dissolved-2m"),
        ("kuramoto", "kuramoto-1m"),
    ],
)
def test_an_unknown_preset_gets_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(UserError) as caught:
        fsn.build(name, vocab_size=205)
    text = one_sentence(caught.value)
    assert repr(name) in text and suggestion in text and "fsn models" in text


@pytest.mark.parametrize("name", ["", "zzzz", "-1m", "1m"])
def test_a_hopeless_name_still_points_to_the_list(name: str) -> None:
    with pytest.raises(UserError) as caught:
        fsn.build(name, vocab_size=205)
    assert "fsn models" in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("name", "fields"), [("fsn-1m", {"width": 8}), ("fsn-1m", {"harmonic": 2}), ("transformer-1m", {"k": 8})]
)
def test_an_unknown_override_lists_the_known_ones(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        fsn.build(name, vocab_size=205, **fields)
    text = one_sentence(caught.value)
    assert repr(next(iter(fields))) in text and "layers" in text


@pytest.mark.parametrize("name", ["fsn-1m", "transformer-1m"])
def test_fields_that_a_user_wrote_never_take_the_place_of_an_argument(name: str) -> None:
    with pytest.raises(UserError, match="vocab_size is the number of symbols of the corpus; leave it out"):
        preset_with(name, 205, {"vocab_size": 3})
    with pytest.raises(UserError, match=f"{name} has no field 'name'"):
        preset_with(name, 205, {"name": "x"})
    fields = {"layers": 2, "width" if name == "transformer-1m" else "k": 8}
    assert preset_with(name, 205, fields) == preset(name, 205, **fields)
    assert len(fields) == 2, "the user's own are left as they are"


def test_overrides_reach_both_the_model_and_its_law() -> None:
    config = preset("fsn-1m", 205, k=12, harmonics=5, frame="rest", dropout=0.2)
    assert isinstance(config, FSNConfig)
    assert (config.k, config.dropout) == (12, 0.2)
    assert config.coupling == CouplingLaw(harmonics=5, frame="rest")
    assert preset("fsn-1m", 205) == FSNConfig(205), "a preset is not changed by another's overrides"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("kind: rnn\nvocab_size: 5", "fsn, transformer"),
        ("kind: [fsn]\nvocab_size: 5", "fsn, transformer"),
        ("vocab_size: 5", "kind"),
        ("kind: fsn", "vocab_size"),
        ("kind: fsn\nvocab_size: 5\nwidht: 3", "'widht'"),
        ("kind: fsn\nvocab_size: 5\ncoupling: {harmonic: 3}", "'harmonic'"),
        ("kind: fsn\nvocab_size: 5\nk: 0", "k is 0"),
    ],
)
def test_a_bad_file_says_what_to_change(text: str, names: str) -> None:
    with pytest.raises(UserError) as caught:
        config_from_dict(yaml.safe_load(text))
    assert names in one_sentence(caught.value)
