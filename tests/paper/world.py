"""Runs that exist in memory only, as the paper describes its own, and ways to make them say something else.

A :class:`World` holds for every run its losses, its speed, its bits by copy depth, its kernel and its states. Its bench
judges claims on them without a file, a text or a model.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsn.measure import Battery, Table
from fsn.measure.coupling import KernelReading
from fsn.measure.looks import Looks
from fsn.measure.states import DepthProfile
from fsn.models import config_to_dict
from fsn.paper import needs
from fsn.paper.bench import Bench, Text
from fsn.paper.needs import Need, Scale
from fsn.train import Run
from tests.paper.made_up import CORPORA, OWN


class Small(Scale):
    standard, enriched = 48, 16


SMALL = Small()
WINDOWS, TARGETS = 64, 66
DEPTH = (np.arange(WINDOWS * TARGETS) % 33).reshape(WINDOWS, TARGETS).astype(np.uint8)
BATTERY = Battery(
    np.arange(WINDOWS),
    np.arange(WINDOWS) >= 48,
    DEPTH,
    (1 + np.arange(DEPTH.size) % 200).reshape(DEPTH.shape).astype(np.uint16),
    256,
    128,
)
BINS = np.digitize(np.arange(33), [2, 4, 8, 16, 24])
"""The bin of every depth."""


@dataclass
class Facts:
    """What is made up about one run."""

    losses: list[float | None]
    epoch_s: float = 100.0
    speed: float = 965e3
    eval_speed: float = 2.7e6
    memory: float = 0.9
    margins: Sequence[float] = (0.0,) * 33
    """Against the reference, by depth."""
    touch: float = 0.001
    """By how much windows differ, up and down in turn."""
    kernel: dict[str, NDArray[np.complex128]] = field(default_factory=dict)
    repulsive: Sequence[float] = (0.15,) * 4
    states: dict[str, list[float]] = field(default_factory=dict)
    looks: tuple[float, float, float, float] = (0.1, 0.01, 1.6, 0.9)
    """Attention at the same place and at what came next; bits the first and the second time."""


Key = tuple[Need, int]


def key_of(need: Need, seed: int) -> Key:
    return replace(need, seeds=(), epochs=0, reads="curve"), seed


class World:
    """Facts by run, and what the two texts are like."""

    def __init__(self) -> None:
        self.facts: dict[Key, Facts] = {}
        self.shares = {"text": 0.006, "code": 0.03}
        self.bits = {"text": (1.8, 1.2, 0.9, 0.7, 0.398, 0.346), "code": (1.4, 0.9, 0.6, 0.4, 0.205, 0.210)}
        """Loss of the reference by bin."""

    def add(self, need: Need, curves: Sequence[Sequence[float | None]], **more: Any) -> None:
        """One run for each of the need's seeds."""
        for seed, losses in zip(need.seeds, curves, strict=True):
            self.facts[key_of(need, seed)] = Facts(list(losses), **more)

    def of(self, need: Need, *seeds: int) -> list[Facts]:
        return [self.facts[key_of(need, seed)] for seed in seeds or need.seeds]

    def change(self, need: Need, *seeds: int, **values: Any) -> World:
        for facts in self.of(need, *seeds):
            for name, value in values.items():
                setattr(facts, name, value)
        return self

    def shift(
        self, need: Need, by: float, *seeds: int, first: int = 1, last: int = 99, only: int | None = None
    ) -> World:
        """Move losses up or down, in all epochs or in some."""
        first, last = (only, only) if only is not None else (first, last)
        for facts in self.of(need, *seeds):
            facts.losses = [
                x + by if x is not None and first <= i <= last else x for i, x in enumerate(facts.losses, 1)
            ]
        return self

    def deepen(self, need: Need, by: float, *seeds: int, bins: Iterable[int] = range(6)) -> World:
        """Move margins of some bins up or down."""
        chosen = set(bins)
        for facts in self.of(need, *seeds):
            facts.margins = [m + by if BINS[d] in chosen else m for d, m in enumerate(facts.margins)]
        return self

    def bench(self) -> MadeUpBench:
        bench = MadeUpBench(SMALL, "cpu", names=dict(OWN), world=self)
        by_folder = {}
        for (need, seed), facts in self.facts.items():
            run = run_of(need, seed, facts)
            bench.found.append(run)
            by_folder[run.folder] = facts
        bench.by_folder = by_folder
        return bench


@functools.cache
def _config(need: Need, seed: int) -> dict[str, Any]:
    section = CORPORA[OWN[need.role]]
    recipe = SMALL.recipe(replace(need, epochs=50), seed).to_dict()
    return {
        "model": config_to_dict(SMALL.config(need, len(section["symbols"]) // 2)),
        "recipe": {**recipe, "precision": "bf16", "engine": "graph"},
        "corpus": section,
    }


def run_of(need: Need, seed: int, facts: Facts) -> Run:
    lines = [
        {
            "kind": "epoch",
            "epoch": i,
            "complete": True,
            "step": 10 * i,
            "train_loss_bits": loss,
            "valid_bits": loss,
            "valid_precision": "fp32",
            "tokens_per_s": facts.speed,
            "eval_tokens_per_s": facts.eval_speed,
            "train_s": 0.9 * facts.epoch_s,
            "valid_s": 0.1 * facts.epoch_s,
            "cumulative_s": facts.epoch_s * i,
            "peak_memory_gb": facts.memory,
            "train_memory_gb": facts.memory,
        }
        for i, loss in enumerate(facts.losses, 1)
    ]
    changed = "".join(f"-{value}" for _, value in need.overrides)
    folder = Path("made-up") / f"{need.preset}{changed}-{need.role}-{need.length}-s{seed}"
    run = Run(folder, _config(need, seed), lines)
    run.__dict__["environment"] = {"device": "a GPU"}
    return run


@dataclass
class MadeUpBench(Bench):
    world: World = field(default_factory=World)
    by_folder: dict[Path, Facts] = field(default_factory=dict)

    def text(self, role: str) -> Text:
        return Text("0" * 64, 205, BATTERY, self.world.shares[role], torch.zeros(1, 256, dtype=torch.uint8))

    def losses(self, run: Run, role: str) -> NDArray[np.float32]:
        facts = self.by_folder[run.folder]
        base = np.asarray(self.world.bits[role])[BINS][DEPTH]
        wobble = facts.touch * np.where(np.arange(WINDOWS) % 2, 1.0, -1.0)[:, None]
        return (base + np.asarray(facts.margins)[DEPTH] + wobble).astype(np.float32)

    def reading(self, run: Run) -> KernelReading:
        return self.history(run)[-1]

    def history(self, run: Run) -> list[KernelReading]:
        nothing = np.full(4, np.nan)
        return [
            KernelReading(weights, nothing, nothing, 1.0, 1.0, label=label)
            for label, weights in self.by_folder[run.folder].kernel.items()
        ]

    def measured(self, run: Run, name: str) -> Any:
        facts = self.by_folder[run.folder]
        if name == "gates":
            return Table(
                ("layer", "repulsive"), [{"layer": i, "repulsive": x} for i, x in enumerate(facts.repulsive)]
            )
        if name == "looks":
            same, after, first, second = facts.looks
            return Looks(run.name, (0, 1), np.array([[0.0, 0.0], [same, after]]), first, second)
        assert name == "states"
        return DepthProfile(run.name, True, list(range(5)), facts.states, {})


# -- as the paper has it -----------------------------------------------------------------------------------


def through(*knots: tuple[int, float], offset: float = 0.0) -> list[float | None]:
    """A curve through losses at some epochs, straight in the logarithm of the epoch."""
    epochs, losses = zip(*knots, strict=True)
    found = np.interp(np.log(np.arange(1, max(epochs) + 1)), np.log(epochs), losses)
    return [float(x) + offset for x in found]


def by_bin(*margins: float, **at: float) -> list[float]:
    """Margins by depth from those by bin; ``d17=1.28`` for single depths."""
    found = [margins[i] for i in BINS]
    for name, value in at.items():
        found[int(name[1:])] = value
    return found


def kernel(
    present: Any, successor: Any, imaginary: float = 0.01, labels: Sequence[str] = ("best",)
) -> dict[str, NDArray[np.complex128]]:
    """Coefficients whose real parts are these (layers, harmonics) and whose imaginary parts alternate in sign."""
    real = np.stack([np.asarray(present, float), np.asarray(successor, float)])[..., None]
    signs = np.where(np.arange(8) % 2, 1.0, -1.0)
    return {label: real + 1j * imaginary * signs for label in labels}


PRESENT = ((0.3, 0.28, 0.25), (0.4, 0.25, 0.21), (0.5, 0.1, -0.03), (0.7, -0.02, -0.02))
SUCCESSOR = ((0.9, 0.3, 0.2), (0.9, 0.2, 0.1), (0.85, 0.1, 0.05), (0.8, 0.05, 0.02))
FSN_KNOTS = ((1, 1.76), (2, 1.689), (10, 1.6255), (19, 1.611), (30, 1.605), (50, 1.595))
XF_KNOTS = ((1, 1.80), (2, 1.725), (10, 1.66), (25, 1.6285), (30, 1.6258), (48, 1.611), (50, 1.6112))


def agreeing() -> World:
    """Every claim of the paper that reads runs holds here."""
    w = World()
    fsn = {"epoch_s": 368.0, "speed": 263e3, "eval_speed": 1.0e6, "memory": 3.0}
    deep = {
        0: by_bin(-0.0036, -0.0076, -0.0799, -0.1307, -0.0577, -0.1564),
        1: by_bin(-0.0091, -0.0001, -0.0617, -0.1074, -0.0631, -0.1505),
        2: by_bin(-0.0035, -0.0023, -0.0745, -0.1294, -0.1914, -0.1198),
    }
    seeds = [through(*FSN_KNOTS, offset=0.0005 * s)[: 50 if s < 3 else 30] for s in range(5)]
    w.add(needs.FSN, seeds, **fsn, touch=0.02)
    for seed, margins in deep.items():
        w.change(needs.FSN, seed, margins=margins)
    states = {"cosine": [0.05, 0.1, 0.15, 0.2, 0.22], "wound": [0.0, 0.01, 0.03, 0.05, 0.1]}
    noisy = kernel(PRESENT, SUCCESSOR, 0.002, ("start",)) | kernel(PRESENT, SUCCESSOR, 0.02, ("epoch 11",))
    w.change(needs.FSN, 0, kernel=noisy | kernel(PRESENT, SUCCESSOR), states=states)
    xf = [through(*XF_KNOTS, offset=0.002 * s) for s in range(5)]
    w.add(needs.TRANSFORMER_FIVE, xf, touch=0.0)
    states = {"cosine": [0.05, 0.1, 0.2, 0.3, 0.4], "effective_rank": [90.0, 80.0, 70.0, 60.0, 50.0]}
    states |= {"stable_rank": [9.0, 8.0, 7.0, 6.0, 5.0]}
    w.change(needs.TRANSFORMER_FIVE, 0, states=states)
    real = ((1, 1.765), (2, 1.6934), (10, 1.6262), (30, 1.6055))
    w.add(needs.NO_PHASES, [through(*real, offset=0.0005 * s) for s in range(3)], **fsn)
    for seed, bin16 in enumerate((-0.0807, -0.1828, -0.2258)):
        w.change(needs.NO_PHASES, seed, margins=by_bin(-0.0005, -0.0018, -0.0739, -0.1301, bin16, -0.1341))
    slow = ((1, 1.85), (10, 1.70), (30, 1.65), (48, 1.6272), (50, 1.6275))
    w.add(needs.KURAMOTO, [through(*slow, offset=0.002 * s) for s in range(3)], **fsn)
    for seed, size in enumerate((1.0, 1.5, 0.45)):
        spikes = {
            "d16": 0.35,
            "d17": 1.28,
            "d18": 0.4,
            "d19": 0.7,
            "d20": 0.3,
            "d21": 0.05,
            "d22": 0.36,
            "d23": 0.2,
        }
        spikes = {depth: size * height for depth, height in spikes.items()}
        margins = by_bin(0.012, 0.017, 0.035, 0.051, 0.0, 0.077, **spikes)
        w.change(needs.KURAMOTO, seed, margins=margins)
    first = xf[0]

    def tracking(lead: int, behind: float, offset: float = 0.0, epochs: int = 30) -> list[float | None]:
        return [
            x - 0.005 + offset if i <= lead else x + behind + offset  # type: ignore[operator]
            for i, x in enumerate(first[:epochs], 1)
        ]

    mean_field = [tracking(5, 0.0172), tracking(5, 0.0172, 0.002), [*tracking(5, 0.0172, 0.001, 16), None]]
    w.add(needs.MEAN_FIELD, mean_field, **{**fsn, "speed": 234e3})
    w.add(needs.WINDING, [tracking(7, 0.012, 0.001 * s) for s in range(3)], **fsn)
    lean = [x + 0.01 / i for i, x in enumerate(seeds[0][:11], 1)]  # type: ignore[operator]
    w.add(needs.LEAN, [lean], margins=by_bin(0.01, 0.01, -0.053, -0.094, -0.133, -0.036), **fsn)
    zero = kernel(PRESENT, SUCCESSOR, 0.0, ("start",)) | kernel(
        PRESENT, SUCCESSOR, 0.001, ("epoch 11", "best")
    )
    w.change(needs.LEAN, kernel=zero)
    w.add(needs.NO_FEEDFORWARD, [[1.75] * 30])
    w.add(needs.NO_BOUND, [[10.2]])
    w.add(needs.NO_HARMONICS, [[1.7]], speed=300e3)
    w.add(needs.NO_DELAY, [[1.9, 1.765]])
    w.add(needs.TORUS, [[1.85, 1.7114]])
    _ladder(w)
    _code(w)
    return w


def _ladder(w: World) -> None:
    """Two transformer seeds apart where a rung has two, so that the lower is the harder target."""
    f2, x2 = needs.RUNGS["2M"]
    late = ((25, 1.5547), (30, 1.5521))
    w.add(x2, [through((1, 1.75), *late, offset=d) for d in (0.0, 0.004)], speed=600e3)
    curve = through((1, 1.70), (13, 1.556), (18, 1.5515), (30, 1.5264))
    w.add(f2, [curve, curve], epoch_s=323.0, speed=190e3)
    f4, x4 = needs.RUNGS["4M"]
    w.add(x4, [through((1, 1.7), (25, 1.5086 + d), (30, 1.5060 + d)) for d in (0.0, 0.02)], speed=377e3)
    curve = through((1, 1.65), (7, 1.514), (12, 1.5055), (30, 1.4600))
    w.add(f4, [curve, curve], epoch_s=298.0, speed=126e3)
    f8, x8 = needs.RUNGS["8M"]
    w.add(x8, [through((1, 1.6), (14, 1.4497), (25, 1.4394), (30, 1.4368))])
    w.add(f8, [through((1, 1.55), (6, 1.445), (7, 1.436), (14, 1.4217))], epoch_s=302.0)


def _code(w: World) -> None:
    theirs = [through((1, 1.40), (10, 1.30), (25, 1.2425), (30, 1.2409), offset=0.002 * s) for s in range(3)]
    w.add(needs.CODE_TRANSFORMER, theirs, touch=0.0, speed=958e3)
    good = ((3, 1.32), (10, 1.2400), (30, 1.2235))
    ours = [
        through((1, 1.3421), *good),
        through((1, 1.5493), (30, 1.3982)),
        through((1, 1.3379), *good),
    ]
    w.add(needs.CODE_FSN, ours, epoch_s=300.0, speed=264e3)
    rows = (
        (-0.0106, -0.0030, -0.0078, -0.0251, -0.0470, -0.0518),
        (0.2239, 0.0340, 0.0005, 0.0011, -0.0165, -0.0293),
        (-0.0071, 0.0020, -0.0048, -0.0165, -0.0338, -0.0410),
    )
    for seed, margins in enumerate(rows):
        w.change(needs.CODE_FSN, seed, margins=by_bin(*margins))
    margins = by_bin(-0.0219, 0.0014, -0.0001, -0.0138, -0.0299, -0.0349)
    w.add(needs.CODE_NO_PHASES, [through((1, 1.35), (30, 1.2217))], margins=margins)
    w.add(needs.LONG_TRANSFORMER, [through((1, 1.25), (25, 1.0957), (30, 1.0931))])
    long = [through((1, 1.1872), (14, 1.0925), (30, 1.0824)), [1.41], [1.1806]]
    w.add(needs.LONG_SEEDS, long, epoch_s=390.0)


AGREEING = agreeing()


def other(change: Callable[[World], object]) -> MadeUpBench:
    """The bench of the agreeing world after a change."""
    world = copy.deepcopy(AGREEING)
    change(world)
    return world.bench()
