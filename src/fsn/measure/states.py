"""Do tokens synchronize through depth? Order parameters, winding, rank and clustering of token states.

The paper opens with the claim that attention drives token states to consensus: they cluster, lose rank and
collapse to a shared value. Here is what each of these words measures, on states (B, T, k) after the
embedding and after every layer.

Phases θ are compared as unit phasors z = e^{iθ}, read as real vectors x = [cos θ, sin θ] / √k of length
one. A transformer's state is scaled to length one token by token. So for every model each token is a point
on a sphere, and rank, clustering and spread mean the same thing. Order parameters and winding exist for
phases only.

=================  ===========================================================  ===========  ================
quantity           formula (per sequence, then averaged over sequences)        consensus    scattered
=================  ===========================================================  ===========  ================
token order        R_n = mean_c | 1/T Σ_t z_tc^n |                             1            ≈ √(π/4T)
coordinate order   mean_t | 1/k Σ_c z_tc |                                     any          ≈ √(π/4k)
cosine             mean over pairs t ≠ u of x_t · x_u                          1            0
spread             ‖X − 1 x̄‖ / ‖X‖                                             0            1
effective rank     exp(−Σ p_i ln p_i), p_i = σ_i / Σ σ                         1            ≲ min(T, width)
stable rank        Σ σ_i² / σ_1²                                               1            ≲ min(T, width)
clusters           1 / Σ (σ_i² / Σ σ²)²                                        1            ≲ min(T, width)
=================  ===========================================================  ===========  ================

σ are the singular values of X (T, width). ``clusters`` is the participation ratio of the spectrum: m equal
groups of tokens, each of one state and orthogonal to the others, give exactly m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data import Windows
from ..errors import UserError
from ..models import FSN, LanguageModel
from ..nn import record
from .finding import Finding, Subject, instrument
from .losses import evaluating
from .style import MARKERS, TONE, colours, drawing, legend
from .tables import Table, stacked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = {"model": "The run.", "depth": "Number of layers passed; 0 is the embedding."}
ABOUT = {
    "token_order": "Order parameter over the tokens of a sequence: 1 if all phases agree, about 0 if scattered.",
    "token_order_2": "The same of twice the phase: 1 also for two opposite groups.",
    "token_order_3": "The same of three times the phase.",
    "coordinate_order": "Order parameter over the coordinates of a token, 0 to 1.",
    "rms_phase": "Root mean square of the lifted phase, in radians.",
    "rms_lift": "Root mean square of the phase minus its principal value, in radians.",
    "wound": "Share of phases beyond (−π, π].",
    "cosine": "Mean cosine of pairs of tokens: 1 for one state, 0 for scattered ones.",
    "spread": "Spread around the mean state, 0 (consensus) to 1.",
    "effective_rank": "Exponential of the entropy of the singular values: how many directions the tokens use.",
    "stable_rank": "Sum of squared singular values over the largest.",
    "clusters": "Participation ratio of the spectrum: m equal orthogonal groups give m.",
}
STATE_QUANTITIES = tuple(ABOUT)[7:]
"""What every model has; the others are of phases."""


def order_parameters(phases: Tensor) -> dict[str, float]:
    """|mean z^n| over the tokens of a sequence per coordinate, and |mean z| over the coordinates per token.

    The second harmonic tells two opposite groups (R₁ = 0, R₂ = 1) from scattered phases (both 0).
    """
    theta = phases.detach().double()

    def order(n: int, dim: int) -> float:
        return torch.hypot(torch.cos(n * theta).mean(dim), torch.sin(n * theta).mean(dim)).mean().item()

    over = {"token_order": (1, -2), "token_order_2": (2, -2), "token_order_3": (3, -2)}
    return {name: order(*how) for name, how in {**over, "coordinate_order": (1, -1)}.items()}


def winding(phases: Tensor) -> dict[str, float]:
    """The lift: how much of the phase lies beyond its principal value in (−π, π].

    ``rms_phase`` is the RMS of θ, ``rms_lift`` the RMS of θ minus its principal value (a multiple of 2π),
    ``wound`` the share of coordinates with any lift at all. Only a reader of θ itself sees it; phasors do
    not.
    """
    theta = phases.detach().double()
    turns = torch.ceil(theta / (2 * math.pi) - 0.5)
    lift = 2 * math.pi * turns
    return {
        "rms_phase": theta.pow(2).mean().sqrt().item(),
        "rms_lift": lift.pow(2).mean().sqrt().item(),
        "wound": (turns != 0).double().mean().item(),
    }


def state_geometry(states: Tensor, phases: bool) -> dict[str, float]:
    """Clustering, spread and rank of token states (B, T, k), put on the unit sphere; see the table."""
    x = states.detach().double()
    if phases:
        x = torch.cat([torch.cos(x), torch.sin(x)], dim=-1) / math.sqrt(x.shape[-1])
    else:
        x = x / x.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    tokens = x.shape[-2]
    gram = x @ x.transpose(-1, -2)  # (B, T, T), ones on the diagonal
    pairs = (gram.sum(dim=(-1, -2)) - gram.diagonal(dim1=-1, dim2=-2).sum(-1)) / max(tokens * (tokens - 1), 1)
    centred = x - x.mean(dim=-2, keepdim=True)
    spread = centred.norm(dim=(-1, -2)) / x.norm(dim=(-1, -2))
    energy = torch.linalg.eigvalsh(gram).clamp_min(0.0)  # σ²
    # Rounding leaves about 1e-16 of the energy where σ is zero; its root would look like rank.
    energy = torch.where(energy > 1e-13 * energy.amax(dim=-1, keepdim=True), energy, torch.zeros_like(energy))
    p = energy.sqrt() / energy.sqrt().sum(dim=-1, keepdim=True)
    share = energy / energy.sum(dim=-1, keepdim=True)
    return {
        "cosine": pairs.mean().item(),
        "spread": spread.mean().item(),
        "effective_rank": torch.exp(-torch.xlogy(p, p).sum(dim=-1)).mean().item(),
        "stable_rank": (energy.sum(dim=-1) / energy.amax(dim=-1)).mean().item(),
        "clusters": (1.0 / share.pow(2).sum(dim=-1)).mean().item(),
    }


def diagnose(states: Tensor, phases: bool = True) -> dict[str, float]:
    """All quantities of one set of token states (B, T, k) or (T, k)."""
    batch = states if states.dim() == 3 else states[None]
    if batch.dim() != 3:
        raise UserError(f"token states have shape (B, T, k), not {tuple(states.shape)}")
    values = state_geometry(batch, phases)
    return order_parameters(batch) | winding(batch) | values if phases else values


@dataclass(frozen=True)
class DepthProfile:
    """Diagnostics after the embedding (depth 0) and after every layer of one model.

    ``values[quantity]`` is a list over depth. ``phases`` says whether the states are phases; ``baseline``
    holds the order parameters that phases drawn at random would show at this size.
    """

    label: str
    phases: bool
    depth: list[int]
    values: Mapping[str, list[float]]
    baseline: Mapping[str, float]

    def table(self) -> Table:
        rows = [
            {"model": self.label, "depth": d, **{name: series[i] for name, series in self.values.items()}}
            for i, d in enumerate(self.depth)
        ]
        forms = {name: ".2%" if name == "wound" else ".4f" for name in self.values}
        return Table.of(HEAD | {name: (ABOUT[name], form) for name, form in forms.items()}, rows)


def depth_profile(model: LanguageModel, tokens: Tensor, label: str = "") -> DepthProfile:
    """Run ``tokens`` (B, T) through a model and diagnose its states through depth.

    FSN and Kuramoto states are the phases after each layer; transformer states are the residual stream.
    """
    phases = isinstance(model, FSN)
    with evaluating(model), record(model, model.first_point, "layers.*.state") as points:
        model(tokens)
    found = [diagnose(state.float().cpu(), phases) for state in points.values()]
    values = {name: [row[name] for row in found] for name in (ABOUT if phases else STATE_QUANTITIES)}
    sizes = zip(("token_order", "coordinate_order"), points[model.first_point].shape[-2:], strict=True)
    baseline = {name: math.sqrt(math.pi / (4 * size)) for name, size in sizes} if phases else {}
    return DepthProfile(label, phases, list(range(len(found))), values, baseline)


PROFILE_PANELS = (
    ("cosine", "mean cosine of token pairs", False),
    ("spread", "spread around the mean state", False),
    ("effective_rank", "effective rank of token states", False),
    ("token_order", "order parameter over tokens", True),
    ("rms_phase", "RMS of the lifted phase (rad)", True),
    ("wound", "share of wound phases", True),
)


def draw_states(profiles: Sequence[DepthProfile]) -> Figure:
    """Consensus, rank, order and winding of token states from the embedding through the layers; the dotted line is what
    scattered phases would show.

    The upper row exists for every model, the lower for oscillators.
    """
    shade = colours([profile.label for profile in profiles])
    oscillators = [profile for profile in profiles if profile.phases]
    panels = [panel for panel in PROFILE_PANELS if oscillators or not panel[2]]
    with drawing(len(panels) // 3, 3, 2.0 * (len(panels) // 3) + 0.1) as (figure, grid):
        for axes, (quantity, name, phases_only) in zip(grid.flat, panels, strict=True):
            for i, profile in enumerate(profiles):
                if phases_only and not profile.phases:
                    continue
                look = {"color": shade[profile.label], "marker": MARKERS[i % len(MARKERS)], "markersize": 3.5}
                axes.plot(profile.depth, profile.values[quantity], label=profile.label, **look)
            if quantity in (oscillators[0].baseline if oscillators else {}):
                scattered = oscillators[0].baseline[quantity]
                axes.axhline(scattered, color=TONE["rule"], linestyle=":", linewidth=1.1, zorder=1)
            axes.set_title(name, fontsize=8)
            depth = max(profiles, key=lambda p: len(p.depth)).depth
            axes.set_xticks(depth, ["emb." if d == 0 else str(d) for d in depth])
            lowest = min(min(p.values[quantity]) for p in (oscillators if phases_only else profiles))
            if lowest >= 0:
                axes.set_ylim(bottom=0.0)
            if quantity == "wound":
                axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
            if quantity == "spread":
                axes.set_ylim(top=max(1.0, axes.get_ylim()[1]))
        for axes in grid[-1]:
            axes.set_xlabel("layer")
        legend(grid[0, 0], loc="best", fontsize=7)
    return figure


def first_windows(tokens: Tensor, length: int, count: int = 16) -> Tensor:
    """The first windows of a text, one after the other: (count, length)."""
    windows = Windows(tokens, length, length)
    return windows.gather(torch.arange(min(count, len(windows))))


@instrument("states")
def inspect(subject: Subject) -> Finding:
    """Token states of the first validation windows, through the run and the one it is compared with."""
    tokens = first_windows(subject.corpus.valid, subject.run.recipe.length)[:, :-1].to(subject.device)
    profiles = [depth_profile(model, tokens, name) for name, model in subject.models.items()]
    told = [
        f"From the embedding to the last layer of {p.label} the mean cosine of two tokens goes from "
        f"{p.values['cosine'][0]:.3f} to {p.values['cosine'][-1]:.3f} (1 is consensus), the effective rank from "
        f"{p.values['effective_rank'][0]:.1f} to {p.values['effective_rank'][-1]:.1f}."
        for p in profiles
    ]
    return Finding(
        "States through depth",
        " ".join(["Do token states come to agree?", *told]),
        {"states": stacked([p.table() for p in profiles])},
        {"states": lambda: draw_states(profiles)},
    )
