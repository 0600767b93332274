"""Loggers besides metrics.jsonl: TensorBoard always, Weights & Biases and trackio on request."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError, reason

NAMES = ("wandb", "trackio")
_VALID = {"valid_bits": "loss/valid_bits", "valid_bits_second_half": "loss/valid_bits_second_half"}
CURVES = {
    "step": {
        "loss_bits": "loss/train_bits",
        "grad_norm": "gradient/norm",
        "lr": "gradient/learning_rate",
        "tokens_per_s": "speed/tokens_per_s",
    },
    "valid": _VALID,
    "epoch": {**_VALID, "train_loss_bits": "loss/epoch_train_bits"},
}
"""kind of a line in metrics.jsonl -> {field: name of its curve}"""


def check_loggers(asked: Sequence[str]) -> None:
    """Stop if a logger does not exist or is not installed."""
    for name in asked:
        if name not in NAMES:
            raise UserError(f"there is no logger {name!r}; --log takes {' and '.join(NAMES)}")
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"--log {name} needs the package {name}, which is not installed: pip install {name}"
            )


class TensorBoard:
    """Event files in ``tensorboard/``. Points after ``step``, from before an interruption, are hidden.

    A thread writes them. TensorBoard raises its error at the next call, so the thread's own traceback is not printed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._before, threading.excepthook = threading.excepthook, self._quiet
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def _quiet(self, error: threading.ExceptHookArgs) -> None:
        if not type(error.thread).__module__.startswith("tensorboard."):
            self._before(error)

    def finish(self) -> None:
        self._writer.close()
        threading.excepthook = self._before

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


def _tracker(name: str, folder: Path, config: dict[str, Any]) -> Any:
    """wandb, or trackio, which has the same interface. A hash of the folder is the run's id, so that a resumed run
    continues its curves."""
    tracker = importlib.import_module(name)
    identity = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    wandb = {"name": folder.name, "id": identity, "dir": str(folder)}
    options = wandb if name == "wandb" else {"name": f"{folder.name}-{identity[:6]}"}
    tracker.init(project="fsn", resume="allow", config=config, **options)
    return tracker


class Loggers:
    """All loggers of a run. One that fails is reported and dropped; the run goes on."""

    def __init__(
        self,
        folder: Path,
        asked: Sequence[str],
        config: dict[str, Any],
        step: int,
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self._all: dict[str, Any] = {name: _tracker(name, folder, config) for name in asked}
        try:
            self._all["tensorboard"] = TensorBoard(folder, step)
        except ImportError:
            say(
                "tensorboard is not installed, so there are no event files (pip install tensorboard); "
                "metrics.jsonl has every number"
            )
        except Exception as error:
            self._failed("tensorboard", error)

    def draw(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        names = CURVES.get(line["kind"], {})
        values = {curve: line[field] for field, curve in names.items() if math.isfinite(line[field])}
        if values:
            self._each(lambda logger: logger.log(values, line["step"]))

    def close(self) -> None:
        self._each(lambda logger: logger.finish())

    def _each(self, action: Callable[[Any], None]) -> None:
        for name, logger in list(self._all.items()):
            try:
                action(logger)
            except Exception as error:  # training does not depend on a tracker
                del self._all[name]
                self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self._say(
            f"warning: {name} failed ({reason(error)}) and gets no more curves; metrics.jsonl has every number"
        )
