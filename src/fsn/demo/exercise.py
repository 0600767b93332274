"""An exercise in copying alone: passages of letters in random order, each said twice.

    qmzfkacwe qmzfkacwe btxhagpokn btxhagpokn …            (without the blanks)

Nothing can be known of a new passage, and everything of its repetition, by a model that finds the letter it has just
read in the first saying and goes on with what came after it. Lengths vary, so counting does not help.
"""

from __future__ import annotations

import random
from string import ascii_lowercase

LETTERS = ascii_lowercase
SHORTEST, LONGEST = 8, 20
PASSAGES = 40_000
SEED = 0


def passage(source: random.Random) -> str:
    """Between 8 and 20 letters in random order, none of them twice."""
    return "".join(source.sample(LETTERS, source.randint(SHORTEST, LONGEST)))


def exercise_text(passages: int = PASSAGES, seed: int = SEED) -> str:
    """The whole exercise, the same on every machine."""
    source = random.Random(seed)
    return "".join(2 * passage(source) for _ in range(passages))


def fresh_passage(seed: int = SEED + 1) -> str:
    """A passage of the greatest length that the exercise does not contain (but for a miracle)."""
    return "".join(random.Random(seed).sample(LETTERS, LONGEST))
