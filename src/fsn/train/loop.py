"""The training loop: steps, validation, checkpoints, until the recipe is done or someone says stop."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data import epoch_order
from ..io import write_bytes_atomic, write_text_atomic
from ..models import config_to_dict
from ..progress import Bar
from . import plateau
from .checkpoint import Checkpoints, pack
from .environment import peak_memory_gb
from .evaluate import Evaluation, EvaluationStopped, evaluate
from .folder import RunFolder, disk_errors
from .loggers import Loggers
from .recipe import Recipe
from .signals import StopRequest
from .state import NonFinite, State, Stopped
from .step import RING, Stepper
from .words import NoBar, count, duration
from .world import World

if TYPE_CHECKING:
    from ..data import Windows

LOOK_S = 0.5  # seconds of steps between two looks of the host
BITS = 1.0 / math.log(2.0)


@dataclass
class Training:
    """A run in progress."""

    folder: RunFolder
    checkpoints: Checkpoints
    config: dict[str, Any]
    recipe: Recipe
    world: World
    model: nn.Module
    stepper: Stepper
    valid: Windows
    state: State
    loggers: Loggers | None
    stop: StopRequest
    deadline: float | None = None
    """On the clock of ``time.monotonic``: when the time budget ends."""

    def __post_init__(self) -> None:
        self.steps_per_epoch = self.stepper.steps_per_epoch
        self.total = self.recipe.total_steps(self.stepper.n_windows)
        self.chunk = 1
        self.shown_nats: float | None = None
        self.last_checkpoint = time.monotonic()

    # -- the run -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train to the end. Raises :class:`Stopped` after a checkpoint if a signal or the budget ends it."""
        s = self.state
        self._stand()
        if s.step == 0:
            if "begin_with" in self.config and s.evaluated_step != s.step:
                self._extra_validation()  # what the weights are worth as they are
            self.checkpoint()
        self.model.train()
        while s.step < self.total or s.evaluated_step != s.step:
            if not self.epoch_over():
                self._train()
            if s.evaluated_step != s.step:
                self._end_epoch()
            if s.position == self.steps_per_epoch and s.step < self.total:
                s.next_epoch()
                self._stand()
        self._finish()

    def epoch_over(self) -> bool:
        return self.state.position >= self.steps_per_epoch or self.state.step >= self.total

    def _stand(self) -> None:
        """Put the device where the state says."""
        s = self.state
        self.stepper.set_order(epoch_order(self.stepper.n_windows, self.recipe.seed, s.epoch))
        self.stepper.set_place(s.position, s.step)

    def _train(self) -> None:
        """Steps to the end of the epoch."""
        s, r = self.state, self.recipe
        seconds = self.stepper.prepare()
        if seconds:
            self.folder.say(
                f"ready     engine {self.stepper.engine} warmed up in {seconds:.1f} s (undone, not timed)"
            )
        whole = min(self.steps_per_epoch, s.position + self.total - s.step)
        with self._bar(f"epoch {s.epoch} of {r.epochs}", whole, s.position) as bar:
            while not self.epoch_over():
                if s.step in r.eval_at_steps and s.evaluated_step != s.step:
                    self._extra_validation()
                n = self._plan()
                start = time.perf_counter()
                self.stepper.run(n, s.position)
                nats, norms = self.stepper.read(s.step, n)
                self._account(nats, norms, time.perf_counter() - start)
                bar.update(n, **self._fields())
                self._attend()

    def _plan(self) -> int:
        """How many steps to run before looking: about half a second, never past where something is due."""
        s, r = self.state, self.recipe
        n = min(self.chunk, RING, self.steps_per_epoch - s.position, self.total - s.step)
        if r.checkpoint_steps:
            n = min(n, r.checkpoint_steps - s.step % r.checkpoint_steps)
        for at in r.eval_at_steps:
            if at > s.step:
                return min(n, at - s.step)
        return n

    def _account(self, nats: list[float], norms: list[float], seconds: float) -> None:
        """Book the steps just run."""
        s, r = self.state, self.recipe
        share = seconds / len(nats)
        self.seconds_per_step = share
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
                self._log_step(norm)

    def _log_step(self, norm: float) -> None:
        s = self.state
        line: dict[str, Any] = {
            "kind": "step",
            "step": s.step,
            "epoch": s.epoch,
            "loss_bits": s.log_nats / s.log_predictions * BITS,
            "grad_norm": norm,
            "tokens_per_s": round(s.log_predictions / s.log_train_s, 1),
        }
        s.log_nats, s.log_predictions, s.log_train_s = 0.0, 0, 0.0
        self._record(line)
        self._draw(
            loss_train_bits=line["loss_bits"], gradient_norm=norm, speed_tokens_per_s=line["tokens_per_s"]
        )

    def _attend(self) -> None:
        """Checkpoint if due, stop if asked; all processes decide alike."""
        s, r = self.state, self.recipe
        now = time.monotonic()
        signal, late, due, pace = self.world.largest(
            [
                float(self.stop.number),
                float(self.deadline is not None and now >= self.deadline),
                float(now - self.last_checkpoint >= 60 * r.checkpoint_minutes),
                self.seconds_per_step,
            ]
        )
        self.chunk = max(1, min(int(LOOK_S / max(pace, 1e-9)), 2 * self.chunk, RING))
        if signal or (late and s.step < self.total):
            self.checkpoint()
            raise Stopped(int(signal))
        if due or (r.checkpoint_steps and s.step % r.checkpoint_steps == 0):
            self.checkpoint()

    # -- validation ----------------------------------------------------------------------------------------

    def _validate(self, label: str | None = None) -> Evaluation:
        try:
            result = evaluate(
                self.model,
                self.valid,
                batch_size=self.recipe.eval_batch_size,
                world=self.world,
                label=None if self.folder.quiet else label,
                stop=lambda: bool(self.stop),
            )
        except EvaluationStopped:
            self.checkpoint()
            raise Stopped(int(self.world.largest([float(self.stop.number)])[0])) from None
        self.state.evaluated_step = self.state.step
        self.state.cumulative_s += result.seconds
        return result

    def _extra_validation(self) -> None:
        s = self.state
        result = self._validate()
        line = {
            "kind": "valid",
            "step": s.step,
            "epoch": s.epoch,
            "valid_bits": result.bits,
            "valid_bits_second_half": result.bits_second_half,
            "valid_precision": "fp32",
            "valid_s": round(result.seconds, 3),
            "cumulative_s": round(s.cumulative_s, 3),
        }
        self._record(line)
        self._draw(loss_valid_bits=result.bits, loss_valid_bits_second_half=result.bits_second_half)
        self.folder.say(
            f"step {s.step:,}: validation {result.bits:.4f} bits, {result.bits_second_half:.4f} second half"
        )

    def _end_epoch(self) -> None:
        """Validate, note the result, keep the best, look at the siblings, write a checkpoint."""
        s = self.state
        result = self._validate(f"validation {s.epoch} of {self.recipe.epochs}")
        best = math.isfinite(result.bits) and (s.best_bits is None or result.bits < s.best_bits)
        if best:
            s.best_epoch, s.best_bits = s.epoch, result.bits
        line: dict[str, Any] = {
            "kind": "epoch",
            "epoch": s.epoch,
            "complete": s.position == self.steps_per_epoch,
            "step": s.step,
            "train_loss_bits": s.epoch_nats / s.epoch_predictions * BITS,
            "valid_bits": result.bits,
            "valid_bits_second_half": result.bits_second_half,
            "valid_precision": "fp32",
            "tokens_per_s": round(s.epoch_predictions / s.epoch_train_s, 1),
            "eval_tokens_per_s": round(result.tokens_per_s, 1),
            "train_s": round(s.epoch_train_s, 3),
            "valid_s": round(result.seconds, 3),
            "cumulative_s": round(s.cumulative_s, 3),
            "peak_memory_gb": round(self.world.largest([peak_memory_gb(self.world.device)])[0], 3),
            "best": best,
        }
        self._record(line)
        self._draw(
            loss_valid_bits=result.bits,
            loss_valid_bits_second_half=result.bits_second_half,
            loss_epoch_train_bits=line["train_loss_bits"],
        )
        self.folder.say(
            f"epoch {s.epoch}, step {s.step:,}: train {line['train_loss_bits']:.4f}, "
            f"validation {result.bits:.4f} bits ({result.bits_second_half:.4f} second half)"
            f"{', best' if best else ''}; "
            f"{count(line['tokens_per_s'])} tokens/s, validation {result.seconds:.1f} s"
        )
        self.world.first_does(lambda: self._keep_best(result.bits) if best else None)
        self.world.first_does(self._keep_kernel)
        if s.epoch == 1 and line["complete"]:
            self._look_at_siblings(result.bits)
        self.checkpoint(evaluated=True)

    def _keep_best(self, bits: float) -> None:
        s = self.state
        about = {
            "format": "pt",
            "epoch": str(s.epoch),
            "step": str(s.step),
            "valid_bits": repr(bits),
            "config": json.dumps(config_to_dict(self.model.config)),  # type: ignore[arg-type]
        }
        with disk_errors(self.folder.path):
            write_bytes_atomic(self.folder.best_file, pack(self.model.state_dict(), about))

    def _keep_kernel(self) -> None:
        """The coupling kernel and the scalars after this epoch: small, and what one reads a run by."""
        parts = {n: t for n, t in self.model.state_dict().items() if ".kernel." in n or t.dim() == 0}
        if any(".kernel." in name for name in parts):
            with disk_errors(self.folder.path):
                write_bytes_atomic(self.folder.kernel_file(self.state.epoch), pack(parts, {"format": "pt"}))

    def _look_at_siblings(self, bits: float) -> None:
        if not self.world.first or not math.isfinite(bits):
            return
        runs = plateau.siblings(self.folder.path, self.config) | {self.folder.path.resolve().name: bits}
        for run in plateau.trailing(runs):
            self._record(
                {
                    "kind": "warning",
                    "what": "plateau",
                    "step": self.state.step,
                    "run": run.run,
                    "valid_bits": run.bits,
                    "best_sibling_bits": run.best,
                    "trails_by": run.by,
                }
            )
            self.folder.say(
                f"warning: after epoch 1 {run.run} has {run.bits:.3f} bits and trails its best sibling "
                f"({run.best:.3f}) by {run.by:.2f}: the plateau failure of some seeds; consider another seed"
            )

    # -- endings -------------------------------------------------------------------------------------------

    def checkpoint(self, evaluated: bool = False) -> None:
        self.world.first_does(lambda: self._write_checkpoint(evaluated))
        self.last_checkpoint = time.monotonic()

    def _write_checkpoint(self, evaluated: bool) -> None:
        state = dataclasses.asdict(self.state)
        state["metrics_bytes"] = self.folder.metrics_size()
        state["config"] = self.config
        rng = {"rng.cpu": torch.get_rng_state()}
        if self.world.device.type == "cuda":
            rng["rng.cuda"] = torch.cuda.get_rng_state(self.world.device)
        tensors = {"weights": self.model.state_dict(), "optimizer": self.stepper.optimizer.state_dict() | rng}
        best = self.folder.best_file if self.state.best_epoch is not None else None
        with disk_errors(self.folder.path):
            self.checkpoints.save(state, tensors, best, evaluated)

    def _not_finite(self, loss: float, norm: float) -> None:
        """Stop: the weights are still those before the bad step. Find out what broke, save, say so."""
        s = self.state
        found = self.stepper.first_bad_tensor(s.position, s.step)
        tensor = next((name for name in self.world.gather(found) if name is not None), None)
        what = "loss" if not math.isfinite(loss) else "gradient"
        self._record(
            {
                "kind": "warning",
                "what": "non-finite",
                "step": s.step + 1,
                "epoch": s.epoch,
                "tensor": tensor or what,
            }
        )
        self.checkpoint()
        where = (
            f"the first tensor that is not finite is {tensor}"
            if tensor
            else "run again eagerly all its tensors are finite, so try --engine eager or --precision fp32"
        )
        value = f"{loss}" if what == "loss" else f"norm {norm}"
        raise NonFinite(
            f"the {what} of step {s.step + 1} (epoch {s.epoch}) is not finite ({value}); {where}; "
            f"the state after step {s.step}, the last good one, is kept in {self.checkpoints.folder}"
        )

    def _finish(self) -> None:
        s = self.state
        if self.world.first:
            done = {
                "step": s.step,
                "best_epoch": s.best_epoch,
                "best_bits": s.best_bits,
                "cumulative_s": round(s.cumulative_s, 3),
            }
            write_text_atomic(self.folder.done_file, json.dumps(done) + "\n")
        best = (
            f"best {s.best_bits:.4f} bits at epoch {s.best_epoch}"
            if s.best_bits is not None
            else "no finite validation"
        )
        self.folder.say(
            f"finished  {s.step:,} steps in {duration(s.cumulative_s)}; {best}; {self.folder.path}"
        )

    # -- small things --------------------------------------------------------------------------------------

    def _record(self, line: dict[str, Any]) -> None:
        if self.world.first:
            self.folder.record(line)

    def _draw(self, **values: float) -> None:
        if self.loggers is not None:
            self.loggers.scalars({n.replace("_", "/", 1): v for n, v in values.items()}, self.state.step)

    def _bar(self, description: str, total: int, done: int) -> Bar | NoBar:
        return Bar(description, total, done) if self.world.first and not self.folder.quiet else NoBar()

    def _fields(self) -> dict[str, str]:
        s = self.state
        left = (self.total - s.step) * s.epoch_train_s / max(s.position, 1)
        return {
            "loss": f"{(self.shown_nats or 0.0) * BITS:.3f} bits",
            "speed": f"{count(s.epoch_predictions / max(s.epoch_train_s, 1e-9))} tokens/s",
            "run": f"{duration(left)} left",
        }
