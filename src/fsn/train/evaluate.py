"""Validation: the mean loss over every prediction of every window, the same number each time."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import data
from ..checks import check
from ..data import Windows
from ..errors import UserError
from ..io import parse_json, read_file, write_text_atomic, writing
from ..progress import Bar
from . import hashes
from .recipe import Precision
from .run import Run, identity, weights_hash
from .world import World, autocast, choose_precision, environment, numerics, products

Split = Literal["valid", "test"]
EVALUATIONS = "evaluations.jsonl"
"""Beside run folders: a line for each loss of a run's weights on a whole split, as ``fsn eval --append`` writes it."""


class Stopped(Exception):
    """A signal or the time budget asked the run to stop."""


@dataclass(frozen=True)
class Evaluation:
    """Bits per symbol over a set of windows."""

    bits: float
    """Mean over every prediction."""
    bits_second_half: float
    """Mean over targets at t ≥ length / 2, each with at least half a window behind it."""
    windows: int
    predictions: int
    seconds: float
    by_position: tuple[float, ...] = ()
    """Mean at each position of the window: entry i has i + 1 symbols before its target."""

    @property
    def tokens_per_s(self) -> float:
        return self.predictions / self.seconds if self.seconds > 0 else math.nan


def second_half(length: int) -> int:
    """Index of the first prediction whose target lies at t ≥ length / 2 (prediction i has target i + 1)."""
    return -(-length // 2) - 1


def window_losses(
    model: nn.Module,
    windows: Windows,
    chosen: Tensor | None = None,
    *,
    batch_size: int | None = None,
    precision: Precision = "fp32",
    label: str | None = None,
) -> Iterator[Tensor]:
    """The loss of every prediction without dropout, a batch of windows at a time: (b, length − 1), in nats.

    ``chosen`` (n,) picks windows by number, in that order; without it all are taken. ``label`` shows a progress bar
    under that name.
    """
    check_batch_size(batch_size)
    device = next(model.parameters()).device
    batch_size = batch_size or (512 if device.type == "cuda" else 64)
    precision = "fp32" if precision == "auto" else precision
    index = torch.arange(len(windows), device=device) if chosen is None else chosen.to(device)
    training = model.training
    model.eval()
    try:
        with Bar(label or "", len(index), shown=label is not None) as bar:
            for part in index.split(batch_size) if len(index) else ():
                with torch.no_grad(), products(precision), autocast(precision, device):
                    batch = windows.gather(part)
                    tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
                    losses = model.loss(tokens, targets, documents=windows.documents(tokens))  # type: ignore[operator]
                yield losses
                bar.update(len(part))
    finally:
        model.train(training)


def evaluate(
    model: nn.Module,
    windows: Windows,
    *,
    batch_size: int | None = None,
    precision: Precision = "fp32",
    world: World | None = None,
    label: str | None = None,
    stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Evaluate ``model`` on all ``windows``, without dropout, in float32 unless asked otherwise.

    Validation never runs in the training precision: coherences reach 136, where neighbouring bfloat16 numbers are 0.5
    to 1 apart, and rounding them adds 0.002 to 0.005 bits to an oscillator model's loss and nothing to a transformer's.
    The sums are float64, over batches in a fixed order. With many processes each takes a contiguous part of
    the windows. ``label`` shows a progress bar under that name; once ``stop`` returns true, :class:`Stopped` is
    raised.
    """
    device = next(model.parameters()).device
    world = world or World(device=device)
    total, length = len(windows), windows.length
    half = second_half(length)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    by_position = torch.zeros(length - 1, dtype=torch.float64, device=device)
    rows = world.rows(total)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    batches = window_losses(
        model,
        windows,
        torch.arange(rows.start, rows.stop, device=device),
        batch_size=batch_size,
        precision=precision,
        label=label if world.is_main else None,
    )
    for loss in batches:
        if stop is not None and stop():
            sums[2] += 1
            batches.close()  # type: ignore[attr-defined]
            break
        loss = loss.double()
        sums[0] += loss.sum()
        sums[1] += loss[:, half:].sum()
        by_position += loss.sum(0)
    all_nats, half_nats, stopped = world.all_reduce_sum(sums).tolist()
    nats_by_position = world.all_reduce_sum(by_position).tolist()
    if stopped:
        raise Stopped
    seconds = time.perf_counter() - start
    predictions = total * (length - 1)
    return Evaluation(
        bits=all_nats / math.log(2) / predictions,
        bits_second_half=half_nats / math.log(2) / (total * (length - 1 - half)),
        windows=total,
        predictions=predictions,
        seconds=seconds,
        by_position=tuple(nats / math.log(2) / total for nats in nats_by_position),
    )


def check_batch_size(batch_size: int | None) -> None:
    """Stop if a batch would have no window; None is the default of the device."""
    check(batch_size is None or batch_size >= 1, f"the batch size must be at least 1, not {batch_size}")


@dataclass(frozen=True)
class EvaluateOptions:
    """What is evaluated of a run, and how."""

    which: Literal["best", "last"] = "best"
    """The weights of the best epoch, or the last ones saved."""
    split: Split = "valid"
    """Which part of the text."""
    corpus: str | None = None
    """The path of the text now, if the run's corpus was a path and has moved."""
    text: str | None = None
    """Another text, a path or a name as --corpus of `fsn train` takes it. It is read to its end in the model's own
    symbols, in windows as those of validation or a little closer."""
    text_column: str | None = None
    """Of --text that is JSONL or Parquet: the column with the text."""
    token_dtype: Literal["uint16", "uint32"] | None = None
    """Of --text that is a token file (.bin): the type of its numbers."""
    precision: Precision = "fp32"
    """Of the matrix products. Losses are compared in fp32, as validation during training is."""
    batch_size: int | None = None
    """Windows in a batch; by default 64 on a CPU, 512 on a GPU."""
    length: int | None = None
    """Symbols in a window, half of them the stride; by default the windows of the run's validation."""
    windows: int | None = None
    """Only the first so many windows of the split, to be quick. Without it all of them."""

    def __post_init__(self) -> None:
        check_batch_size(self.batch_size)
        check(self.windows is None or self.windows >= 1, f"--windows must be at least 1, not {self.windows}")
        if self.text is None:
            fits = (self.text_column, self.token_dtype) == (None, None)
            check(fits, "--text-column and --token-dtype go with --text: give that")
        else:
            check(self.corpus is None, "--text goes without --corpus: leave it out")
            check(self.split == "valid", "--text is read whole: leave out --split")


def covering_stride(symbols: int, length: int, most: int) -> int:
    """The stride, ``most`` at most, with which as few windows as possible read a text to its end, but for fewer symbols
    than there are windows."""
    rest = symbols - length
    return most if rest <= 0 else rest // -(-rest // most)


def evaluate_run(
    run: Run,
    device: torch.device,
    how: EvaluateOptions = EvaluateOptions(),  # noqa: B008 (frozen)
) -> tuple[Evaluation, dict[str, Any]]:
    """The loss of a run on a split of its corpus, or on all of another text, and the same as a line of JSON: see
    ``fsn eval``."""
    recipe = dataclasses.replace(run.recipe, precision=choose_precision(how.precision, device))
    part: Split | None
    if how.text is None:
        read, part, where = run.load_corpus(how.corpus), how.split, f"the {how.split} part of the text"
    else:
        reading = data.ReadOptions(text_column=how.text_column, token_dtype=how.token_dtype)
        loaded = data.load(how.text, reading=reading, encoding=run.encoding, whole=True)
        read, part, where = loaded.within(run.encoding), None, how.text
    length, windows, text = how.length, how.windows, how.text
    stride = recipe.eval_stride if length is None else max(length // 2, 1)
    length = recipe.length if length is None else length
    tokens = read.tokens(part)
    check(
        len(tokens) > 0,
        f"{read.name} has no {how.split} split (token files: {how.split}.bin); take another --split",
    )
    symbols = len(tokens)
    if text is not None:
        length = min(length, max(symbols, 2))  # a short text is one window
        stride = min(stride, max(length // 2, 1))
    if windows is not None:
        tokens = tokens[: (windows - 1) * stride + length]
    if text is not None:
        stride = covering_stride(len(tokens), length, stride)
    separate = recipe.separate_documents and (text is None or read.end is not None)
    cut = Windows(tokens.to(device), length, stride, read.document_end(separate), where)
    with numerics(recipe, device):
        result = evaluate(
            run.load_model(how.which, device),
            cut,
            batch_size=how.batch_size or recipe.eval_batch_size,
            precision=recipe.precision,
            world=World(device=device),
            label=part or "text",
        )
    tokens_per_byte = read.tokens_per_byte(part)
    if windows is not None and tokens_per_byte != 1.0:
        tokens_per_byte = None  # it is known of the whole split only
    line = {"run": str(run.folder), "which": how.which, "split": part, "length": length, "stride": stride}
    if text is not None:
        line |= {"text": read.name, "sha256": read.sha256, "symbols": symbols, "warning": read.left_out}
    line |= {"precision": recipe.precision, **dataclasses.asdict(result)}
    bits_per_byte = None if tokens_per_byte is None else result.bits * tokens_per_byte
    return result, line | {"bits_per_byte": bits_per_byte}


def append_evaluation(path: Path, name: str, run: Run, world: World, line: Mapping[str, Any]) -> None:
    """Add an evaluation of a run to a JSONL file under a name, with the hash of its best weights, device and versions.

    It replaces an older line of the same run, split and windows.
    """
    weights = hashes.sha256(hashes.read(run.folder, "best.safetensors"))
    where = {name: environment(world)[name] for name in ("device", "commit", "packages")}
    rounded, digest = [round(bits, 5) for bits in line["by_position"]], identity(run.config)
    new = {**line, "run": name, "by_position": rounded, "weights_sha256": weights, "run_sha256": digest}
    new |= where
    lines = read_evaluations(path)
    key = ("run", "which", "split", "length", "stride", "precision")
    others = [
        old
        for old in lines
        if any(old.get(name) != new[name] for name in key) or old.get("run_sha256", digest) != digest
    ]
    with writing(path, "choose another --append"):
        write_text_atomic(path, "".join(json.dumps(one) + "\n" for one in (*others, new)))


def best_loss(run: Run) -> float | None:
    """The float32 loss of a run's best weights on the validation split, from the file beside its folder.

    Where the weights were not kept, or the line does not name them, the run's name and config will do.
    """
    asked: dict[str, Any] = {"run": run.name, "which": "best", "split": "valid", "precision": "fp32"}
    asked |= {"length": run.recipe.length, "stride": run.recipe.eval_stride}
    weights, config = weights_hash(run.folder), identity(run.config)
    for line in read_evaluations(run.folder.parent / EVALUATIONS):
        named = {weights, line.get("weights_sha256")} - {None}
        if asked.items() <= line.items() and len(named) < 2 and line.get("run_sha256", config) == config:
            return float(line["bits"])
    return None


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """The evaluations in a file that ``fsn eval --append`` made; none where there is no file."""
    if not path.exists():
        return []
    lines = [parse_json(line, f"a line of {path}") for line in read_file(path).splitlines()]
    if not all(isinstance(line, dict) for line in lines):
        raise UserError(f"{path} holds lines that are not JSON objects; fix it or name another file")
    return lines
