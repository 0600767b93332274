"""Draws the pictures of docs/pictures: ``python docs/site/pictures.py``.

Plain SVG without a background, in colours that show on white and on black. Curves and angles are computed from the
formulas beside them; ``copy-depth`` shows the losses kept in ``results/``, ``distance`` what
``benchmarks/results/reach-cpu.json`` holds, ``learning-rate``, ``small-parts`` and ``lead`` small runs of ``docs/lab``,
``learning-rate`` also scales and ``lead`` also losses kept in ``results/``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from fsn.measure.copy_depth import Battery, depth_losses
from fsn.ops import rotary_rates

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
RESULTS = FOLDER.parents[1] / "results"
BLUE, ORANGE, GREEN, GREY, GOLD = "#3b82d6", "#e07b39", "#2f9e6e", "#858a92", "#c8a21f"
"""As in all figures: FSN and successors blue, Kuramoto attention orange, transformer grey, KV shift gold."""
STYLE = (
    'text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:15px;fill:#858a92}'
    ".m{text-anchor:middle}.e{text-anchor:end}.b{font-weight:600}.big{font-size:21px}.s{font-size:11px}"
    ".it{font-style:italic;font-family:Georgia,'Times New Roman',serif;font-size:17px}"
)


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    heads = "".join(
        f'<marker id="h{colour[1:]}" viewBox="0 0 8 8" refX="6" refY="4" markerUnits="userSpaceOnUse" '
        f'markerWidth="13" markerHeight="13" '
        f'orient="auto-start-reverse"><path d="M0 .6L7 4L0 7.4z" fill="{colour}"/></marker>'
        for colour in (BLUE, ORANGE, GREEN, GREY)
    )
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="t">\n  <title id="t">{escape(title)}</title>\n  <style>{STYLE}</style>\n'
        f"  <defs>{heads}</defs>\n  {body}\n</svg>\n"
    )


def n(value: float) -> str:
    """A number in as few characters as show it."""
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shown == "-0" else shown


def text(x: float, y: float, words: str, kind: str = "", colour: str = "") -> str:
    """``_{…}`` sets what follows below the line, as in θ_{t}."""
    shown = escape(words)
    while "_{" in shown:
        before, rest = shown.split("_{", 1)
        low, after = rest.split("}", 1)
        shown = f'{before}<tspan dy="4" font-size="70%">{low}</tspan><tspan dy="-4">&#8203;{after}</tspan>'
    fill = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{n(x)}" y="{n(y)}" class="{kind}"{fill}>{shown}</text>'


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = GREY, width: float = 1.5, more: str = ""
) -> str:
    return (
        f'<line x1="{n(x1)}" y1="{n(y1)}" x2="{n(x2)}" y2="{n(y2)}" stroke="{colour}" stroke-width="{n(width)}" '
        f'stroke-linecap="round"{more}/>'
    )


def arrow(path: str, colour: str, width: float = 2.0, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{n(width)}"{dash} '
        f'marker-end="url(#h{colour[1:]})"/>'
    )


def on_circle(x: float, y: float, r: float, angle: float) -> tuple[float, float]:
    """Angles as in mathematics: zero to the right, growing against the clock."""
    return x + r * math.cos(angle), y - r * math.sin(angle)


def clock(x: float, y: float, r: float, angle: float | None, colour: str = GREY) -> str:
    face = (
        f'<circle cx="{n(x)}" cy="{n(y)}" r="{n(r)}" fill="{colour}" fill-opacity=".1" stroke="{colour}" '
        'stroke-width="1.5"/>'
    )
    if angle is None:
        return face
    tip = on_circle(x, y, r * 0.82, angle)
    dot = f'<circle cx="{n(x)}" cy="{n(y)}" r="{n(max(r * 0.1, 1.5))}" fill="{colour}"/>'
    return face + line(x, y, *tip, colour, max(r / 8, 2)) + dot


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{n(x)}" cy="{n(y)}" r="3.5" fill="{colour}" fill-opacity=".75"/>'


def arc(x: float, y: float, r: float, start: float, end: float, colour: str, width: float = 3.0) -> str:
    (x1, y1), (x2, y2) = on_circle(x, y, r, start), on_circle(x, y, r, end)
    large, sweep = int(abs(end - start) > math.pi), int(end < start)
    return arrow(f"M{n(x1)} {n(y1)}A{n(r)} {n(r)} 0 {large} {sweep} {n(x2)} {n(y2)}", colour, width)


def curve(f: Callable[[float], float], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    points = [-math.pi + 2 * math.pi * i / 120 for i in range(121)]
    return "M" + "L".join(f"{n(x(p))} {n(y(f(p)))}" for p in points)


def axes(x0: float, x1: float, y0: float, labels: bool = True) -> list[str]:
    """A line for zero from −π to π, with its ends named."""
    middle = (x0 + x1) / 2
    parts = [line(x0, y0, x1, y0, GREY, 1), line(middle, y0 - 4, middle, y0 + 4, GREY, 1)]
    if labels:
        parts += [text(x0, y0 + 20, "−π", "m"), text(x1, y0 + 20, "π", "m"), text(middle, y0 + 20, "0", "m")]
    return parts


# -- the pictures ------------------------------------------------------------------------------------------------

LETTERS = {"t": 0.5, "h": 2.3, "e": 4.1, "c": 5.4, "a": 1.3, "s": 3.3}
"""An angle for each letter, made up, so that equal letters have equal hands."""


def successor() -> str:
    """The idea in one line of text."""
    words = [("the cat", 40), ("the ca", 340)]
    parts, places = [], {}
    for number, (word, left) in enumerate(words):
        for i, letter in enumerate(word):
            x = left + 31 * i
            places[number, i] = x
            if letter != " ":
                colour = {(0, 5): ORANGE, (1, 5): ORANGE, (0, 6): BLUE}.get((number, i), GREY)
                parts.append(clock(x, 92, 13, LETTERS[letter], colour))
                parts.append(text(x, 136, letter, "m big b", colour))
    u, v, t = places[0, 5], places[0, 6], places[1, 5]
    parts += [
        text(284, 97, "…", "m big"),
        clock(t + 38, 92, 15, LETTERS["t"], BLUE),
        text(t + 38, 136, "?", "m big b", BLUE),
        arrow(f"M{t} 72C{t - 60} 18 {u + 60} 18 {u} 71", ORANGE),
        text((u + t) / 2, 24, "attention finds the place", "m", ORANGE),
        text(u, 158, "u", "m it", ORANGE),
        text(v, 158, "u+1", "m it", BLUE),
        text(t, 158, "t", "m it", ORANGE),
        arrow(f"M{v} 166C{v + 60} 216 {t - 30} 216 {t + 34} 150", BLUE, 2.5),
        text((v + t) / 2 + 10, 224, "and what came next pulls", "m", BLUE),
    ]
    return svg(
        580,
        236,
        "A token finds an earlier place with the same past, and is pulled towards what came next there",
        parts,
    )


def phases() -> str:
    """A token as clocks, and one of them through the layers."""
    rows = [("t", [0.5, 1.9, 5.2, 3.0, 4.3]), ("h", [2.3, 0.2, 3.9, 1.2, 5.8])]
    parts = []
    for i, (letter, angles) in enumerate(rows):
        y = 48 + 66 * i
        parts.append(text(40, y + 7, letter, "m big b", BLUE))
        parts += [clock(104 + 58 * j, y, 20, angle, BLUE) for j, angle in enumerate(angles)]
        parts.append(text(376, y + 6, "… k clocks"))
    parts.append(text(24, 178, "one clock, layer by layer:", "b"))
    for j, turn in enumerate([0.5, 2.4, 4.4, 6.2, 8.1]):
        x = 60 + 90 * j
        parts += [clock(x, 222, 22, turn, GREEN), text(x, 270, f"θ = {turn:.1f}", "m", GREEN)]
        if j:
            parts.append(arrow(f"M{x - 62} 222H{x - 30}", GREY, 1.5))
    parts.append(text(250, 300, "8.1 is more than a turn (6.28), and stays 8.1", "m"))
    return svg(
        500, 312, "A token is a row of clocks; each layer turns their hands, and whole turns are kept", parts
    )


def coherence() -> str:
    """The score of two tokens, coordinate by coordinate."""
    here = [0.5, 1.9, 5.2, 3.0, 4.3]
    there = [0.9, 1.2, 5.0, 5.6, 3.6]
    gates = [1.6, 1.3, 1.4, 0.1, 0.6]
    parts = [text(24, 40, "token t", "b", BLUE), text(24, 100, "token u", "b", BLUE)]
    parts += [text(24, 152, "cos Δ"), text(24, 192, "gates"), text(24, 244, "product", "b")]
    total = 0.0
    for j, (a, b, gate) in enumerate(zip(here, there, gates, strict=True)):
        x, agree = 130 + 62 * j, math.cos(a - b)
        total += gate * agree
        parts += [clock(x, 35, 20, a, BLUE), clock(x, 95, 20, b, BLUE)]
        parts.append(text(x, 152, f"{agree:+.1f}".replace("-", "−"), "m", GREEN if agree > 0 else ORANGE))
        parts.append(bar(x, 197, 24 * gate / 1.6, GREY))
        parts.append(bar(x, 245, 24 * gate * agree / 1.6, GREEN if agree > 0 else ORANGE))
    parts += [
        line(110, 245, 400, 245, GREY, 1),
        text(450, 240, "sum", "m"),
        text(450, 264, f"{total:.1f}", "m big b", GREEN),
    ]
    parts.append(text(250, 296, "the fourth clock disagrees, and its gate is shut", "m"))
    return svg(
        500, 308, "The score is the sum over clocks of gates times the cosine of the phase difference", parts
    )


def bar(x: float, y: float, height: float, colour: str, width: float = 18) -> str:
    top = min(y, y - height)
    return (
        f'<rect x="{n(x - width / 2)}" y="{n(top)}" width="{n(width)}" height="{n(max(abs(height), 1))}" '
        f'rx="2" fill="{colour}" fill-opacity=".75"/>'
    )


def pull() -> str:
    """Kuramoto's pull and the FSN's, on one clock."""
    t, u, after = -0.5, 0.75, 2.25
    parts = []
    for x, name, aim in ((125, "Kuramoto attention", u), (375, "FSN", after)):
        colour = ORANGE if aim == u else BLUE
        parts += [text(x, 22, name, "m b", colour), clock(x, 150, 84, None)]
        for angle, label, shade in ((t, "θ_{t}", GREY), (u, "θ_{u}", ORANGE), (after, "θ_{u+1}", BLUE)):
            faint = ' opacity=".35"' if label == "θ_{u+1}" and aim == u else ""
            tip, place = on_circle(x, 150, 76, angle), on_circle(x, 150, 104, angle)
            parts.append(
                f"<g{faint}>{line(x, 150, *tip, shade, 3.5)}{text(place[0], place[1] + 5, label, 'm it', shade)}</g>"
            )
        parts.append(arc(x, 150, 52, t + 0.06, t + 0.62 * (aim - t), colour, 4))
        if aim == after:
            parts += [arc(x, 150, 66, u, after - 0.08, GREEN, 2), text(x, 128, "δ_{u}", "m it", GREEN)]
    parts += [
        text(125, 276, "sin(θ_{u} − θ_{t})", "m it", ORANGE),
        text(375, 276, "sin(θ_{u+1} − θ_{t})", "m it", BLUE),
        text(375, 302, "= sin(θ_{u} − θ_{t} + δ_{u})", "m it", GREEN),
    ]
    return svg(
        500,
        316,
        "Kuramoto attention turns a token to where the earlier one stands; the FSN to where it went next",
        parts,
    )


def harmonics() -> str:
    """Coupling functions with one harmonic and with three."""
    x0, x1, y0, scale = 60.0, 440.0, 110.0, 62.0

    def x(p: float) -> float:
        return x0 + (p + math.pi) / (2 * math.pi) * (x1 - x0)

    def y(value: float) -> float:
        return y0 - scale * value

    def near(p: float) -> float:
        return 0.55 * math.sin(p) + 0.45 * math.sin(2 * p) + 0.25 * math.sin(3 * p)

    parts = axes(x0, x1, y0, labels=False)  # its own stand where no curve passes
    for shade, f in ((ORANGE, math.sin), (BLUE, near)):
        parts.append(f'<path d="{curve(f, x, y)}" fill="none" stroke="{shade}" stroke-width="3"/>')
    parts += [
        text(420, 62, "sin Δ", "m it", ORANGE),
        text(262, 44, "three harmonics", "e", BLUE),
        text(34, 115, "pull", "m"),
        text(x0, y0 - 10, "−π", "m"),
        text((x0 + x1) / 2 + 10, y0 + 20, "0", "m"),
        text(x1, y0 + 20, "π", "m"),
        text(250, 196, "Δ, the phase difference", "m"),
        text(250, 226, "with three, near phases pull hard and far ones hardly at all", "m", BLUE),
    ]
    return svg(
        500, 240, "One harmonic is a sine; three can pull near phases hard and leave far ones alone", parts
    )


def frustration() -> str:
    """A frustration angle shifts the coupling function; the frame takes away the turning that is left at Δ = 0."""
    x0, x1, scale, angle = 60.0, 440.0, 58.0, 0.9

    def x(p: float) -> float:
        return x0 + (p + math.pi) / (2 * math.pi) * (x1 - x0)

    def row(y0: float, label: str, constant: float, colour: str, remark: str) -> list[str]:
        def f(p: float) -> float:
            return math.sin(p + angle) - constant

        def y(value: float) -> float:
            return y0 - scale * value

        rise = line(x(0), y0, x(0), y(f(0)), colour, 2, ' stroke-dasharray="4 3"')
        return [
            *axes(x0, x1, y0),
            f'<path d="{curve(f, x, y)}" fill="none" stroke="{colour}" stroke-width="3"/>',
            rise,
            f'<circle cx="{n(x(0))}" cy="{n(y(f(0)))}" r="6" fill="{colour}"/>',
            text(x0, y(1 - constant) - 10, label, "it", colour),
            text(250, y(-1 - constant) + 34, remark, "m", colour),
        ]

    parts = row(88, "sin(Δ + φ)", 0.0, ORANGE, "at Δ = 0 agreeing tokens still turn each other")
    still = "at Δ = 0 they are left alone: the co-rotating frame"
    parts += row(252, "sin(Δ + φ) − sin φ", math.sin(angle), GREEN, still)
    title = "A frustration angle shifts the coupling function; the co-rotating frame removes the constant"
    return svg(500, 404, title, parts)


CONVERGED = "transformer-1m-nodrop-50-seed0"
RUNS = {
    "transformer": ("transformer-1m-nodrop-seed0", GREY),
    "Kuramoto attention": ("kuramoto-1m-seed0", ORANGE),
    "transformer with KV shift": ("transformer-kvshift-1m-nodrop-seed0", GOLD),
    "FSN": ("fsn-1m-seed0", BLUE),
}
"""Four models without dropout, and the runs that they are."""


def copy_depth() -> str:
    """Bits per character by copy depth. Below depth 2 all four are alike: that bin has a line of text. The transformer
    is that of fifty epochs, as in the paper: one bin of the one of thirty is an accident."""
    with np.load(RESULTS / "texts" / "enwik8.npz", allow_pickle=False) as kept:
        arrays = [kept[name] for name in ("windows", "enriched", "depth", "distance")]
        battery = Battery(*arrays, int(kept["length"]), int(kept["stride"]))
    losses, runs = {}, {name: run for name, (run, _) in RUNS.items()} | {"transformer": CONVERGED}
    for name, run in runs.items():
        with np.load(RESULTS / run / "token_losses.npz", allow_pickle=False) as kept:
            losses[name] = kept["bits"]
    first, *rows = depth_losses(losses, battery).rows
    x0, x1, y0, scale = 64.0, 690.0, 300.0, 300.0
    parts = [
        text(20, 150, "bits per character", "m", GREY).replace(
            "<text", '<text transform="rotate(-90 20 150)"'
        )
    ]
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8):
        y = y0 - scale * tick
        parts += [line(x0, y, x1, y, GREY, 0.5 if tick else 1), text(x0 - 8, y + 5, f"{tick:.1f}", "e")]
    for i, row in enumerate(rows):
        middle = x0 + (x1 - x0) * (i + 0.5) / len(rows)
        for j, (name, (_, colour)) in enumerate(RUNS.items()):
            x = middle + 25 * (j - 1.5)
            parts.append(bar(x, y0, scale * row[name], colour, 22))
            parts.append(text(x, y0 - scale * row[name] - 5, f"{row[name]:.2f}"[1:], "m s"))
        parts.append(text(middle, y0 + 22, row["depth"], "m"))
    low, high = min(first[name] for name in RUNS), max(first[name] for name in RUNS)
    new = f"new text (depth {first['depth']}): all four between {low:.3f} and {high:.3f}"
    parts += [text((x0 + x1) / 2, y0 + 48, f"copy depth; {new}", "m")]
    for x, (name, (_, colour)) in zip((80, 212, 396, 626), RUNS.items(), strict=True):
        parts += [bar(x, 26, 12, colour, 12), text(x + 14, 26, name)]
    parts += [text((x0 + x1) / 2, y0 + 72, "best of thirty epochs; of the transformer, of fifty", "m")]
    return svg(710, 384, "Bits per character by copy depth, no dropout in any model", parts)


def distance() -> str:
    """Why oscillators read on: their score at equal phases by distance, and who looks where it never learned to."""
    x0, x1, y0, k = 50.0, 330.0, 250.0, 176
    rates = rotary_rates(k).numpy()
    back = 2.0 ** (np.arange(161) / 16)  # 1 to 1,024
    scores = [float(np.cos(d * rates).sum()) / math.sqrt(k) for d in back]

    def place(d: float) -> float:
        return x0 + (x1 - x0) * math.log2(d) / 10

    path = "M" + "L".join(f"{n(place(d))} {n(y0 - 14 * s)}" for d, s in zip(back, scores, strict=True))
    parts = [text((x0 + x1) / 2, 22, "score of equal phases (k = 176)", "m b")]
    for tick in (0, 5, 10):
        parts += [line(x0, y0 - 14 * tick, x1, y0 - 14 * tick, GREY, 0.5 if tick else 1)]
        parts += [text(x0 - 8, y0 - 14 * tick + 5, str(tick), "e")]
    parts += [text(place(d), y0 + 20, f"{d:,}", "m") for d in (1, 4, 16, 64, 256, 1024)]
    parts += [text((x0 + x1) / 2, y0 + 44, "distance", "m")]
    parts += [line(place(256), 60, place(256), y0, GREY, 1, ' stroke-dasharray="4 4"')]
    parts += [text(place(256) - 6, 74, "trained up to here", "e s")]
    parts.append(f'<path d="{path}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>')
    found = json.loads((RESULTS.parent / "benchmarks" / "results" / "reach-cpu.json").read_text("utf-8"))
    far = {row["run"]: row["far"] for row in found["rows"] if row["way"] == "as it is"}
    x0, x1 = 400.0, 784.0
    parts.append(text((x0 + x1) / 2, 22, "attention beyond 256, windows of 1,024", "m b"))
    for tick in (0.0, 0.5, 1.0):
        parts += [line(x0, y0 - 175 * tick, x1, y0 - 175 * tick, GREY, 0.5 if tick else 1)]
        parts += [text(x0 - 8, y0 - 175 * tick + 5, f"{tick:.0%}", "e")]
    for i, (name, (run, colour)) in enumerate(RUNS.items()):
        middle = x0 + (x1 - x0) * (i + 0.5) / len(RUNS)
        for j, share in enumerate(far[run]):
            parts.append(bar(middle + 15 * (j - 1.5), y0, 175 * share, colour, 13))
        shown = name.replace("transformer with ", "").replace(" attention", "")
        parts.append(text(middle, y0 + 20, shown, "m", colour))
    parts.append(text((x0 + x1) / 2, y0 + 44, "layers 1 to 4", "m"))
    title = (
        "The FSN's score falls with distance, so it hardly looks where it never learned to; transformers do"
    )
    return svg(800, 306, title, parts)


SMALL_RUNS = {
    "fsn": ("FSN, α from 2π", BLUE),
    "fsn-alpha1": ("FSN, α from 1", GREEN),
    "transformer": ("transformer", GREY),
    "kvshift": ("KV shift", GOLD),
}


def lab_runs(*names: str) -> list[dict[str, Any]]:
    """The lines of files of ``docs/lab``, each a run."""
    files = (FOLDER.parent / "lab" / name for name in names)
    return [json.loads(row) for file in files for row in file.read_text("utf-8").splitlines()]


def learning_rate() -> str:
    """Small models at five learning rates, and the bounds of the full-size FSN at two."""
    runs = lab_runs("2026-11-18-cpu/35-bound-start.jsonl")
    x0, x1, y0, low, top, scale = 50.0, 400.0, 250.0, 2.4, 2.85, 400.0
    parts = [text((x0 + x1) / 2, 22, "bits after 1,000 steps, small models", "m b")]
    for tick in (2.4, 2.6, 2.8):
        y = y0 - scale * (tick - low)
        parts += [line(x0, y, x1, y, GREY, 0.5 if tick > low else 1), text(x0 - 8, y + 5, f"{tick:g}", "e")]
    rates = (0.001, 0.002, 0.004, 0.008, 0.016)
    for i, rate in enumerate(rates):
        middle = x0 + (x1 - x0) * (i + 0.5) / len(rates)
        parts.append(text(middle, y0 + 20, f"{rate:g}", "m"))
        for j, (name, (_, colour)) in enumerate(SMALL_RUNS.items()):
            x = middle + 14 * (j - 1.5)
            bits = [run["valid_bits"] for run in runs if run["run"].startswith(f"{name}-lr{rate}-seed")]
            if not bits:
                continue
            if max(bits) > top:
                parts += [arrow(f"M{n(x)} 96L{n(x)} 72", colour)]
                parts += [text(x, 64, f"{min(bits):.1f} to {max(bits):.1f}", "m s", colour)]
                continue
            mean = y0 - scale * (sum(bits) / len(bits) - low)
            parts.append(line(x - 6, mean, x + 6, mean, colour, 3))
            parts += [dot(x, y0 - scale * (one - low), colour) for one in bits]
    parts.append(text((x0 + x1) / 2, y0 + 44, "learning rate; a dot is a seed", "m"))
    for x, (name, colour) in zip((56, 156, 252, 336), SMALL_RUNS.values(), strict=True):
        parts += [dot(x, 40, colour), text(x + 8, 44, name, "s", colour)]
    x0, x1, scale = 450.0, 784.0, 30.0
    parts.append(text((x0 + x1) / 2, 22, "scale α of feed-forward bounds, full size", "m b"))
    start = y0 - scale * 2 * math.pi
    parts += [
        line(x0, y0, x1, y0, GREY, 1),
        text(x0 - 8, y0 + 5, "0", "e"),
        text(x0 - 8, start + 5, "2π", "e"),
    ]
    parts += [line(x0, start, x1, start, GREY, 1, ' stroke-dasharray="4 4"')]
    shown = {"0.001": ("fsn-1m-seed0", BLUE), "0.002": ("fsn-1m-lr0.002-seed0", ORANGE)}
    for j, (rate, (run, colour)) in enumerate(shown.items()):
        kept = load_file(RESULTS / run / "kernel" / "epoch-0002.safetensors")
        for i in range(4):
            x = x0 + (x1 - x0) * (i + 0.5) / 4 + 30 * (j - 0.5)
            alpha = kept[f"layers.{i}.feedforward_bound.alpha"].item()
            parts += [
                bar(x, y0, scale * alpha, colour, 26),
                text(x, y0 - scale * alpha - 5, f"{alpha:.1f}", "m s"),
            ]
        parts.append(text(x0 + 92 + 170 * j, y0 + 44, f"learning rate {rate}", "m", colour))
    parts += [text(x0 + (x1 - x0) * (i + 0.5) / 4, y0 + 20, f"layer {i + 1}", "m") for i in range(4)]
    title = "An FSN whose bounds begin at 2π stands no high learning rate; from 1 it does"
    return svg(800, 306, title, parts)


SMALL_PARTS = {
    "transformer": ("transformer", GREY),
    "kvshift": ("transformer with KV shift", GOLD),
    "kuramoto-alpha1": ("Kuramoto attention", ORANGE),
    "successor-alpha1": ("coupling to successors alone", GREEN),
    "fsn-nophase-alpha1": ("FSN without phases", BLUE),
    "fsn-alpha1": ("FSN", BLUE),
    "fsn-score-alpha1": ("FSN, successor in the score", BLUE),
}


SHORT = ("2026-11-19-cpu/44-small-cool-down.jsonl", "2026-11-19-cpu/46-small-parts.jsonl")
LONG = ("2026-11-19-cpu/48-small-longer.jsonl",)


def small_parts() -> str:
    """Small models with a cool-down, each at the rate with the lowest mean, of those that three seeds have tried."""
    runs = lab_runs(*SHORT)
    x0, low, scale, y0, step = 250.0, 2.18, 3200.0, 60.0, 34
    bottom = y0 + step * len(SMALL_PARTS) - 14
    parts = [text(506, 22, "bits after 2,000 steps, the second half a cool-down", "m b")]
    for tick in (2.2, 2.24, 2.28, 2.32):
        x = x0 + scale * (tick - low)
        parts += [line(x, y0 - 18, x, bottom, GREY, 0.5), text(x, bottom + 20, f"{tick:g}", "m")]
    for i, (name, (said, colour)) in enumerate(SMALL_PARTS.items()):
        y, best = y0 + step * i, list(at_best_rate(runs, name).values())
        mean = x0 + scale * (sum(best) / 3 - low)
        parts += [text(x0 - 16, y + 5, said, "e", colour), line(mean, y - 9, mean, y + 9, colour, 3)]
        parts += [dot(x0 + scale * (bits - low), y, colour) for bits in sorted(best)]
    parts.append(text(506, bottom + 44, "a dot is a seed, a bar their mean", "m"))
    return svg(800, int(bottom) + 56, "Small models: the FSN leads, and not by the shift alone", parts)


def at_best_rate(runs: list[dict[str, Any]], name: str) -> dict[int, float]:
    """Bits by seed of a small model, at the rate with the lowest mean, of those that most seeds have tried."""
    by_rate = dict[float, dict[int, float]]()
    for run in runs:
        if run["run"].startswith(f"{name}-lr"):
            by_rate.setdefault(run["lr"], {})[run["seed"]] = run["valid_bits"]
    most = max(map(len, by_rate.values()))
    return min((bits for bits in by_rate.values() if len(bits) == most), key=lambda bits: sum(bits.values()))


def last_bits(name: str) -> float:
    """The loss after the last epoch of a run in ``results``."""
    lines = (RESULTS / name / "metrics.jsonl").read_text("utf-8").splitlines()
    return float([row for row in map(json.loads, lines) if row["kind"] == "epoch"][-1]["valid_bits"])


LEADS = {
    "kuramoto-alpha1": ("Kuramoto attention", ORANGE),
    "fsn-nophase-alpha1": ("FSN without phases", GREEN),
    "fsn-alpha1": ("FSN", BLUE),
}
FULL = ("fsn-1m-alpha1-lr0.004-wsd-seed0", "transformer-kvshift-1m-lr0.004-wsd-seed0")


def lead() -> str:
    """What oscillator models are ahead of KV shift, seed by seed, as trainings get longer, and at full size."""
    x0, y0, scale = 70.0, 262.0, 2400.0
    columns = (
        ("4 million symbols", "0.3M parameters"),
        ("16 million", "0.3M"),
        ("717 million", "1M"),
    )
    parts = [text(425, 22, "bits below the transformer with KV shift, both with a cool-down", "m b")]
    for tick in (0.0, 0.02, 0.04, 0.06, 0.08):
        y = y0 - scale * tick
        parts += [line(x0, y, 784, y, GREY, 0.5 if tick else 1), text(x0 - 8, y + 5, f"{tick:g}", "e")]
    ahead: list[tuple[int, str, float]] = []
    for column, files in enumerate((SHORT, LONG)):
        runs = lab_runs(*files)
        reference = at_best_rate(runs, "kvshift")
        for name in LEADS:
            bits = at_best_rate(runs, name)
            ahead += [
                (column, name, reference[seed] - bits[seed])
                for seed in sorted(bits.keys() & reference.keys())
            ]
    ours, theirs = map(last_bits, FULL)
    ahead.append((2, "fsn-alpha1", theirs - ours))
    for column, said in enumerate(columns):
        middle = x0 + 714 * (column + 0.5) / 3
        parts += [text(middle, y0 + 34, said[0], "m"), text(middle, y0 + 54, said[1], "m s")]
        for i, (name, (_, colour)) in enumerate(LEADS.items()):
            found = [value for at, one, value in ahead if (at, one) == (column, name)]
            x = middle + 54 * (i - 1)
            low = [value for value in found if value < -0.02]
            if found and not low:
                mean = y0 - scale * sum(found) / len(found)
                parts.append(line(x - 14, mean, x + 14, mean, colour, 3))
            parts += [dot(x, y0 - scale * value, colour) for value in found if value not in low]
            parts += [arrow(f"M{n(x)} {n(y0 - 8)}L{n(x)} {n(y0 + 14)}", colour) for _ in low]
            parts += [text(x + 10, y0 + 14, f"{value:.2f}".replace("-", "−"), "s", colour) for value in low]
    for x, (said, colour) in zip((170, 390, 610), LEADS.values(), strict=True):
        parts += [dot(x, 43, colour), text(x + 12, 48, said, "", colour)]
    title = (
        "Small oscillator models are ahead of KV shift, less when trained longer; at full size the FSN is not"
    )
    return svg(800, 330, title, parts)


def icon() -> str:
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
        + clock(16, 16, 13, None, BLUE)
        + line(16, 16, 24, 9, ORANGE, 3.5)
        + line(16, 16, 9, 12, BLUE, 3.5)
        + "</svg>\n"
    )


PICTURES: dict[str, Callable[[], str]] = {
    "successor": successor,
    "phases": phases,
    "coherence": coherence,
    "pull": pull,
    "harmonics": harmonics,
    "frustration": frustration,
    "copy-depth": copy_depth,
    "distance": distance,
    "learning-rate": learning_rate,
    "small-parts": small_parts,
    "lead": lead,
    "icon": icon,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
