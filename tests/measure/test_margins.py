"""Margins: bootstrap intervals against scipy and against theory, exact recombination, seed statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fsn.data import Windows
from fsn.errors import UserError
from fsn.measure import bootstrap, copy_depth
from fsn.measure.copy_depth import BINS, EARLY_BINS, Battery, battery, label
from fsn.measure.tables import Table


def recombined(margins: Table, run: str, column: str = "loss") -> float:
    """The token-weighted mean over the bins of one run."""
    rows = [row for row in margins.where(run=run).rows if row["tokens"]]
    tokens = np.array([row["tokens"] for row in rows], dtype=np.float64)
    return float(np.array([row[column] for row in rows]) @ tokens / tokens.sum())


def clustered(
    windows: int, tokens: int, between: float, within: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Values with a window effect, and a mask that keeps a different number of tokens in each window."""
    rng = np.random.default_rng(seed)
    effect = rng.normal(0.0, between, (windows, 1))
    values = 0.3 + effect + rng.normal(0.0, within, (windows, tokens))
    mask = rng.random((windows, tokens)) < rng.uniform(0.1, 0.9, (windows, 1))
    return values, mask


def test_cluster_bootstrap_agrees_with_scipy() -> None:
    values, mask = clustered(120, 40, between=1.0, within=0.5, seed=3)
    ours = bootstrap.cluster_bootstrap(values, mask, resamples=20_000)
    total, n = np.where(mask, values, 0).sum(axis=1), mask.sum(axis=1)
    theirs = stats.bootstrap(
        (total, n),
        lambda s, c, axis=-1: s.sum(axis=axis) / c.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        batch=2000,
        method="percentile",
        random_state=np.random.default_rng(4),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.value == pytest.approx(values[mask].mean(), abs=1e-12)
    assert abs(ours.low - theirs.low) < 0.03 * width and abs(ours.high - theirs.high) < 0.03 * width


def test_cluster_bootstrap_sees_the_clusters() -> None:
    """With equal windows the interval is ±1.96 standard errors of the window means, not of the tokens."""
    windows, tokens = 400, 30
    rng = np.random.default_rng(5)
    values = rng.normal(0, 1, (windows, 1)) + rng.normal(0, 0.2, (windows, tokens))
    everything = np.ones_like(values, bool)
    ours = bootstrap.cluster_bootstrap(values, everything)
    half = 1.96 * values.mean(axis=1).std(ddof=1) / np.sqrt(windows)
    assert (ours.high - ours.low) / 2 == pytest.approx(half, rel=0.06)
    naive = bootstrap.position_bootstrap(values.ravel(), resamples=500)
    assert (ours.high - ours.low) > 4 * (naive.high - naive.low)


def test_coverage_of_a_known_mean() -> None:
    """Over many synthetic experiments the 95 % interval holds the true mean about 95 times in 100."""
    hits = 0
    for seed in range(200):
        values, mask = clustered(60, 12, between=1.0, within=1.0, seed=1000 + seed)
        interval = bootstrap.cluster_bootstrap(values, mask, resamples=400, seed=seed)
        hits += interval.low <= 0.3 <= interval.high
    assert 0.89 <= hits / 200 <= 0.985


def test_position_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(6).exponential(1.0, 300)
    ours = bootstrap.position_bootstrap(values, resamples=20_000)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", random_state=np.random.default_rng(7)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.value == pytest.approx(values.mean(), abs=1e-12)
    assert abs(ours.low - theirs.low) < 0.03 * width and abs(ours.high - theirs.high) < 0.03 * width


def test_resampling_is_exact_where_nothing_varies_and_blockwise(monkeypatch) -> None:
    same = np.full((9, 5), 0.25)
    interval = bootstrap.cluster_bootstrap(same, np.ones_like(same, bool), resamples=50)
    assert (interval.value, interval.low, interval.high) == (0.25, 0.25, 0.25)
    nothing = bootstrap.cluster_bootstrap(same, np.zeros_like(same, bool))
    assert np.isnan(nothing.value) and np.isnan(nothing.low)
    assert np.isnan(bootstrap.position_bootstrap(np.empty(0)).value)
    counts = bootstrap.resample_counts(7, 100, np.random.default_rng(0))
    assert counts.shape == (100, 7) and (counts.sum(axis=1) == 7).all()
    monkeypatch.setattr(bootstrap, "_BLOCK", 21)  # many small blocks draw the same numbers as one large one
    np.testing.assert_array_equal(counts, bootstrap.resample_counts(7, 100, np.random.default_rng(0)))


def test_seed_summary_uses_the_sample_deviation() -> None:
    summary = bootstrap.seed_summary([-0.0799, -0.0617, -0.0745])  # the paper's FSN seeds on the 4–7 bin
    assert summary.mean == pytest.approx(-0.0720, abs=5e-5) and summary.range == pytest.approx(
        0.0183, abs=1e-4
    )
    assert summary.std == pytest.approx(np.std([-0.0799, -0.0617, -0.0745], ddof=1))
    assert np.isnan(bootstrap.seed_summary([1.0]).std) and bootstrap.seed_summary([1.0]).count == 1
    with pytest.raises(UserError, match="no seed"):
        bootstrap.seed_summary([])


@pytest.fixture(scope="module")
def sample() -> tuple[Battery, dict[str, np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(8)
    tokens = rng.integers(0, 12, 40_000).astype(np.uint8)
    for start in rng.integers(500, 39_000, 60):
        span = int(rng.integers(10, 60))
        tokens[start : start + span] = tokens[start - 100 : start - 100 + span]
    found = battery(label(Windows(torch.from_numpy(tokens), 256, 128)), standard=200, enriched=40)
    shape = found.depth.shape
    base = [rng.gamma(2.0, 1.0, shape).astype(np.float32) for _ in range(3)]
    runs = {
        f"s{i}": (base[0] - 0.01 * found.depth + rng.normal(0, 0.1, shape)).astype(np.float32)
        for i in range(3)
    }
    return found, runs, base


def test_margins_by_hand_and_recombination(sample) -> None:
    found, runs, references = sample
    mean = np.mean([r.astype(np.float64) for r in references], axis=0)
    table = copy_depth.margin_table(runs, mean, found, resamples=200)
    for edges, row in zip(BINS, table.where(run="s1").rows, strict=True):
        rows = slice(None) if edges[0] >= 16 else ~found.enriched
        inside = (found.depth[rows] >= edges[0]) & (found.depth[rows] <= edges[1])
        loss = runs["s1"].astype(np.float64)[rows][inside]
        assert row["tokens"] == inside.sum() > 0
        assert row["margin"] == pytest.approx((loss - mean[rows][inside]).mean(), abs=1e-9)
        assert row["loss"] - row["reference"] == pytest.approx(row["margin"], abs=1e-9)
        assert row["low"] < row["margin"] < row["high"]
    for bins in (BINS, EARLY_BINS):
        for slices, rows in (
            ("standard", ~found.enriched),
            ("enriched", found.enriched),
            ("both", slice(None)),
        ):
            part = copy_depth.margin_table(
                {"s0": runs["s0"]}, references[0], found, bins, slices, resamples=10
            )
            total = runs["s0"][rows].mean(dtype=np.float64)
            assert recombined(part, "s0") == pytest.approx(total, abs=1e-9)
            difference = (runs["s0"].astype(np.float64) - references[0])[rows].mean()
            assert recombined(part, "s0", "margin") == pytest.approx(difference, abs=1e-9)


def test_families_are_seed_means_with_extremes(sample) -> None:
    found, runs, references = sample
    table = copy_depth.margin_table(runs, references[0], found, resamples=20)
    families = copy_depth.seed_mean_table(table, {"FSN": list(runs)})
    row = families.where(bin="8–15").rows[0]
    cells = [table.where(run=name, bin="8–15").rows[0]["margin"] for name in runs]
    assert row["mean"] == pytest.approx(np.mean(cells)) and row["std"] == pytest.approx(np.std(cells, ddof=1))
    assert (row["min"], row["max"], row["seeds"]) == (min(cells), max(cells), 3)
    assert "−" not in families.to_markdown() and families.to_csv().startswith("family,bin,")


def test_curve_and_depth_by_distance(sample) -> None:
    found, runs, references = sample
    curve = copy_depth.depth_curve(list(runs.values()), references[0], found, resamples=100)
    assert curve.column("depth") == list(range(33))
    difference = np.mean([r.astype(np.float64) for r in runs.values()], axis=0) - references[0]
    deepest = found.depth == 32
    assert curve.rows[32]["margin"] == pytest.approx(difference[deepest].mean(), abs=1e-9)
    shallow = (found.depth == 3) & ~found.enriched[:, None]
    assert curve.rows[3]["margin"] == pytest.approx(difference[shallow].mean(), abs=1e-9)
    assert curve.rows[3]["tokens"] == shallow.sum() and len(curve) == 33
    held = [row for row in curve.rows if row["tokens"] > 1]
    assert held and all(row["low"] <= row["margin"] <= row["high"] for row in held)
    table = copy_depth.depth_distance_table(list(runs.values()), references[0], found, resamples=20)
    matched = sum(table.where(bin="24–32").column("tokens"))
    assert matched == found.mask((24, 32)).sum()  # every deep target has a distance
    unmatched = (found.distance == 0) & found.mask((0, 1))
    assert sum(table.where(bin="0–1").column("tokens")) == found.mask((0, 1)).sum() - unmatched.sum()


def test_runs_measured_on_other_windows_are_refused(sample) -> None:
    found, runs, references = sample
    with pytest.raises(UserError, match="battery"):
        copy_depth.margin_table({"s0": runs["s0"][:10]}, references[0], found)
    with pytest.raises(UserError, match="battery"):
        copy_depth.margin_table(runs, references[1][:5], found)


def test_blocks_keep_neighbours_together() -> None:
    """Windows that agree in blocks of eight count as few: drawing blocks widens the interval about √8 times."""
    blocks = bootstrap.in_blocks(np.arange(36).reshape(18, 2))
    assert blocks.shape == (3, 16) and blocks[0].tolist() == list(range(16))
    assert blocks[2].tolist() == [32, 33, 34, 35, *[0] * 12]
    generator = np.random.default_rng(0)
    alike = np.repeat(generator.standard_normal((64, 1)), 8, axis=0) + np.zeros((512, 5))
    mask = np.ones(alike.shape, bool)
    single = bootstrap.cluster_bootstrap(alike, mask, 1000)
    joined = bootstrap.cluster_bootstrap(bootstrap.in_blocks(alike), bootstrap.in_blocks(mask), 1000)
    assert joined.value == pytest.approx(single.value)
    assert (joined.high - joined.low) / (single.high - single.low) == pytest.approx(8**0.5, rel=0.25)


def test_csv_leaves_out_the_digits_that_depend_on_the_order_of_adding() -> None:
    rows = [{"x": 0.1 + 0.2, "n": 3, "word": None}, {"x": 0.3, "n": 3, "word": "a,b"}]
    assert Table(("x", "n", "word"), rows, {}).to_csv() == 'x,n,word\n0.3,3,\n0.3,3,"a,b"\n'
