"""The coupling law: which terms of the mathematics a layer has. Parameters, kernels and instruments derive from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..checks import check, check_choice, check_types

FRAMES = ("co-rotating", "rest")
NOISES = ("imaginary", "angles")
FAST = {
    *("harmonics", "present", "delay", "phases", "score_successor"),
    *("noise", "noise_on", "learned", "shared"),
}
FAST_SOME = {"frame": ("co-rotating", "rest")}
"""Fields whose every value the fast paths compute (kernels, the CPU's own, cached decoding), and values of others."""


@dataclass(frozen=True)
class CouplingLaw:
    """Which terms of equations 1 and 2 exist, and how they start."""

    harmonics: int = 3
    """N, the number of harmonics."""
    present: bool = True
    """Couple to the attended token itself (w0)."""
    delay: bool = True
    """Couple to the attended token's successor (w1)."""
    phases: bool = True
    """Complex coefficients, that is, static frustration angles."""
    frame: str = "co-rotating"
    """``co-rotating`` removes the uniform rotation, ``rest`` is equation 2 as written."""
    noise: float = 0.05
    """Standard deviation of the noise at the start."""
    noise_on: str = "imaginary"
    """``imaginary`` parts of all harmonics, or ``angles``: then a harmonic whose gain starts at zero gets none."""
    learned: bool = True
    """False freezes the coefficients at their start and takes them out of the parameter count."""
    shared: bool = False
    """One coefficient per harmonic for all coordinates."""
    score_successor: bool = False
    """Let the score see the attended token's successor too, by a complex weight λ per coordinate, zero at first."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self.harmonics >= 1, f"harmonics is {self.harmonics}; take at least 1")
        check(self.present or self.delay, "present and delay are both off; a coupling law needs one of them")
        check_choice("frame", self.frame, FRAMES)
        check_choice("noise_on", self.noise_on, NOISES)
        check(self.noise >= 0, f"noise is {self.noise}; a standard deviation is not negative")
        check(
            self.learned or not self.phases,
            "a kernel that is not learned cannot have phases; set phases=False or learned=True",
        )
        check(
            self.learned or not self.score_successor,
            "score_successor starts at zero and has to be learned; set score_successor=False or learned=True",
        )

    @property
    def fast(self) -> bool:
        """Whether the fast paths compute this law; all else is the reference's."""
        return covered(self, FAST, FAST_SOME)

    @property
    def parts(self) -> tuple[bool, bool, bool, bool]:
        """Which coefficients exist: Re w0, Im w0, Re w1, Im w1."""
        return self.present, self.present and self.phases, self.delay, self.delay and self.phases

    @property
    def drift(self) -> str | None:
        """The frame whose constant part the update has (``ops.drift``); None where all coefficients are real."""
        turns = self.phases and (self.present or self.frame == "co-rotating")
        return self.frame if turns else None


def covered(config: Any, every: Collection[str], some: Mapping[str, Collection[Any]]) -> bool:
    """Whether a path computes a law, or a model's config: it knows every value of some fields and a few values of
    others. A field it does not know must have its default, which changes nothing."""
    return all(
        field.name in every or value in some.get(field.name, ()) or value == field.default
        for field in dataclasses.fields(config)
        for value in (getattr(config, field.name),)
    )
