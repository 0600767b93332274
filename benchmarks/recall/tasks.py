"""The synthetic tasks, each written anew beside its source and checked against it.

A generator that follows its source token for token takes the same random numbers in the same order; where it does
not, ``differs`` says so. Every task gives rows of tokens and targets; a target of -100 is not asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsn.demo.recall import Rows, mqar_rows
from fsn.models.base import IGNORED


class Split(NamedTuple):
    """tokens, targets (n, T); ``legal`` (n, T, V) marks every right answer where there can be several."""

    tokens: Rows
    targets: Rows
    legal: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Task:
    """A task with its source and the training recipe of that source."""

    name: str
    vocab: int
    length: int
    make: Callable[[int], dict[str, Split]]
    """seed -> train, test, and further test splits by name."""
    rows: tuple[int, int]
    """Rows of training and of test."""
    source: str
    differs: str
    score: str = "symbols"
    """``symbols``: the share of right answers. ``rows``: of rows with every answer right. ``legal``: of answers that
    may follow."""
    feedforward: bool = True
    """Whether the source's models have a feed-forward block."""
    batch: int = 64
    epochs: int = 64
    weight_decay: float = 0.1
    rates: tuple[float, ...] = (1e-3,)
    schedule: str = "cosine"
    stop: float = 0.99
    """Training ends once the test accuracy is above this."""
    published: Mapping[str, str] = field(default_factory=dict)
    """What others report for a model, by the names used here, and where."""

    def steps(self, most: int) -> int:
        """Of training, ``most`` at most."""
        rows = self.rows[0]
        return min(self.epochs * (rows // min(self.batch, rows)), most)


# Multi-query associative recall ---------------------------------------------------------------------------------

ZOOLOGY = "HazyResearch/zoology@dbcb60d"
FIGURE_2 = tuple(float(rate) for rate in np.logspace(-4, -2, 4))
"""The learning rates of zoology's figure 2."""
SETTINGS = ((64, 4), (128, 8), (256, 16), (512, 64))
"""Its lengths and pairs."""
ONE_LAYER = "no better than guessing (arXiv:2508.19029, abstract)"
DELTA = "arXiv:2406.06484"
OF_FIGURE_2 = {
    "transformer, two layers": "1.00 at every width from 64 to 512 (zoology's figure 2, arXiv:2312.04927, read off)",
    "transformer, one layer": ONE_LAYER,
}
OF_THE_HARDEST = {
    "deltanet and deltanet-noconv": f'"performs perfectly" ({DELTA}, section 4.1 on its figure 4)'
}
"""Of 512 symbols and 64 pairs."""


def by_distractor(split: Split) -> dict[str, Split]:
    """The queries whose key has occurred between its pair and the query, in a filler, and those whose key has not."""
    repeated = np.zeros_like(split.targets, dtype=bool)
    for row, place in zip(*np.nonzero(split.targets != IGNORED), strict=True):
        before = split.tokens[row, :place]
        repeated[row, place] = (before == split.tokens[row, place]).sum() > 1
    parts = {"distractor": repeated, "no distractor": ~repeated}
    return {name: Split(split.tokens, np.where(part, split.targets, IGNORED)) for name, part in parts.items()}


def mqar(
    vocab: int = 8192,
    length: int = 64,
    pairs: int = 4,
    fillers: str = "empty",
    train: int = 100_000,
    test: int = 3_000,
    **recipe: object,
) -> Task:
    def make(seed: int) -> dict[str, Split]:
        draw = np.random.RandomState(seed)
        first, second = int(draw.randint(0, 2**31)), int(draw.randint(2**31, 2**32))
        law = vocab, length, pairs, fillers
        splits = {
            "train": Split(*mqar_rows(train, *law, seed=first)),
            "test": Split(*mqar_rows(test, *law, seed=second)),
        }
        if fillers == "random":
            splits |= by_distractor(splits["test"])
        return splits

    original = vocab == 8192 and fillers == "empty" and (length, pairs) in SETTINGS
    hardest = OF_THE_HARDEST if (length, pairs) == SETTINGS[-1] else {}
    settings: dict[str, object] = {
        "batch": {512: 128, 256: 256}.get(length, 512),
        "rates": FIGURE_2,
        "published": OF_FIGURE_2 | hardest if original else {},
    }
    settings.update(recipe)
    return Task(
        "mqar"
        + (f"-v{vocab}" if vocab != 8192 else "")
        + f"-{length}-{pairs}"
        + ("-random" if fillers == "random" else ""),
        vocab,
        length,
        make,
        (train, test),
        f"{ZOOLOGY} zoology/data/multiquery_ar.py, iclr24_zoology_figure2/configs.py",
        "tokens identical for equal seeds (random fillers: for equal states of PyTorch's generator); batches are "
        "shuffled every epoch, the cosine falls every step, models are this repository's, without tied embeddings",
        feedforward=False,
        **settings,  # type: ignore[arg-type]
    )


# seq_icl: induction heads and in-context regular languages --------------------------------------------------------

SEQ_ICL = "berlino/seq_icl@9b9223d"


def induction_row(vocab: int, length: int, draw: np.random.Generator) -> list[int]:
    """Random symbols with the prefix symbol V − 1 at one place, the prefix again at the end, then what followed it.

    Symbol 0 is the source's ``noop``, which never occurs.
    """
    weights = np.full(vocab, 1 / (vocab - 2))
    weights[[0, -1]] = 0
    row = [*draw.choice(vocab, length, replace=True, p=weights).tolist(), vocab - 1]
    draw.uniform()  # the source decides here between one trigger and several; its default is one either way
    place = int(draw.integers(length - 2, size=1)[0])
    row[place] = vocab - 1
    return [*row, row[place + 1]]


def induction_rows(n: int, vocab: int, length: int, draw: np.random.Generator) -> Split:
    """n different rows; the targets are all next symbols."""
    rows = np.unique([induction_row(vocab, length, draw) for _ in range(n)], axis=0).tolist()
    while len(rows) < n:
        row = induction_row(vocab, length, draw)
        if row not in rows:
            rows.append(row)
    draw.shuffle(rows)
    whole = np.array(rows, np.int64)
    return Split(whole[:, :-1], whole[:, 1:].copy())


def induction(vocab: int = 16, length: int = 256, train: int = 5_000, test: int = 500) -> Task:
    def make(seed: int) -> dict[str, Split]:
        draw = np.random.default_rng(seed)
        splits = {"train": induction_rows(train, vocab, length, draw)}
        splits["test"] = induction_rows(test, vocab, length, draw)
        splits["test"].targets[:, :-1] = IGNORED
        return splits

    return Task(
        "induction",
        vocab,
        length + 1,
        make,
        (train, test),
        f"{SEQ_ICL} src/dataloaders/synthetics.py, configs/experiment/synthetics/induction_head",
        "tokens identical for equal seeds; batch 32 instead of 8, at most 64 epochs instead of 400, no dropout",
        batch=32,
        rates=(5e-4, 2e-3),
        published={
            "transformer, two layers of width 32": "0.972 at V = 20, T = 30, an earlier setting (readme at ec42595)"
        },
    )


class Automaton(NamedTuple):
    """For every state the symbols that may follow and the states they lead to; state 0 is the start."""

    moves: list[dict[int, int]]

    def word(self, length: int, draw: np.random.Generator) -> list[int]:
        state, word = 0, []
        for _ in range(length):
            symbols = list(self.moves[state])
            word.append(int(draw.choice(symbols)))
            state = self.moves[state][word[-1]]
        return word

    def legal(self, word: list[int], vocab: int) -> NDArray[np.bool_]:
        """After 0, 1, … symbols of ``word``, which symbols may follow: (len(word), V)"""
        marks, state = np.zeros((len(word), vocab), bool), 0
        for i, symbol in enumerate(word):
            marks[i, list(self.moves[state])] = True
            state = self.moves[state][symbol]
        return marks


def automaton(vocab: int, draw: np.random.Generator, states: int = 12, edges: int = 4) -> Automaton:
    """4 to 12 states, an alphabet of 4 to V − 2 symbols, 1 to 3 moves from each state, never to itself."""
    count = int(draw.integers(edges, states + 1))
    size = int(draw.integers(edges, vocab - 2 + 1))
    alphabet = draw.choice(vocab - 2, size=size, replace=False)
    moves = []
    for state in range(count):
        out = int(draw.integers(1, edges))
        symbols = draw.choice(alphabet, size=out, replace=False)
        others = [other for other in range(count) if other != state]
        goals = draw.choice(others, size=out, replace=False)
        moves.append(dict(zip(symbols.tolist(), goals.tolist(), strict=True)))
    return Automaton(moves)


def language_rows(n: int, vocab: int, length: int, draw: np.random.Generator) -> Split:
    """10 to 19 words of 1 to 49 symbols from one automaton a row, separated by symbol V − 1, padded with V − 2."""
    bar, pad = vocab - 1, vocab - 2
    tokens = np.full((n, length), pad, np.int64)
    targets = np.full((n, length), IGNORED, np.int64)
    legal = np.zeros((n, length, vocab), bool)
    for i in range(n):
        machine = automaton(vocab, draw)
        row: list[int] = []
        marks = []
        for _ in range(int(draw.integers(10, 20))):
            if len(row) > length + 1:  # the rest would be cut off
                break
            word = machine.word(int(draw.integers(1, 50)), draw)
            row += [*word, bar]
            marks += [machine.legal(word, vocab), np.zeros((1, vocab), bool)]
        row, allowed = row[:-1], np.concatenate(marks)[:-1]
        used = min(length, len(row) - 1)
        tokens[i, :used] = row[:used]
        targets[i, :used] = [IGNORED if symbol == bar else symbol for symbol in row[1 : used + 1]]
        legal[i, :used] = allowed[1 : used + 1]
    return Split(tokens, targets, legal)


def languages(vocab: int = 20, length: int = 512, train: int = 5_000, test: int = 500) -> Task:
    def make(seed: int) -> dict[str, Split]:
        draw = np.random.default_rng(seed)
        return {
            "train": language_rows(train, vocab, length, draw)._replace(legal=None),
            "test": language_rows(test, vocab, length, draw),
        }

    return Task(
        "languages",
        vocab,
        length,
        make,
        (train, test),
        f"{SEQ_ICL} src/dataloaders/dfa.py, configs/dataset/icl_dfa.yaml",
        "equal in distribution, not by tokens: symbols are numbered differently, and the source minimises every "
        "automaton, which changes neither the language nor the chance of a word; rows are cut at 512 symbols; at most "
        "64 epochs instead of 200, no dropout",
        score="legal",
        batch=32,
        rates=(5e-4, 2e-3),
        stop=0.999,
    )


# MAD: fuzzy in-context recall and selective copying -----------------------------------------------------------------

MAD = "athms/mad-lab@0f49a45"


def of_mad(**published: str) -> dict[str, str]:
    """Means over MAD's settings of a task, its baseline and harder ones: two mixers of width 128, each before a SwiGLU.

    Two values: the DeltaNet paper's figure 3, which has transformer and GLA from the MAD paper (arXiv:2403.17844), and
    an independent repetition with flash-linear-attention's layers.
    """
    return {
        name.replace("_", "-"): f"{value} ({DELTA}, figure 3; HassanJbara/lin-attn-bench@d7824e4)"
        for name, value in published.items()
    }


def fuzzy_row(
    vocab: int, length: int, longest: int, training: bool, draw: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Keys and values of 1 to 3 symbols, in pairs; asked for is the value of a key that has occurred before.

    Tests use the longest keys alone. Rows are padded in front, with symbol V − 1. The targets of training are all
    next symbols.
    """
    pad = vocab - 1
    half = (vocab - 1) // 2
    sizes = range(1, longest + 1)

    def motifs(first: int, last: int, size: int) -> list[tuple[int, ...]]:
        found = list(itertools.permutations(range(first, last), size))
        draw.shuffle(found)
        return found

    def one(of: list[tuple[int, ...]]) -> tuple[int, ...]:
        return of[int(draw.choice(len(of)))]

    keys = {size: motifs(0, half, size) for size in (sizes if training else [longest])}
    values = {size: motifs(half, vocab - 1, size) for size in sizes}

    def key_size() -> int:
        return int(draw.choice(list(keys))) if training else longest

    probe_size = key_size()
    answer_size = int(draw.choice(list(values)))
    probe, answer = one(keys[probe_size]), one(values[answer_size])
    both = probe_size + answer_size
    place, placed = int(draw.choice(length - 2 * both)), False
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    shown: set[tuple[int, ...]] = set()
    tokens: list[int] = []
    asked: list[int] = []
    while len(tokens) < length - both - 2 * longest:
        size, value_size = key_size(), int(draw.choice(list(values)))
        if len(tokens) >= place and not placed:
            tokens += [*probe, *answer]
            asked += [IGNORED] * both
            known[probe] = answer
            shown.add(probe)
            placed = True
            continue
        key = one(keys[size])
        if key == probe:
            value, placed = answer, True
        else:
            if key not in known:
                known[key] = one(values[value_size])
            value = known[key]
        tokens += [*key, *value]
        asked += [IGNORED] * size + (list(value) if key in shown else [IGNORED] * len(value))
        shown.add(key)
    tokens += [*probe, *answer]
    asked += [IGNORED] * probe_size + list(answer)
    space = length + 1 - len(tokens)
    tokens, asked = [pad] * space + tokens, [IGNORED] * space + asked
    return tokens[:-1], tokens[1:] if training else asked[1:]


def fuzzy(
    vocab: int = 16, length: int = 128, longest: int = 3, train: int = 12_800, test: int = 1_280
) -> Task:
    def make(seed: int) -> dict[str, Split]:
        draw = np.random.default_rng(seed)
        splits = {}
        for name, n in (("train", train), ("test", test)):
            rows = [fuzzy_row(vocab, length, longest, name == "train", draw) for _ in range(n)]
            tokens, targets = (np.array(part, np.int64) for part in zip(*rows, strict=True))
            splits[name] = Split(tokens, targets)
        return splits

    return Task(
        "fuzzy-recall",
        vocab,
        length,
        make,
        (train, test),
        f"{MAD} mad/data/instances.py, configs/tasks/fuzzy-in-context-recall.yml (baseline)",
        "tokens identical for equal seeds; at most 64 epochs instead of 200, weight decay 0.1",
        batch=128,
        rates=(5e-4, 1e-3),
        published=of_mad(
            transformer="0.298; 0.565", deltanet="0.357; 0.393", gla="0.069; 0.155", gated_deltanet="–; 0.286"
        ),
    )


def copying_rows(
    n: int, vocab: int, length: int, kept: int, draw: np.random.Generator, places: np.random.RandomState
) -> Split:
    """``kept`` symbols scattered among blanks (V − 2); after the copy symbol (V − 1) they are asked for in order."""
    blank, copy = vocab - 2, vocab - 1
    blanks = length - 2 * kept - 1
    tokens = np.full((n, length), blank, np.int64)
    targets = np.full((n, length), IGNORED, np.int64)
    for i in range(n):
        symbols = draw.choice(vocab - 2, size=kept, replace=True)
        tokens[i, : kept + blanks] = np.insert(symbols, places.randint(0, kept, blanks), blank)
        tokens[i, kept + blanks] = copy
        targets[i, -kept:] = symbols
    return Split(tokens, targets)


def selective_copying(
    vocab: int = 16, length: int = 256, kept: int = 16, train: int = 12_800, test: int = 1_280
) -> Task:
    def make(seed: int) -> dict[str, Split]:
        draw, places = np.random.default_rng(seed), np.random.RandomState(seed)
        return {
            name: copying_rows(n, vocab, length, kept, draw, places)
            for name, n in (("train", train), ("test", test))
        }

    return Task(
        "selective-copy",
        vocab,
        length,
        make,
        (train, test),
        f"{MAD} mad/data/instances.py, configs/tasks/selective-copying.yml (baseline)",
        "tokens identical for equal seeds (the source leaves the places of the blanks to NumPy's global generator); at "
        "most 64 epochs instead of 200, weight decay 0.1",
        batch=128,
        rates=(5e-4, 1e-3),
        published=of_mad(
            transformer="0.996; 0.998", deltanet="1.000; 0.997", gla="0.886; 0.891", gated_deltanet="–; 0.997"
        ),
    )


# Repeat After Me: copying strings, and looking up n-grams -----------------------------------------------------------

REPEAT = "sjelassi/transformers_ssm_copy@1188c47"
LETTERS = string.ascii_lowercase
SYMBOLS = {**{letter: i for i, letter in enumerate(LETTERS)}, "$": 26, "|": 27, ".": 28, "*": 29}


class Strings:
    """The strings of one generator: letters come from NumPy's, samples of n-grams from Python's."""

    def __init__(self, seed: int, n: int = 3) -> None:
        self.letters, self.samples, self.n = np.random.RandomState(seed), random.Random(seed), n

    def letter_string(self, length: int) -> str:
        return "".join(self.letters.choice(list(LETTERS), size=length))

    def with_unique(self, length: int) -> tuple[str, list[str]]:
        """A string that has an n-gram which occurs once, and its n-grams but the last."""
        for _ in range(10):
            text = self.letter_string(length)
            grams = [text[i : i + self.n] for i in range(length - self.n - 1)]
            if any(grams.count(gram) == 1 for gram in grams):
                return text, grams
        raise ValueError(f"no {self.n}-gram occurs once in a string of {length}")

    def example(self, task: str, length: int) -> tuple[str, int]:
        """The text of one example and how many of its characters are given."""
        if task == "copy":
            text = self.letter_string(length)
            return f"${text}|{text}.", length + 2
        text, grams = self.with_unique(length)
        if task == "duplicate-ngram":
            new, old = self.samples.sample(grams, 2)
            text = text.replace(old, new)
            return f"${text}|{text}.", length + 2
        gram = grams[int(self.letters.randint(low=0, high=len(grams) - 1, size=1)[0])]
        rest = text[text.index(gram) + self.n :]
        return f"${text}|{gram}{rest}.", length + self.n + 2

    def packed(self, task: str, context: int, shortest: int, longest: int) -> tuple[str, list[int]]:
        """Examples one after the other until the context is full; the last may be cut, and is not asked for."""
        text = ""
        asked: list[int] = []
        while len(text) < context:
            example, given = self.example(task, int(self.letters.randint(shortest, longest + 1)))
            if len(text) + len(example) > context:
                rest = context - len(text)
                return text + example[:rest], asked + [0] * rest
            text += example
            asked += [0] * given + [1] * (len(example) - given)
        return text, asked


def encoded(texts: list[str], asked: list[list[int]]) -> Split:
    whole = np.array([[SYMBOLS[c] for c in text] for text in texts], np.int64)
    mask = np.array(asked, bool)[:, 1:]
    return Split(whole[:, :-1], np.where(mask, whole[:, 1:], IGNORED))


def string_rows(task: str, n: int, length: int, strings: Strings) -> Split:
    """One example a row, all of one length, filled up with ``*``; the closing point is not asked for."""
    texts: list[str] = []
    asked: list[list[int]] = []
    for _ in range(n):
        text, given = strings.example(task, int(strings.letters.randint(length, length + 1)))
        texts.append(text)
        asked.append([0] * given + [1] * (len(text) - given - 1) + [0])
    widest = max(map(len, texts))
    return encoded([t.ljust(widest, "*") for t in texts], [a + [0] * (widest - len(a)) for a in asked])


def repeat(
    task: str,
    shortest: int = 10,
    longest: int = 30,
    context: int = 220,
    lengths: tuple[int, ...] = (30, 50, 100),
    train: int = 25_600,
    test: int = 320,
) -> Task:
    """``copy``, ``suffix-ngram``, or ``duplicate-ngram`` (trained on copying, tested on strings with a repeat)."""

    def make(seed: int) -> dict[str, Split]:
        strings = Strings(seed)
        taught = "copy" if task == "duplicate-ngram" else task
        rows = [strings.packed(taught, context, shortest, longest) for _ in range(train)]
        splits = {"train": encoded([text for text, _ in rows], [asked for _, asked in rows])}
        for i, length in enumerate(lengths):
            splits["test" if i == 0 else f"length {length}"] = string_rows(task, test, length, strings)
        return splits

    return Task(
        task,
        len(SYMBOLS),
        context - 1,
        make,
        (train, test),
        f"{REPEAT} synthetic_exps/data_utils.py, train_utils.py, test_utils.py",
        "tokens identical for equal seeds; strings of 10 to 30 letters in training and of 30, 50 and 100 in tests, "
        "n = 3; small models and a fixed set of 25,600 rows in place of 12 layers of width 1,024 and fresh rows",
        score="rows",
        batch=64,
        epochs=16,
        rates=(5e-4, 2e-3),
        stop=0.999,
    )


def quick() -> Task:
    """Small enough for one CPU core: fresh rows all the way, a constant rate, never stopped early."""
    return mqar(
        256, 64, 4, "random", train=51_200, test=1_920, batch=64, epochs=1, rates=(3e-3,), schedule="constant",
        weight_decay=0.0, stop=1.0,
    )  # fmt: skip


SMALL = "-small"
"""How the names of the small grid's tasks end."""


def answer_alone(task: Task) -> Task:
    """The task with training rows that ask for the last symbol alone, as its tests do."""

    def make(seed: int) -> dict[str, Split]:
        splits = task.make(seed)
        splits["train"].targets[:, :-1] = IGNORED
        return splits

    return dataclasses.replace(task, make=make)


def with_duplicates(copy: Task, twice: Task) -> Task:
    """Copying, tested on strings with a repeat as well: both train on the same rows, here once."""

    def make(seed: int) -> dict[str, Split]:
        tests = {
            f"duplicate-ngram {name}": rows for name, rows in twice.make(seed).items() if name != "train"
        }
        return copy.make(seed) | tests

    return dataclasses.replace(copy, make=make)


def small() -> list[Task]:
    """Every task at a size for one CPU core, seconds a cell: fresh rows all the way, one recipe for all."""
    many, few = 32 * 400, 32 * 250
    strings: Any = {
        "shortest": 6,
        "longest": 10,
        "context": 48,
        "lengths": (10, 20, 40),
        "train": many,
        "test": 160,
    }
    lengths = (
        "strings of 6 to 10 letters in training and of 10, 20 and 40 in tests, counted by symbols, not rows"
    )
    sizes = {
        "mqar": (mqar(64, 32, 4, "empty", many, 320), "64 symbols, not 8,192"),
        "mqar-random": (mqar(64, 32, 4, "random", many, 320), "64 symbols, not 8,192"),
        "induction": (
            answer_alone(induction(16, 32, few, 640)),
            "training asks for the answer alone, not for every next symbol",
        ),
        "languages": (
            languages(20, 64, few, 320),
            "equal in distribution, not by tokens; rows are cut at 64 symbols",
        ),
        "fuzzy-recall": (
            fuzzy(9, 48, 2, many, 320),
            "keys and values have one or two symbols of four, not up to three",
        ),
        "selective-copy": (selective_copying(16, 32, 4, many, 320), "four symbols are kept, not 16"),
        "copy": (
            with_duplicates(repeat("copy", **strings), repeat("duplicate-ngram", **strings)),
            f"{lengths}; duplicate_ngram is a further test of the same models, for it trains on the same rows",
        ),
        "suffix-ngram": (repeat("suffix-ngram", **strings), lengths),
    }
    recipe: Any = {"batch": 32, "epochs": 1, "rates": (3e-3, 1e-2), "stop": 1.0}
    found = []
    for name, (task, differs) in sizes.items():
        own = recipe | {
            "name": name + SMALL,
            "score": "symbols" if task.score == "rows" else task.score,
            "differs": f"{differs}; every row is seen once, cosine schedule",
            "published": {},
        }
        found.append(dataclasses.replace(task, **own))
    return found


@functools.cache
def tasks() -> dict[str, Task]:
    """All tasks by name: the full grid's, the quick one, the small grid's."""
    found = [
        mqar(length=length, pairs=pairs, fillers=fillers)
        for fillers in ("empty", "random")
        for length, pairs in SETTINGS
    ]
    found += [induction(), languages(), fuzzy(), selective_copying()]
    found += [repeat(name) for name in ("copy", "suffix-ngram", "duplicate-ngram")]
    found += [quick(), *small()]
    return {task.name: task for task in found}
