"""The training loop: steps, validation and checkpoints, to the end or until a signal or the time budget stops it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from .. import __version__, data
from ..checks import check
from ..data import Corpus, ReadOptions, Windows, epoch_order
from ..errors import UserError
from ..io import writing
from ..models import (
    Config,
    body_parameters,
    build_from_config,
    check_size,
    config_from_dict,
    config_to_dict,
    preset_with,
)
from ..models.family import width_of
from ..progress import Bar, count, duration
from ..versions import untested
from . import hashes
from .checkpoint import NonFinite, restore, tensors_of
from .evaluate import Evaluation, Stopped, evaluate
from .loggers import check_loggers
from .recipe import Recipe
from .resume import Resume, Start, how_to_train_longer
from .run import FORMAT, Run, RunFolder, check_out, load_run
from .schedule import Schedule
from .step import RING, Stepper
from .world import World, describe_device, environment, numerics, open_world, peak_memory_gb

LOOK_S = 0.5  # seconds of steps between two reads of the losses
BITS = 1.0 / math.log(2.0)
RETRY = "fix that and run the same command again: it resumes from its last checkpoint"
MANY_SYMBOLS = 1_000
"""From here on the paper's rule for widths makes models of one size unlike each other."""


def train(
    model: str | Config | None,
    corpus: str | Corpus,
    out: str | os.PathLike[str],
    recipe: Recipe | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    begin_with: str | os.PathLike[str] | None = None,
    resume: Resume = "auto",
    extend: bool = False,
    device: str = "auto",
    budget_minutes: float | None = None,
    log: Sequence[str] = (),
    quiet: bool = False,
    reading: ReadOptions | None = None,
) -> Run:
    """Train a model and return its run.

        run = fsn.train.train("fsn-1m", "enwik8", "runs/fsn-seed0", Recipe(epochs=2))
        run.epochs[-1]["valid_bits"]

    ``model`` is a preset's name (``overrides`` replace fields of its config) or a config. ``begin_with`` is a
    run folder whose best weights to fine-tune; ``model`` may then be None, and the text is read in that run's symbols.
    If ``out`` holds an unfinished run of the same config it resumes (``resume="auto"``). ``extend`` lets
    a run train for more epochs or steps than it was started with. After ``budget_minutes`` it stops with a
    checkpoint; ``run.finished`` is then false. On Ctrl-C it writes a checkpoint and raises
    ``KeyboardInterrupt``; on SIGTERM, ``SystemExit(143)``. Under ``torchrun`` every process calls this. ``reading``
    says how a corpus given by name or path becomes tokens, e.g. ``ReadOptions(tokenizer="gpt2")``.
    """
    recipe = recipe or Recipe()
    recipe.check_trainable()
    check(resume in ("auto", "never", "must"), f"resume must be auto, never or must, not {resume!r}")
    check(budget_minutes is None or budget_minutes > 0, "the time budget must be positive")
    check_loggers(log)
    fields = dict(overrides or {})
    if isinstance(model, str):
        preset_with(model, 256, fields)  # a mistake here should not wait for the corpus
    out = check_out(out, corpus if isinstance(corpus, str | os.PathLike) else None)
    source = Start.of(begin_with, out)
    if model is None:
        source.configure(None, 0, fields)  # nor should this
    deadline = None if budget_minutes is None else time.monotonic() + 60 * budget_minutes
    with contextlib.ExitStack() as inside:
        world = inside.enter_context(open_world(device))
        gpus = [world.device] if world.device.type == "cuda" else []
        inside.enter_context(torch.random.fork_rng(gpus))  # the caller's generator stays as it was
        text = _load_corpus(corpus, world, recipe.length, reading=reading, encoding=source.encoding)
        if source.encoding is not None:
            text = text.within(source.encoding)
        config = source.configure(model, text.vocab_size, fields)
        check_size(config)
        source.check(config)
        asked = {
            "preset": source.preset if model is None else model if isinstance(model, str) else None,
            "model": config_to_dict(config),
            "recipe": recipe.to_dict(),
            "corpus": text.record(),
            **source.record,
            "fsn_version": __version__,
            "format": FORMAT,
        }
        n_windows = len(cut_windows(text, recipe)[0])
        Schedule.of(recipe, n_windows)  # one that does not fit the run stops here
        folder = RunFolder(out, quiet or not world.is_main)
        with contextlib.closing(folder), StopRequest(deadline) as stop, writing(out, RETRY):
            start = world.on_main_process(
                lambda: source.open(folder, asked, n_windows, world.device, resume, extend)
            )
            if start is None:
                best = load_run(out).best
                reached = f": best {best['valid_bits']:.4f} bits at epoch {best['epoch']}" if best else ""
                folder.say(f"{out} is finished{reached}; {how_to_train_longer(folder)}")
            else:
                if text.left_out:
                    folder.say(f"warning: {text.name}: {text.left_out}")
                world.on_main_process(lambda: folder.write_encoding(text.encoding))
                with numerics(Recipe.from_dict(start.config["recipe"]), world.device):
                    given = {"k", "width"} & fields.keys() or not isinstance(model, str) or source.source
                    Training(world, folder, start, text, stop).run(
                        log, "" if given else str(fields.get("match", "paper"))
                    )
        world.barrier()  # all files are there before any process reads them
        run = load_run(out)
        world.barrier()  # and none changes them before all have read
    return run


def _load_corpus(corpus: str | Corpus, world: World, length: int, **how: Any) -> Corpus:
    """The main process downloads; the others then find it in the cache.

    Documents stay whole where training and validation then have a window of ``length`` each, and are cut otherwise.
    """
    if not isinstance(corpus, str | os.PathLike):
        return corpus

    def get() -> Corpus:
        text = data.load(corpus, **how)
        few = text.end is not None and min(len(text.train), len(text.valid)) < length
        return data.load(corpus, **how, cut_documents=True) if few and not text.from_tokens else text

    loaded: list[Corpus] = []
    world.on_main_process(lambda: loaded.append(get()))
    return loaded[0] if loaded else get()


def cut_windows(text: Corpus, recipe: Recipe) -> list[Windows]:
    """Training and validation windows."""
    end = text.document_end(recipe.separate_documents)
    return [
        Windows(tokens, recipe.length, stride, end, f"the {part} part of {text.name}")
        for tokens, stride, part in (
            (text.train, recipe.train_stride, "training"),
            (text.valid, recipe.eval_stride, "validation"),
        )
    ]


class StopRequest:
    """Handles Ctrl-C, SIGTERM and, where nohup does not ignore it, SIGHUP: ``number`` becomes the signal's; the code
    in the ``with`` block polls it and ends in order. A second Ctrl-C interrupts at once.

    ``deadline``, in seconds of ``time.monotonic``, is the end of a time budget.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.number, self.deadline = 0, deadline
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        hangup = getattr(signal, "SIGHUP", signal.SIGTERM)
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(hangup) is signal.SIG_IGN
            for number in {signal.SIGINT, signal.SIGTERM} | (set() if ignored else {hangup}):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@dataclass
class State:
    """The progress of a run. Saved in each checkpoint as JSON, which is exact for floats."""

    step: int = 0
    epoch: int = 1
    position: int = 0
    """Steps done of this epoch."""
    evaluated_step: int = -1
    """The step of the last validation."""
    best_epoch: int | None = None
    best_bits: float | None = None
    cumulative_s: float = 0.0
    """Seconds of training and validation so far, in all parts of the run."""
    epoch_nats: float = 0.0
    epoch_predictions: int = 0
    epoch_train_s: float = 0.0
    log_nats: float = 0.0
    log_predictions: int = 0
    log_train_s: float = 0.0


class Training:
    """A run in progress: model, step and state on the device."""

    def __init__(
        self, world: World, folder: RunFolder, start: Start, text: Corpus, stop: StopRequest
    ) -> None:
        self.world, self.folder, self.start, self.stop = world, folder, start, stop
        self.recipe = Recipe.from_dict(start.config["recipe"])
        windows, valid = (part.to(world.device) for part in cut_windows(text, self.recipe))
        self.valid, self.tokens_per_byte = valid, text.tokens_per_byte("valid")
        self.documents = "" if text.end is None else ", documents kept apart"
        if self.documents and not self.recipe.separate_documents:
            self.documents = (
                ", windows run over the ends of documents (--separate-documents keeps them apart)"
            )
        torch.manual_seed(self.recipe.seed)
        self.model = build_from_config(config_from_dict(start.config["model"])).to(world.device)
        self.stepper = Stepper(self.model, windows, self.recipe, world, folder.say)
        self.state = State(**{f.name: start.state.get(f.name, f.default) for f in dataclasses.fields(State)})
        whose = f"the last weights in {folder.path}" if start.state else f"the best weights in {start.source}"
        restore(start.tensors, self.model, self.stepper.optimizer, whose)
        for tensor in self.stepper.optimizer.tensors():
            world.broadcast(tensor)
        self.steps_per_epoch = self.stepper.steps_per_epoch
        self.total = self.recipe.total_steps(self.stepper.n_windows)
        self.chunk = 1
        self.seconds_per_step = 0.0
        self.shown_nats: float | None = None
        self.last_checkpoint = time.monotonic()

    # -- the run -------------------------------------------------------------------------------------------

    def run(self, log: Sequence[str] = (), match: str = "") -> None:
        """Train to the end, or until a signal or the time budget ends it with a checkpoint.

        ``match`` is the rule from which the model has its width, for the log.
        """
        if self.world.is_main:
            self.folder.write_environment(environment(self.world))
            self.folder.open_loggers(log, self.start.config, self.state.step)
            self._introduce(match)
        try:
            try:
                self._run()
            except Stopped:
                self.checkpoint()
                self._end_early()
        except UserError as error:
            with contextlib.suppress(OSError):
                self.folder.quiet = True  # the caller prints the sentence; here it goes to the log
                self.folder.say(f"error     {error}")
            raise

    def _end_early(self) -> None:
        """Exit with the code of what stopped the run; after the time budget, return."""
        number = int(self.world.all_reduce_max([float(self.stop.number)])[0])
        known = {0: "the time budget is spent", signal.SIGINT: "Ctrl-C"}
        why = known.get(number) or signal.Signals(number).name
        self.folder.say(
            f"stopped   {why}, at step {self.state.step:,} of {self.total:,} (epoch {self.state.epoch}); "
            "a checkpoint is written: run the same command again to resume"
        )
        if number == signal.SIGINT:
            raise KeyboardInterrupt from None
        if number:
            raise SystemExit(128 + number) from None

    def _run(self) -> None:
        s = self.state
        self._seek()
        if s.step == 0:
            if self.start.source is not None and s.evaluated_step != s.step:
                self._extra_validation()  # of the weights before fine-tuning
            self.checkpoint()
        self.model.train()
        while s.step < self.total or s.evaluated_step != s.step:
            if not self._epoch_over():
                self._train()
            if s.evaluated_step != s.step:
                self._end_epoch()
            if s.position == self.steps_per_epoch and s.step < self.total:
                s.epoch, s.position = s.epoch + 1, 0
                s.epoch_nats, s.epoch_predictions, s.epoch_train_s = 0.0, 0, 0.0
                self._seek()
        self._finish()

    def _introduce(self, match: str) -> None:
        r, s, device = self.recipe, self.state, describe_device(self.world.device)
        config, resumed, schedule = self.start.config, bool(self.start.state), self.stepper.schedule
        model, symbols = self.model.config, self.model.config.vocab_size
        parameters = (
            f"{self.model.parameter_count():,} parameters, {body_parameters(model):,} of them in the layers"
        )
        lines = {
            "run": f"{self.folder.path}: "
            + (f"resumes at step {s.step:,} of {self.total:,}" if resumed else "new"),
            "model": f"{config['preset'] or config['model']['kind']}, width {width_of(model)}"
            f"{match and f' (match={match})'}, {parameters}, seed {r.seed}",
            "note": f"the paper's widths are for a few hundred symbols, and here are {symbols:,}: --model match=body "
            "gives all models of a size alike layers, match=total alike totals"
            if match == "paper" and symbols > MANY_SYMBOLS
            else None,
            "began" if resumed else "begins": self.start.about and f"with {self.start.about}",
            "text": f"{config['corpus']['name']}: {self.stepper.n_windows:,} windows, "
            f"{self.steps_per_epoch:,} steps an epoch, {self.total:,} in all; "
            f"{len(self.valid):,} validation windows{self.documents}",
            "device": device
            + (f", {self.world.size} processes" if self.world.size > 1 else "")
            + (", deterministic" if r.deterministic else ""),
            "versions": untested("CPU" if self.world.device.type == "cpu" else device),
            "precision": r.precision,
            "engine": r.engine,
            "optimizer": f"fused AdamW, all parameters in one vector; lr {r.lr:g}, weight decay {r.weight_decay:g}, "
            f"clip {r.clip:g}",
            "schedule": None if schedule.constant else f"{r.schedule}: {schedule}",
            "batch": f"{r.batch_size} windows in {r.accumulate} micro-batches" if r.accumulate > 1 else None,
        }
        for title, line in lines.items():
            if line:
                self.folder.say(f"{title:<9} {line}")

    def _epoch_over(self) -> bool:
        return self.state.position >= self.steps_per_epoch or self.state.step >= self.total

    def _seek(self) -> None:
        """Move the device to the epoch, batch and step of the state."""
        s = self.state
        self.stepper.set_order(epoch_order(self.stepper.n_windows, self.recipe.seed, s.epoch))
        self.stepper.seek(s.position, s.step)

    def _train(self) -> None:
        """Steps to the end of the epoch."""
        s, r = self.state, self.recipe
        seconds = self.stepper.prepare()
        if seconds:
            self.folder.say(
                f"ready     engine {self.stepper.engine} warmed up in {seconds:.1f} s (undone, not timed)"
            )
        last = min(self.steps_per_epoch, s.position + self.total - s.step)
        title, shown = f"epoch {s.epoch} of {r.epochs}", self.world.is_main and not self.folder.quiet
        with Bar(title, last, s.position, shown=shown) as bar:
            while not self._epoch_over():
                if s.step in r.eval_at_steps and s.evaluated_step != s.step:
                    self._extra_validation()
                n = self._plan()
                start = time.perf_counter()
                self.stepper.run(n, s.position)
                nats, norms = self.stepper.read(s.step, n)
                self._count_steps(nats, norms, time.perf_counter() - start)
                left = (self.total - s.step) * s.epoch_train_s / max(s.position, 1)
                bar.update(
                    n,
                    loss=f"{(self.shown_nats or 0.0) * BITS:.3f} bits",
                    speed=f"{count(s.epoch_predictions / max(s.epoch_train_s, 1e-9))} tokens/s",
                    run=f"{duration(left)} left",
                )
                self._checkpoint_or_stop()

    def _plan(self) -> int:
        """Steps to run before the host reads their losses: about half a second, never past a checkpoint or validation
        that is due."""
        s, r = self.state, self.recipe
        n = min(self.chunk, RING, self.steps_per_epoch - s.position, self.total - s.step)
        if r.checkpoint_steps:
            n = min(n, r.checkpoint_steps - s.step % r.checkpoint_steps)
        return min([n, *(at - s.step for at in r.eval_at_steps if at > s.step)])

    def _count_steps(self, nats: list[float], norms: list[float], seconds: float) -> None:
        """Add the steps just run to the sums of the state."""
        s, r = self.state, self.recipe
        share = self.seconds_per_step = seconds / len(nats)
        for loss, norm in zip(nats, norms, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._not_finite(loss, norm)
            predictions = self.stepper.batch_at(s.position) * r.predictions
            s.step, s.position = s.step + 1, s.position + 1
            s.cumulative_s += share
            s.epoch_nats += loss * predictions
            s.epoch_predictions += predictions
            s.epoch_train_s += share
            s.log_nats += loss * predictions
            s.log_predictions += predictions
            s.log_train_s += share
            self.shown_nats = loss if self.shown_nats is None else 0.95 * self.shown_nats + 0.05 * loss
            if s.step % r.log_steps == 0:
                self._record(
                    "step",
                    loss_bits=s.log_nats / s.log_predictions * BITS,
                    grad_norm=norm,
                    lr=self.stepper.schedule.rate(s.step - 1),
                    tokens_per_s=round(s.log_predictions / s.log_train_s, 1),
                )
                s.log_nats, s.log_predictions, s.log_train_s = 0.0, 0, 0.0

    def _checkpoint_or_stop(self) -> None:
        """Write a checkpoint if one is due, stop if asked to; all processes decide alike."""
        s, r = self.state, self.recipe
        now = time.monotonic()
        stop, late, due, pace = self.world.all_reduce_max(
            [
                float(self.stop.number),
                float(self.stop.late),
                float(now - self.last_checkpoint >= 60 * r.checkpoint_minutes),
                self.seconds_per_step,
            ]
        )
        self.chunk = max(1, min(int(LOOK_S / max(pace, 1e-9)), 2 * self.chunk, RING))
        if stop or (late and s.step < self.total):
            raise Stopped
        if due or (r.checkpoint_steps and s.step % r.checkpoint_steps == 0):
            self.checkpoint()

    def _record(self, kind: str, **fields: Any) -> None:
        self.folder.record({"kind": kind, "step": self.state.step, "epoch": self.state.epoch, **fields})

    # -- validation ----------------------------------------------------------------------------------------

    def _validate(self, label: str | None = None) -> Evaluation:
        result = evaluate(
            self.model,
            self.valid,
            batch_size=self.recipe.eval_batch_size,
            world=self.world,
            label=None if self.folder.quiet else label,
            stop=lambda: bool(self.stop.number),
        )
        self.state.evaluated_step = self.state.step
        self.state.cumulative_s += result.seconds
        return result

    def _fields(self, result: Evaluation) -> dict[str, Any]:
        """The fields of a validation in metrics.jsonl, with bits per byte where tokens are not bytes."""
        per_byte = {}
        if self.tokens_per_byte not in (None, 1.0):
            per_byte["valid_bits_per_byte"] = result.bits * self.tokens_per_byte
        return {
            "valid_bits": result.bits,
            "valid_bits_second_half": result.bits_second_half,
            **per_byte,
            "valid_precision": "fp32",
            "valid_s": round(result.seconds, 3),
            "cumulative_s": round(self.state.cumulative_s, 3),
        }

    def _extra_validation(self) -> None:
        result = self._validate()
        self._record("valid", **self._fields(result))
        self.folder.say(
            f"step {self.state.step:,}: validation {result.bits:.4f} bits, {result.bits_second_half:.4f} second half"
        )

    def _end_epoch(self) -> None:
        """Validate, record the result, save the best weights, write a checkpoint."""
        s, device = self.state, self.world.device
        before = peak_memory_gb(device)
        result = self._validate(f"validation {s.epoch} of {self.recipe.epochs}")
        training, peak = self.world.all_reduce_max([before, peak_memory_gb(device)])
        best = math.isfinite(result.bits) and (s.best_bits is None or result.bits < s.best_bits)
        if best:
            s.best_epoch, s.best_bits = s.epoch, result.bits
        complete = s.position == self.steps_per_epoch
        train_bits, speed = s.epoch_nats / s.epoch_predictions * BITS, s.epoch_predictions / s.epoch_train_s
        fields = self._fields(result)
        self._record(
            "epoch",
            complete=complete,
            train_loss_bits=train_bits,
            **fields,
            tokens_per_s=round(speed, 1),
            eval_tokens_per_s=round(result.tokens_per_s, 1),
            train_s=round(s.epoch_train_s, 3),
            peak_memory_gb=round(peak, 3),
            **({"train_memory_gb": round(training, 3)} if device.type == "cuda" else {}),
            best=best,
        )
        if device.type == "cuda":  # of a process on a CPU only the peak so far is known
            torch.cuda.reset_peak_memory_stats(device)
        per_byte = fields.get("valid_bits_per_byte")
        self.folder.say(
            f"epoch {s.epoch}, step {s.step:,}: train {train_bits:.4f}, "
            f"validation {result.bits:.4f} bits ({result.bits_second_half:.4f} second half)"
            f"{'' if per_byte is None else f', {per_byte:.4f} bits per byte'}"
            f"{', best' if best else ''}; {count(speed)} tokens/s, validation {result.seconds:.1f} s"
        )

        def save() -> None:
            if best:
                self.folder.save_best(self.model, self.recipe, s.epoch, s.step, result.bits)
            self.folder.save_kernel(self.model, s.epoch)

        self.world.on_main_process(save)
        self.checkpoint(evaluated=True)

    # -- endings -------------------------------------------------------------------------------------------

    def checkpoint(self, evaluated: bool = False) -> None:
        self.world.on_main_process(lambda: self._write_checkpoint(evaluated))
        self.last_checkpoint = time.monotonic()

    def _write_checkpoint(self, evaluated: bool) -> None:
        saved = {"lines": self.folder.sync_metrics(), "config": self.start.config}
        none = self.state.best_epoch is None
        best = None if none else hashes.read(self.folder.path, "best.safetensors")
        tensors = tensors_of(self.model, self.stepper.optimizer)
        self.folder.checkpoints.save(dataclasses.asdict(self.state) | saved, tensors, best, evaluated)

    def _not_finite(self, loss: float, norm: float) -> None:
        """Stop: the weights are still those before the bad step. Find the first bad tensor, save, report it."""
        s = self.state
        found = self.stepper.first_bad_tensor(s.position, s.step)
        tensor = next((name for name in self.world.gather(found) if name is not None), None)
        what, value = ("loss", f"{loss}") if not math.isfinite(loss) else ("gradient", f"norm {norm}")
        self._record("warning", what="non-finite", step=s.step + 1, tensor=tensor or what)
        self.checkpoint()
        where = "run again eagerly, all its tensors are finite: try --engine eager or --precision fp32"
        if tensor:
            where = f"the first tensor that is not finite is {tensor}"
        raise NonFinite(
            f"the {what} of step {s.step + 1} (epoch {s.epoch}) is not finite ({value}); {where}; "
            f"the state after step {s.step}, the last good one, is saved in {self.folder.checkpoints.folder}"
        )

    def _finish(self) -> None:
        s = self.state
        if self.world.is_main:
            done = {"step": s.step, "best_epoch": s.best_epoch, "best_bits": s.best_bits}
            done["cumulative_s"] = round(s.cumulative_s, 3)
            self.folder.hashes.write("DONE", json.dumps(done).encode() + b"\n")
        none = s.best_bits is None
        best = "no finite validation" if none else f"best {s.best_bits:.4f} bits at epoch {s.best_epoch}"
        self.folder.say(
            f"finished  {s.step:,} steps in {duration(s.cumulative_s)}; {best}; {self.folder.path}"
        )
