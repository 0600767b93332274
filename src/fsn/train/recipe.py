"""The recipe of a run: everything but the model and the text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from ..errors import UserError
from ..validate import check_types

Precision = Literal["auto", "fp32", "tf32", "bf16"]
Engine = Literal["auto", "eager", "compile", "graph", "compile-graph"]

# Fields that only say when something is written down. They may change between two parts of one run.
BOOKKEEPING = frozenset({"checkpoint_minutes", "checkpoint_steps", "log_steps", "eval_at_steps"})
# Fields that only say where to stop. The learning rate is constant, so a run may be made longer (--extend).
DURATION = frozenset({"epochs", "max_steps"})
LEAST_EPS = 1e-37  # below it, in float32, eps is as good as zero


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. The defaults are the paper's."""

    lr: float = 1e-3
    """Learning rate of AdamW, constant through the run."""
    beta1: float = 0.9
    """AdamW: decay of the mean of the gradient."""
    beta2: float = 0.999
    """AdamW: decay of the mean of its square."""
    eps: float = 1e-8
    """AdamW: added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay, on every parameter."""
    clip: float = 1.0
    """The gradient is scaled down to this global norm where it is longer; 0 switches clipping off."""
    batch_size: int = 64
    """Windows in a step, over all processes together."""
    length: int = 256
    """Bytes in a window; a window of n bytes holds n - 1 predictions."""
    train_stride: int = 64
    """Bytes from the start of one training window to the next."""
    eval_stride: int = 128
    """The same for validation and test windows."""
    epochs: int = 30
    """Passes over the training windows."""
    max_steps: int | None = None
    """Stop after this many steps even if the epochs are not over."""
    seed: int = 0
    """Sets initial values, data order and dropout together."""
    drop_last: bool = True
    """Leave out the incomplete last batch of an epoch (never if it is the only one)."""
    precision: Precision = "auto"
    """Matrix products in float32, TensorFloat-32 or bfloat16; auto is bf16 on a GPU, fp32 on a CPU."""
    engine: Engine = "auto"
    """How a step is run: eager, torch.compile, as one CUDA graph, or both; auto is graph on a GPU."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time (on a GPU this costs some speed)."""
    eval_at_steps: tuple[int, ...] = ()
    """Validate after these steps too, not only after each epoch."""
    eval_batch_size: int | None = None
    """Windows in a validation batch; by default 64 on a CPU, 512 on a GPU."""
    checkpoint_minutes: float = 10.0
    """Write a checkpoint at least this often (and after each epoch)."""
    checkpoint_steps: int | None = None
    """Write a checkpoint each time this many steps are done."""
    log_steps: int = 100
    """Steps between two lines of kind "step" in metrics.jsonl."""

    def __post_init__(self) -> None:
        check_types(self, "recipe: ")
        if any(step < 1 for step in self.eval_at_steps):
            raise UserError("recipe: eval_at_steps must be whole numbers from 1 on")
        object.__setattr__(self, "eval_at_steps", tuple(sorted(set(self.eval_at_steps))))
        for field in dataclasses.fields(self):
            if field.type == "float":
                object.__setattr__(self, field.name, float(getattr(self, field.name)))
        for name, least in (
            ("batch_size", 1),
            ("length", 2),
            ("train_stride", 1),
            ("eval_stride", 1),
            ("epochs", 1),
            ("max_steps", 1),
            ("eval_batch_size", 1),
            ("checkpoint_steps", 1),
            ("log_steps", 1),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"recipe: {name} must be at least {least}, not {value}")
        for name in ("lr", "weight_decay", "clip", "eps"):
            if getattr(self, name) < 0:
                raise UserError(f"recipe: {name} must not be negative, but is {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"recipe: {name} must lie in [0, 1), but is {getattr(self, name)}")
        if self.checkpoint_minutes <= 0:
            raise UserError(
                "recipe: checkpoint_minutes must be positive; use a large number for rare checkpoints"
            )

    # -- counting ------------------------------------------------------------------------------------------

    def steps_per_epoch(self, n_windows: int) -> int:
        """Steps in an epoch of ``n_windows`` windows: 1,406,247 windows in batches of 64 are 21,972 steps."""
        if self.drop_last and n_windows >= self.batch_size:
            return n_windows // self.batch_size
        return -(-n_windows // self.batch_size)

    def check_trainable(self) -> None:
        """Stop if training would ruin the weights. A run that was trained so all the same can still be read."""
        if self.eps < LEAST_EPS:
            raise UserError(
                f"recipe: eps must be at least {LEAST_EPS:g}, but is {self.eps:g}; without it a gradient of zero makes "
                "a weight that is no number"
            )

    def total_steps(self, n_windows: int) -> int:
        steps = self.epochs * self.steps_per_epoch(n_windows)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def predictions(self) -> int:
        """Predictions in a window."""
        return self.length - 1

    # -- to and from files ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        d = dataclasses.asdict(self)
        d["eval_at_steps"] = list(self.eval_at_steps)
        return d

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Recipe:
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(d) - known)
        if unknown:
            raise UserError(
                f"recipe: there is no field {unknown[0]!r}; the fields are {', '.join(sorted(known))}"
            )
        values = dict(d)
        if "eval_at_steps" in values:
            steps = values["eval_at_steps"]
            if not isinstance(steps, (list, tuple)):
                raise UserError(f"recipe: eval_at_steps must be a list of steps, not {steps!r}")
            values["eval_at_steps"] = tuple(steps)
        return cls(**values)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> Recipe:
        try:
            d = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"recipe: this is not YAML ({str(error).splitlines()[0]})") from None
        if not isinstance(d, dict):
            raise UserError("recipe: a YAML mapping of field names to values is needed")
        return cls.from_dict(d)
