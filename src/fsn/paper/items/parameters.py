"""Parameter counts: the six totals of the paper, its ladder, and what single parts cost."""

from __future__ import annotations

import functools

from fsn.models import count_parameters, preset
from fsn.models.config import FSNConfig, swiglu_parameters
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result
from fsn.paper.rows import Row, compute, grouped
from fsn.paper.values import Cited, cite, macro, stated

TEXT_SYMBOLS, CODE_SYMBOLS = 205, 97
TOTALS = (
    ("fsn", "1m", "enwik8", TEXT_SYMBOLS, "sfnParams"),
    ("transformer", "1m", "enwik8", TEXT_SYMBOLS, "xfParams"),
    ("fsn", "1m", "code", CODE_SYMBOLS, "sfnCodeParams"),
    ("transformer", "1m", "code", CODE_SYMBOLS, "xfCodeParams"),
    ("fsn", "8m", "enwik8", TEXT_SYMBOLS, None),
    ("transformer", "8m", "enwik8", TEXT_SYMBOLS, None),
)


def total(name: str, vocab_size: int = TEXT_SYMBOLS) -> int:
    return count_parameters(preset(name, vocab_size))


def lighter(size: str) -> float:
    """By how many percent the FSN is lighter than its transformer at a rung."""
    return 100.0 * (1.0 - total(f"fsn-{size}") / total(f"transformer-{size}"))


def fsn_config() -> FSNConfig:
    config = preset("fsn-1m", TEXT_SYMBOLS)
    assert isinstance(config, FSNConfig)
    return config


def kernel_share() -> float:
    """The kernel's share of the total in percent: 4 N k numbers in every layer."""
    config = fsn_config()
    kernel = 4 * config.coupling.harmonics * config.k * config.layers
    return 100.0 * kernel / total("fsn-1m")


def mean_field_mismatch() -> float:
    """By how many percent the mean-field block differs from the SwiGLU block it replaces."""
    config = preset("fsn-mf-1m", TEXT_SYMBOLS)
    assert isinstance(config, FSNConfig)
    block, modes = swiglu_parameters(config.k, 2 * config.k), config.collective_modes
    return 100.0 * abs(modes * (6 * config.k + 1) - block) / block


def torus_factor() -> float:
    """How many times the parameters of the block it replaces the periodic-input SwiGLU has."""
    config = fsn_config()
    extra = total("fsn-torus-swiglu-1m") - total("fsn-nophase-1m")
    block = swiglu_parameters(config.k, 2 * config.k)
    return 1.0 + extra / (config.layers * block)


def totals(bench: Bench) -> list[Row]:
    rows = []
    for family, size, corpus, symbols, name in TOTALS:
        paper = cite("parameters", f"{family}/{corpus}/{size.upper()}")
        if name is not None:
            paper = paper.also(*macro(name).sources)
        title = f"{family}-{size}, {symbols} symbols"
        count = total(f"{family}-{size}", symbols)
        rows.append(compute(bench, title, paper, functools.partial(float, count), ",.0f"))
    return rows


def compute_item(bench: Bench) -> Result:
    def row(title: str, paper: Cited | None, value: float, remark: str = "") -> Row:
        return compute(bench, title, paper, lambda: value, ".2f", remark)

    heavier = 100.0 * (total("fsn-1m") / total("transformer-1m") - 1.0)
    shares = [
        row("FSN heavier than the transformer on text, percent", macro("paramImbalance"), heavier),
        row("FSN lighter at 2M, percent", macro("ladderTwoLighter"), lighter("2m")),
        row("FSN lighter at 4M, percent", macro("ladderFourLighter"), lighter("4m")),
        row("FSN lighter at 8M, percent", macro("ladderEightLighter"), lighter("8m")),
        row("Kernel's share of the total, percent", None, kernel_share(), "paper: below one percent"),
        row(
            "Mean-field block against SwiGLU, percent off",
            None,
            mean_field_mismatch(),
            "paper: within a tenth of a percent",
        ),
        row(
            "Periodic-input SwiGLU, times the block it replaces",
            stated(3),
            torus_factor(),
            "paper: roughly three times",
        ),
    ]
    return Result(rows=grouped("Totals", totals(bench)) + grouped("Shares", shares))


ITEM = Item(
    "parameters",
    "Parameter counts",
    "Section 2.5 and Table 3",
    "Totals of the models as built, exact to the digit, and the shares the text quotes. Needs no run.",
    compute_item,
)
