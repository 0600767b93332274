"""Sweeps: many runs from one YAML file, their states, and running them here or on a cluster.

``fsn sweep --help`` shows such a file. A run has ``preset``, ``corpus``, ``model`` (fields of the model's config; in a
grid ``model.k``), ``begin_with`` (a run folder) and any field of the recipe. Its name is given, or made of the values
that the grid lists: ``fsn-1m-seed0``, of a path its last part. A list of one value counts, so that names stay when it
grows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short
from typing import Any

import yaml

from .. import data
from ..checks import check
from ..errors import UserError, needs, reason
from ..io import is_plain_name, parse_yaml, read_file, user_path
from ..models import config_from_dict, config_to_dict, preset_with
from ..models.family import PAPER_VOCABULARY
from ..progress import say
from .loop import StopRequest
from .recipe import Recipe, with_numbers
from .resume import Start
from .run import DURATION, differences, load_run, read_config

OTHER = "other settings"
COLUMNS = ("run", "state", "epochs", "step", "best bits")
MOST_RUNS = 10_000
LARGEST_FILE = 1 << 18  # bytes of a sweep file
_READING = tuple(f.name for f in dataclasses.fields(data.ReadOptions))
_OWN = ("name", "preset", "corpus", "model", "begin_with", *_READING)


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    preset: str | None
    """None: that of the run to begin with."""
    corpus: str
    out: Path
    recipe: Recipe = field(default_factory=Recipe)
    model: dict[str, Any] = field(default_factory=dict)
    begin_with: str | None = None
    extend: bool = False
    """Whether an existing run may be extended."""
    reading: data.ReadOptions = field(default_factory=data.ReadOptions)

    def arguments(self) -> list[str]:
        """The arguments of ``fsn train`` that start or resume this run."""
        words = [*([self.preset] if self.preset else []), "--corpus", self.corpus, "--out", str(self.out)]
        usual = {**vars(Recipe(length=self.recipe.length)), "length": Recipe.length}
        words += [*_options(self.recipe, usual), *_options(self.reading, vars(data.ReadOptions()))]
        if self.begin_with is not None:
            words += ["--begin-with", self.begin_with]
        if self.model:
            words += ["--model", *(f"{k}={_scalar(v)}" for k, v in self.model.items())]
        return [*words, "--extend"] if self.extend else words

    def command(self) -> list[str]:
        return [sys.executable, "-m", "fsn", "train", *self.arguments()]

    @property
    def output(self) -> Path:
        """The file with the run's output."""
        return self.out / "output.txt"

    def state(self) -> str:
        """``finished``, ``other settings`` (finished, but of another config), ``begun`` (it has a checkpoint) or
        ``new``."""
        if (self.out / "DONE").exists():
            return "finished" if self._matches_folder() else OTHER
        return "begun" if (self.out / "last" / "CURRENT").exists() else "new"

    def _matches_folder(self) -> bool:
        """Whether the folder's config is that of this run, or of a longer one. ``fsn train`` lists the differences."""
        try:
            there = read_config(self.out)
            source = Start.of(self.begin_with, self.out)
            model = source.configure(self.preset, config_from_dict(there["model"]).vocab_size, self.model)
            asked = {
                **there,
                "model": config_to_dict(model),
                "recipe": self.recipe.to_dict(),
                "corpus": self._corpus(there["corpus"]),
            }
            asked.pop("begin_with", None)
            asked |= source.record
            different = differences(there, asked).keys()
            if different and self.recipe.schedule != "constant":
                return False  # a longer run had other learning rates
            return different <= DURATION and _as_long(Recipe.from_dict(there["recipe"]), self.recipe)
        except UserError:
            return False

    def _corpus(self, there: Mapping[str, Any]) -> dict[str, Any]:
        """The corpus entry of this run's config, to compare with the one in the folder.

        A named corpus, or a path that no longer exists, is assumed to be unchanged, so that nothing is downloaded.
        """
        named, sha256 = self.corpus in dict(data.available()), None
        if self.corpus == there["name"] and (named or not os.path.exists(os.path.expanduser(self.corpus))):
            sha256 = there["sha256"]
        elif not named:
            sha256 = data.load(self.corpus, reading=self.reading).sha256
        plain = {name: value for name, value in there.items() if name not in _READING or name == "vocab_size"}
        asked = {**plain, "sha256": sha256, **self.reading.record()}
        if self.reading.tokenizer is not None:
            asked |= data.load_tokenizer(self.reading.tokenizer).record()
        elif "tokenizer" in there and self.begin_with is not None:
            asked["tokenizer"] = there["tokenizer"]
        return asked


def read_sweep(file: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> list[Job]:
    """The runs of a sweep file; ``out`` replaces the file's own."""
    path = Path(file)
    try:
        plan = parse_yaml(read_file(path, largest=LARGEST_FILE), str(path))
    except FileNotFoundError:
        raise UserError(f"there is no sweep file {path}") from None
    check(
        isinstance(plan, dict) and ("runs" in plan or "grid" in plan),
        f"{path}: a sweep file is a mapping with 'runs', 'grid' or both; see `fsn sweep --help`",
    )
    for name in map(str, plan):
        known = name in ("out", "defaults", "grid", "runs")
        check(known, f"{path}: there is no section {short(name)}; use out, defaults, grid and runs")
    parent = out if out is not None else plan.get("out", Path("runs") / path.stem)
    named = isinstance(parent, str | os.PathLike) and bool(os.fspath(parent))
    check(named, f"{path}: out must be the name of a folder, not {short(parent)}")
    defaults = _expect(plan.get("defaults") or {}, dict, f"{path}: defaults")
    jobs = [_job({**defaults, **entry}, defaults, user_path(parent), path) for entry in _entries(plan, path)]
    for name, times in Counter(job.name for job in jobs).items():
        check(times == 1, f"{path}: two runs are called {name!r}; give each its own name")
    check(bool(jobs), f"{path}: this sweep has no runs")
    for job in {f"{job.preset} {sorted(job.model.items())}": job for job in jobs}.values():
        try:  # any number of symbols finds a wrong field before the first run starts
            if job.preset is not None:
                preset_with(job.preset, PAPER_VOCABULARY, job.model)
        except UserError as error:
            raise UserError(f"{path}: run {job.name}: {error}") from None
    return jobs


def _entries(plan: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    grids = plan.get("grid") or []
    for grid in grids if isinstance(grids, list) else [grids]:
        given = _expect(grid, dict, f"{path}: grid")
        axes = {k: v if isinstance(v, list) else [v] for k, v in given.items()}
        few = math.prod(map(len, axes.values())) <= MOST_RUNS
        check(few, f"{path}: this grid has more than {MOST_RUNS:,} runs; split it into several sweeps")
        for values in itertools.product(*axes.values()):
            entry = dict(zip(axes, values, strict=True))
            named = {k: v for k, v in entry.items() if isinstance(given[k], list) or k == "preset"}
            entry.setdefault("name", "-".join(_piece(k, v) for k, v in named.items()) or "run")
            entries.append(entry)
    runs = _expect(plan.get("runs") or [], list, f"{path}: runs")
    return entries + [_expect(run, dict, f"{path}: run {n}") for n, run in enumerate(runs, 1)]


def _job(entry: dict[str, Any], defaults: Mapping[str, Any], parent: Path, path: Path) -> Job:
    model = {
        k: v for part in (defaults, entry) for k, v in _expect(part.get("model") or {}, dict, "model").items()
    }
    model |= {k.removeprefix("model."): v for k, v in entry.items() if k.startswith("model.")}
    model = {k: with_numbers(v) for k, v in model.items()}
    rest = {k: with_numbers(v) for k, v in entry.items() if k not in _OWN and not k.startswith("model.")}
    preset, begin_with = (None if entry.get(k) is None else str(entry[k]) for k in ("preset", "begin_with"))
    check(bool(preset or begin_with), f"{path}: a run has no preset; `fsn models` lists them")
    name = str(entry.get("name") or preset or Path(str(begin_with)).name)
    check(is_plain_name(name), f"{path}: {name!r} is not a good name for a run; use one without slashes")
    try:
        recipe = Recipe.from_dict(rest)
        reading = data.ReadOptions(**{name: entry[name] for name in _READING if name in entry})
    except UserError as error:
        foreign = sorted(rest.keys() - {f.name for f in dataclasses.fields(Recipe)})
        hint = f" (a field of the model is model.{foreign[0]})" if foreign else ""
        raise UserError(f"{path}: run {name}: {error}{hint}") from None
    corpus = str(entry.get("corpus", "enwik8"))
    return Job(name, preset, corpus, parent / name, recipe, model, begin_with, reading=reading)


def table(jobs: list[Job], notes: Mapping[str, str] | None = None) -> list[tuple[str, str, str, str, str]]:
    """A row of :data:`COLUMNS` for each run. ``notes`` replace states."""
    rows = []
    for job in jobs:
        state = job.state()
        epoch = step = best = ""
        if state not in ("new", OTHER):
            try:
                run = load_run(job.out)
                epoch = f"{len(run.epochs)} of {job.recipe.epochs}"
                step = f"{run.step:,}"
                best = f"{run.best['valid_bits']:.4f}" if run.best else ""
            except UserError as error:
                best = str(error)
        rows.append((job.name, (notes or {}).get(job.name, state), epoch, step, best))
    return rows


def _expect(value: Any, kind: type, where: str) -> Any:
    words = "a list" if kind is list else "a mapping of names to values"
    check(isinstance(value, kind), f"{where}: {words} is needed, not {short(value)}")
    return {str(k): v for k, v in value.items()} if kind is dict else value


def _options(config: Any, defaults: Mapping[str, Any]) -> list[str]:
    """The fields in which a config differs from the defaults, as options."""
    words: list[str] = []
    for name, value in vars(config).items():
        flag = f"--{name.replace('_', '-')}"
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-"))
        else:
            for part in value if isinstance(value, tuple) else [value]:
                words += [flag, str(part)]
    return words


def _piece(key: str, value: Any) -> str:
    if key in ("corpus", "begin_with", "tokenizer"):
        value = os.path.basename(os.path.abspath(str(value)))
    return str(value) if key in ("preset", "begin_with") else f"{key.removeprefix('model.')}{value}"


def _as_long(there: Recipe, asked: Recipe) -> bool:
    """Whether a run of the first recipe takes at least as many steps as one of the second, whatever the text."""
    limit = float("inf")
    return there.epochs >= asked.epochs and (there.max_steps or limit) >= (asked.max_steps or limit)


def _scalar(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("...").strip()


# -- running -----------------------------------------------------------------------------------------------

POLL_S = 0.2


def last_line(file: Path) -> str:
    """The last line of a run's output: the reason, where it failed."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def run_here(
    jobs: list[Job],
    slots: list[str | None],
    tell: Callable[[str], None],
    settings: Mapping[str, str] | None = None,
    look: Callable[[], None] = lambda: None,
) -> tuple[dict[str, str], int]:
    """Run the unfinished ``jobs``, each in its own process, at most one per slot at a time.

    A slot is the number of a GPU, the only one visible to the process, or None for the CPU. ``settings`` are
    environment variables for all runs; ``look`` is called every POLL_S seconds. A signal is forwarded to the runs,
    which write a checkpoint and end. Returns the states that the folders do not show, and the signal's number, for
    :func:`exit_if_stopped`, or 0.
    """
    waiting = [job for job in jobs if job.state() != "finished"]
    free = list(slots)
    running: list[tuple[Job, str | None, subprocess.Popen[bytes]]] = []
    notes: dict[str, str] = {}
    forwarded = False
    with StopRequest() as stop:
        while running or (waiting and not stop.number):
            while waiting and free and not stop.number:
                job, slot = waiting.pop(0), free.pop(0)
                where = f" on GPU {slot}" if slot is not None else ""
                tell(f"{'resumes' if job.state() == 'begun' else 'starts'}: {job.name}{where}")
                env = {**os.environ, **(settings or {})}
                if slot is not None:
                    env["CUDA_VISIBLE_DEVICES"] = slot
                # In a session of its own, so that Ctrl-C in the terminal reaches only the sweep, which forwards it.
                try:
                    process = _start(job.command(), job.output, env=env, start_new_session=True)
                    running.append((job, slot, process))
                except OSError as error:  # the other runs go on
                    free.append(slot)
                    notes[job.name] = "failed"
                    tell(f"failed: {job.name}: it cannot be started ({reason(error)})")
            if stop.number and not forwarded:
                forwarded = True
                for _, _, process in running:
                    process.send_signal(signal.SIGTERM)
            for entry in list(running):
                job, slot, process = entry
                code = process.poll()
                if code is None:
                    continue
                running.remove(entry)
                free.append(slot)
                if job.state() == "finished":
                    tell(f"finished: {job.name}")
                elif stop.number:
                    notes[job.name] = "stopped"
                else:
                    notes[job.name] = "failed"
                    tell(f"failed: {job.name} (exit code {code}): {last_line(job.output)}")
            look()
            time.sleep(POLL_S)
    return notes, stop.number


def exit_if_stopped(number: int) -> None:
    """End the process as a signal asked."""
    if number:
        say("stopped: run the same command again to resume")
        raise SystemExit(128 + number)


def _start(words: list[str], output: Path, **options: Any) -> subprocess.Popen[bytes]:
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, **options)


class SubmittedRun:
    """A submitit job: run ``fsn train`` in its own process.

    Before the job's time limit, or when it is preempted, submitit calls :meth:`checkpoint`: SIGTERM makes the run write
    a checkpoint and end, and the job is queued again to resume from it.
    """

    def __init__(self, words: list[str], output: Path) -> None:
        self.words, self.output = words, output
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        self.process = _start(self.words, self.output)
        code = self.process.wait()
        if code:
            raise RuntimeError(f"exit code {code}: {last_line(self.output)}")
        return code

    def checkpoint(self) -> Any:
        import submitit

        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()
        return submitit.helpers.DelayedSubmission(SubmittedRun(self.words, self.output))


def submit(
    jobs: list[Job],
    cluster: str,
    folder: Path,
    parameters: Mapping[str, Any],
    wait: bool,
    tell: Callable[[str], None],
) -> dict[str, str]:
    """Submit the unfinished ``jobs``; ``cluster`` is ``slurm`` or ``local``."""
    submitit = needs("submitit", "this executor needs submitit, which is not installed: pip install submitit")
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(name="fsn", **parameters)
    except (RuntimeError, TypeError, NameError, ValueError) as error:
        raise UserError(f"submitit cannot use {cluster}: {reason(error)}") from None
    waiting = [job for job in jobs if job.state() != "finished"]
    handles = []
    for job in waiting:
        handles.append(executor.submit(SubmittedRun(job.command(), job.output.resolve())))
        tell(f"submitted: {job.name} as job {handles[-1].job_id}")
    if not wait:
        return {job.name: "submitted" for job in waiting}
    notes: dict[str, str] = {}
    for job, handle in zip(waiting, handles, strict=True):
        if handle.exception() is None and job.state() == "finished":
            tell(f"finished: {job.name}")
        else:
            notes[job.name] = "failed"
            tell(f"failed: {job.name}: {last_line(job.output)}")
    return notes
