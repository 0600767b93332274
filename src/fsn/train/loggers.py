"""Where curves are drawn besides metrics.jsonl: TensorBoard always, Weights & Biases and trackio if asked."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError

NAMES = ("wandb", "trackio")


def check_loggers(asked: Sequence[str]) -> None:
    """Refuse before anything is written if a logger does not exist or is not installed."""
    for name in asked:
        if name not in NAMES:
            raise UserError(f"there is no logger {name!r}; --log takes {' and '.join(NAMES)}")
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"--log {name} needs the package {name}, which is not installed: pip install {name}"
            )


class Logger(Protocol):
    """Takes named numbers at a step."""

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in ``tensorboard/``. Points after ``step``, left by an interrupted part, are hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases. The run's id follows from its folder, so a resumed run goes on as the same run."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project="fsn",
            name=folder.name,
            id=_identity(folder),
            resume="allow",
            dir=str(folder),
            config=config,
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """trackio: a local dashboard with the interface of Weights & Biases."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import trackio

        name = f"{folder.name}-{_identity(folder)[:6]}"
        self._run = trackio.init(project="fsn", name=name, resume="allow", config=config)
        self._trackio = trackio

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


class Loggers:
    """All loggers of a run as one."""

    def __init__(
        self,
        folder: Path,
        asked: Sequence[str],
        config: dict[str, Any],
        step: int,
        say: Callable[[str], None],
    ) -> None:
        self._all: list[Logger] = []
        for name in dict.fromkeys(asked):
            self._all.append(WandB(folder, config) if name == "wandb" else Trackio(folder, config))
        try:
            self._all.append(TensorBoard(folder, step))
        except ImportError:
            say(
                "tensorboard is not installed, so there are no event files (pip install tensorboard); "
                "metrics.jsonl has every number"
            )

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        finite = {n: v for n, v in values.items() if v is not None and math.isfinite(v)}
        for logger in self._all:
            logger.scalars(finite, step)

    def close(self) -> None:
        for logger in self._all:
            logger.close()


def _identity(folder: Path) -> str:
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
