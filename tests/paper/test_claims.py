"""Claims on run folders whose outcome is known: holds, fails, not run yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fsn.paper import needs
from fsn.paper.needs import Need
from fsn.paper.rows import FAILS, HOLDS, HOLDS_SO_FAR, NOT_RUN, OPEN, Claim, Verdict, judge
from fsn.paper.sections import CLAIMS
from tests.paper.made_up import bench_of, falling, write_losses, write_run
from tests.paper.tiny import TINY

Shape = Callable[[np.ndarray], np.ndarray]
BY_NAME = {one.name: one for one in CLAIMS}


def verdict(root: Path, name: str) -> Verdict:
    return judge(BY_NAME[name], bench_of(root))


def test_needs_runs_that_are_not_there(tmp_path: Path) -> None:
    for name in ("code-below-transformer", "ahead-at-512", "first-harmonic-attracts", "more-memory"):
        found = verdict(tmp_path, name)
        assert found.state == NOT_RUN and found.evidence.startswith("needs ")
    write_run(tmp_path, needs.MEAN_FIELD, falling(1.64, 0.16, 30))
    found = verdict(tmp_path, "mean-field-recovers-most")
    assert found.state == NOT_RUN and "feedforward=none" in found.evidence


def test_one_counterexample_refutes_a_claim_about_every_epoch(tmp_path: Path) -> None:
    write_run(tmp_path, needs.TRANSFORMER, falling(1.62, 0.3, 8))
    write_run(tmp_path, needs.FSN, falling(1.60, 0.2, 8))
    found = verdict(tmp_path, "fsn-ahead-every-epoch")
    assert found.state == HOLDS_SO_FAR and "0 of 10 runs done" in found.evidence
    losses = falling(1.60, 0.2, 8)
    losses[4] = 1.9
    write_run(tmp_path, needs.FSN, losses, seed=1)
    found = verdict(tmp_path, "fsn-ahead-every-epoch")
    assert found.state == FAILS and "at epoch 5" in found.evidence


def test_speeds_of_two_devices_are_not_judged(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, needs.FSN, [1.7], seed=seed)
        write_run(tmp_path, needs.TRANSFORMER, [1.7], seed=seed, device="a CPU")
    found = verdict(tmp_path, "step-three-to-four-times")
    assert found.state == OPEN and "different settings" in found.evidence


# -- copy depth, at the tiny scale, whose text is always there ------------------------------------------------


def test_copy_depth_claims(tmp_path: Path) -> None:
    """Losses that depend on depth as the paper's margins do."""
    bench = bench_of(tmp_path, TINY)

    def base(d: np.ndarray) -> np.ndarray:
        bump = np.where((d >= 16) & (d <= 23), 0.1, 0.0)
        for spike, high in ((17, 1.3), (19, 0.7), (22, 0.4)):
            bump = np.where(d == spike, high, bump)
        return 1.0 + 0.05 + bump

    def fsn(d: np.ndarray) -> np.ndarray:
        return 1.0 - np.where(d >= 4, 0.15, 0.0)

    shapes: dict[Need, Shape] = {
        needs.REFERENCE: np.ones_like,
        needs.KURAMOTO: base,
        needs.FSN_CONVERGED: fsn,
        needs.NO_PHASES: fsn,
    }
    for need, shape in shapes.items():
        for seed in need.seeds:
            epochs = TINY.epochs(need.epochs)
            run = write_run(
                tmp_path, need, [5.0] * epochs, seed=seed, scale=TINY, weights=need.family.encode()
            )
            write_losses(run, "text", bench, shape)
    bench = bench_of(tmp_path, TINY)
    states = {
        "base-behind-everywhere": HOLDS,
        "base-peaks-on-long-copies": HOLDS,
        "base-returns-at-24-32": HOLDS,
        "base-spikes": HOLDS,
        "base-largest-at-17": HOLDS,
        "fsn-ahead-on-deep-bins": HOLDS,
        "fsn-reverses-base-deficit": HOLDS,
        "no-phases-track-fsn": HOLDS,
        "advantage-is-deep": HOLDS,
        "fsn-curve-below-zero": HOLDS,
        "fsn-far-below-base-at-spikes": HOLDS,
        "early-checkpoint-ahead": NOT_RUN,
        "code-grows-with-depth": NOT_RUN,
    }
    found = {name: judge(BY_NAME[name], bench) for name in states}
    assert {name: v.state for name, v in found.items()} == states, found
    assert "12 of 12 cells clear of zero" in found["fsn-ahead-on-deep-bins"].evidence


def test_an_advantage_that_is_not_there(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, TINY)
    shapes: dict[Need, Shape] = {
        needs.REFERENCE: np.ones_like,
        needs.FSN_CONVERGED: lambda d: 1.0 + 0.1 * (d >= 8),
    }
    for need, shape in shapes.items():
        for seed in need.seeds:
            run = write_run(tmp_path, need, [5.0] * 4, seed=seed, scale=TINY, weights=b"x")
            write_losses(run, "text", bench, shape)
    found = judge(BY_NAME["fsn-ahead-on-deep-bins"], bench_of(tmp_path, TINY))
    assert found.state == FAILS and "clear of zero" in found.evidence


# -- the wrapper -------------------------------------------------------------------------------------------


def test_a_claim_without_runs_is_judged(tmp_path: Path) -> None:
    one = Claim("one", "Section 9", "Everything is fine.", (), lambda b: (True, "1"))
    assert judge(one, bench_of(tmp_path)) == Verdict(HOLDS, "1")


def test_different_vocabularies_are_one_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 30))
    other = write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 30), seed=1)
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace(bytes(range(205)).hex(), bytes(range(1, 206)).hex()))
    bench = bench_of(folder.parent)
    found = judge(BY_NAME["fsn-below-converged-bar"], bench)
    assert found.state == NOT_RUN and "different vocabularies" in found.evidence
