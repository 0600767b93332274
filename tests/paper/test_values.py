"""The paper's numbers: all of them are used somewhere, and the two forms they are kept in agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fsn.errors import UserError
from fsn.paper import runs as needs
from fsn.paper.bench import BIN_NAMES
from fsn.paper.rows import EFFICIENCY, MACROS, cite, look_up, macro, source, stated, values
from fsn.paper.sections import CLAIMS, ITEMS
from fsn.paper.sections.copy_depth import plain
from tests.paper.made_up import bench_of

BY_OTHER_MEANS = {
    ("source",): "names the paper",
    ("units",): "says what the numbers are",
    ("copy_depth", "reference"): "words; the need REFERENCE",
    ("copy_depth_code", "reference"): "words; the need CODE_TRANSFORMER",
}
"""Entries that are no number to compare, each with its reason."""


def leaves(here: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every single value with its path, in order."""
    if isinstance(here, dict | list):
        for key, inner in here.items() if isinstance(here, dict) else enumerate(here):
            yield from leaves(inner, (*path, str(key)))
    else:
        yield path, here


def aliases() -> dict[str, tuple[str, ...]]:
    """Macros that repeat a number of the tables: macro -> path."""
    found: dict[str, tuple[str, ...]] = {
        "sfnThirty": ("main_table", "enwik8@30", "fsn", "mean"),
        "sfnThirtyStd": ("main_table", "enwik8@30", "fsn", "std"),
        "sfnEpTwoMean": ("early", "fsn@2"),
        "nophaseEpTwoMean": ("early", "fsn-nophase@2"),
        "leanEpEleven": ("early", "fsn-lean@11"),
        "sfnCodeFiveTwelve": ("main_table", "code@30/seq512", "fsn"),
        "xfCodeFiveTwelve": ("main_table", "code@30/seq512", "transformer"),
        "kernelShare": (EFFICIENCY, "kernel share of the step, percent"),
    }
    stems = {"cdBase": "Base layer", "cdSfn": "FSN", "cdNophase": "No phases"}
    words = ("ZeroOne", "TwoThree", "FourSeven", "EightFifteen", "Sixteen", "TwentyFour")
    for i, (word, name) in enumerate(zip(words, map(plain, BIN_NAMES), strict=True)):
        found[f"cdNtok{word}"] = ("copy_depth", "tokens", str(i))
        found[f"cdcNtok{word}"] = ("copy_depth_code", "tokens", str(i))
        for stem, family in stems.items():
            found[f"{stem}{word}"] = ("copy_depth", "margins", f"{family}, s0", name, "margin")
            found[f"{stem}{word}Mean"] = ("copy_depth", "margins", f"{family}, mean", name, "margin")
            found[f"{stem}{word}Range"] = ("copy_depth", "ranges over seeds", family, name)
        found[f"cdcSfn{word}"] = ("copy_depth_code", "margins", "FSN, s0", name, "margin")
        found[f"cdcNophase{word}"] = ("copy_depth_code", "margins", "No phases, s0", name, "margin")
    for stem, key in (("wcMean", "vs_mean"), ("wcBest", "vs_lowest")):
        for word, rung in (("One", "1M"), ("Two", "2M"), ("Four", "4M")):
            found[f"{stem}{word}"] = ("wall_clock", rung, key, "median")
            found[f"{stem}{word}Lo"] = ("wall_clock", rung, key, "range", "0")
            found[f"{stem}{word}Hi"] = ("wall_clock", rung, key, "range", "1")
    return found


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, ...]]:
    """Every place of values.json that a row or a claim cites, with no run at hand."""
    bench = bench_of(tmp_path_factory.mktemp("empty"))
    rows = [row for item in ITEMS for row in item.compute(bench).rows]
    cited = {path for row in rows if row.paper is not None for path in row.paper.sources}
    return cited | {path for claim in CLAIMS for path in claim.places}


def test_the_two_forms_agree() -> None:
    for name, path in aliases().items():
        assert macro(name).value == look_up(path), f"{name} and {' > '.join(path)} differ"


def test_every_number_of_the_tables_is_used(used: set[tuple[str, ...]]) -> None:
    left = [
        path
        for path, _ in leaves(values())
        if path[0] != MACROS and path not in used and path not in BY_OTHER_MEANS
    ]
    left = [path for path in left if path[-1] != "seeds" and "seeds (fsn, transformer)" not in path]
    left = [path for path in left if path[:2] != ("copy_depth", "bins")]
    assert not left, left


def test_every_macro_is_used(used: set[tuple[str, ...]]) -> None:
    also = aliases()
    left = [
        path[1]
        for path, _ in leaves(values())
        if path[0] == MACROS and path not in used and also.get(path[1]) not in used
    ]
    assert not left, left


def test_numbers_of_seeds_are_the_papers() -> None:
    """The ``seeds`` entries, which say how many runs a number rests on."""
    table = {
        ("enwik8@30", "transformer"): needs.TRANSFORMER,
        ("enwik8@30", "fsn"): needs.FSN,
        ("enwik8@30", "fsn-nophase"): needs.NO_PHASES,
        ("enwik8@30", "fsn-mf-winding"): needs.WINDING,
        ("enwik8@50", "transformer"): needs.TRANSFORMER_CONVERGED,
        ("enwik8@50", "fsn"): needs.FSN_CONVERGED,
        ("code@30", "transformer"): needs.CODE_TRANSFORMER,
    }
    for place, need in table.items():
        assert look_up(("main_table", *place, "seeds")) == len(need.seeds)
    # The third seed of the plain mean field diverged.
    assert look_up(("main_table", "enwik8@30", "fsn-mf", "seeds")) == len(needs.MEAN_FIELD.seeds) - 1
    for rung, pair in needs.RUNGS.items():
        for i, need in enumerate(pair):
            assert look_up(("wall_clock", rung, "seeds (fsn, transformer)", str(i))) == len(need.seeds)


def test_bins_are_the_instruments() -> None:
    named = [value for path, value in leaves(values()) if path[:2] == ("copy_depth", "bins")]
    assert named == [plain(name) for name in BIN_NAMES]


def test_citing() -> None:
    assert "2606.18694" in source()
    both = cite("main_table", "enwik8@30", "fsn", "mean").plus_minus(macro("sfnThirtyStd"))
    assert (both.value, both.spread) == (1.605, 0.0038) and len(both.sources) == 2
    assert macro("xfThirty").minus(macro("sfnThirty")).value == pytest.approx(0.0208)
    assert stated(4).sources == ()
    for path in (("nothing",), ("ladder", "2M"), ("copy_depth", "tokens", "9"), ("source",)):
        with pytest.raises(UserError, match="hold no"):
            look_up(path)


def test_claims_are_many_and_named_once() -> None:
    names = [claim.name for claim in CLAIMS]
    assert len(names) >= 40 and len(set(names)) == len(names)
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    assert all(claim.says.endswith(".") and claim.where for claim in CLAIMS)
