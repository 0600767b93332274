"""What the demo's page shows, measured on the finished runs: one plain dict, ready for JSON.

- ``about``: text, recipe, machine
- ``exercise``: the single layers that learnt to copy letters: curves, losses on new and on copied letters
- ``models``: the models of the text: size, losses, speed, curves, loss by copy depth and a sample of each
- ``depth``: the copy-depth bins and how many characters each holds
- ``margins``: bits against the transformer by bin, with intervals
- ``kernels``: the coefficients of both FSNs, mean and by coordinate
- ``grown``: the finished runs of the repository, or null: their curves, a sentence said twice, what the FSN writes
- ``snippets``: a passage and a line, each twice: bits of every character and the attention of every layer
"""

from __future__ import annotations

import datetime
import math
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fsn
from fsn.data import Corpus
from fsn.demo.exercise import fresh_passage
from fsn.demo.grown import grown
from fsn.demo.inside import read_coefficients, show_snippet
from fsn.demo.plan import Act, Entry, Plan
from fsn.demo.training import Runs
from fsn.errors import UserError
from fsn.measure import BINS, Battery, battery, battery_losses, label_corpus, label_split, margin_table
from fsn.measure.copy_depth import CAP, bin_name
from fsn.models import LanguageModel
from fsn.models.generate import sample
from fsn.progress import Bar
from fsn.train import Run

LINE = 'zorblat = Quokka(weight=3.7, food="lupin_leaves")\n'
"""Two names that no library has: the second time they can only come from the first."""
PROMPT = "def "
SYMBOLS = 280
TEMPERATURE = 0.7
STRIDE = 128
STANDARD, ENRICHED = 768, 64
"""Windows of the copy-depth measurement: the first ones, and the ones richest in long copies."""
EXERCISE_WINDOWS = 192
COPYING = 4
"""Copy depth from which a character of the text counts as copied."""
COPYING_LETTERS = 2
"""The same for letters of the exercise, where chance matches are rarely longer than one."""
RESAMPLES = 400
REFERENCE = "transformer"

Losses = NDArray[np.float32]
Models = dict[str, LanguageModel]


def measure(plan: Plan, runs: Runs, results: Path = Path("results")) -> dict[str, Any]:
    """Everything the page needs; ``results`` is where finished runs of full size may lie."""
    models = {act: {key: run.load_model() for key, run in some.items()} for act, some in runs.items()}
    exercise, text = models["exercise"], models["text"]
    corpus, length = plan.text.corpus, plan.text.recipe.length
    passage = 2 * fresh_passage()[: plan.exercise.recipe.length // 2]
    line = 2 * repeated_line(corpus, length)
    return {
        "about": _about(plan, runs),
        "exercise": _exercise(plan.exercise, runs["exercise"], exercise),
        **_text(plan.text, runs["text"], text),
        "kernels": {
            "exercise": read_coefficients(exercise["fsn"]),
            "text": read_coefficients(text["fsn"]),
        },
        "snippets": {
            "exercise": show_snippet(exercise, plan.exercise.corpus, passage),
            "text": show_snippet(text, corpus, line),
        },
        "grown": grown(results),
        "prompt": prompt(corpus),
    }


def prompt(corpus: Corpus) -> str:
    """What the samples begin with, if the corpus has these symbols."""
    return PROMPT if _has(corpus, PROMPT) else ""


def repeated_line(corpus: Corpus, length: int) -> str:
    """The line that is shown twice: :data:`LINE`, or the beginning of the validation text if the corpus lacks
    its symbols or a window the room."""
    room = length // 2
    if _has(corpus, LINE) and len(LINE) <= room:
        return LINE
    tokens = corpus.valid[: min(room, len(LINE))]
    return "".join(chr(corpus.symbols[int(t)]) for t in tokens)


def _has(corpus: Corpus, text: str) -> bool:
    try:
        corpus.encode(text)
    except UserError:
        return False
    return True


# -- the exercise ------------------------------------------------------------------------------------------


def _exercise(act: Act, runs: dict[str, Run], models: Models) -> dict[str, Any]:
    """Letters nobody could know against letters that were said before."""
    length = act.recipe.length
    chosen = battery(label_split(act.corpus.valid, length, length), EXERCISE_WINDOWS, 0)
    new, copied = chosen.mask((0, 0)), chosen.mask((COPYING_LETTERS, CAP))
    rows = []
    for entry in act.entries:
        losses = battery_losses(
            models[entry.key], act.corpus.valid, chosen, description=f"letters, {entry.name}"
        )
        rows.append(
            _results(entry, runs[entry.key])
            | {"new_bits": _mean(losses, new), "copied_bits": _mean(losses, copied)}
        )
    return {
        "models": rows,
        "steps": act.steps,
        "letters": act.corpus.vocab_size,
        "guess": math.log2(act.corpus.vocab_size),
        "from": COPYING_LETTERS,
    }


# -- the text ----------------------------------------------------------------------------------------------


def _text(act: Act, runs: dict[str, Run], models: Models) -> dict[str, Any]:
    """Loss, loss by copy depth, and what each model writes."""
    corpus, length = act.corpus, act.recipe.length
    chosen = battery(label_corpus(corpus, "valid", length, STRIDE), STANDARD, ENRICHED)
    losses = {
        entry.key: battery_losses(
            models[entry.key], corpus.valid, chosen, description=f"copy depth, {entry.name}"
        )
        for entry in act.entries
    }
    copied = chosen.mask((COPYING, CAP), "standard")
    rows = []
    with Bar("writing samples", len(act.entries)) as bar:
        for entry in act.entries:
            row = _results(entry, runs[entry.key])
            row["copied_bits"] = _mean(losses[entry.key], copied)
            row["depth"] = [_mean(losses[entry.key], chosen.mask(edges)) for edges in BINS]
            row["sample"] = sample(
                models[entry.key],
                corpus.alphabet,
                prompt(corpus),
                symbols=SYMBOLS,
                temperature=TEMPERATURE,
                context=length - 1,
                seed=act.recipe.seed,
            )
            rows.append(row)
            bar.update()
    return {
        "models": rows,
        "depth": {
            "bins": [bin_name(edges) for edges in BINS],
            "tokens": chosen.counts(),
            "copied_share": float(copied.sum() / (~chosen.enriched).sum() / (length - 1)),
            "from": COPYING,
        },
        "margins": _margins(losses, chosen),
    }


def _mean(values: Losses, mask: NDArray[np.bool_]) -> float | None:
    return float(values[mask].mean(dtype=np.float64)) if mask.any() else None


def _results(entry: Entry, run: Run) -> dict[str, Any]:
    last = run.epochs[-1]
    steps = [line for line in run.metrics if line["kind"] == "step"]
    return {
        "key": entry.key,
        "name": entry.name,
        "about": entry.about,
        "parameters": entry.parameters,
        "valid_bits": last["valid_bits"],
        "tokens_per_s": last["tokens_per_s"],
        "train": [[line["step"], round(line["loss_bits"], 4)] for line in steps],
        "valid": [
            [line["step"], round(line["valid_bits"], 4), line["cumulative_s"]] for line in run.validations
        ],
    }


def _margins(losses: dict[str, Losses], chosen: Battery) -> dict[str, Any]:
    """Bits against the transformer, paired token by token, with 95 % intervals over windows."""
    others = {key: loss for key, loss in losses.items() if key != REFERENCE}
    by_bin = margin_table(others, losses[REFERENCE], chosen, resamples=RESAMPLES)
    copied = margin_table(
        others, losses[REFERENCE], chosen, ((COPYING, CAP),), slices="standard", resamples=RESAMPLES
    )
    names = ("margin", "low", "high")
    return {
        key: {
            "bins": {name: by_bin.where(run=key).column(name) for name in names},
            "copied": {name: copied.where(run=key).rows[0][name] for name in names},
        }
        for key in others
    }


def _about(plan: Plan, runs: Runs) -> dict[str, Any]:
    corpus, recipe = plan.text.corpus, plan.text.recipe
    return {
        "corpus": corpus.name,
        "symbols": corpus.vocab_size,
        "characters": len(corpus),
        "sha256": corpus.sha256,
        "steps": plan.text.steps,
        "batch": recipe.batch_size,
        "length": recipe.length,
        "lr": recipe.lr,
        "seed": recipe.seed,
        "seconds": sum(run.epochs[-1]["cumulative_s"] for some in runs.values() for run in some.values()),
        "folder": str(plan.folder),
        "date": datetime.date.today().isoformat(),
        "fsn": fsn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "temperature": TEMPERATURE,
    }
