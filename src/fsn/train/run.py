"""The run folder: written while a run trains, read as a :class:`Run`, compared with runs of other seeds.

config.yaml         model, recipe and corpus, every choice made
metrics.jsonl       a line for every epoch, extra validation, warning, and every `log_steps` steps
timings.jsonl       how long they took, in lines of the same kind and step
environment.json    versions, device and commit
best.safetensors    the weights of the best epoch
kernel/             the coupling kernel after every epoch
hashes.json         the sha256 of all these, see hashes.py
last/               checkpoints, see checkpoint.py
log.txt, lock, tensorboard/, DONE

Two runs of one config on one machine have the same config, metrics, best weights and kernels, byte for byte. Their
timings and environments differ, and so do the hashes and checkpoints, which depend on them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import torch
import yaml
from torch import Tensor, nn

from .. import data
from ..checks import check
from ..data import Corpus, Encoding, ReadOptions
from ..data.registry import check_outside
from ..errors import UserError
from ..io import check_writable, parse_json, parse_yaml, read_file, remove_leftovers, user_path
from ..models import Config, LanguageModel, build_from_config, config_from_dict, config_to_dict
from ..nn import CouplingKernel
from ..progress import say
from . import hashes
from .checkpoint import Checkpoints, load_weights, pack, unpack
from .loggers import Loggers
from .recipe import Recipe

FORMAT = 1
LABELS = frozenset({"fsn_version", "format", "preset", "corpus.name", "begin_with.run"})
"""Entries of a config, flattened, that only name things: two runs that differ in them are the same experiment."""
BOOKKEEPING = {
    f"recipe.{name}" for name in ("checkpoint_minutes", "checkpoint_steps", "log_steps", "eval_at_steps")
}
"""Those that only say when something is written to disk. They may change when a run is resumed."""
DURATION = {"recipe.epochs", "recipe.max_steps"}
"""Those that only say where to stop."""
ENDING = DURATION | {f"recipe.{name}" for name in ("schedule", "cooldown", "cooldown_epochs", "lr_floor")}
"""With these, those that only say how the learning rate falls at the end. They may change (--extend) where the steps
already done keep their learning rates: see schedule.py."""
TIMES = {"tokens_per_s", "eval_tokens_per_s", "train_s", "valid_s", "cumulative_s"}
TIMES |= {"peak_memory_gb", "train_memory_gb"}
"""Fields of a line that differ between two runs of one config."""


# -- writing -----------------------------------------------------------------------------------------------


class Lines:
    """A file of JSON lines that grows, and is truncated to its size at a checkpoint."""

    def __init__(self, path: Path, size: int = 0, sha256: str | None = None) -> None:
        """Stop if the file does not begin with what it held when the checkpoint was written."""
        self.path = path
        data = read_file(path) if path.exists() else b""
        check(
            len(data) >= size,
            f"{path} is shorter ({len(data):,} bytes) than when the checkpoint was written ({size:,}); restore "
            "the file, or start a new run in another folder",
        )
        self._hash = hashlib.sha256(data[:size])
        self.entry = (size, self._hash.hexdigest())
        check(
            sha256 in (None, self.entry[1]),
            f"{path} has changed since the checkpoint was written: it was edited or damaged; "
            "restore the right file, or start a new run in another folder",
        )

    def open(self) -> IO[bytes]:
        """Truncate the file to the bytes that were checked."""
        self._file = open(self.path, "ab")  # noqa: SIM115
        self._file.truncate(self.entry[0])
        self._file.seek(self.entry[0])
        return self._file

    def add(self, line: dict[str, Any]) -> None:
        """Append a line, NaN and Inf as null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        data = (json.dumps(clean) + "\n").encode()
        self._file.write(data)
        self._file.flush()
        self._hash.update(data)

    def sync(self) -> hashes.Entry:
        """Flush to the disk; returns the size of the file and its sha256."""
        os.fsync(self._file.fileno())
        self.entry = (self._file.tell(), self._hash.hexdigest())
        return self.entry


class RunFolder:
    """The folder of a run that is being trained. It is locked: only one process at a time writes to it."""

    def __init__(self, path: str | os.PathLike[str], quiet: bool = False) -> None:
        self.path = Path(path)
        self.quiet = quiet
        self.checkpoints = Checkpoints(self.path / "last")
        self.best_file = self.path / "best.safetensors"
        self._lines: dict[str, Lines] = {}
        self._log: IO[str] | None = None
        self._loggers: Loggers | None = None
        self._files = contextlib.ExitStack()

    def open(self) -> None:
        """Make the folder, lock it, open the log."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = open(self.path / "lock", "a+", encoding="utf-8")  # noqa: SIM115
        self._files.enter_context(lock)  # the last to be closed
        try:
            # Windows has no such locks: there a second writer is not detected.
            with contextlib.suppress(ImportError):
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UserError(
                f"another process ({lock.read().strip() or 'unknown'}) is writing to {self.path}; "
                "wait for it, stop it, or choose another --out"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        for folder in (self.path, self.path / "kernel", self.checkpoints.folder):
            remove_leftovers(folder)
        self.hashes = hashes.Hashes(self.path)
        self._log = open(self.path / "log.txt", "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self._files.enter_context(self._log)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._files.close()
        self._log = self._loggers = None

    def say(self, line: str) -> None:
        """Print a line and append it to log.txt."""
        if not self.quiet:
            say(line)
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
            self._log.flush()

    def write_config(self, config: dict[str, Any]) -> None:
        self.hashes.write("config.yaml", yaml.safe_dump(config, sort_keys=False, width=110).encode())

    def write_encoding(self, encoding: Encoding) -> None:
        """The tokenizer, if there is one, so that the model can be used without its corpus."""
        for name, content in encoding.files().items():
            self.hashes.write(name, content.encode())

    def write_environment(self, current: dict[str, Any]) -> None:
        """environment.json: that of the process that trains now, and of those it resumed under ``earlier``."""
        try:
            before = read_environment(self.path)
        except UserError as error:
            self.say(f"warning: {error}; it is written anew")
            before = {}
        earlier = before.pop("earlier", []) + ([before] if before else [])
        text = json.dumps({**current, "earlier": earlier}, indent=1)
        self.hashes.write("environment.json", text.encode() + b"\n")

    def open_loggers(self, asked: Sequence[str], config: dict[str, Any], step: int) -> None:
        self._loggers = Loggers(self.path, asked, config, step, self.say)
        self._files.callback(self._loggers.close)

    def open_metrics(self, sizes: Mapping[str, Any] | None = None) -> None:
        """Truncate the metrics to ``sizes``, as :meth:`sync_metrics` returned them, or to nothing."""
        entries = {name: (sizes or {}).get(name, (0, None)) for name in hashes.GROWING}
        self._lines = {name: Lines(self.path / name, *entry) for name, entry in entries.items()}
        self.hashes.enter({name: [lines.entry] for name, lines in self._lines.items()})
        for lines in self._lines.values():
            self._files.enter_context(lines.open())

    def record(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, and its times to timings.jsonl; in the main process only."""
        if not self._lines:
            return
        times = {name: value for name, value in line.items() if name in TIMES}
        if times:
            where = {name: line[name] for name in ("kind", "step", "epoch")}
            self._lines["timings.jsonl"].add({**where, **times})
        self._lines["metrics.jsonl"].add({name: value for name, value in line.items() if name not in TIMES})
        if self._loggers is not None:
            self._loggers.draw(line)

    def sync_metrics(self) -> dict[str, hashes.Entry]:
        """Flush the metrics to the disk; returns the size and sha256 of each file."""
        sizes = {name: lines.sync() for name, lines in self._lines.items()}
        self.hashes.enter({name: [entry] for name, entry in sizes.items()})
        return sizes

    def save_best(self, model: LanguageModel, recipe: Recipe, epoch: int, step: int, bits: float) -> None:
        about = {
            "format": "pt",
            "epoch": str(epoch),
            "step": str(step),
            "valid_bits": repr(bits),
            "config": json.dumps(config_to_dict(model.config)),
            **_windows(recipe),
        }
        self.hashes.write("best.safetensors", pack(model.state_dict(), about))

    def save_kernel(self, model: nn.Module, epoch: int) -> None:
        """The coupling kernel and the scalars after this epoch."""
        kernels = [name for name, module in model.named_modules() if isinstance(module, CouplingKernel)]
        state = model.state_dict()
        parts = {n: t for n, t in state.items() if n.rpartition(".")[0] in kernels}
        if parts:
            parts |= {n: t for n, t in state.items() if t.dim() == 0}
            self.hashes.write(f"kernel/epoch-{epoch:04d}.safetensors", pack(parts, {"format": "pt"}))


def check_out(out: str | os.PathLike[str], corpus: str | os.PathLike[str] | None = None) -> Path:
    """``out`` as a path; stop if a run cannot be written there, or would become part of its corpus."""
    check(bool(os.fspath(out)), "--out is empty; give it the name of a folder")
    folder = user_path(out)
    check_writable(folder, "choose another --out")
    if corpus is not None:
        check_outside(folder, corpus, "an --out")
    return folder


# -- reading -----------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """config.yaml of a run folder."""
    file = path / "config.yaml"
    try:
        config = parse_yaml(hashes.read(path, "config.yaml"), str(file))
    except FileNotFoundError:
        what = "it has no config.yaml; name a folder that `fsn train` wrote"
        if (path / "config.json").is_file():
            what = (
                "it is an exported model, for fsn.load and `fsn explore`; name the run it was exported from"
            )
        raise UserError(f"{path} is not a run folder: {what}") from None
    whole = isinstance(config, dict) and {"model", "recipe", "corpus"} <= set(config)
    check(whole, f"{file} is not the config of a run")
    found = config.get("format")
    check(found == FORMAT, f"{path} has format {found}; this version of fsn reads format {FORMAT}")
    made = config["corpus"] if isinstance(config["corpus"], dict) else {}
    fits = {name: isinstance(config[name], dict) for name in ("model", "recipe", "corpus")}
    fits["corpus.name"] = isinstance(made.get("name"), str)
    fits["corpus.sha256"] = made.get("sha256") is not None
    if "vocab_size" in made:  # subwords, or tokens without text
        fits["corpus.vocab_size"] = type(made["vocab_size"]) is int and 0 < made["vocab_size"] < 2**31
        if "tokenizer" in made:
            fits["corpus.tokenizer"] = _is_hexadecimal(made["tokenizer"])
            fits["corpus.end"] = type(made.get("end")) is int
    else:
        fits["corpus.symbols"] = _is_hexadecimal(made.get("symbols"))
    for name, fit in fits.items():
        check(fit, f"{file} was changed: its {name} is missing or makes no sense; restore the right file")
    try:  # fields that are newer than the run get their defaults
        model, recipe = config_from_dict(config["model"]), Recipe.from_dict(config["recipe"])
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    return {**config, "model": config_to_dict(model), "recipe": recipe.to_dict()}


def _is_hexadecimal(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("([0-9a-fA-F]{2})+", value) is not None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl or timings.jsonl, without an incomplete last line."""
    try:
        *whole, cut = hashes.read(path.parent, path.name).split(b"\n")
    except FileNotFoundError:
        return []
    lines = []
    for number, raw in enumerate(whole, 1):
        if raw.strip():
            line = parse_json(raw, f"line {number} of {path}")
            if not _is_line(line):
                raise UserError(
                    f"line {number} of {path} is not one that a run writes; restore the right file"
                )
            lines.append(line)
    with contextlib.suppress(UserError):
        lines += [line for line in [parse_json(cut, "the last line")] if _is_line(line)]
    return lines


def _is_line(line: Any) -> bool:
    """Whether a line has what the properties of :class:`Run` read."""
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return False
    needed = {"epoch": ("epoch", "step"), "valid": ("step",)}.get(line["kind"], ())
    whole = all(type(line.get(name)) is int for name in needed) and type(line.get("step", 0)) is int
    bits = line.get("valid_bits")
    return whole and (bits is None or type(bits) in (int, float))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, each with its times."""
    times = {(line["kind"], line.get("step")): line for line in read_lines(path / "timings.jsonl")}
    lines = read_lines(path / "metrics.jsonl")
    return [{**line, **times.get((line["kind"], line.get("step")), {})} for line in lines]


def read_environment(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(hashes.read(path, "environment.json"), str(path / "environment.json"))
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def _windows(recipe: Recipe) -> dict[str, str]:
    """Metadata of the best weights: the validation windows that selected them."""
    return {"length": str(recipe.length), "eval_stride": str(recipe.eval_stride)}


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as read: config, curves, weights."""

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    finished: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def model_config(self) -> Config:
        return config_from_dict(self.config["model"])

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe.from_dict(self.config["recipe"])

    @cached_property
    def encoding(self) -> Encoding:
        """Encodes text as the run's tokens and decodes them, without the corpus itself."""
        return data.from_record(self.config["corpus"], self.folder)

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The lines of kind ``epoch``, one for each epoch. The last has ``complete: false`` where a run ended
        within an epoch."""
        by_number = {line["epoch"]: line for line in self.metrics if line.get("kind") == "epoch"}
        return [by_number[number] for number in sorted(by_number)]

    @cached_property
    def validations(self) -> list[dict[str, Any]]:
        """Every validation, at epochs and at the extra steps of ``eval_at_steps``, in order of step."""
        lines = [line for line in self.metrics if line.get("kind") in ("epoch", "valid")]
        return sorted(lines, key=lambda line: line["step"])

    @property
    def warnings(self) -> list[dict[str, Any]]:
        return [line for line in self.metrics if line.get("kind") == "warning"]

    @property
    def step(self) -> int:
        """The last step in metrics.jsonl."""
        return max((line.get("step", 0) for line in self.metrics), default=0)

    @property
    def best(self) -> dict[str, Any] | None:
        """The line of kind ``epoch`` with the lowest validation loss, that of the saved weights.

        An epoch has two such lines where the run ended within it and was resumed later.
        """
        lines = [line for line in self.metrics if line.get("kind") == "epoch"]
        lines = [line for line in lines if line.get("valid_bits") is not None]
        return min(lines, key=lambda line: line["valid_bits"], default=None)

    @cached_property
    def environment(self) -> dict[str, Any]:
        return read_environment(self.folder)

    def best_weights(self) -> tuple[dict[str, Tensor], str]:
        """The weights in best.safetensors, and the sha256 of the file."""
        path = self.folder / "best.safetensors"
        try:
            raw = hashes.read(self.folder, "best.safetensors")
        except FileNotFoundError:
            going = not self.finished and any((self.folder / name).exists() for name in ("last", "lock"))
            rest = (
                " yet: wait for an epoch, or load the last weights"
                if going
                else ", it was kept without its weights: train it again, or take a run that has them"
            )
            raise UserError(f"{self.folder} has no best.safetensors{rest}") from None
        weights, about = unpack(raw, str(path))
        self._check_about(about, path)
        return weights, hashes.sha256(raw)

    def _check_about(self, about: Mapping[str, str], path: Path) -> None:
        """Stop if the weights' own metadata name another model or other windows than config.yaml does."""
        different = [n for n, value in _windows(self.recipe).items() if about.get(n, value) != value]
        if "config" in about:
            try:
                trained = config_from_dict(parse_json(about["config"], "it"))
            except (UserError, TypeError, AttributeError):
                raise UserError(
                    f"{path} does not say which model it is for; restore the right file"
                ) from None
            different += differing_entries(
                config_to_dict(trained), config_to_dict(self.model_config), frozenset()
            )
        if different:
            raise UserError(
                f"{path} and the config.yaml beside it do not belong together (they differ in "
                f"{', '.join(different)}): one of the two was changed; restore the right one"
            )

    def load_corpus(self, where: str | None = None) -> Corpus:
        """The text the run was trained on, in its tokens; ``where`` is its path now, if that has changed."""
        made = self.config["corpus"]
        how = ReadOptions.from_record(made)
        cut = bool(made.get("cut_documents"))
        text = data.load(where or made["name"], reading=how, encoding=self.encoding, cut_documents=cut)
        if text.sha256 != self.config["corpus"]["sha256"]:
            raise UserError(
                f"the corpus {text.name} is not the text {self.folder} was trained on (its sha256 differs): "
                "restore that text, or evaluate on another one with `fsn eval RUN --text PATH`"
            )
        return text.within(self.encoding)

    def load_model(
        self, which: Literal["best", "last"] = "best", device: str | torch.device = "cpu"
    ) -> LanguageModel:
        """The model with the weights of its best epoch, or with the last ones saved; in evaluation mode, with its
        tokenizer."""
        check(which in ("best", "last"), f"which weights? {which!r} is neither best nor last")
        if which == "best":
            weights, _ = self.best_weights()
        else:
            checkpoint = Checkpoints(self.folder / "last").load()
            if checkpoint is None:
                raise UserError(f"{self.folder} has no checkpoint in last/")
            if checkpoint.warnings:  # the one before it would be another number
                raise UserError(f"{checkpoint.warnings[0]}; resume the run to write it again")
            weights = checkpoint.tensors["weights"]
        model = with_weights(self.model_config, weights, f"the {which} weights in {self.folder}").to(device)
        model.tokenizer, model.window = self.encoding, self.recipe.length
        return model

    def kernels(self) -> Iterator[tuple[int, LanguageModel]]:
        """(epoch, model) for every epoch whose coupling kernel was saved, oldest first.

        Only the kernel and the scalars (τ, α, readout scale) of such a model are those of the epoch.
        """
        last = self.epochs[-1]["epoch"] if self.epochs else 0
        for path in sorted((self.folder / "kernel").glob("epoch-*.safetensors")):
            epoch = int(path.stem.removeprefix("epoch-"))
            if epoch > last:
                continue
            parts, _ = unpack(hashes.read(self.folder, f"kernel/{path.name}"), str(path))
            yield epoch, with_weights(self.model_config, parts, f"the weights in {path}", strict=False)


def with_weights(config: Config, weights: dict[str, Tensor], what: str, **how: Any) -> LanguageModel:
    """A model in evaluation mode; see :func:`load_weights`. PyTorch's generator is left as it is."""
    with torch.random.fork_rng(devices=[]):
        model = build_from_config(config)
    load_weights(model, weights, what, **how)
    return model.eval()


SHIPPED = Path(__file__).parents[1] / "weights"
"""Run folders that come with the package, by their names."""


def folders_below(root: Path) -> list[Path]:
    """Every folder with a config.yaml at or below ``root``, without those inside a run folder."""
    found: list[Path] = []
    for here, folders, files in os.walk(root):
        if "config.yaml" in files:
            found.append(Path(here))
            folders.clear()
        folders.sort()
    return found


def weights_hash(folder: Path) -> str | None:
    """sha256 of a run's best weights; ``None`` where they were not kept."""
    try:
        with open(folder / "best.safetensors", "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def find_run(name: str | os.PathLike[str]) -> Path:
    """A run folder by its path or, where there is none, by the name of one that comes with the package."""
    path = user_path(name)
    shipped = SHIPPED / path.name
    return shipped if os.fspath(name) == path.name and not path.exists() and shipped.is_dir() else path


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run folder, finished or not."""
    path = Path(folder)
    check(path.is_dir(), f"there is no run folder {path}")
    run = Run(path, read_config(path), read_metrics(path), (path / "DONE").exists())
    hashes.warn_unhashed(path)
    return run


# -- comparing ---------------------------------------------------------------------------------------------


def flatten(d: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one dict with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in d.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def differing_entries(
    a: Mapping[str, Any], b: Mapping[str, Any], free: Set[str]
) -> dict[str, tuple[Any, Any]]:
    """Entries, flattened, in which two configs differ, save those that are ``free`` to."""
    x, y = flatten(a), flatten(b)
    names = sorted((x.keys() | y.keys()) - free)
    return {name: (x.get(name), y.get(name)) for name in names if x.get(name) != y.get(name)}


def differences(before: dict[str, Any], asked: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Entries, flattened, in which the run asked for differs from the one a config describes: (there, asked).

    :data:`LABELS` and :data:`BOOKKEEPING` may differ, and ``auto`` means the choice in the config.
    """
    chosen = before["recipe"]
    recipe = {name: chosen[name] if value == "auto" else value for name, value in asked["recipe"].items()}
    return differing_entries(before, {**asked, "recipe": recipe}, LABELS | BOOKKEEPING)


def same_but_seed(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two configs differ in nothing but the seed (and in what does not touch epoch 1)."""
    return not differing_entries(a, b, LABELS | BOOKKEEPING | DURATION | {"recipe.seed"})


def identity(config: Mapping[str, Any]) -> str:
    """A hash of the config without what only labels a run, says when to write, or how it ends, and without fields of
    model and recipe at their defaults, so that a field added later changes no run's."""
    kind = type(config_from_dict(config["model"]))
    usual = flatten({"model": asdict(kind(vocab_size=1)), "recipe": Recipe().to_dict()}).items()
    free = LABELS | BOOKKEEPING | ENDING
    entries = {name: v for name, v in flatten(config).items() if name not in free and (name, v) not in usual}
    return hashes.sha256(json.dumps(entries, sort_keys=True).encode())
