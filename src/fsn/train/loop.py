"""The training loop: steps, validation, checkpoints, until the recipe is done or someone says stop."""

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
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from .. import __version__, data
from ..checks import check
from ..data import Corpus, Reading, Windows, epoch_order
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
from ..progress import Bar, count, duration
from ..versions import untested
from . import hashes
from .checkpoint import Checkpoint, NonFinite
from .evaluate import Evaluation, Stopped, evaluate
from .loggers import check_loggers
from .recipe import Recipe
from .resume import Resume, Source, find_source, how_to_go_on, open_run
from .run import FORMAT, Run, RunFolder, check_out, load_run, load_weights, siblings, trailing
from .schedule import Schedule
from .step import RING, Stepper
from .world import World, describe_device, environment, numerics, open_world, peak_memory_gb

LOOK_S = 0.5  # seconds of steps between two looks of the host
BITS = 1.0 / math.log(2.0)
RETRY = "mend that and run the same command again: it goes on from its last checkpoint"


def train(
    model: str | Config,
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
    reading: Reading | None = None,
) -> Run:
    """Train a model and return its run.

        run = fsn.train.train("fsn-1m", "enwik8", "runs/fsn-seed0", Recipe(epochs=2))
        run.epochs[-1]["valid_bits"]

    ``model`` is a preset's name (``overrides`` replace fields of its config) or a config. ``begin_with`` is a
    run folder whose best weights to fine-tune; the text is then read in that run's symbols. If ``out`` holds an
    unfinished run of the same config it goes on from its last checkpoint (``resume="auto"``). ``extend`` lets
    a run go on with more epochs or steps than it was started with. After ``budget_minutes`` it stops with a
    checkpoint; ``run.finished`` is then false. On Ctrl-C it writes a checkpoint and raises
    ``KeyboardInterrupt``; on SIGTERM, ``SystemExit(143)``. Under ``torchrun`` every process
    calls this. ``reading`` says how a corpus given by name or path becomes tokens, e.g. ``Reading(tokenizer="gpt2")``.
    """
    recipe = recipe or Recipe()
    recipe.check_trainable()
    check(resume in ("auto", "never", "must"), f"resume must be auto, never or must, not {resume!r}")
    check(budget_minutes is None or budget_minutes > 0, "the time budget must be positive")
    check_loggers(log)
    if isinstance(model, str):
        preset_with(model, 256, overrides or {})  # a mistake here should not wait for the corpus
    out = check_out(out, corpus if isinstance(corpus, str | os.PathLike) else None)
    source = None if begin_with is None else find_source(Path(begin_with), out)
    deadline = None if budget_minutes is None else time.monotonic() + 60 * budget_minutes
    with contextlib.ExitStack() as inside:
        world = inside.enter_context(open_world(device))
        gpus = [world.device] if world.device.type == "cuda" else []
        inside.enter_context(torch.random.fork_rng(gpus))  # the caller's generator stays as it was
        text = _load_corpus(corpus, world, reading=reading, encoding=source and source.encoding)
        if source is not None:
            text = text.within(source.encoding)
        config = _model_config(model, text.vocab_size, dict(overrides or {}))
        check_size(config)
        if source is not None:
            source.check(config)
        asked = {
            "preset": model if isinstance(model, str) else None,
            "model": config_to_dict(config),
            "recipe": recipe.to_dict(),
            "corpus": text.record(),
            **({} if source is None else {"begin_with": source.record}),
            "fsn_version": __version__,
            "format": FORMAT,
        }
        end = text.document_end(recipe.separate_documents)
        windows = Windows(text.train, recipe.length, recipe.train_stride, end)
        valid = Windows(text.valid, recipe.length, recipe.eval_stride, end)
        Schedule.of(recipe, len(windows))  # one that does not fit the run stops here
        folder = RunFolder(out, quiet or not world.first)
        with contextlib.closing(folder), StopRequest() as stop, writing(out, RETRY):
            start = world.first_does(
                lambda: open_run(folder, asked, len(windows), world.device, resume, extend)
            )
            if start is None:
                best = load_run(out).best
                reached = f": best {best['valid_bits']:.4f} bits at epoch {best['epoch']}" if best else ""
                folder.say(f"{out} is finished{reached}; {how_to_go_on(folder)}")
            else:
                if text.left_out:
                    folder.say(f"warning: {text.name}: {text.left_out}")
                world.first_does(lambda: folder.write_encoding(text.encoding))
                with numerics(Recipe.from_dict(start[0]["recipe"]), world.device):
                    training = Training(world, folder, *start, source, windows, valid, stop, deadline)
                    training.tokens_per_byte = text.tokens_per_byte("valid")
                    training.run(log)
        world.wait()  # all files are there before any process reads them
        run = load_run(out)
        world.wait()  # and none changes them before all have read
    return run


def _load_corpus(corpus: str | Corpus, world: World, **how: Any) -> Corpus:
    """The first process fetches; the others then find it in the cache."""
    if not isinstance(corpus, str | os.PathLike):
        return corpus
    mine: list[Corpus] = []
    world.first_does(lambda: mine.append(data.load(corpus, **how)))
    return mine[0] if mine else data.load(corpus, **how)


def _model_config(model: str | Config, symbols: int, overrides: dict[str, Any]) -> Config:
    if isinstance(model, str):
        return preset_with(model, symbols, overrides)
    config = dataclasses.replace(model, **overrides)
    both = f"the model has {config.vocab_size} symbols, the corpus {symbols}"
    check(config.vocab_size == symbols, f"{both}; make them equal")
    return config


class StopRequest:
    """Notes Ctrl-C, SIGTERM and, where nohup does not hide it, SIGHUP while it is entered. Whoever works meanwhile
    looks at ``number`` and ends in order. A second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        hangup = getattr(signal, "SIGHUP", signal.SIGTERM)
        if threading.current_thread() is threading.main_thread():
            hidden = signal.getsignal(hangup) is signal.SIG_IGN
            for number in {signal.SIGINT, signal.SIGTERM} | (set() if hidden else {hangup}):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@dataclass
class State:
    """Where a run stands. Goes into each checkpoint as JSON, which keeps floats to the last bit."""

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

    def next_epoch(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0
        self.epoch_nats, self.epoch_predictions, self.epoch_train_s = 0.0, 0, 0.0


class Training:
    """A run in progress: model, step and state on the device, as at the start or as in the checkpoint."""

    def __init__(
        self,
        world: World,
        folder: RunFolder,
        config: dict[str, Any],
        checkpoint: Checkpoint | None,
        source: Source | None,
        windows: Windows,
        valid: Windows,
        stop: StopRequest,
        deadline: float | None = None,
    ) -> None:
        self.world, self.folder, self.stop, self.deadline = world, folder, stop, deadline
        self.config, self.source, self.resumed = config, source, checkpoint is not None
        self.recipe = Recipe.from_dict(config["recipe"])
        self.valid = valid.to(world.device)
        torch.manual_seed(self.recipe.seed)
        self.model = build_from_config(config_from_dict(config["model"]))
        if source is not None and checkpoint is None:
            source.load_into(self.model)
        self.model.to(world.device)
        self.stepper = Stepper(self.model, windows.to(world.device), self.recipe, world, folder.say)
        self.state = State()
        if checkpoint is not None:
            known = {f.name for f in dataclasses.fields(State)}
            self.state = State(**{n: v for n, v in checkpoint.state.items() if n in known})
            self._restore(checkpoint.tensors)
        for tensor in self.stepper.optimizer.tensors():
            world.share(tensor)
        self.steps_per_epoch = self.stepper.steps_per_epoch
        self.total = self.recipe.total_steps(self.stepper.n_windows)
        self.chunk = 1
        self.seconds_per_step = 0.0
        self.shown_nats: float | None = None
        self.last_checkpoint = time.monotonic()
        self.tokens_per_byte: float | None = None
        """Of the validation text; None where its bytes are not known."""

    def _restore(self, tensors: dict[str, dict[str, torch.Tensor]]) -> None:
        """Weights, moments and generators as in the checkpoint."""
        moments = dict(tensors["optimizer"])
        torch.set_rng_state(moments.pop("rng.cpu"))
        on_gpu = moments.pop("rng.cuda", None)
        if on_gpu is not None and self.world.device.type == "cuda":
            torch.cuda.set_rng_state(on_gpu, self.world.device)
        load_weights(self.model, tensors["weights"], f"the last weights in {self.folder.path}")
        self.stepper.optimizer.load_state_dict(moments)

    # -- the run -------------------------------------------------------------------------------------------

    def run(self, log: Sequence[str] = ()) -> None:
        """Train to the end, or until a signal or the time budget ends it with a checkpoint."""
        if self.world.first:
            self.folder.write_environment(environment(self.world))
            self.folder.open_loggers(log, self.config, self.state.step)
            self._introduce()
        try:
            try:
                self._run()
            except Stopped:
                self.checkpoint()
                self._end_early()
        except UserError as error:
            with contextlib.suppress(OSError):
                self.folder.quiet = True  # the caller shows the sentence; the log keeps it
                self.folder.say(f"error     {error}")
            raise

    def _end_early(self) -> None:
        """End as what stopped the run wants it."""
        number = int(self.world.largest([float(self.stop.number)])[0])
        known = {0: "the time budget is spent", signal.SIGINT: "Ctrl-C"}
        why = known.get(number) or signal.Signals(number).name
        self.folder.say(
            f"stopped   {why}, at step {self.state.step:,} of {self.total:,} (epoch {self.state.epoch}); "
            "a checkpoint is written: run the same command again to go on"
        )
        if number == signal.SIGINT:
            raise KeyboardInterrupt from None
        if number:
            raise SystemExit(128 + number) from None

    def _run(self) -> None:
        s = self.state
        self._seek()
        if s.step == 0:
            if self.source is not None and s.evaluated_step != s.step:
                self._extra_validation()  # what the weights are worth as they are
            self.checkpoint()
        self.model.train()
        while s.step < self.total or s.evaluated_step != s.step:
            if not self._epoch_over():
                self._train()
            if s.evaluated_step != s.step:
                self._end_epoch()
            if s.position == self.steps_per_epoch and s.step < self.total:
                s.next_epoch()
                self._seek()
        self._finish()

    def _introduce(self) -> None:
        r, s, device = self.recipe, self.state, describe_device(self.world.device)
        n = sum(p.numel() for p in self.model.parameters())
        body = body_parameters(config_from_dict(self.config["model"]))
        schedule = self.stepper.schedule
        lines = {
            "run": f"{self.folder.path}: "
            + (f"goes on at step {s.step:,} of {self.total:,}" if self.resumed else "new"),
            "model": f"{self.config['preset'] or self.config['model']['kind']}, {n:,} parameters, "
            f"{body:,} of them in the layers, seed {r.seed}",
            "began" if self.resumed else "begins": self.source and f"with {self.source.about}",
            "text": f"{self.config['corpus']['name']}: {self.stepper.n_windows:,} windows, "
            f"{self.steps_per_epoch:,} steps an epoch, {self.total:,} in all; "
            f"{len(self.valid):,} validation windows",
            "device": device
            + (f", {self.world.size} processes" if self.world.size > 1 else "")
            + (", deterministic" if r.deterministic else ""),
            "versions": untested("CPU" if self.world.device.type == "cpu" else device),
            "precision": r.precision,
            "engine": r.engine,
            "optimizer": f"fused AdamW, all parameters in one vector; lr {r.lr:g}, weight decay {r.weight_decay:g}, "
            f"clip {r.clip:g}",
            "schedule": None if schedule.constant else f"{r.schedule}: {schedule}",
            "batch": f"{r.batch_size} windows in {r.accumulate} parts" if r.accumulate > 1 else None,
        }
        for title, line in lines.items():
            if line:
                self.folder.say(f"{title:<9} {line}")

    def _epoch_over(self) -> bool:
        return self.state.position >= self.steps_per_epoch or self.state.step >= self.total

    def _seek(self) -> None:
        """Bring the device to the epoch, batch and step of the state."""
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
        whole = min(self.steps_per_epoch, s.position + self.total - s.step)
        title, shown = f"epoch {s.epoch} of {r.epochs}", self.world.first and not self.folder.quiet
        with Bar(title, whole, s.position, shown=shown) as bar:
            while not self._epoch_over():
                if s.step in r.eval_at_steps and s.evaluated_step != s.step:
                    self._extra_validation()
                n = self._plan()
                start = time.perf_counter()
                self.stepper.run(n, s.position)
                nats, norms = self.stepper.read(s.step, n)
                self._account(nats, norms, time.perf_counter() - start)
                left = (self.total - s.step) * s.epoch_train_s / max(s.position, 1)
                bar.update(
                    n,
                    loss=f"{(self.shown_nats or 0.0) * BITS:.3f} bits",
                    speed=f"{count(s.epoch_predictions / max(s.epoch_train_s, 1e-9))} tokens/s",
                    run=f"{duration(left)} left",
                )
                self._attend()

    def _plan(self) -> int:
        """How many steps to run before looking: about half a second, never past where something is due."""
        s, r = self.state, self.recipe
        n = min(self.chunk, RING, self.steps_per_epoch - s.position, self.total - s.step)
        if r.checkpoint_steps:
            n = min(n, r.checkpoint_steps - s.step % r.checkpoint_steps)
        return min([n, *(at - s.step for at in r.eval_at_steps if at > s.step)])

    def _account(self, nats: list[float], norms: list[float], seconds: float) -> None:
        """Book the steps just run."""
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

    def _attend(self) -> None:
        """Checkpoint if due, stop if asked; all processes decide alike."""
        s, r = self.state, self.recipe
        now = time.monotonic()
        stop, late, due, pace = self.world.largest(
            [
                float(self.stop.number),
                float(self.deadline is not None and now >= self.deadline),
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
        """What a line of metrics.jsonl says of a validation; bits per byte where tokens are not bytes."""
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
        """Validate, note the result, keep the best, look at the siblings, write a checkpoint."""
        s = self.state
        result = self._validate(f"validation {s.epoch} of {self.recipe.epochs}")
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
            peak_memory_gb=round(self.world.largest([peak_memory_gb(self.world.device)])[0], 3),
            best=best,
        )
        per_byte = fields.get("valid_bits_per_byte")
        self.folder.say(
            f"epoch {s.epoch}, step {s.step:,}: train {train_bits:.4f}, "
            f"validation {result.bits:.4f} bits ({result.bits_second_half:.4f} second half)"
            f"{'' if per_byte is None else f', {per_byte:.4f} bits per byte'}"
            f"{', best' if best else ''}; {count(speed)} tokens/s, validation {result.seconds:.1f} s"
        )

        def keep() -> None:
            if best:
                self.folder.keep_best(self.model, self.recipe, s.epoch, s.step, result.bits)
            self.folder.keep_kernel(self.model, s.epoch)
            if s.epoch == 1 and complete and math.isfinite(result.bits):
                self._look_at_siblings(result.bits)

        self.world.first_does(keep)
        self.checkpoint(evaluated=True)

    def _look_at_siblings(self, bits: float) -> None:
        runs = siblings(self.folder.path, self.config) | {self.folder.path.resolve().name: bits}
        best = min(runs.values())
        for run, by in trailing(runs).items():
            about = {"run": run, "valid_bits": runs[run], "best_sibling_bits": best, "trails_by": by}
            self._record("warning", what="plateau", **about)
            self.folder.say(
                f"warning: after epoch 1 {run} has {runs[run]:.3f} bits and trails its best sibling ({best:.3f}) by "
                f"{by:.2f}: the plateau failure of some seeds; consider another seed"
            )

    # -- endings -------------------------------------------------------------------------------------------

    def checkpoint(self, evaluated: bool = False) -> None:
        self.world.first_does(lambda: self._write_checkpoint(evaluated))
        self.last_checkpoint = time.monotonic()

    def _write_checkpoint(self, evaluated: bool) -> None:
        state = dataclasses.asdict(self.state) | {"lines": self.folder.sync_metrics(), "config": self.config}
        moments = self.stepper.optimizer.state_dict() | {"rng.cpu": torch.get_rng_state()}
        if self.world.device.type == "cuda":
            moments["rng.cuda"] = torch.cuda.get_rng_state(self.world.device)
        none = self.state.best_epoch is None
        best = None if none else hashes.read(self.folder.path, "best.safetensors")
        tensors = {"weights": self.model.state_dict(), "optimizer": moments}
        self.folder.checkpoints.save(state, tensors, best, evaluated)

    def _not_finite(self, loss: float, norm: float) -> None:
        """Stop: the weights are still those before the bad step. Find out what broke, save, say so."""
        s = self.state
        found = self.stepper.first_bad_tensor(s.position, s.step)
        tensor = next((name for name in self.world.gather(found) if name is not None), None)
        what, value = ("loss", f"{loss}") if not math.isfinite(loss) else ("gradient", f"norm {norm}")
        self._record("warning", what="non-finite", step=s.step + 1, tensor=tensor or what)
        self.checkpoint()
        where = "run again eagerly all its tensors are finite, so try --engine eager or --precision fp32"
        if tensor:
            where = f"the first tensor that is not finite is {tensor}"
        raise NonFinite(
            f"the {what} of step {s.step + 1} (epoch {s.epoch}) is not finite ({value}); {where}; "
            f"the state after step {s.step}, the last good one, is kept in {self.folder.checkpoints.folder}"
        )

    def _finish(self) -> None:
        s = self.state
        if self.world.first:
            done = {"step": s.step, "best_epoch": s.best_epoch, "best_bits": s.best_bits}
            done["cumulative_s"] = round(s.cumulative_s, 3)
            self.folder.hashes.write("DONE", json.dumps(done).encode() + b"\n")
        none = s.best_bits is None
        best = "no finite validation" if none else f"best {s.best_bits:.4f} bits at epoch {s.best_epoch}"
        self.folder.say(
            f"finished  {s.step:,} steps in {duration(s.cumulative_s)}; {best}; {self.folder.path}"
        )
