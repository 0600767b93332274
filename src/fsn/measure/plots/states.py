"""Order, rank and winding of token states through depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsn.errors import UserError
from fsn.measure.plots.style import MARKERS, colours, legend, new_figure, styled
from fsn.measure.synchronization import DepthProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PROFILE_PANELS = (
    ("cosine", "mean cosine of token pairs", False),
    ("spread", "spread around the mean state", False),
    ("effective_rank", "effective rank of token states", False),
    ("token_order", "order parameter over tokens", True),
    ("rms_phase", "RMS of the lifted phase (rad)", True),
    ("wound", "share of wound phases", True),
)


def depth_profiles(profiles: Sequence[DepthProfile], surface: str = "any") -> Figure:
    """Consensus, rank, order and winding of token states from the embedding through the layers.

    The upper row exists for every model, the lower for oscillators; the dotted line is what scattered
    phases would show.
    """
    if not profiles:
        raise UserError("There is no profile to draw; measure at least one model.")
    shade = colours([profile.label for profile in profiles])
    oscillators = [profile for profile in profiles if profile.phases]
    panels = [panel for panel in PROFILE_PANELS if oscillators or not panel[2]]
    with styled(surface) as tone:
        figure, grid = new_figure(len(panels) // 3, 3, 2.0 * (len(panels) // 3) + 0.1)
        for axes, (quantity, name, phases_only) in zip(grid.flat, panels, strict=True):
            for i, profile in enumerate(profiles):
                if phases_only and not profile.phases:
                    continue
                axes.plot(
                    profile.depth,
                    profile.values[quantity],
                    color=shade[profile.label],
                    marker=MARKERS[i % len(MARKERS)],
                    markersize=3.5,
                    label=profile.label,
                )
            if quantity in (oscillators[0].baseline if oscillators else {}):
                axes.axhline(
                    oscillators[0].baseline[quantity],
                    color=tone["rule"],
                    linestyle=":",
                    linewidth=1.1,
                    zorder=1,
                )
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
