"""Configurations: frozen, validated when built, round-trip through plain dicts and YAML."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..errors import UserError
from ..ops import FRAMES
from ..validate import check_types

FEEDFORWARD = ("swiglu", "torus-swiglu", "mean-field", "mean-field-winding", "none")
STATES = ("lifted", "wrapped")
BOUNDS = ("tanh", "none")
ROUNDING = ("both", "scores", "logits", "none")
VALUE_GATES = ("signed", "positive")
TRANSFORMER_INITS = ("pytorch", "normal")
SHIFTS = ("none", "kv", "kv-coordinate", "key-offset")


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    _check(value in choices, f"{name} is {value!r}; choose one of {', '.join(choices)}")


def _rate(name: str, value: float) -> None:
    _check(0.0 <= value < 1.0, f"{name} is {value}; a dropout rate lies in [0, 1)")


@dataclass(frozen=True)
class Coupling:
    """The coupling law: which terms of equation 2 exist, and how they start."""

    harmonics: int = 3
    """N, the number of harmonics."""
    present: bool = True
    """Couple to the attended token itself (w0)."""
    delay: bool = True
    """Couple to the attended token's successor (w1)."""
    phases: bool = True
    """Complex coefficients, that is, static frustration angles."""
    frame: str = "co-rotating"
    """``co-rotating`` removes the uniform rotation, ``rest`` is equation 2 as written."""
    noise: float = 0.05
    """Standard deviation of the imaginary parts at the start."""
    learned: bool = True
    """False freezes the coefficients at their start and takes them out of the parameter count."""
    shared: bool = False
    """One coefficient per harmonic for all coordinates."""

    def __post_init__(self) -> None:
        check_types(self)
        _check(self.harmonics >= 1, f"harmonics is {self.harmonics}; take at least 1")
        _check(self.present or self.delay, "present and delay are both off; a coupling law needs one of them")
        _one_of("frame", self.frame, FRAMES)
        _check(self.noise >= 0, f"noise is {self.noise}; a standard deviation is not negative")
        _check(
            self.learned or not self.phases,
            "a kernel that is not learned cannot have phases; set phases=False or learned=True",
        )


@dataclass(frozen=True)
class FSNConfig:
    """A point on the grid: coupling law × feed-forward block × state × bound."""

    vocab_size: int
    k: int = 176
    layers: int = 4
    coupling: Coupling = field(default_factory=Coupling)
    feedforward: str = "swiglu"
    """swiglu, torus-swiglu (reads cos θ and sin θ), mean-field, mean-field-winding, none."""
    state: str = "lifted"
    """``lifted``: phases accumulate. ``wrapped``: back into (−π, π] after every layer, with a register."""
    bound: str = "tanh"
    """``tanh``: the norm-matched bound. ``none``: no bound (diverges)."""
    value_gate: str = "signed"
    """``signed``: the linear map itself. ``positive``: through softplus."""
    hidden: int | None = None
    """Hidden width of the SwiGLU; None is 2k, and 4k for torus-swiglu."""
    modes: int | None = None
    """Collective modes H; None solves for the parameter count of the SwiGLU replaced."""
    winding: int | None = None
    """Winding modes of mean-field-winding; None is k // 11 (16 at k = 176)."""
    register: int | None = None
    """Register size m of the wrapped state; None is k // 11."""
    dropout: float = 0.0
    """On the raw feed-forward output, before its bound."""
    dropout_hidden: float = 0.0
    """On the SwiGLU's hidden layer."""
    dropout_attention: float = 0.0
    """On the attention weights."""
    rounding: str = "both"
    """What is rounded to bfloat16 under autocast: scores, logits, both, none. No effect in float32."""
    readout_start: float | None = None
    """Readout scale s at the start; None is 1/√k."""
    tau_start: float | None = None
    """Score temperature τ at the start; None is √k."""
    dropout_update: float = 0.0
    """On the raw coupling update, before its bound."""

    def __post_init__(self) -> None:
        check_types(self)
        _check(self.vocab_size >= 1, f"vocab_size is {self.vocab_size}; take at least 1")
        _check(self.k >= 1, f"k is {self.k}; take at least 1 phase")
        _check(self.layers >= 1, f"layers is {self.layers}; take at least 1")
        _one_of("feedforward", self.feedforward, FEEDFORWARD)
        _one_of("state", self.state, STATES)
        _one_of("bound", self.bound, BOUNDS)
        _one_of("value_gate", self.value_gate, VALUE_GATES)
        _one_of("rounding", self.rounding, ROUNDING)
        _check(
            self.tau_start is None or self.tau_start > 0,
            f"tau_start is {self.tau_start}; a temperature is positive, leave it out for √k",
        )
        for name in ("dropout", "dropout_hidden", "dropout_attention", "dropout_update"):
            _rate(name, getattr(self, name))
        for name in ("hidden", "modes", "winding", "register"):
            value = getattr(self, name)
            _check(value is None or value >= 1, f"{name} is {value}; take at least 1, or None to derive it")
        gated = self.feedforward in ("swiglu", "torus-swiglu")
        _check(
            not self.dropout_hidden or gated,
            f"dropout_hidden acts on a SwiGLU's hidden layer; feedforward {self.feedforward!r} has none, set it to 0",
        )
        _check(
            self.hidden is None or gated,
            f"hidden is for SwiGLU blocks; leave it out with {self.feedforward!r}",
        )
        modal = self.feedforward.startswith("mean-field")
        _check(
            self.modes is None or modal,
            f"modes is for mean-field blocks; leave it out with {self.feedforward!r}",
        )
        _check(
            self.winding is None or self.feedforward == "mean-field-winding",
            "winding is for feedforward='mean-field-winding'; leave it out otherwise",
        )
        _check(
            self.state == "wrapped" or self.register is None,
            "a register belongs to state='wrapped'; leave register out for the lifted state",
        )
        _check(
            self.state == "lifted" or self.feedforward != "none",
            "with state='wrapped' the register is read by the feed-forward block; choose one other than 'none'",
        )


@dataclass(frozen=True)
class TransformerConfig:
    """The baseline: pre-norm, RoPE, SwiGLU, no final norm."""

    vocab_size: int
    width: int = 120
    layers: int = 4
    heads: int = 1
    hidden: int | None = None
    """Hidden width of the SwiGLU; None is 4 × width."""
    dropout: float = 0.1
    """On the SwiGLU output."""
    dropout_hidden: float = 0.0
    dropout_attention: float = 0.0
    """On the attention weights and, as in GPT-2, on the attention output."""
    dropout_embedding: float = 0.0
    init: str = "pytorch"
    """``pytorch``: library defaults, embedding N(0, 1). ``normal``: N(0, 0.02²) everywhere."""
    shift: str = "none"
    """Mix keys and values with their predecessors': ``kv`` by four scalars a head (KV shifting attention,
    arXiv:2411.19574), ``kv-coordinate`` by four numbers a coordinate; ``key-offset`` takes the slowly turning half
    of each key from its predecessor (modded-nanogpt), without parameters."""

    def __post_init__(self) -> None:
        check_types(self)
        _check(self.vocab_size >= 1, f"vocab_size is {self.vocab_size}; take at least 1")
        _check(self.layers >= 1, f"layers is {self.layers}; take at least 1")
        _check(self.heads >= 1, f"heads is {self.heads}; take at least 1")
        _check(
            self.width >= 1 and self.width % (2 * self.heads) == 0,
            f"width is {self.width}; RoPE turns pairs, so take a multiple of {2 * self.heads} (2 × heads)",
        )
        _one_of("init", self.init, TRANSFORMER_INITS)
        _one_of("shift", self.shift, SHIFTS)
        _check(
            self.shift != "key-offset" or self.width % (4 * self.heads) == 0,
            f"width is {self.width}; shift='key-offset' takes half of the rotary pairs, so take a multiple of "
            f"{4 * self.heads} (4 × heads)",
        )
        for name in ("dropout", "dropout_hidden", "dropout_attention", "dropout_embedding"):
            _rate(name, getattr(self, name))
        _check(self.hidden is None or self.hidden >= 1, f"hidden is {self.hidden}; take at least 1")


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
    _check(kind in _KINDS, f"the model's kind is {kind!r}; choose one of {', '.join(_KINDS)}")
    assert isinstance(kind, str)
    if isinstance(rest.get("coupling"), dict):
        rest["coupling"] = _construct(Coupling, rest["coupling"])
    return _construct(_KINDS[kind], rest)


def _construct(cls: Any, values: dict[str, Any]) -> Any:
    known = {f.name for f in dataclasses.fields(cls)}
    for name in values:
        _check(name in known, f"{cls.__name__} has no field {name!r}; it has {', '.join(sorted(known))}")
    needed = {f.name for f in dataclasses.fields(cls) if _required(f)}
    missing = needed - set(values)
    _check(not missing, f"{cls.__name__} needs {', '.join(sorted(missing))}; add it")
    return cls(**values)


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def config_to_yaml(config: Config) -> str:
    return yaml.safe_dump(config_to_dict(config), sort_keys=False)


def config_from_yaml(text: str) -> Config:
    values = yaml.safe_load(text)
    _check(isinstance(values, dict), "the YAML text holds no mapping; write one field per line")
    return config_from_dict(values)
