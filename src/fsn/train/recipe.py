"""The recipe of a run: everything but the model and the text; and fields as a command line or YAML gives them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, Literal, get_args

from ..checks import check, check_types, construct, field_types
from ..errors import UserError
from ..io import parse_yaml

Precision = Literal["auto", "fp32", "tf32", "bf16"]
Engine = Literal["auto", "eager", "compile", "graph", "compile-graph"]
Shape = Literal["constant", "linear", "cosine", "wsd"]

STRIDES = {"train_stride": (64, 4), "eval_stride": (128, 2)}
"""The paper's, and into how many strides a window is divided that is shorter than that."""
MINIMUM = dict.fromkeys(("seed", "lr", "weight_decay", "clip", "eps", "warmup_steps", "lr_floor"), 0) | {
    "length": 2
}
"""The least value of a number; of those not named here, 1."""
MINIMUM_EPS = 1e-37  # below it, in float32, eps is as good as zero


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. The defaults are the paper's."""

    lr: float = 1e-3
    """Learning rate of AdamW, before the schedule lowers it."""
    schedule: Shape = "constant"
    """After the warm-up: constant (the paper's), linear or cosine (falls to the end), wsd (falls in the cool-down)."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly from 0."""
    cooldown: float | None = None
    """wsd: the last fraction of the run, in which the rate falls linearly. None: 0.2, or as --cooldown-epochs says."""
    cooldown_epochs: float | None = None
    """wsd: the same in epochs, instead of --cooldown."""
    lr_floor: float = 0.0
    """The rate that linear, cosine and wsd fall to."""
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
    accumulate: int = 1
    """Micro-batches that a batch is computed in, if it does not fit into memory; the step is the same."""
    length: int = 256
    """Symbols in a window, bytes or tokens; a window of n symbols holds n - 1 predictions."""
    train_stride: int = 0
    """Symbols from the start of one training window to the next; 0: 64, or a quarter of a window shorter than that."""
    eval_stride: int = 0
    """The same for validation and test windows; 0: 128, or half of a window shorter than that."""
    epochs: int = 30
    """Passes over the training windows."""
    max_steps: int | None = None
    """Stop after this many steps even if the epochs are not over."""
    seed: int = 0
    """Of initial values, data order and dropout together."""
    drop_last: bool = True
    """Drop the incomplete last batch of an epoch (unless it is the only one)."""
    precision: Precision = "auto"
    """Matrix products in float32, TensorFloat-32 or bfloat16; auto is bf16 on a GPU, fp32 on a CPU."""
    engine: Engine = "auto"
    """How a step is run: eager, torch.compile, as one CUDA graph, or both; auto is graph on a GPU."""
    separate_documents: bool = False
    """Mask attention and successors across documents (without kernels)."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time (on a GPU this costs some speed)."""
    eval_at_steps: tuple[int, ...] = ()
    """Validate after these steps too, not only after each epoch."""
    eval_batch_size: int | None = None
    """Windows in a validation batch; by default 64 on a CPU, 512 on a GPU."""
    checkpoint_minutes: float = 10.0
    """Write a checkpoint at least this often (and after each epoch)."""
    checkpoint_steps: int | None = None
    """Also write a checkpoint every so many steps."""
    log_steps: int = 100
    """Write a line of kind "step" to metrics.jsonl every so many steps."""

    def __post_init__(self) -> None:
        check_types(self, "recipe: ")
        for name, (stride, parts) in STRIDES.items():
            if getattr(self, name) == 0 and self.length > 1:
                stride = stride if self.length >= stride else max(self.length // parts, 1)
                object.__setattr__(self, name, stride)
        object.__setattr__(self, "eval_at_steps", tuple(sorted(set(self.eval_at_steps))))
        for name, declared in field_types(Recipe).items():
            value = getattr(self, name)
            if value is not None and float in (declared, *get_args(declared)):
                value = float(value)
                object.__setattr__(self, name, value)
            self._check_range(name, value)
        check(min(self.eval_at_steps, default=1) > 0, "recipe: eval_at_steps must be whole numbers from 1 on")
        check(
            self.accumulate <= self.batch_size,
            f"recipe: each of the {self.accumulate} micro-batches of accumulate needs at least one window, and "
            f"batch_size is {self.batch_size}; use a smaller accumulate",
        )
        if self.schedule == "wsd" and self.cooldown is None and self.cooldown_epochs is None:
            object.__setattr__(self, "cooldown", 0.2)
        given = [name for name in ("cooldown", "cooldown_epochs") if getattr(self, name) is not None]
        check(len(given) < 2, "recipe: cooldown and cooldown_epochs both set the cool-down; give one")
        check(
            not given or self.schedule == "wsd",
            f"recipe: {''.join(given)} needs --schedule wsd, and the schedule is {self.schedule}; give that, or leave "
            "it out",
        )
        check(
            not self.lr_floor or self.schedule != "constant",
            "recipe: lr_floor needs a schedule that falls; give --schedule linear, cosine or wsd",
        )
        check(
            self.lr_floor <= self.lr,
            f"recipe: lr_floor must not be above lr ({self.lr:g}), but is {self.lr_floor:g}",
        )

    def _check_range(self, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        least = MINIMUM.get(name, 1)
        if name in ("beta1", "beta2"):
            fits, wanted = 0 <= value < 1, "in [0, 1)"
        elif name == "checkpoint_minutes":
            fits, wanted = value > 0, "positive; use a large number for rare checkpoints"
        elif name == "cooldown":
            fits, wanted = 0 < value <= 1, "a fraction of the run, above 0 and at most 1"
        elif name == "cooldown_epochs":
            fits, wanted = value > 0, "positive"
        elif isinstance(value, int) and name != "seed" and value >= 2**31:
            fits, wanted = False, "below 2^31"
        else:
            fits, wanted = value >= least, f"at least {least}"
        check(fits, f"recipe: {name} must be {wanted}, not {short(value)}")

    def steps_per_epoch(self, n_windows: int) -> int:
        """Steps in an epoch of ``n_windows`` windows: 1,406,247 windows in batches of 64 are 21,972 steps."""
        if self.drop_last and n_windows >= self.batch_size:
            return n_windows // self.batch_size
        return -(-n_windows // self.batch_size)

    def check_trainable(self) -> None:
        """Stop if training would make weights NaN. Finished runs of such a recipe can still be read."""
        check(
            self.eps >= MINIMUM_EPS,
            f"recipe: eps must be at least {MINIMUM_EPS:g}, but is {self.eps:g}; without it a gradient of zero makes "
            "a weight NaN",
        )

    def total_steps(self, n_windows: int) -> int:
        steps = self.epochs * self.steps_per_epoch(n_windows)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def predictions(self) -> int:
        """Predictions in a window."""
        return self.length - 1

    def to_dict(self) -> dict[str, Any]:
        d = dataclasses.asdict(self)
        d["eval_at_steps"] = list(self.eval_at_steps)
        return d

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Recipe:
        return construct(cls, d)


def parse_fields(words: tuple[str, ...]) -> dict[str, Any]:
    """``("k=96", "bound=none")`` as a dict; values are read as YAML."""
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        check(bool(equals and name), f"{short(word)} is not of the form field=value")
        name = name.replace("-", "_")
        check(name not in fields, f"{name} is given twice, the second time as {short(word)}; give it once")
        parsed: Any = value
        with contextlib.suppress(UserError):  # what is not YAML is text
            parsed = parse_yaml(value, name)
        fields[name] = with_numbers(parsed)
    return fields


def with_numbers(value: Any) -> Any:
    """A value from a YAML file, with 1e-3 as a number: in YAML 1.1 it is text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value
