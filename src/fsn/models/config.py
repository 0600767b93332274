"""Configurations: frozen, validated when built, round-trip through plain dicts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any, Literal

from ..checks import check, check_types, construct
from ..ops import CouplingLaw

DROPOUT = 0.0
"""The recipe's rate in every model. The paper lists 0.1 and not where; no place fits its numbers better than none
(docs/findings.md)."""
SMALL_SHARE = 11
"""Registers and winding modes are k // 11: 16 at k = 176, small against k at every rung."""

OWNERS = dict.fromkeys(("hidden", "dropout_hidden"), "swiglu")
OWNERS |= {"modes": "mean-field", "modes_start": "mean-field", "winding": "mean-field-winding"}
"""Fields that belong to some feed-forward blocks, and what the names of those have in common."""


def _check_numbers(config: Any) -> None:
    """Stop unless every dropout rate lies in [0, 1) and every count is at least 1."""
    for name, value in vars(config).items():
        if name.startswith("dropout"):
            check(0.0 <= value < 1.0, f"{name} is {value}; a dropout rate lies in [0, 1)")
        elif isinstance(value, int) and name != "width":  # that has a check of its own
            check(value >= 1, f"{name} is {value}; take at least 1")


@dataclass(frozen=True)
class FSNConfig:
    """A point on the grid: coupling law × feed-forward block × state × bound."""

    vocab_size: int
    k: int = 176
    layers: int = 4
    coupling: CouplingLaw = field(default_factory=CouplingLaw)
    feedforward: Literal["swiglu", "torus-swiglu", "mean-field", "mean-field-winding", "none"] = "swiglu"
    """torus-swiglu reads cos θ and sin θ."""
    state: Literal["lifted", "wrapped"] = "lifted"
    """``lifted``: phases accumulate. ``wrapped``: back into (−π, π] after every layer, with a register."""
    bound: Literal["tanh", "none"] = "tanh"
    """``tanh``: the norm-matched bound. ``none``: no bound (the paper's run diverged)."""
    value_gate: Literal["signed", "positive"] = "signed"
    """``signed``: the linear map itself. ``positive``: through softplus."""
    hidden: int | None = None
    """Hidden width of the SwiGLU; None is 2k, and 4k for torus-swiglu."""
    modes: int | None = None
    """Collective modes H; None solves for the parameter count of the SwiGLU replaced."""
    winding: int | None = None
    """Winding modes of mean-field-winding; None is k // 11 (16 at k = 176)."""
    register: int | None = None
    """Register size m of the wrapped state; None is k // 11."""
    dropout: float = DROPOUT
    """On the raw feed-forward output, before its bound."""
    dropout_hidden: float = 0.0
    """On the SwiGLU's hidden layer."""
    dropout_attention: float = 0.0
    """On the attention weights."""
    rounding: Literal["both", "scores", "logits", "none"] = "both"
    """What is rounded to bfloat16 under autocast. No effect in float32."""
    readout_start: float | None = None
    """Readout scale s at the start; None is 1/√k."""
    tau_start: float | None = None
    """Score temperature τ at the start; None is √k."""
    dropout_update: float = 0.0
    """On the raw coupling update, before its bound."""
    modes_start: Literal["uniform", "centred", "zero"] = "uniform"
    """How collective modes begin. ``centred``: each row of C sums to zero, so phases that agree excite no mode.
    ``zero``: D is zero, so the block begins with no update."""
    alpha_start: float | None = None
    """Scale α of both bounds at the start; None is 2π, the paper's. From 1 small models need, and stand, a higher
    learning rate, and end lower (docs/findings.md)."""

    def __post_init__(self) -> None:
        check_types(self)
        _check_numbers(self)
        check(
            self.tau_start is None or self.tau_start > 0,
            f"tau_start is {self.tau_start}; a temperature is positive, leave it out for √k",
        )
        check(
            self.alpha_start is None or (self.bound == "tanh" and self.alpha_start > 0),
            f"alpha_start is {self.alpha_start}; it is positive, and for bound='tanh' only: leave it out for 2π",
        )
        for name, kind in OWNERS.items():
            check(
                kind in self.feedforward or getattr(self, name) == getattr(FSNConfig, name),
                f"{name} is for {kind} blocks; leave it out with {self.feedforward!r}",
            )
        check(
            self.state == "wrapped" or self.register is None,
            "a register belongs to state='wrapped'; leave register out for the lifted state",
        )
        check(
            self.state == "lifted" or self.feedforward != "none",
            "with state='wrapped' the register is read by the feed-forward block; choose one other than 'none'",
        )

    @property
    def hidden_width(self) -> int:
        """h of the SwiGLU."""
        return self.hidden or (4 if self.feedforward == "torus-swiglu" else 2) * self.k

    @property
    def register_size(self) -> int:
        """m of the wrapped state; 0 for the lifted one."""
        return 0 if self.state == "lifted" else self.register or max(1, self.k // SMALL_SHARE)

    @property
    def winding_modes(self) -> int:
        """W real modes that read the lifted phases; 0 unless the block is mean-field-winding."""
        winds = self.feedforward == "mean-field-winding"
        return (self.winding or max(1, self.k // SMALL_SHARE)) if winds else 0

    @property
    def collective_modes(self) -> int:
        """H such that the block, with its winding modes and register, costs what SwiGLU with h = 2k costs.

            H (6k + 1 + m) + W (3k + 1) + m k  ≈  6k² + 2k

        At k = 176 the plain block gets 176 modes: 186,032 parameters against 186,208.
        """
        if self.modes is not None:
            return self.modes
        k, m, w = self.k, self.register_size, self.winding_modes
        budget = swiglu_parameters(k, 2 * k) - w * (3 * k + 1) - m * k
        return max(1, round(budget / (6 * k + 1 + m)))


def swiglu_parameters(k: int, hidden: int) -> int:
    """Gate, up and down projection, and the gate's bias."""
    return 3 * k * hidden + hidden


@dataclass(frozen=True)
class TransformerConfig:
    """The baseline: pre-norm, RoPE, SwiGLU, no final norm."""

    vocab_size: int
    width: int = 120
    layers: int = 4
    heads: int = 1
    hidden: int | None = None
    """Hidden width of the SwiGLU; None is 4 × width."""
    dropout: float = DROPOUT
    """On the SwiGLU output."""
    dropout_hidden: float = 0.0
    dropout_attention: float = 0.0
    """On the attention weights and, as in GPT-2, on the attention output."""
    dropout_embedding: float = 0.0
    init: Literal["pytorch", "normal"] = "pytorch"
    """``pytorch``: PyTorch's defaults, embedding N(0, 1). ``normal``: N(0, 0.02²) everywhere."""
    shift: Literal["none", "kv", "kv-coordinate", "key-offset"] = "none"
    """Mix keys and values with their predecessors': ``kv`` by four scalars a head (KV shifting attention,
    arXiv:2411.19574), ``kv-coordinate`` by four numbers a coordinate; ``key-offset`` takes the slowly turning half
    of each key from its predecessor (modded-nanogpt), without parameters."""

    def __post_init__(self) -> None:
        check_types(self)
        _check_numbers(self)
        check(
            self.width >= 1 and self.width % (2 * self.heads) == 0,
            f"width is {self.width}; RoPE turns pairs, so take a multiple of {2 * self.heads} (2 × heads)",
        )
        check(
            self.shift != "key-offset" or self.width % (4 * self.heads) == 0,
            f"width is {self.width}; shift='key-offset' takes half of the rotary pairs, so take a multiple of "
            f"{4 * self.heads} (4 × heads)",
        )


Config = FSNConfig | TransformerConfig
_KINDS: dict[str, type[FSNConfig] | type[TransformerConfig]] = {
    "fsn": FSNConfig,
    "transformer": TransformerConfig,
}


def config_to_dict(config: Config) -> dict[str, Any]:
    """A plain dict with a ``kind``, fit for YAML and JSON."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(config, cls))
    return {"kind": kind, **dataclasses.asdict(config)}


def config_from_dict(values: dict[str, Any]) -> Config:
    """The inverse of :func:`config_to_dict`; unknown fields are errors that name the known ones."""
    rest = dict(values)
    kind = rest.pop("kind", None)
    known = isinstance(kind, str) and kind in _KINDS
    check(known, f"the model's kind is {short(kind)}; choose one of {', '.join(_KINDS)}")
    assert isinstance(kind, str)
    if isinstance(rest.get("coupling"), dict):
        rest["coupling"] = construct(CouplingLaw, rest["coupling"])
    config: Config = construct(_KINDS[kind], rest)
    return config
