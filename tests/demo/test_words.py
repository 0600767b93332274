"""The page's sentences follow the numbers, whichever way those come out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from fsn.demo import words
from fsn.demo.exercise import LETTERS, LONGEST, SHORTEST, exercise_text, fresh_passage
from fsn.measure import Curve


def model(key: str, **fields: Any) -> dict[str, Any]:
    name = {"fsn": "FSN", "kuramoto": "Kuramoto"}.get(key, key)
    return {"key": key, "name": name, "tokens_per_s": 1000.0, **fields}


FOUND: dict[str, Any] = {
    "exercise": {
        "steps": 400,
        "guess": 4.7,
        "models": [
            model("fsn", copied_bits=0.5),
            model("kuramoto", copied_bits=4.6),
            model("transformer", copied_bits=4.4),
        ],
    },
    "models": [
        model("fsn", valid_bits=2.0, copied_bits=1.0),
        model("kuramoto", valid_bits=2.2, copied_bits=1.1),
        model("transformer", valid_bits=2.1, copied_bits=1.05, tokens_per_s=3000.0),
    ],
    "depth": {"from": 4, "copied_share": 0.2},
    "margins": {
        "fsn": {"bins": {"margin": [-0.01]}, "copied": {"margin": -0.05, "low": -0.06, "high": -0.04}}
    },
    "snippets": {"text": {"models": {"fsn": {"layers": [{"place": 0.3, "after": 0.1, "chance": 0.02}]}}}},
    "kernels": {
        "text": {
            "layers": 2,
            "harmonics": 2,
            "mean": [
                [[[0.1, 0], [-0.1, 0]], [[0.2, 0], [0.1, 0]]],
                [[[0.8, 0], [0.1, 0]], [[0.1, 0], [-0.2, 0]]],
            ],
        }
    },
}


def changed(**paths: Any) -> dict[str, Any]:
    """The findings with some numbers replaced: ``fsn__valid_bits=3.0``."""
    found = copy.deepcopy(FOUND)
    for path, value in paths.items():
        key, field = path.split("__")
        next(m for m in found["models"] if m["key"] == key)[field] = value
    return found


def test_the_ranking_names_whoever_is_lowest() -> None:
    assert "the FSN has the lowest" in words.ranking(FOUND["models"], 100)
    other = words.ranking(changed(transformer__valid_bits=1.5)["models"], 1234)
    assert "After 1,234 steps the transformer has the lowest" in other
    assert "the FSN 0.500 bits behind" in other


def test_the_exercise_says_who_copies() -> None:
    assert "The FSN copies with one layer, the Kuramoto layer and the transformer do not." in words.exercise(
        FOUND
    )
    none = copy.deepcopy(FOUND)
    none["exercise"]["models"][0]["copied_bits"] = 4.6
    assert "None of the three" in words.exercise(none)
    every = copy.deepcopy(FOUND)
    for each in every["exercise"]["models"]:
        each["copied_bits"] = 0.4
    assert words.exercise(every).endswith("the transformer copy with one layer.")


def test_copying_takes_either_side_or_none() -> None:
    assert "0.050 bits less than the transformer" in words.copying(FOUND)
    behind = copy.deepcopy(FOUND)
    behind["margins"]["fsn"]["copied"] = {"margin": 0.1, "low": 0.05, "high": 0.15}
    assert "0.100 bits more than the transformer" in words.copying(behind)
    assert "stands worse" in words.overall_and_copied(behind)
    level = copy.deepcopy(FOUND)
    level["margins"]["fsn"]["copied"] = {"margin": 0.01, "low": -0.05, "high": 0.15}
    assert "about as much as the transformer" in words.copying(level)
    assert "no copied characters" in words.copying(changed(fsn__copied_bits=None))


def test_attention_is_compared_with_chance() -> None:
    assert "30 % of its attention on the same place" in words.attention(FOUND, "text")
    blind = copy.deepcopy(FOUND)
    blind["snippets"]["text"]["models"]["fsn"]["layers"][0] |= {"place": 0.02, "after": 0.01}
    assert "has not learnt to find the place yet" in words.attention(blind, "text")
    past = copy.deepcopy(FOUND)
    past["snippets"]["text"]["models"]["fsn"]["layers"][0]["after"] = 0.6
    assert "60 % of its attention on the place just after it" in words.attention(past, "text")


def test_the_kernel_is_counted() -> None:
    sentence = words.kernel(FOUND)
    assert "In 1 of 2 layers" in sentence
    assert "Of the 4 mean coefficients of higher harmonics 2 are negative" in sentence


def test_small_words() -> None:
    assert words.duration(59.6) == "1 min 0 s" and words.duration(12) == "12 s"
    assert words.listed(["a"]) == "a" and words.listed(["a", "b", "c"]) == "a, b and c"
    assert "the FSN 3.0 times" in words.speed(FOUND["models"])


def test_the_exercise_says_every_passage_twice() -> None:
    text = exercise_text(passages=200)
    assert text == exercise_text(passages=200) and set(text) <= set(LETTERS)
    rest, passages = text, 0
    while rest:
        size = next(n for n in range(SHORTEST, LONGEST + 1) if rest[:n] == rest[n : 2 * n])
        assert len(set(rest[:size])) == size, "no letter twice within a passage"
        rest, passages = rest[2 * size :], passages + 1
    assert passages == 200
    assert len(fresh_passage()) == LONGEST and fresh_passage() not in exercise_text()


def grown_up(ours: list[float], theirs: list[float], cut: tuple[float, float]) -> dict[str, Any]:
    """Two models, their losses after every epoch, all epochs equally long."""

    def said(first: float, second: float) -> dict[str, float]:
        return {"first": first, "second": second}

    curve, target = Curve("fsn", np.arange(1.0, len(ours) + 1), np.array(ours)), theirs[-1]
    return {
        "models": [
            {"key": "fsn", "name": "FSN", "bits": ours[-1]},
            {"key": "transformer", "name": "transformer", "bits": target},
        ],
        "crossing": {"epoch": curve.crossing(target), "ratio": curve.time_to(target) / len(theirs)},
        "snippet": {
            "models": {"fsn": said(3.0, 1.0), "transformer": said(3.0, 1.1), "cut": said(*cut)},
            "looks": {
                "offsets": [-1, 0, 1],
                "models": {
                    "fsn": {"layer": 4, "weights": [0.0, 0.19, 0.01]},
                    "transformer": {"layer": 3, "weights": [0.0, 0.02, 0.33]},
                },
            },
        },
    }


def test_full_size_ends_are_said_whoever_is_ahead() -> None:
    ahead = words.ends(grown_up([1.7, 1.6, 1.59], [1.8, 1.7, 1.65, 1.61], (3.0, 3.0)))
    assert "ends at 1.5900" in ahead and "the transformer's end after epoch 2, in 50 % of its time" in ahead
    assert "does not get as low" in words.ends(grown_up([1.7, 1.69], [1.6, 1.5], (3.0, 3.0)))


def test_where_they_look_is_said() -> None:
    said = words.where(grown_up([1.6], [1.6], (3.0, 3.0)))
    assert "the FSN puts 19 % of layer 4's attention on the same place" in said
    assert "and the transformer puts 33 % of layer 3's attention on what came next" in said
    elsewhere = grown_up([1.6], [1.6], (3.0, 3.0))
    elsewhere["snippet"]["looks"]["models"]["fsn"]["weights"][0] = 0.5
    assert "50 % of layer 4's attention on the place 1 before that" in words.where(elsewhere)


def test_kuramoto_attention_is_named_where_it_is_there() -> None:
    three = grown_up([1.6], [1.61], (3.1, 3.05))
    assert not any("Kuramoto" in say(three) for say in (words.ends, words.cut, words.where))
    three["models"].append({"key": "kuramoto", "name": "Kuramoto", "bits": 1.66})
    three["snippet"]["models"]["kuramoto"] = {"first": 3.2, "second": 2.5}
    three["snippet"]["looks"]["models"]["kuramoto"] = {"layer": 4, "weights": [0.0, 0.0, 0.05]}
    assert "the transformer at 1.6100 and Kuramoto attention at 1.6600" in words.ends(three)
    assert "Kuramoto attention 2.50 instead of 3.20" in words.cut(three)
    assert "Kuramoto attention puts 5 % of layer 4's attention on what came next" in words.where(three)


def test_what_is_left_of_copying_is_said() -> None:
    assert "no longer copy" in words.cut(grown_up([1.6], [1.6], (3.1, 3.05)))
    assert "no longer copy" in words.cut(grown_up([1.6], [1.6], (3.1, 3.4)))
    assert "50 % of what saying it twice is worth remains" in words.cut(grown_up([1.6], [1.6], (3.1, 2.1)))
    assert "100 %" in words.cut(grown_up([1.6], [1.6], (3.1, 0.1)))
