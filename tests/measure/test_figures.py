"""Figures: each is drawn from an instrument's result, stays inside its frame, and shows what it should."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fsn.measure import copy_depth, coupling, lesions, looks, states, style, tables, training
from fsn.measure.looks import OFFSETS, Looks
from tests.measure.example_runs import made_up_run
from tests.small import random_tokens, small

pytest.importorskip("matplotlib")

BINS = ("0–1", "2–3", "4–7", "8–15", "16–23", "24–32")


def families() -> tables.Table:
    columns = ("family", "bin", "tokens", "seeds", "mean", "std", "min", "max", "range", "loss")
    rows = [
        {
            "family": f,
            "bin": b,
            "seeds": 3,
            "mean": s * i * 0.1,
            "min": s * i * 0.1 - 0.05,
            "max": s * i * 0.1 + 0.02,
        }
        for f, s in (("Base layer", 1), ("FSN", -1))
        for i, b in enumerate(BINS)
    ]
    return tables.Table(columns, rows)


def curve(shift: float) -> tables.Table:
    columns = ("depth", "tokens", "margin", "low", "high")
    margins = shift + 0.1 * np.sin(np.arange(33))
    rows = [(d, 9, margin, margin - 0.05, margin + 0.05) for d, margin in enumerate(margins.tolist())]
    return tables.Table(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def distance_table() -> tables.Table:
    rows = [
        {"bin": b, "distance": d, "tokens": i * j, "margin": 0.1 * (i - j) if i * j else float("nan")}
        for i, b in enumerate(BINS)
        for j, d in enumerate(("1–15", "16–31", "32–63"))
    ]
    return tables.Table(("bin", "distance", "tokens", "margin", "low", "high", "loss"), rows)


def look_of(name: str) -> Looks:
    return Looks(name, OFFSETS, np.linspace(0.0, 0.3, 28).reshape(4, 7), 2.0, 1.0)


def lesion_table() -> tables.Table:
    rows = [
        {
            "field": f,
            "layer": y,
            "depth": b,
            "targets": 9,
            "loss": 1.0,
            "rise": np.nan if y + i == 1 else i * y - 1.0,
        }
        for f in ("present", "successor")
        for y in (1, 2, 3, 4)
        for i, b in enumerate(BINS)
    ]
    return tables.Table(("field", "layer", "depth", "targets", "loss", "rise"), rows)


def reading(label: str = "", scale: float = 1.0) -> coupling.KernelReading:
    weights = np.zeros((2, 4, 3, 5), np.complex128)
    weights[..., 0, :], weights[..., 1, :] = scale, 0.3
    weights[0, 3, 2] = -0.2  # the paper's flip: third harmonic of the present field, layer four
    return coupling.KernelReading(weights, np.ones(4), np.ones(4), 1.0, 1.0, label=label)


def scales(count: int = 4) -> list[training.TargetLoss]:
    found = []
    for i in range(count):
        runs = [made_up_run(f"f{s}", np.linspace(1.8, 1.55 + 0.01 * s, 30), 900.0) for s in range(2)]
        bars = [made_up_run(f"t{s}", np.linspace(1.9, 1.6 + 0.01 * s, 30), 300.0) for s in range(2)]
        found.append(training.time_to_target(runs, bars, label=f"{2**i}M parameters"))
    return found


def profiles() -> list[states.DepthProfile]:
    models = {
        name: small(family, layers=2) for name, family in (("FSN", "fsn"), ("transformer", "transformer"))
    }
    return [states.depth_profile(m, random_tokens(m, length=12), name) for name, m in models.items()]


FIGURES: dict[str, Callable[[], Any]] = {
    "bars": lambda: copy_depth.draw_depth_bars(families()),
    "curves": lambda: copy_depth.draw_depth_curves({"Base layer": curve(0.3), "FSN": curve(-0.1)}),
    "distance": lambda: copy_depth.draw_depth_distance(distance_table()),
    "coupling": lambda: coupling.draw_coupling(reading()),
    "coupling, both fields": lambda: coupling.draw_coupling(reading(), successor=True),
    "history": lambda: coupling.draw_coupling_history([reading("epoch 1", 0.2), reading("epoch 30")]),
    "wall-clock": lambda: training.draw_wallclock(scales()),
    "losses": lambda: training.draw_loss_curves({"FSN": scales(1)[0].curves, "other": []}),
    "losses beside published ones": lambda: training.draw_loss_curves(
        {"FSN": scales(1)[0].curves}, published={"FSN": (2, 1.6, 0.01)}
    ),
    "learning rates": lambda: training.draw_learning_rates({"FSN": np.array([[1, 0.1], [2, 0.05]])}),
    "lesions": lambda: lesions.draw_lesions(lesion_table()),
    "looks": lambda: looks.draw_looks([look_of("FSN"), look_of("transformer")]),
    "profiles": lambda: states.draw_states(profiles()),
}


@pytest.mark.parametrize("name", FIGURES)
def test_everything_lies_inside_the_frame_and_can_be_read(name: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = FIGURES[name]()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = figure.get_tightbbox(canvas.get_renderer())  # inches, of all that is visible
    assert figure.get_figwidth() <= style.WIDTH
    assert drawn.x0 > -0.02 and drawn.y0 > -0.02
    assert drawn.x1 < figure.get_figwidth() + 0.02 and drawn.y1 < figure.get_figheight() + 0.02
    words = [text for text in figure.findobj(Text) if text.get_text().strip()]
    assert len(words) > 8 and min(text.get_fontsize() for text in words) >= 6


def test_files_do_not_change(tmp_path) -> None:
    one, two = (
        style.save_figure(coupling.draw_coupling(reading()), tmp_path / name) for name in ("one", "two")
    )
    assert one.suffix == ".svg" and one.stat().st_size > 1000 and one.read_bytes() == two.read_bytes()
    assert style.TONE["text"] in one.read_text()
    named = style.figure_bytes(coupling.draw_coupling(reading()), title="a < b")
    assert b"<title>a &lt; b</title>" in named, "for those who do not see it"


def test_bars_whiskers_and_order() -> None:
    axes = copy_depth.draw_depth_bars(families()).axes[0]
    heights = [round(bar.get_height(), 6) for bar in axes.patches]
    assert heights == [round(s * i * 0.1, 6) for s in (1, -1) for i in range(6)]
    whiskers = [segment for c in axes.collections for segment in c.get_segments()]
    spans = sorted((round(s[0][1], 6), round(s[1][1], 6)) for s in whiskers)
    assert (0.45, 0.52) in spans and (-0.55, -0.48) in spans  # minimum to maximum of the seeds
    assert [text.get_text() for text in axes.get_xticklabels()] == list(BINS)


def test_published_values_stand_where_they_belong() -> None:
    axes = training.draw_loss_curves({"FSN": scales(1)[0].curves}, published={"FSN": (2, 1.6, 0.01)}).axes[0]
    (diamond,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert diamond.get_xydata().tolist() == [[2.0, 1.6]]
    (bar,) = [segment for c in axes.collections for segment in c.get_segments()]
    assert bar.tolist() == [[2.0, pytest.approx(1.59)], [2.0, pytest.approx(1.61)]]


def test_ink_stands_off_its_cell() -> None:
    assert style.ink_on((1.0, 1.0, 0.9, 1.0)) == "#1f2328" and style.ink_on((0.4, 0.1, 0.0, 1.0)) == "white"


def test_a_cell_for_every_field_layer_and_depth() -> None:
    figure = lesions.draw_lesions(lesion_table())
    for axes in figure.axes:
        assert axes.images[0].get_array()[3].tolist() == [i * 4 - 1.0 for i in range(6)], "layer four"
        assert [text.get_text() for text in axes.get_yticklabels()] == [f"layer {i}" for i in (1, 2, 3, 4)]
        shown = [text.get_text() for text in axes.texts]
        assert len(shown) == 24 and shown.count("none") == 1 and "+19.00" in shown and "−1.00" in shown


def test_sign_flips_are_hatched() -> None:
    figure = coupling.draw_coupling(reading())
    bars = [bar for bar in figure.axes[1].patches if bar.get_height() > 0]
    hatched = [bar for bar in bars if bar.get_hatch()]
    assert len(bars) == 17 and len(hatched) == 1 and hatched[0].get_height() == pytest.approx(0.2)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    delta = lines["layer 1"].get_xdata()
    np.testing.assert_allclose(lines["sin Δ"].get_ydata(), np.sin(delta), atol=1e-12)
    np.testing.assert_allclose(
        lines["layer 1"].get_ydata(), np.sin(delta) + 0.3 * np.sin(2 * delta), atol=1e-12
    )


def test_the_crossing_is_marked_where_the_mean_curve_meets_the_target() -> None:
    (scale,) = scales(1)
    axes = training.draw_wallclock([scale]).axes[0]
    (ring,) = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert ring.get_ydata()[0] == pytest.approx(scale.targets.mean())
    mean, target = training.mean_curve(scale.curves), scale.targets.mean()
    after = training.first_at(mean.loss, target)
    assert after is not None and after > 1
    (s0, s1), (y0, y1) = mean.seconds[after - 2 : after], mean.loss[after - 2 : after]
    assert ring.get_xdata()[0] == pytest.approx((s0 + (s1 - s0) * (y0 - target) / (y0 - y1)) / 3600)
    assert "hours" in axes.get_xlabel()
    ahead = dataclasses.replace(scale, curves=[training.Curve("f", np.array([3600.0]), np.array([0.5]))])
    (ring,) = [one for one in training.draw_wallclock([ahead]).axes[0].get_lines() if one.get_marker() == "o"]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (1.0, 0.5), "reached by the end of the first epoch"


def test_a_ladder_of_three_leaves_the_fourth_panel_empty() -> None:
    panels = training.draw_wallclock(scales(3)).axes
    assert [axes.get_visible() for axes in panels] == [True, True, True, False]


def test_colours_stay_with_their_families() -> None:
    two = style.colours(["transformer", "other", "FSN"])
    assert two["FSN"] == style.COLOURS["fsn"] != two["transformer"]
    many = style.colours(["FSN", "a", "b", "c", "Base layer"])
    assert len(set(many.values())) == 5 and many["Base layer"] == style.COLOURS["kuramoto"]
    when = style.colours(["Kuramoto (epoch 29)", "FSN (epoch 29)", "No phases"])
    assert list(when.values()) == [style.COLOURS[name] for name in ("kuramoto", "fsn", "fsn-nophase")]
