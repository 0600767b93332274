"""Reading a trained kernel as coupling functions.

Every coefficient of the coupling kernel belongs to a coupling function. With w the complex coefficients of
one field (w0 for the present field, w1 for the successor field) and Δ the phase of the other token minus
one's own,

    f_ℓ(Δ) = 1/k · Σ_a Σ_n Im[ w(ℓ, a, n) e^{inΔ} ]
           = 1/k · Σ_a Σ_n [ Re w(ℓ, a, n) sin nΔ + Im w(ℓ, a, n) cos nΔ ],

which is sin Δ for Kuramoto coupling. In the co-rotating frame the constant Σ_n Im w is taken away, so that
f_ℓ(0) = 0: tokens that agree leave each other alone. All of this is exact arithmetic in float64 on the
coefficients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fsn.checks import check_choice
from fsn.errors import UserError
from fsn.measure.losses import evaluating
from fsn.measure.tables import Table
from fsn.models import build_from_config
from fsn.nn import CouplingKernel, record
from fsn.ops import FRAMES
from fsn.train.run import Run

FIELDS = ("present", "successor")
Array = NDArray[np.float64]


def coupling_function(coefficients: NDArray[np.complexfloating], delta: Array, frame: str = "rest") -> Array:
    """f(Δ) of coefficients (…, N, k), averaged over the k coordinates: (…, len(delta))."""
    check_choice("frame", frame, FRAMES)
    mean = np.asarray(coefficients, dtype=np.complex128).mean(axis=-1)  # (…, N)
    n = np.arange(1, mean.shape[-1] + 1)
    f = mean.real @ np.sin(np.outer(n, delta)) + mean.imag @ np.cos(np.outer(n, delta))
    return f - mean.imag.sum(axis=-1)[..., None] if frame == "co-rotating" else f


@dataclass(frozen=True)
class KernelReading:
    """The kernel of one model: ``weights`` (2, L, N, k) complex, fields in the order present, successor.

    α is ``nan`` where a bound does not exist. ``gates`` is filled by :func:`read_gates` when asked for.
    """

    weights: NDArray[np.complex128]
    attention_alpha: Array
    feedforward_alpha: Array
    tau: float
    readout_scale: float
    frame: str = "rest"
    label: str = ""
    gates: Table | None = field(default=None, compare=False)

    @property
    def layers(self) -> int:
        return int(self.weights.shape[1])

    @property
    def harmonics(self) -> int:
        return int(self.weights.shape[2])

    def functions(self, delta: Array, frame: str | None = None) -> Array:
        """f_ℓ(Δ) of both fields, (2, L, len(delta)); in the model's own frame unless another is named."""
        return coupling_function(self.weights, delta, frame or self.frame)

    @property
    def magnitude(self) -> Array:
        """Root mean square over coordinates of |w|, (2, L, N)."""
        return np.asarray(np.sqrt((np.abs(self.weights) ** 2).mean(axis=-1)))

    @property
    def mean_real(self) -> Array:
        """Coordinate mean of Re w, (2, L, N)."""
        return self.weights.real.mean(axis=-1)

    @property
    def sign_flips(self) -> NDArray[np.bool_]:
        """Harmonics whose coordinate-mean real coefficient is negative, (2, L, N)."""
        return self.mean_real < 0

    @property
    def rms_imaginary(self) -> Array:
        """Root mean square over coordinates of Im w, (2, L, N)."""
        return np.asarray(np.sqrt((self.weights.imag**2).mean(axis=-1)))

    @property
    def angles(self) -> Array:
        """Static frustration angle φ of every coefficient, w = ρ e^{iφ}, (2, L, N, k) in (−π, π]."""
        return np.asarray(np.angle(self.weights), dtype=np.float64)

    @property
    def mean_angle(self) -> Array:
        """Angle of the coordinate-mean coefficient, (2, L, N)."""
        return np.asarray(np.angle(self.weights.mean(axis=-1)), dtype=np.float64)

    @property
    def off_axis(self) -> Array:
        """How far the angles lie from 0 and π: RMS Im w / RMS |w|, (2, L, N); 0 is a real kernel."""
        size = self.magnitude
        return np.divide(self.rms_imaginary, size, out=np.zeros_like(size), where=size > 0)

    def table(self) -> Table:
        """One row per field, layer and harmonic."""
        columns = (
            "field",
            "layer",
            "harmonic",
            "magnitude",
            "mean_real",
            "sign_flip",
            "rms_imaginary",
            "angle",
        )
        rows = []
        for f, name in enumerate(FIELDS):
            for layer in range(self.layers):
                for n in range(self.harmonics):
                    at = (f, layer, n)
                    values = (
                        name,
                        layer + 1,
                        n + 1,
                        float(self.magnitude[at]),
                        float(self.mean_real[at]),
                        bool(self.sign_flips[at]),
                        float(self.rms_imaginary[at]),
                        float(self.mean_angle[at]),
                    )
                    rows.append(dict(zip(columns, values, strict=True)))
        forms = {"magnitude": ".4f", "mean_real": "+.4f", "rms_imaginary": ".4f", "angle": "+.3f"}
        return Table(columns, rows, forms, "The trained kernel by field, layer (from 1) and harmonic.")

    def scales(self) -> Table:
        """α of both bounds per layer; τ and the readout scale, which the layers share, stand in every row."""
        rows = [
            {
                "layer": i + 1,
                "alpha_attention": float(self.attention_alpha[i]),
                "alpha_feedforward": float(self.feedforward_alpha[i]),
                "tau": self.tau,
                "readout_scale": self.readout_scale,
            }
            for i in range(self.layers)
        ]
        return Table(("layer", "alpha_attention", "alpha_feedforward", "tau", "readout_scale"), rows)


def _number(value: torch.Tensor | float | None) -> float:
    if value is None:
        return math.nan
    return float(value.detach().double().item() if isinstance(value, torch.Tensor) else value)


def _complex(pairs: torch.Tensor) -> NDArray[np.complex128]:
    array = pairs.detach().cpu().double().numpy()
    return np.asarray(array[..., 0] + 1j * array[..., 1], dtype=np.complex128)


def kernels_of(model: nn.Module) -> list[CouplingKernel]:
    """The coupling kernels of an oscillator model, first layer first."""
    layers = getattr(model, "layers", None)
    if layers is None or not all(hasattr(layer, "kernel") for layer in layers):
        raise UserError(
            "This model has no coupling kernel to read; give an FSN or Kuramoto run: a transformer has none."
        )
    return [layer.kernel for layer in layers]


def read_kernel(model: nn.Module, label: str = "") -> KernelReading:
    """Coefficients, α, τ and readout scale of an oscillator model."""
    parts = [kernel.coefficients() for kernel in kernels_of(model)]
    layers: Any = model.layers
    weights = np.stack([np.stack([_complex(part[name]) for part in parts]) for name in ("w0", "w1")])
    return KernelReading(
        weights,
        np.array(
            [_number(getattr(getattr(layer, "attention_bound", None), "alpha", None)) for layer in layers]
        ),
        np.array(
            [_number(getattr(getattr(layer, "feedforward_bound", None), "alpha", None)) for layer in layers]
        ),
        _number(getattr(model, "tau", None)),
        _number(getattr(getattr(model, "readout", None), "scale", None)),
        frame=str(getattr(getattr(getattr(model, "config", None), "coupling", None), "frame", "rest")),
        label=label,
    )


def read_gates(model: nn.Module, tokens: torch.Tensor) -> Table:
    """What the signed value gates do on a text (B, T): attractive and repulsive shares per layer.

    A gate above zero lets the coupling attract, below zero it repels. ``always_attractive`` and
    ``always_repulsive`` are shares of coordinates that keep one sign on every token; the rest switch with
    the text.
    """
    with evaluating(model), record(model, "layers.*.gates.value") as points:
        model(tokens)
    columns = ("layer", "mean", "rms", "attractive", "repulsive", "always_attractive", "always_repulsive")
    rows = []
    for i in range(len(model.layers)):  # type: ignore[arg-type]
        gate = points[f"layers.{i}.gates.value"].detach().double().cpu()
        flat = gate.reshape(-1, gate.shape[-1])
        values = (
            i + 1,
            flat.mean().item(),
            flat.pow(2).mean().sqrt().item(),
            (flat > 0).double().mean().item(),
            (flat < 0).double().mean().item(),
            (flat > 0).all(dim=0).double().mean().item(),
            (flat < 0).all(dim=0).double().mean().item(),
        )
        rows.append(dict(zip(columns, values, strict=True)))
    forms = {name: ".1%" for name in columns[3:]} | {"mean": "+.4f", "rms": ".4f"}
    return Table(
        columns, rows, forms, "Value gates by layer: share of gate values and of coordinates by sign."
    )


def read_history(models: Iterable[tuple[str, nn.Module]] | Mapping[str, nn.Module]) -> list[KernelReading]:
    """One reading per checkpoint, in the given order: how the coupling functions changed through training.

    The pairs may come from a generator that loads one checkpoint after another, so that one model is held
    at a time.
    """
    pairs = models.items() if isinstance(models, Mapping) else models
    readings = [read_kernel(model, label) for label, model in pairs]
    shapes = {reading.weights.shape for reading in readings}
    if len(shapes) > 1:
        raise UserError("The checkpoints have kernels of different shapes; read checkpoints of one run.")
    return readings


def history_table(readings: Iterable[KernelReading]) -> Table:
    """The rows of every reading's table with the checkpoint's label in front."""
    rows: list[Mapping[str, object]] = []
    columns: tuple[str, ...] = ("checkpoint",)
    forms: Mapping[str, str] = {}
    for reading in readings:
        table = reading.table()
        columns, forms = ("checkpoint", *table.columns), table.formats
        rows += [{"checkpoint": reading.label, **row} for row in table.rows]
    return Table(columns, rows, forms, "The kernel through training.")


def start_of(run: Run) -> KernelReading:
    """The kernel as the run's seed drew it, before the first step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.recipe.seed)
        model = build_from_config(run.model_config)
    return read_kernel(model, "start")


def through_training(run: Run, trained: KernelReading) -> list[KernelReading]:
    """The kernel at the start, after every epoch that was kept, and as trained."""
    kept = read_history((f"epoch {epoch}", model) for epoch, model in run.kernels())
    return [start_of(run), *kept, dataclasses.replace(trained, label="best")]


def thinned(readings: Sequence[KernelReading], most: int = 8) -> list[KernelReading]:
    """At most so many, evenly spread, first and last among them."""
    places = np.unique(np.linspace(0, len(readings) - 1, min(most, len(readings))).round().astype(int))
    return [readings[i] for i in places]
