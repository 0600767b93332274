"""What the loss becomes when a field is taken out, by layer and copy depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fsn.measure.plots.style import CYCLE, ink_on, new_figure, styled
from fsn.measure.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lesions(table: Table, surface: str = "any") -> Figure:
    """A panel per field, from :func:`~fsn.measure.lesions.lesion_table`: layers down, copy depth across.

    A cell shows by how many bits per target the loss rises; both panels share their shades.
    """
    fields, layers, depths = (list(dict.fromkeys(table.column(c))) for c in ("field", "layer", "depth"))
    cells = {(row["field"], row["layer"], row["depth"]): row["rise"] for row in table.rows}
    values = np.array(
        [[[cells.get((f, y, d), np.nan) for d in depths] for y in layers] for f in fields], float
    )
    most = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    with styled(surface) as tone:
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm

        shades = LinearSegmentedColormap.from_list("rise", ["#eceff2", "#f3c9a0", CYCLE[1], "#8f3a06"])
        norm = PowerNorm(0.6, vmin=0.0, vmax=max(most, 1e-3), clip=True)
        figure, grid = new_figure(1, len(fields), 0.36 * len(layers) + 0.85)
        for axes, field, panel in zip(grid[0], fields, values, strict=True):
            picture = axes.imshow(panel, cmap=shades, norm=norm, aspect="auto")
            for (i, j), value in np.ndenumerate(panel):
                text, tint = "none", tone["text"]
                if np.isfinite(value):
                    text, tint = f"{value:+.2f}".replace("-", "−"), ink_on(picture.to_rgba(value))
                axes.text(j, i, text, ha="center", va="center", fontsize=7, color=tint)
            axes.set_title(f"without the {field} field of")
            axes.set_xticks(range(len(depths)), depths)
            axes.set_yticks(range(len(layers)), [f"layer {layer}" for layer in layers])
            axes.set_xlabel("copy depth of the target")
            axes.grid(False)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
    return figure
