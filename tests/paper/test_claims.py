"""Claims on run folders whose outcome is known: holds, fails, not run yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from fsn.models import FSN, build_from_config
from fsn.paper import runs as needs
from fsn.paper.rows import FAILS, HOLDS, NOT_RUN, Claim, Verdict, judge
from fsn.paper.runs import PAPER, Need
from fsn.paper.sections import CLAIMS
from tests.paper.made_up import bench_of, falling, write_losses, write_run
from tests.paper.tiny import TINY

Shape = Callable[[np.ndarray], np.ndarray]
BY_NAME = {one.name: one for one in CLAIMS}
ROUGH = 8
"""Enough epochs for claims about every epoch that do not ask for all thirty."""


def verdict(root: Path, name: str) -> Verdict:
    return judge(BY_NAME[name], bench_of(root))


def write_seeds(
    root: Path, need: Need, end: float, drop: float, epochs: int, spread: float = 0.001, **more: float
) -> None:
    for seed in need.seeds:
        write_run(root, need, falling(end + spread * seed, drop, epochs), seed=seed, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that behave as the paper says."""
    root = tmp_path_factory.mktemp("world")
    write_seeds(root, needs.FSN_CONVERGED, 1.594, 0.2, 50)
    write_seeds(root, needs.FSN.seed(3, 4), 1.594, 0.2, 30)
    write_seeds(root, needs.TRANSFORMER_CONVERGED, 1.608, 0.4, 50)
    write_seeds(root, needs.KURAMOTO, 1.62, 0.5, 50)
    write_seeds(root, needs.NO_PHASES, 1.593, 0.22, 30)
    mean_field: list[list[float | None]] = [
        [*falling(1.64, 0.16, 30)],
        [*falling(1.641, 0.16, 30)],
        [*falling(1.6405, 0.16, 16), None],
    ]
    for seed, losses in enumerate(mean_field):
        write_run(root, needs.MEAN_FIELD, losses, seed=seed)
    write_seeds(root, needs.WINDING, 1.634, 0.2, 30)
    write_run(root, needs.LEAN, falling(1.6, 0.25, 11))
    write_run(root, needs.NO_DELAY, [1.9, 1.78])
    write_run(root, needs.TORUS, [1.85, 1.715])
    write_run(root, needs.NO_BOUND, [10.2])
    for name, ours, theirs in (("2M", 1.52, 1.55), ("4M", 1.45, 1.5), ("8M", 1.40, 1.43)):
        fsn, transformer = needs.RUNGS[name]
        write_seeds(root, fsn, ours, 0.2, fsn.epochs, epoch_s=300.0)
        write_seeds(root, transformer, theirs, 0.3, 30)
    return root


HOLD_IN_THE_WORLD = (
    "below-at-matched-epochs",
    "below-converged",
    "kuramoto-does-not-reach",
    "mean-field-in-range",
    "fsn-ahead-every-epoch",
    "no-phases-ahead-every-epoch",
    "fsn-below-converged-bar",
    "no-phases-below-converged-bar",
    "mean-field-does-not-beat",
    "feed-forward-contributes",
    "one-mean-field-seed-diverges",
    "divergence-without-warning",
    "converges-late",
    "winding-register-helps",
    "bound-is-essential",
    "delay-helps",
    "delay-matters-most",
    "phases-help-early",
    "phases-lead-closes",
    "periodic-input-costs",
    "noise-acts-early",
    "ladder-2m",
    "ladder-4m",
    "ladder-8m",
    "ladder-8m-below-final",
    "advantage-does-not-shrink",
    "no-transformer-reaches-fsn",
    "parameter-totals",
    "ladder-lighter",
    "counts-within-four-percent",
)


@pytest.mark.parametrize("name", HOLD_IN_THE_WORLD)
def test_holds(world: Path, name: str) -> None:
    found = verdict(world, name)
    assert found.state == HOLDS, found.evidence
    assert any(character.isdigit() for character in found.evidence), "the evidence is in the row"


def test_what_does_not_hold_in_this_world(world: Path) -> None:
    """Here every FSN crosses the bar earlier than the paper's, and seconds of one rung are alike."""
    assert verdict(world, "crossing-epochs").state == FAILS
    slow = verdict(world, "several-times-slower")
    assert slow.state == FAILS and "1.00×" in slow.evidence and "3.00×" in slow.evidence


def test_needs_runs_that_are_not_there(world: Path, tmp_path: Path) -> None:
    for name in ("code-below-transformer", "ahead-at-512", "first-harmonic-attracts", "more-memory"):
        found = verdict(tmp_path, name)
        assert found.state == NOT_RUN and found.evidence.startswith("needs ")
    found = verdict(world, "mean-field-recovers-most")
    assert found.state == NOT_RUN and "feedforward=none" in found.evidence


def test_one_counterexample_refutes_a_claim_about_every_epoch(tmp_path: Path) -> None:
    write_run(tmp_path, needs.TRANSFORMER, falling(1.62, 0.3, ROUGH))
    write_run(tmp_path, needs.FSN, falling(1.60, 0.2, ROUGH))
    found = verdict(tmp_path, "fsn-ahead-every-epoch")
    assert found.state == NOT_RUN and "holds so far, with 0 of 10 runs" in found.evidence
    losses = falling(1.60, 0.2, ROUGH)
    losses[4] = 1.9
    write_run(tmp_path, needs.FSN, losses, seed=1)
    found = verdict(tmp_path, "fsn-ahead-every-epoch")
    assert found.state == FAILS and "at epoch 5" in found.evidence


def test_a_claim_about_means_waits_for_its_runs(tmp_path: Path) -> None:
    write_run(tmp_path, needs.TRANSFORMER, falling(1.62, 0.3, 30))
    write_run(tmp_path, needs.FSN, falling(1.65, 0.3, 30))
    found = verdict(tmp_path, "below-at-matched-epochs")
    assert found.state == NOT_RUN and "does not hold so far, with 2 of 8 runs" in found.evidence


def test_code_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, needs.CODE_TRANSFORMER, falling(1.235, 0.2, 30), seed=seed)
        fsn = falling(1.22, 0.12, 30) if seed != 1 else falling(1.39, 0.16, 30)
        write_run(tmp_path, needs.CODE_FSN, fsn, seed=seed)
    assert verdict(tmp_path, "code-two-of-three-ahead").state == HOLDS
    assert verdict(tmp_path, "code-plateau-seed").state == HOLDS
    assert verdict(tmp_path, "code-below-any-transformer-epoch").state == HOLDS
    early = verdict(tmp_path, "plateau-shows-at-epoch-one")
    assert early.state == HOLDS and early.evidence.startswith("0.2100 apart")


def test_no_failure_is_nothing_to_judge(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, needs.CODE_FSN, falling(1.22, 0.12, 30), seed=seed)
    assert verdict(tmp_path, "code-plateau-seed").state == FAILS
    found = verdict(tmp_path, "plateau-shows-at-epoch-one")
    assert found.state == NOT_RUN and "no seed failed" in found.evidence
    assert BY_NAME["plateau-shows-at-epoch-one"].conditional


def test_speed(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(
            tmp_path,
            needs.FSN,
            [1.7],
            seed=seed,
            tokens_per_s=250e3,
            eval_tokens_per_s=1.0e6,
            peak_memory_gb=3.0,
        )
        write_run(tmp_path, needs.TRANSFORMER, [1.7], seed=seed, tokens_per_s=900e3, eval_tokens_per_s=2.5e6)
    assert verdict(tmp_path, "step-three-to-four-times").state == HOLDS
    assert verdict(tmp_path, "evaluation-gap-smaller").state == HOLDS
    assert verdict(tmp_path, "more-memory").state == HOLDS
    assert verdict(tmp_path, "seeds-vary-under-two-percent").state == HOLDS
    write_run(tmp_path, needs.NO_KERNEL, [1.7], tokens_per_s=600e3)
    assert verdict(tmp_path, "kernel-is-not-the-overhead").state == FAILS
    assert verdict(tmp_path, "without-kernel-still-slower").state == HOLDS


def test_speeds_of_two_devices_are_not_judged(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, needs.FSN, [1.7], seed=seed)
        write_run(tmp_path, needs.TRANSFORMER, [1.7], seed=seed, device="a CPU")
    found = verdict(tmp_path, "step-three-to-four-times")
    assert found.state == NOT_RUN and "different settings" in found.evidence


# -- the kernel --------------------------------------------------------------------------------------------


def kernel_weights(present: np.ndarray, successor: np.ndarray, imaginary: float) -> bytes:
    """Weights of an fsn-1m with these mean real coefficients (layers, harmonics) and equal imaginary parts."""
    config = PAPER.config(needs.FSN, 205)
    model = build_from_config(config)
    assert isinstance(model, FSN)
    state = model.state_dict()
    for name in state:
        if ".kernel." not in name:
            continue
        layer = int(name.split(".")[1])
        table = present if "present" in name else successor
        if name.endswith("_re"):
            state[name] = (
                torch.tensor(table[layer].tolist())[:, None].expand_as(state[name]).float().contiguous()
            )
        else:
            signs = torch.where(torch.arange(state[name].shape[1]) % 2 == 0, 1.0, -1.0)
            state[name] = (imaginary * signs).expand_as(state[name]).contiguous()
    return safetensors.torch.save(state)


PRESENT = np.array([[0.3, 0.2, 0.15], [0.4, 0.15, 0.1], [0.5, 0.1, -0.03], [0.7, -0.02, -0.02]])
SUCCESSOR = np.array([[0.9, 0.3, 0.2], [0.9, 0.2, 0.1], [0.85, 0.1, 0.05], [0.8, 0.05, 0.02]])
KERNEL_CLAIMS = (
    "first-harmonic-attracts",
    "first-harmonic-strengthens",
    "higher-harmonics-weaken",
    "deepest-layer-nearest-sine",
    "early-layers-use-harmonics",
    "third-harmonic-flips",
    "second-harmonic-flips",
    "flips-at-small-magnitude",
    "imaginary-parts-near-zero",
    "successor-keeps-first-harmonic",
    "successor-prunes-harmonics",
)


def test_a_kernel_as_the_paper_describes_it(tmp_path: Path) -> None:
    weights = kernel_weights(PRESENT, SUCCESSOR, 0.01)
    write_run(tmp_path, needs.FSN_CONVERGED, falling(1.6, 0.2, 50), weights=weights)
    bench = bench_of(tmp_path)
    found = {name: judge(BY_NAME[name], bench) for name in KERNEL_CLAIMS}
    assert {name: v.state for name, v in found.items()} == dict.fromkeys(KERNEL_CLAIMS, HOLDS), found
    assert "0.300, 0.400, 0.500, 0.700" in found["first-harmonic-strengthens"].evidence


def test_a_kernel_that_is_the_other_way_round(tmp_path: Path) -> None:
    weights = kernel_weights(PRESENT[::-1] * [-1, 1, 1], SUCCESSOR[::-1, ::-1], 0.01)
    write_run(tmp_path, needs.FSN_CONVERGED, falling(1.6, 0.2, 50), weights=weights)
    bench = bench_of(tmp_path)
    kept = {"flips-at-small-magnitude", "imaginary-parts-near-zero"}
    for name in set(KERNEL_CLAIMS) - kept:
        assert judge(BY_NAME[name], bench).state == FAILS, name


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
        for seed in TINY.seeds(need):
            epochs = TINY.epochs(need.epochs)
            run = write_run(
                tmp_path, need, [5.0] * epochs, seed=seed, scale=TINY, weights=need.family.encode()
            )
            write_losses(run, "text", bench, shape)
    bench = bench_of(tmp_path, TINY)
    states = {
        "base-behind-everywhere": HOLDS,
        "base-peaks-at-16-23": HOLDS,
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
    assert "8 of 8 cells clear of zero" in found["fsn-ahead-on-deep-bins"].evidence


def test_an_advantage_that_is_not_there(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, TINY)
    shapes: dict[Need, Shape] = {
        needs.REFERENCE: np.ones_like,
        needs.FSN_CONVERGED: lambda d: 1.0 + 0.1 * (d >= 8),
    }
    for need, shape in shapes.items():
        for seed in TINY.seeds(need):
            run = write_run(tmp_path, need, [5.0] * 4, seed=seed, scale=TINY, weights=b"x")
            write_losses(run, "text", bench, shape)
    found = judge(BY_NAME["fsn-ahead-on-deep-bins"], bench_of(tmp_path, TINY))
    assert found.state == FAILS and "clear of zero" in found.evidence


# -- the wrapper -------------------------------------------------------------------------------------------


def test_a_claim_cites_macros_or_places(tmp_path: Path) -> None:
    one = Claim("one", "Section 9", "Everything is fine.", (), lambda b: (True, "1"), "sfnThirty xfThirty")
    assert [place[-1] for place in one.places] == ["sfnThirty", "xfThirty"]
    place = ("early", "fsn@2")
    assert Claim("two", "Section 9", "Fine.", (), lambda b: (True, "1"), (place,)).places == (place,)
    assert judge(one, bench_of(tmp_path)) == Verdict(HOLDS, "1")


def test_different_vocabularies_are_one_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 30))
    other = write_run(tmp_path, needs.FSN, falling(1.6, 0.2, 30), seed=1)
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace(bytes(range(205)).hex(), bytes(range(1, 206)).hex()))
    bench = bench_of(folder.parent)
    found = judge(BY_NAME["fsn-below-converged-bar"], bench)
    assert found.state == NOT_RUN and "different vocabularies" in found.evidence
