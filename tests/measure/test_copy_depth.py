"""Copy depth: equality with a labeller that follows the definition word by word, the slices, the cache."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fsn.data import Corpus, Windows
from fsn.errors import UserError
from fsn.measure import copy_depth as cd
from tests.measure.example_runs import windows_from


def brute_force(window: list[int]) -> tuple[list[int], list[int]]:
    """Longest suffix ending at t (t included) that also ends at an earlier e; among equals the nearest e."""
    matches, distances = [], []
    for t in range(1, len(window)):
        best, where = 0, 0
        for e in range(t - 1, -1, -1):
            m = 0
            while m <= e and window[t - m] == window[e - m]:
                m += 1
            if m > best:
                best, where = m, t - e
        matches.append(best)
        distances.append(where)
    return matches, distances


def counts(battery: cd.Battery, slices: str) -> list[int]:
    return [int(battery.mask(edges, slices).sum()) for edges in cd.BINS]


def assert_equal_to_brute_force(windows: np.ndarray) -> None:
    found = cd.label(windows_from(windows), chunk=3)
    expected = [brute_force(row.tolist()) for row in windows]
    np.testing.assert_array_equal(found.match, [m for m, _ in expected])
    np.testing.assert_array_equal(found.distance, [d for _, d in expected])
    depth = cd.label(windows_from(windows)).depth
    np.testing.assert_array_equal(depth, [[min(max(m - 1, 0), 32) for m in row] for row, _ in expected])


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.uint8,
        st.tuples(st.integers(1, 7), st.integers(2, 48)),
        elements=st.integers(0, 255).map(lambda x: x % 4),
    )
)
def test_random_windows(windows: np.ndarray) -> None:
    assert_equal_to_brute_force(windows)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 12), st.integers(2, 90))
def test_periodic_windows_with_flaws(data: st.DataObject, period: int, length: int) -> None:
    """Long overlapping repeats, broken here and there: where a wrong run length would show."""
    unit = data.draw(st.lists(st.integers(0, 2), min_size=period, max_size=period))
    window = (unit * (length // period + 1))[:length]
    for position in data.draw(st.lists(st.integers(0, length - 1), max_size=4)):
        window[position] = 3
    assert_equal_to_brute_force(np.array([window], np.uint8))


def test_full_size_adversarial_windows() -> None:
    """At T = 256 a run times T nearly fills sixteen bits: nothing may overflow."""
    rng = np.random.default_rng(0)
    rows = [
        np.zeros(256, int),  # one symbol: the longest run there is
        np.arange(256),  # nothing repeats
        np.arange(256) % 2,
        np.arange(256) % 127,
        np.tile(rng.integers(0, 256, 128), 2),
        np.concatenate([np.zeros(255, int), [1]]),
        rng.integers(0, 2, 256),
    ]
    windows = np.array(rows, np.uint8)
    assert_equal_to_brute_force(windows)
    found = cd.label(windows_from(windows))
    assert found.match[0, -1] == 255 and found.distance[0, -1] == 1
    assert found.match[1].max() == 0 and found.distance[1].max() == 0
    assert found.depth[0].max() == cd.CAP


def test_windows_longer_than_256() -> None:
    rng = np.random.default_rng(1)
    windows = np.stack([np.zeros(300, int), np.tile(rng.integers(0, 5, 100), 3)]).astype(np.uint8)
    assert_equal_to_brute_force(windows)


def test_depth_by_hand() -> None:
    #        a b c x a b c: the last c continues "ab" seen before, so its depth is 2
    labels = cd.label(windows_from(np.array([[0, 1, 2, 9, 0, 1, 2]], np.uint8)))
    assert labels.depth.tolist() == [[0, 0, 0, 0, 1, 2]]
    assert labels.match.tolist() == [[0, 0, 0, 1, 2, 3]]
    assert labels.distance.tolist() == [[0, 0, 0, 4, 4, 4]]
    assert labels.share(at_least=2) == pytest.approx(1 / 6)


def test_slices_and_battery() -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 40, 6000).astype(np.uint8)
    tokens[4000:4060] = tokens[3900:3960]  # a long copy late in the text
    tokens[5000:5040] = tokens[4940:4980]
    labels = cd.label(Windows(torch.from_numpy(tokens), 256, 128))
    battery = cd.battery(labels, standard=8, enriched=4)
    assert battery.windows[:8].tolist() == list(range(8)) and battery.enriched.sum() == 4
    assert (np.diff(battery.windows) > 0).all() and battery.windows[8] >= 8
    deep = (labels.depth >= 24).sum(axis=1)
    chosen = battery.windows[8:]
    others = np.setdiff1d(np.arange(8, len(deep)), chosen)
    assert deep[chosen].min() >= deep[others].max() and deep[chosen].max() > 0
    # the shallow bins come from the standard slice alone, the deep ones from both
    standard, both = counts(battery, "standard"), counts(battery, "both")
    assert battery.counts() == standard[:4] + both[4:]
    assert sum(both) == battery.depth.size and sum(standard) == 8 * 255
    enriched = counts(battery, "enriched")
    assert [a + b for a, b in zip(standard, enriched, strict=True)] == both
    with pytest.raises(UserError, match="slice"):
        battery.mask((0, 1), "all")


def test_bins_cover_every_depth_once() -> None:
    for bins in (cd.BINS, cd.EARLY_BINS):
        assert [d for low, high in bins for d in range(low, high + 1)] == list(range(cd.CAP + 1))
    covered = [d for low, high in cd.distance_bins(256) for d in range(low, high + 1)]
    assert covered == list(range(1, 256)) and cd.distance_bins(512)[-1] == (256, 511)
    assert cd.bin_name((0, 0)) == "0" and cd.bin_name((4, 7)) == "4–7"


def test_cache_is_used_repaired_and_keyed(tmp_path, monkeypatch) -> None:
    def corpus(data: bytes, name: str = "tiny") -> Corpus:
        return Corpus.from_bytes(name, data)

    text = bytes(np.random.default_rng(0).integers(97, 100, 40_000).tolist())
    folder = tmp_path / "copy-depth"
    first = cd.label_corpus(corpus(text), "valid", 64, 32, tmp_path)
    (file,) = folder.iterdir()
    calls = []
    original = cd.label
    monkeypatch.setattr(cd, "label", lambda *a, **k: calls.append(1) or original(*a, **k))
    again = cd.label_corpus(corpus(text), "valid", 64, 32, tmp_path)
    assert not calls
    np.testing.assert_array_equal(first.match, again.match)
    np.testing.assert_array_equal(first.distance, again.distance)
    file.write_bytes(file.read_bytes()[:100])  # a damaged file is made again, not trusted
    np.testing.assert_array_equal(cd.label_corpus(corpus(text), "valid", 64, 32, tmp_path).match, first.match)
    assert len(calls) == 1
    for change in (
        (corpus(text), "valid", 64, 16),
        (corpus(text), "valid", 32, 32),
        (corpus(text), "test", 64, 32),
        (corpus(text[::-1]), "valid", 64, 32),
    ):
        cd.label_corpus(*change, tmp_path)
    assert len(calls) == 5 and len(list(folder.iterdir())) == 5


def test_a_cache_that_cannot_be_written_does_not_stop_anyone(tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    labels = cd.label_corpus(Corpus.from_bytes("a", b"ab" * 4000), length=64, stride=32, cache=blocked / "c")
    assert labels.depth.max() == 32


def test_labels_of_a_corpus_live_in_its_cache(tmp_path) -> None:
    corpus = Corpus.from_bytes("tiny", bytes(range(97, 123)) * 400)
    labels = cd.label_corpus(corpus, length=64, stride=64, cache=tmp_path)
    assert labels.depth.shape == ((520 - 64) // 64 + 1, 63)
    assert labels.match[0, 25:].tolist() == list(range(1, 39))  # the alphabet comes round after 26 letters
    assert (labels.distance[0, 25:] == 26).all()
    assert len(list((tmp_path / "copy-depth").iterdir())) == 1


def enwik8_validation() -> np.ndarray | None:
    """The validation part of enwik8, where it is in the cache or FSN_ENWIK8 points at the raw file."""
    from fsn.data.cache import cache_folder

    for path in (os.environ.get("FSN_ENWIK8"), cache_folder() / "enwik8"):
        if path and os.path.isfile(path) and os.path.getsize(path) == 100_000_000:
            return np.fromfile(path, np.uint8, count=5_000_000, offset=90_000_000)
    return None


def test_the_papers_counts_on_enwik8() -> None:
    """The first four counts are the paper's own; 0.602 % of the targets are 24 deep or more (paper: 0.6)."""
    tokens = enwik8_validation()
    if tokens is None:
        pytest.skip("enwik8 is not in the cache; set FSN_ENWIK8 to the raw file to run this")
    labels = cd.label(Windows(torch.from_numpy(tokens), 256, 128))
    assert labels.depth.shape == (39_061, 255), "the paper's validation windows"
    battery = cd.battery(labels)
    assert counts(battery, "standard") == [208_035, 30_832, 15_979, 5_019, 823, 432]
    assert counts(battery, "enriched")[4:] == [6_875, 13_325]
    assert round(100 * labels.share(24), 3) == 0.602
