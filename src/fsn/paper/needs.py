"""Which runs the paper's statements rest on.

A :class:`Need` names runs by what they are, not by where they lie: a model of the family, a corpus by its
role (``text`` is enwik8, ``code`` is codeparrot or what stands in for it), a window length, seeds, and the
number of epochs they must have behind them. Numbers are the paper's; a :class:`~fsn.paper.scales.Scale` may
shrink them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Need:
    """Runs of one model that differ in their seeds alone.

    A run with more epochs than asked serves too, since the learning rate is constant, unless ``exact``: then
    the best weights must be those of a run of just this many epochs.
    """

    family: str
    seeds: tuple[int, ...] = (0,)
    epochs: int = 30
    size: str = "1m"
    role: str = "text"
    length: int = 256
    overrides: tuple[tuple[str, Any], ...] = ()
    exact: bool = False

    def seed(self, *seeds: int) -> Need:
        """The same with these seeds."""
        return dataclasses.replace(self, seeds=seeds)

    def after(self, epochs: int) -> Need:
        """The same, needed for this many epochs."""
        return dataclasses.replace(self, epochs=epochs)

    @property
    def plain(self) -> tuple[str, str, str, int]:
        """Family, size, text and window length: what is left when nothing is replaced."""
        return self.family, self.size, self.role, self.length

    @property
    def model(self) -> str:
        """``fsn-1m``, or ``fsn-1m (feedforward=none)``."""
        changed = ", ".join(f"{name}={value}" for name, value in self.overrides)
        return f"{self.family}-{self.size}" + (f" ({changed})" if changed else "")


THREE, FIVE = (0, 1, 2), (0, 1, 2, 3, 4)

# enwik8, one million parameters
FSN = Need("fsn", FIVE)
FSN_CONVERGED = Need("fsn", THREE, epochs=50)
TRANSFORMER = Need("transformer", THREE)
TRANSFORMER_FIVE = Need("transformer", FIVE)
TRANSFORMER_CONVERGED = Need("transformer", FIVE, epochs=50)
REFERENCE = Need("transformer", (0,), epochs=50)
"""The converged transformer that every copy-depth margin on text is measured against."""
NO_PHASES = Need("fsn-nophase", THREE)
KURAMOTO = Need("kuramoto", THREE, epochs=50)
MEAN_FIELD = Need("fsn-mf", THREE)
WINDING = Need("fsn-mf-winding", THREE)
LEAN = Need("fsn-lean", (0,), epochs=11, exact=True)
DROPOUT = Need("fsn", (0,), epochs=10, overrides=(("dropout", 0.1),))
"""The paper's dropout in our default model: it moves the margins by copy depth, and ten epochs show how."""
KURAMOTO_DROPOUT = Need("kuramoto", (0,), epochs=7, overrides=(("dropout", 0.1),))
"""The same for Kuramoto attention, of which seven epochs show as much."""

# screens
NO_DELAY = Need("fsn-nodelay", (0,), epochs=2)
TORUS = Need("fsn-torus-swiglu", (0,), epochs=2)
NO_BOUND = Need("fsn-nobound", (0,), epochs=1)
NO_KERNEL = Need("fsn-noharmonics", (0,), epochs=1)
"""What the efficiency appendix calls no-phase: the kernel taken out, the rest of the stack left."""
NO_FEEDFORWARD = Need("fsn", (0,), epochs=30, overrides=(("feedforward", "none"),))
"""Not run in the paper, which still says how much of the block's contribution the mean field recovers."""

# the ladder
RUNGS: dict[str, tuple[Need, Need]] = {
    "1M": (FSN, TRANSFORMER_FIVE),
    "2M": (Need("fsn", (0, 1), size="2m"), Need("transformer", (0, 1), size="2m")),
    "4M": (Need("fsn", (0, 1), size="4m"), Need("transformer", (0, 1), size="4m")),
    "8M": (Need("fsn", (0,), epochs=14, size="8m"), Need("transformer", (0,), size="8m")),
}

# code
CODE_FSN = Need("fsn", THREE, role="code")
CODE_TRANSFORMER = Need("transformer", THREE, role="code")
CODE_NO_PHASES = Need("fsn-nophase", (0,), role="code")
LONG_FSN = Need("fsn", (0,), role="code", length=512)
LONG_TRANSFORMER = Need("transformer", (0,), role="code", length=512)
LONG_SEEDS = Need("fsn", THREE, epochs=1, role="code", length=512)
"""The replication arm at length 512, of which the paper reports the first epoch."""


def distinct(needs: Sequence[Need]) -> list[Need]:
    """Without repetitions, in order."""
    return list(dict.fromkeys(needs))
