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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..checks import check_choice
from ..errors import UserError
from ..models import build_from_config
from ..nn import CouplingKernel, record
from ..ops import FRAMES
from ..train.run import Run
from .finding import Finding, Subject, has_coupling, instrument
from .losses import evaluating
from .style import LAYERS, TONE, drawing, legend, zero_line
from .tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIELDS = ("present", "successor")
Array = NDArray[np.float64]
COLUMNS = {
    "field": "What is coupled to: the attended token (present), or the token after it (successor).",
    "layer": "Layer, counted from 1.",
    "harmonic": "Harmonic n of the coupling function.",
    "magnitude": ("Root mean square over coordinates of |w|, without unit (Kuramoto has 1 at n = 1).", ".4f"),
    "mean_real": ("Mean over coordinates of Re w, without unit; below zero the harmonic repels.", "+.4f"),
    "sign_flip": "Whether that mean is below zero.",
    "rms_imaginary": ("Root mean square over coordinates of Im w, without unit.", ".4f"),
    "angle": ("Frustration angle of the mean coefficient, in radians.", "+.3f"),
}
SCALES = {
    "layer": "Layer, counted from 1.",
    "alpha_attention": "Scale α of the bound after attention, in radians.",
    "alpha_feedforward": "Scale α of the bound after the feed-forward block, in radians.",
    "tau": "Temperature τ of the scores, shared by all layers.",
    "readout_scale": "Scale of the readout, shared by all layers.",
}


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

    α is ``nan`` where a bound does not exist.
    """

    weights: NDArray[np.complex128]
    attention_alpha: Array
    feedforward_alpha: Array
    tau: float
    readout_scale: float
    frame: str = "rest"
    label: str = ""

    @property
    def layers(self) -> int:
        return int(self.weights.shape[1])

    @property
    def harmonics(self) -> int:
        return int(self.weights.shape[2])

    def functions(self, delta: Array) -> Array:
        """f_ℓ(Δ) of both fields, (2, L, len(delta)), in the model's frame."""
        return coupling_function(self.weights, delta, self.frame)

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

    def table(self) -> Table:
        """One row per field, layer and harmonic. The angle φ is that of the coordinate-mean coefficient, w = ρ e^{iφ},
        in (−π, π]."""
        found = {
            "magnitude": self.magnitude,
            "mean_real": self.mean_real,
            "sign_flip": self.sign_flips,
            "rms_imaginary": self.rms_imaginary,
            "angle": np.angle(self.weights.mean(axis=-1)),
        }
        rows = [
            {"field": FIELDS[f], "layer": layer + 1, "harmonic": n + 1}
            | {name: values[f, layer, n].item() for name, values in found.items()}
            for f, layer, n in np.ndindex(self.weights.shape[:3])
        ]
        return Table.of(COLUMNS, rows, "The trained kernel by field, layer (from 1) and harmonic.")

    def scales(self) -> Table:
        """α of both bounds per layer; τ and the readout scale, which the layers share, stand in every row."""
        pairs = zip(self.attention_alpha.tolist(), self.feedforward_alpha.tolist(), strict=True)
        shared = (self.tau, self.readout_scale)
        rows = [dict(zip(SCALES, (i, *pair, *shared), strict=True)) for i, pair in enumerate(pairs, 1)]
        return Table.of(SCALES, rows)


def kernels_of(model: nn.Module) -> list[CouplingKernel]:
    """The coupling kernels of an oscillator model, first layer first."""
    layers = getattr(model, "layers", None)
    if layers is None or not all(hasattr(layer, "kernel") for layer in layers):
        raise UserError(
            "this model has no coupling kernel to read; give an FSN or Kuramoto run: a transformer has none"
        )
    return [layer.kernel for layer in layers]


def read_kernel(model: nn.Module, label: str = "") -> KernelReading:
    """Coefficients, α, τ and readout scale of an oscillator model."""
    parts = [kernel.coefficients() for kernel in kernels_of(model)]
    fsn: Any = model
    pairs = torch.stack([torch.stack([part[name] for part in parts]) for name in ("w0", "w1")])
    weights = torch.view_as_complex(pairs.detach().cpu().double()).numpy()

    def alphas(bound: str) -> Array:
        found = (getattr(layer, bound).alpha for layer in fsn.layers)
        return np.array([math.nan if alpha is None else alpha.item() for alpha in found])

    scales = alphas("attention_bound"), alphas("feedforward_bound"), fsn.tau.item(), fsn.readout.scale.item()
    return KernelReading(weights, *scales, frame=fsn.config.coupling.frame, label=label)


def read_gates(model: nn.Module, tokens: torch.Tensor) -> Table:
    """What the signed value gates do on a text (B, T): attractive and repulsive shares per layer.

    A gate above zero lets the coupling attract, below zero it repels. ``always_attractive`` and
    ``always_repulsive`` are shares of coordinates that keep one sign on every token; the rest switch with
    the text.
    """
    with evaluating(model), record(model, "layers.*.gates.value") as points:
        model(tokens)
    rows = []
    for layer, gate in enumerate(points.values(), 1):
        flat = gate.double().cpu().reshape(-1, gate.shape[-1])
        row = {"layer": layer, "mean": flat.mean().item(), "rms": flat.pow(2).mean().sqrt().item()}
        for name, sign in {"attractive": flat > 0, "repulsive": flat < 0}.items():
            row[name] = sign.double().mean().item()
            row[f"always_{name}"] = sign.all(dim=0).double().mean().item()
        rows.append(row)
    columns = {
        "layer": "Layer, counted from 1.",
        "mean": ("Mean gate, without unit.", "+.4f"),
        "rms": ("Root mean square of the gates, without unit.", ".4f"),
        "attractive": ("Share of gates above zero.", ".1%"),
        "repulsive": ("Share of gates below zero.", ".1%"),
        "always_attractive": ("Share of coordinates whose gate is above zero on every token.", ".1%"),
        "always_repulsive": ("Share of coordinates whose gate is below zero on every token.", ".1%"),
    }
    return Table.of(columns, rows, "Value gates by layer: share of gate values and of coordinates by sign.")


def start_of(run: Run) -> KernelReading:
    """The kernel as the run's seed drew it, before the first step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.recipe.seed)
        model = build_from_config(run.model_config)
    return read_kernel(model, "start")


def through_training(run: Run, trained: KernelReading) -> list[KernelReading]:
    """The kernel at the start, after every epoch that was kept, and as trained."""
    kept = [read_kernel(model, f"epoch {epoch}") for epoch, model in run.kernels()]
    return [start_of(run), *kept, dataclasses.replace(trained, label="best")]


def thinned(readings: Sequence[KernelReading]) -> list[KernelReading]:
    """At most eight, evenly spread, first and last among them."""
    places = np.unique(np.linspace(0, len(readings) - 1, min(8, len(readings))).round().astype(int))
    return [readings[i] for i in places]


def coupling_data(readings: Sequence[KernelReading], coordinates: bool = False) -> dict[str, Any]:
    """What ``report/kernel.js`` draws: coefficients [re, im] by field, layer and harmonic, of every reading their mean
    over coordinates, and of the last reading each coordinate too if asked for."""
    last = readings[-1]

    def pairs(w: NDArray[np.complex128], digits: int) -> Any:
        return np.stack([w.real, w.imag], axis=-1).round(digits).tolist()

    data: dict[str, Any] = {
        "frame": last.frame,
        "layers": last.layers,
        "harmonics": last.harmonics,
        "steps": [{"label": one.label, "weights": pairs(one.weights.mean(axis=-1), 6)} for one in readings],
    }
    if coordinates:
        data["coordinates"] = pairs(np.moveaxis(last.weights, -1, 2), 4)
    return data


# -- figures -------------------------------------------------------------------------------------------------


def _functions(axes: Axes, reading: KernelReading, field: int) -> None:
    delta = np.linspace(-np.pi, np.pi, 361)
    zero_line(axes)
    axes.plot(delta, np.sin(delta), color=TONE["rule"], linestyle=(0, (4, 3)), linewidth=1.2, label="sin Δ")
    for layer, values in enumerate(reading.functions(delta)[field]):
        axes.plot(delta, values, color=LAYERS[layer % len(LAYERS)], label=f"layer {layer + 1}")
    axes.set_xticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], ["−π", "−π/2", "0", "π/2", "π"])
    axes.set(xlim=(-np.pi, np.pi), xlabel="phase difference Δ", title=f"{FIELDS[field]} field")


def _magnitudes(axes: Axes, reading: KernelReading) -> None:
    from matplotlib.patches import Patch

    layers, harmonics = reading.layers, reading.harmonics
    width, gap = 0.8 / layers, 0.6
    ticks, names = [], []
    for f in range(len(FIELDS)):
        for n in range(harmonics):
            centre = f * (harmonics + gap) + n
            ticks.append(centre)
            names.append(f"n={n + 1}")
            for layer in range(layers):
                place, tint = centre + (layer - (layers - 1) / 2) * width, LAYERS[layer % len(LAYERS)]
                hatch = "//////" if reading.sign_flips[f, layer, n] else None
                size = reading.magnitude[f, layer, n]
                axes.bar(place, size, 0.9 * width, color=tint, edgecolor="white", linewidth=0.0, hatch=hatch)
        middle = f * (harmonics + gap) + (harmonics - 1) / 2
        where: dict[str, Any] = {
            "xycoords": ("data", "axes fraction"),
            "textcoords": "offset points",
            "ha": "center",
        }
        name = f"{FIELDS[f]} field w{'₀₁'[f]}"
        axes.annotate(name, (middle, 0), xytext=(0, -19), va="top", fontsize=8, **where)
    axes.set_xticks(ticks, names)
    axes.tick_params(axis="x", length=0, pad=2)
    axes.grid(False, axis="x")
    axes.set_xlabel(" ")  # keeps the room of the two field names
    axes.set_title("RMS magnitude of w")
    if reading.sign_flips.any():
        mark = Patch(
            facecolor=TONE["rule"], edgecolor="white", hatch="//////", linewidth=0, label="mean Re w < 0"
        )
        axes.set_ylim(top=1.2 * axes.get_ylim()[1])  # room for the legend above the bars
        axes.legend(handles=[mark], loc="upper center", handlelength=1.4)


def draw_coupling(reading: KernelReading, successor: bool = False) -> Figure:
    """The trained kernel as coupling functions (left) and harmonic magnitudes (right).

    Hatched bars are harmonics whose coordinate-mean real coefficient is negative. ``successor`` adds the
    coupling functions of the successor field as a panel of their own.
    """
    panels = 3 if successor else 2
    shares = {"width_ratios": [1, 1, 1.5] if successor else [1, 1.25]}
    with drawing(1, panels, 2.6 if panels == 2 else 2.4, gridspec_kw=shares) as (figure, grid):
        if successor:
            grid[0, 1].sharey(grid[0, 0])
        for field in range(panels - 1):
            _functions(grid[0, field], reading, field)
        grid[0, 0].set_ylabel("coupling f(Δ)")
        legend(grid[0, 0], loc="upper left", fontsize=7)
        _magnitudes(grid[0, -1], reading)
    return figure


def draw_coupling_history(readings: Sequence[KernelReading]) -> Figure:
    """How the coupling functions changed through training: a row per field, a column per layer."""
    delta = np.linspace(-np.pi, np.pi, 181)
    with drawing(2, readings[0].layers, 3.2, sharex=True, sharey="row") as (figure, grid):
        for i, reading in enumerate(readings):
            functions = reading.functions(delta)
            strength = 0.25 + 0.75 * (i + 1) / len(readings)
            for f in range(2):
                for layer in range(reading.layers):
                    look = {"alpha": strength, "linewidth": 1.7 if i == len(readings) - 1 else 0.9}
                    tint = LAYERS[layer % len(LAYERS)]
                    grid[f, layer].plot(delta, functions[f, layer], color=tint, **look)
        for f in range(2):
            grid[f, 0].set_ylabel(f"{FIELDS[f]} f(Δ)")
            for axes in grid[f]:
                zero_line(axes)
                axes.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
                axes.set_xlim(-np.pi, np.pi)
        for layer, axes in enumerate(grid[0]):
            axes.set_title(f"layer {layer + 1}")
        labels = [reading.label for reading in readings if reading.label]
        through = f": {labels[0]} (faint) to {labels[-1]} (bold)" if len(labels) > 1 else ""
        figure.supxlabel(f"phase difference Δ{through}", fontsize=8.5)
    return figure


# -- the instrument ------------------------------------------------------------------------------------------


@instrument("coupling", applies=has_coupling)
def inspect(subject: Subject) -> Finding:
    """The run's kernel, now and through training."""
    reading = read_kernel(subject.models[subject.name], subject.name)
    readings = thinned(through_training(subject.run, reading))
    first = reading.magnitude[:, :, 0]  # (field, layer)
    stronger = int((first[1] > first[0]).sum())
    return Finding(
        "Coupling functions",
        "The pull on a token as a function of its phase difference to what it attends to (present) and to what came "
        f"after that (successor). In {stronger} of {reading.layers} layers the first harmonic of the successor field "
        f"is the stronger one; {int(reading.sign_flips.sum())} of {reading.sign_flips.size} mean coefficients are "
        "negative, that is, they repel.",
        {"coupling": reading.table(), "scales": reading.scales()},
        {
            "coupling": lambda: draw_coupling(reading, successor=True),
            "coupling-history": lambda: draw_coupling_history(readings),
        },
    )
