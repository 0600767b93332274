"""The figures, each a function from an instrument's result to a matplotlib ``Figure``.

Every function takes ``surface``: ``"any"`` is transparent with mid-tones that read on light and dark pages,
``"light"`` and ``"dark"`` are sharper on one of them. :func:`save` writes SVG and PNG.
"""

from __future__ import annotations

from fsn.measure.plots.copy_depth import depth_bars, depth_curves, depth_distance
from fsn.measure.plots.curves import loss_curves, wallclock
from fsn.measure.plots.kernel import coupling, coupling_history
from fsn.measure.plots.lesions import lesions
from fsn.measure.plots.looks import looks
from fsn.measure.plots.states import depth_profiles
from fsn.measure.plots.style import save

__all__ = [
    "coupling",
    "coupling_history",
    "depth_bars",
    "depth_curves",
    "depth_distance",
    "depth_profiles",
    "lesions",
    "looks",
    "loss_curves",
    "save",
    "wallclock",
]
