"""The paper's numbers: all of them are used somewhere, and the two forms they are kept in agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fsn.errors import UserError
from fsn.paper import needs, rows
from fsn.paper.bench import BIN_NAMES
from fsn.paper.rows import EFFICIENCY, MACROS, Cited, cite, look_up, macro, values
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


IN_CLAIMS = {
    "below-at-matched-epochs": "sfnThirty xfThirty sfnThirtyStd xfThirtyStd",
    "below-converged": "sfnConverged sfnConvergedStd xfConverged",
    "kuramoto-does-not-reach": "tanConverged",
    "mean-field-within-0.019": "mfGapThirty",
    "mean-field-in-range": "mfThirty mfThirtyStd mfGapThirty sfnMfGap",
    "indistinguishable-without-phases": "nophaseThirty nophaseThirtyStd",
    "mean-field-does-not-beat": "mfwThirty mfwThirtyStd mfwGapThirty",
    "feed-forward-contributes": "sfnMfwGap",
    "diverging-seed-between-siblings": "mfDivergeEpSixteen",
    "code-two-of-three-ahead": "sfnCodeThirty sfnCodeSTwo xfCodeThirty xfCodeThirtyStd",
    "code-plateau-seed": "sfnCodeSOne",
    "code-below-transformer": "nophaseCodeVal",
    "code-below-any-transformer-epoch": "sfnCodeBest",
    "context-helps-more-than-architecture": "codeContextDropFSN codeContextDropXF sfnCodeFiveTwelve xfCodeFiveTwelve",
    "margin-smaller-at-512": "codeMarginFiveTwelve codeMarginTwoFiftySix",
    "epoch-mean-margins": "codeMarginFiveTwelveMean codeMarginTwoFiftySixMean",
    "plateau-shows-at-epoch-one": "codeFailEpOne codeHealthyEpOneA codeHealthyEpOneB codeSeedSepMin",
    "plateau-shows-at-epoch-one-512": "codeFiveTwelveFailEpOne codeFiveTwelveHealthyEpOneA codeFiveTwelveHealthyEpOneB",
    "base-peaks-on-long-copies": "cdBaseSixteenMin cdBaseSixteenMax",
    "base-peak-five-times": "cdBaseSixteenMean",
    "base-returns-at-24-32": "cdBaseTwentyFourMean",
    "base-spikes": "cdCurveSeventeen cdCurveNineteen cdCurveTwentyTwo",
    "widest-spread-at-16-23": "cdBaseSixteenRange cdNophaseSixteenRange",
    "fsn-marginal-on-shallow-bins": "cdSfnTwoThreeMean cdSfnZeroOneMean",
    "early-checkpoint-ahead": "copyFourSeven copyEightFifteen copySixteen copyTwentyFour",
    "early-checkpoint-ahead-on-both-slices": "copySixteenStd copySixteenEnr copyTwentyFourStd copyTwentyFourEnr",
    "code-deep-bins-clear": "cdcDeepLo cdcDeepHi",
    "failed-seed-keeps-copying": "cdcFailZeroOne cdcFailSixteen cdcFailTwentyFour",
    "deep-targets-commoner-on-code": "codeDeepShare enwikDeepShare",
    "ladder-8m-below-final": "ladderEightFSN ladderEightFSNEpoch ladderEightXF ladderEightXFFinal",
    "ladder-lighter": "ladderTwoLighter ladderFourLighter ladderEightLighter",
    "advantage-does-not-shrink": "ladderTwoFSN ladderTwoXFFinal ladderFourFSN ladderFourXFFinal",
    "several-times-slower": "wcSlowOne wcSlowTwo wcSlowFour wcSlowEight",
    "faster-to-target-at-4m-and-8m": "wcMeanFour wcMeanFourLo wcMeanFourHi wcMeanEight wcBestEight",
    "slower-to-target-at-1m-and-2m": "wcMeanOne wcMeanTwo",
    "lowest-loss-ratios": "wcBestOne wcBestTwo wcBestFour wcBestEight",
    "fsn-goes-on-below": "crossAfterMin crossAfterMax",
    "code-at-parity": "wallCodeRatioA wallCodeRatioB",
    "code-against-fsn-at-512": "wallCodeFiveTwelveRatio wallCodeFiveTwelveSlowdown",
    "parameter-totals": "sfnParams xfParams sfnCodeParams xfCodeParams paramImbalance",
    "init-ramp": "rmsRamp",
    "delay-matters-most": "ablNoSuccDelta",
    "periodic-input-costs": "torusSwigluPenalty",
    "bound-is-essential": "bndNoneEpOne",
    "step-three-to-four-times": "tpsFSNOneM tpsXFOneM slowdownOneM",
    "kernel-is-not-the-overhead": "kernelShare tpsNophaseOneM slowdownNophaseOneM",
    "slowdown-falls-at-4m": "tpsFSNFourM tpsXFFourM slowdownFourM",
    "code-speed-like-text": "tpsFSNCode tpsXFCode",
    "evaluation-gap-smaller": "tpsEvalFSN tpsEvalXF",
    "more-memory": "memFSNOneM memXFOneM",
    "mean-field-slower": "tpsMFOneM",
}
"""The macros that the sentence of a claim prints."""
IN_CLAIMS_TOO = {
    "crossing-epochs": ("early", "fsn crosses 1.611 at epochs"),
    "no-phases-reach-kuramoto": ("early", "nophase reaches 1.6272 within epochs"),
    "mean-field-leads-five-epochs": ("early", "fsn-mf leads the transformer for epochs"),
    "winding-leads-seven-epochs": ("early", "fsn-mf-winding leads the transformer for epochs"),
}
"""What is no macro."""


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
        "sfnParams": ("parameters", "fsn/enwik8/1M"),
        "xfParams": ("parameters", "transformer/enwik8/1M"),
        "sfnCodeParams": ("parameters", "fsn/code/1M"),
        "xfCodeParams": ("parameters", "transformer/code/1M"),
        "memFSNOneM": (EFFICIENCY, "memory GB", "fsn"),
        "memXFOneM": (EFFICIENCY, "memory GB", "transformer"),
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
    """Every place of values.json that an item looks up, with no run at hand, or that a claim's sentence prints."""
    found = {(MACROS, name) for words in IN_CLAIMS.values() for name in words.split()}
    found |= {
        path
        for path, _ in leaves(values())
        for place in IN_CLAIMS_TOO.values()
        if path[: len(place)] == place
    }
    bench = bench_of(tmp_path_factory.mktemp("empty"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "look_up", lambda *path: found.add(path) or look_up(*path))
        for item in ITEMS:
            item.compute(bench)
    return found


def test_the_two_forms_agree() -> None:
    for name, path in aliases().items():
        assert macro(name).value == look_up(*path), f"{name} and {' > '.join(path)} differ"


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
        assert look_up("main_table", *place, "seeds") == len(need.seeds)
    # The third seed of the plain mean field diverged.
    assert look_up("main_table", "enwik8@30", "fsn-mf", "seeds") == len(needs.MEAN_FIELD.seeds) - 1
    for rung, pair in needs.RUNGS.items():
        for i, need in enumerate(pair):
            assert look_up("wall_clock", rung, "seeds (fsn, transformer)", str(i)) == len(need.seeds)


def test_bins_are_the_instruments() -> None:
    named = [value for path, value in leaves(values()) if path[:2] == ("copy_depth", "bins")]
    assert named == [plain(name) for name in BIN_NAMES]


def test_citing() -> None:
    assert "2606.18694" in values()["source"]
    assert cite("main_table", "enwik8@30", "fsn", "mean") == Cited(1.605, macro("sfnThirtyStd").value)
    assert macro("xfThirty").minus(macro("sfnThirty")).value == pytest.approx(0.0208)
    for path in (("nothing",), ("ladder", "2M"), ("copy_depth", "tokens", "9"), ("source",)):
        with pytest.raises(UserError, match="hold no"):
            look_up(*path)


def test_claims_are_many_and_named_once() -> None:
    names = [claim.name for claim in CLAIMS]
    assert {*IN_CLAIMS, *IN_CLAIMS_TOO} <= set(names)
    assert len(names) >= 40 and len(set(names)) == len(names)
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    assert all(claim.says.endswith(".") and claim.where for claim in CLAIMS)
