"""Sections 1, 3.3 and 4.4: what the trained kernel and gates look like; and the opening claim on consensus."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...data import Windows
from ...errors import UserError
from ...measure import (
    DepthProfile,
    KernelReading,
    Table,
    coupling_data,
    depth_profile,
    draw_coupling,
    draw_coupling_history,
    draw_states,
    read_gates,
    stacked,
    thinned,
)
from ...train import Run
from ..bench import Bench, NotRun
from ..rows import Claim, Found, Measurement, Picture, Result, Row, compare, item, listed, stated
from ..runs import FSN, FSN_CONVERGED, KURAMOTO, LEAN, REFERENCE, Need, epochs_of

KERNEL = FSN_CONVERGED.seed(0)
PRESENT, SUCCESSOR = 0, 1
GATE_WINDOWS = STATE_WINDOWS = 16

# -- Figure 2 ----------------------------------------------------------------------------------------------


def kernel_rows(b: Bench) -> list[Row]:
    """What the figure's text says, counted: in how many layers it is so."""

    def row(
        title: str, measure: Callable[[KernelReading], Any], paper: float | None = None, remark: str = ""
    ) -> Row:
        cited, form = (None, ".4f") if paper is None else (stated(paper), ".0f")
        return compare(
            b, title, cited, [KERNEL], lambda runs: float(measure(b.reading(runs[0]))), form, remark
        )

    def negative(harmonic: int) -> Callable[[KernelReading], Any]:
        return lambda reading: reading.sign_flips[PRESENT, :, harmonic - 1].sum()

    def strength(field: int, layer: int) -> Callable[[KernelReading], Any]:
        return lambda reading: reading.magnitude[field, layer, 0]

    attractive = "layers with an attractive first harmonic, present field"
    words = "layers whose mean {} harmonic is negative, present field"
    rows = [
        row(attractive, lambda reading: (reading.mean_real[PRESENT, :, 0] > 0).sum(), 4),
        row(words.format("second"), negative(2), 1, "paper: layer four"),
        row(words.format("third"), negative(3), 2, "paper: layers three and four"),
    ]
    for field, name in ((PRESENT, "present"), (SUCCESSOR, "successor")):
        for where, layer in (("first", 0), ("last", -1)):
            rows.append(row(f"RMS first harmonic of the {name} field, {where} layer", strength(field, layer)))
    imaginary = "largest RMS imaginary part, over the RMS first harmonic"
    rows.append(row(imaginary, lambda r: imaginary_shares(r).max(), remark="paper: near zero throughout"))
    return rows


def imaginary_shares(reading: KernelReading) -> np.ndarray:
    """RMS imaginary part over the RMS first harmonic, (fields, layers, harmonics)."""
    return np.asarray(reading.rms_imaginary / reading.magnitude[:, :, :1])


def furthest(b: Bench) -> Run | None:
    """The paper's run if it is there, else the FSN that has got furthest."""
    runs = sorted(b.begun(FSN_CONVERGED), key=lambda run: (-epochs_of(run), run.recipe.seed))
    for run in runs:
        with contextlib.suppress(NotRun):  # a run of which neither weights nor kernels were kept
            b.reading(run)
            return run
    return None


def gate_table(b: Bench, run: Run) -> Table:
    """Signs of the value gates on the first validation windows."""
    length = b.scale.length(256)

    def measure() -> Table:
        tokens = b.corpus("text").valid[: GATE_WINDOWS * length].long()
        rows = tokens[: len(tokens) // length * length].reshape(-1, length)[:, :-1]
        return read_gates(b.model(run), rows)

    return b.finding(run, "gates", Table, measure)


@item("coupling", "The trained kernel as coupling functions", "Figure 2", KERNEL)
def coupling(b: Bench) -> Result:
    """Coupling functions per layer against sin Δ, harmonic magnitudes of both fields, signs, bounds, gates."""
    result = Result(rows=kernel_rows(b))
    run = furthest(b)
    if run is None:
        return result
    reading = b.reading(run)
    readings = b.history(run)
    said = f"{run.name}, {epochs_of(run)} epochs"
    if b.library.reached(KERNEL, KERNEL.seeds[0]) is None:
        said += f" (the paper's run has {KERNEL.epochs}, so no number here stands beside the paper's)"
        result.notes.append(f"The pictures show {said}.")
    trained = (
        f"The trained kernel of {said}. Left: coupling function of each layer's present field, against "
        "sin Δ (dashed). Right: RMS magnitude of the harmonics; hatched where the mean real part is "
        "negative."
    )
    history = f"From the start (faint) to the best epoch (bold), through every epoch that was kept: {said}."
    result.pictures += [
        Picture("coupling", trained, lambda s: draw_coupling(reading, surface=s), reading.table()),
        Picture("coupling-history", history, lambda s: draw_coupling_history(thinned(readings), surface=s)),
    ]
    result.tables.append(("Bounds and temperatures", reading.scales()))
    try:
        result.tables.append(("Value gates on validation text", gate_table(b, run)))
    except UserError as reason:
        result.notes.append(f"Value gates: {reason}.")
    result.live = {"kernel": {"run": run.name, "epochs": epochs_of(run), **coupling_data(readings)}}
    return result


# -- the opening claim -------------------------------------------------------------------------------------

STATES: dict[str, Need] = {
    "FSN": KERNEL.best,
    "Kuramoto": KURAMOTO.seed(0).best,
    "transformer": REFERENCE.best,
}


def states_of(b: Bench, run: Run) -> DepthProfile:
    """States of one model through depth, on the first validation windows."""

    def measure() -> DepthProfile:
        windows = Windows(b.corpus("text").valid, b.scale.length(256), b.scale.length(256))
        tokens = windows.gather(torch.arange(min(STATE_WINDOWS, len(windows))))[:, :-1]
        return depth_profile(b.model(run), tokens, run.name)

    return b.finding(run, "states", DepthProfile, measure)


def profile(b: Bench, name: str) -> DepthProfile:
    return replace(states_of(b, b.run(STATES[name])), label=name)


@item("synchronization", "Consensus through depth", "Section 1", *tuple(STATES.values()))
def synchronization(b: Bench) -> Result:
    """The opening claim: attention drives token states toward consensus. Clustering, rank, order parameters
    and winding through depth, for FSN, Kuramoto attention and the transformer."""
    result, profiles = Result(), []
    words = {"cosine": "mean cosine of token pairs", "effective_rank": "effective rank"}
    for name, need in STATES.items():
        for quantity in words:

            def measure(runs: list[Run], name: str = name, quantity: str = quantity) -> Measurement:
                series = profile(b, name).values[quantity]
                return series[-1] - series[0], f"from {series[0]:.3f} to {series[-1]:.3f}"

            title = f"{name}: {words[quantity]}, last layer minus embedding"
            result.rows.append(compare(b, title, None, [need], measure, "+.3f"))
        if result.rows[-1].ours is not None:
            profiles.append(profile(b, name))
    if profiles:
        caption = (
            "Consensus, rank, order and winding of token states from the embedding through the layers; "
            "the dotted line is what scattered phases would show."
        )
        draw, table = (
            functools.partial(draw_states, profiles),
            stacked([p.table() for p in profiles]),
        )
        result.pictures.append(Picture("synchronization", caption, draw, table))
    return result


# -- claims ------------------------------------------------------------------------------------------------


def three(values: Any) -> str:
    return listed(map(float, np.asarray(values)), lambda v: f"{v:.3f}".replace("-", "−"))


def magnitude(b: Bench, field: int) -> np.ndarray:
    """RMS of the coefficients, (layers, harmonics)."""
    return np.asarray(b.reading(b.run(KERNEL)).magnitude[field])


def mean_real(b: Bench) -> np.ndarray:
    """Mean real parts of the present field, (layers, harmonics)."""
    return np.asarray(b.reading(b.run(KERNEL)).mean_real[PRESENT])


def first_attracts(b: Bench) -> Found:
    found = mean_real(b)[:, 0]
    return bool((found > 0).all()), f"by layer {three(found)}"


def first_strengthens(b: Bench) -> Found:
    found = magnitude(b, PRESENT)[:, 0]
    return bool((np.diff(found) > 0).all()), f"RMS by layer {three(found)}"


def higher_weaken(b: Bench, field: int) -> Found:
    found = magnitude(b, field)
    fine = bool((np.diff(found[:, 1:], axis=0) < 0).all())
    return fine, f"RMS n=2 {three(found[:, 1])}; n=3 {three(found[:, 2])}"


def nearest_sine(b: Bench) -> Found:
    mean = mean_real(b)
    rest = np.sqrt((mean[:, 1:] ** 2).sum(axis=1)) / np.abs(mean[:, 0])
    return int(np.argmin(rest)) == len(rest) - 1, f"higher harmonics over the first, by layer: {three(rest)}"


def early_use_harmonics(b: Bench) -> Found:
    found = magnitude(b, PRESENT)
    share = (found / found[:, :1])[: len(found) // 2, 1:].ravel()
    return bool((share > 0.5).all()), f"over the first harmonic, first half of the layers: {three(share)}"


def third_flips(b: Bench) -> Found:
    found = mean_real(b)[:, 2]
    return bool((found[-2:] < 0).all()), f"by layer {three(found)}"


def second_flips(b: Bench) -> Found:
    found = mean_real(b)[:, 1]
    return bool(found[-1] < 0 and (found[:-1] > 0).all()), f"by layer {three(found)}"


def flips_are_small(b: Bench) -> Found:
    mean = mean_real(b)[-2:]
    flipped = (np.abs(mean[:, 1:]) / np.abs(mean[:, :1]))[mean[:, 1:] < 0]
    if not flipped.size:
        return False, "no harmonic is negative in the last two layers"
    return bool((flipped < 0.25).all()), f"shares of the first harmonic {three(flipped)}"


def imaginary_near_zero(b: Bench) -> Found:
    share = imaginary_shares(b.reading(b.run(KERNEL)))
    return bool((share < 0.25).all()), f"largest RMS share {share.max():.3f}, median {np.median(share):.3f}"


def successor_keeps_first(b: Bench) -> Found:
    found = magnitude(b, SUCCESSOR)
    return bool((found.argmax(axis=1) == 0).all()), f"RMS n=1 by layer {three(found[:, 0])}"


def gates_are_signed(b: Bench) -> Found:
    repulsive = [float(row["repulsive"]) for row in gate_table(b, b.run(KERNEL)).rows]
    fine = all(0.01 < share < 0.99 for share in repulsive)
    return fine, "repulsive share by layer " + listed(repulsive, lambda v: f"{100 * v:.1f} %")


def angle_spread(reading: KernelReading) -> float:
    """Imaginary over whole magnitude of all coefficients: about the RMS angle where angles are small."""
    return float(np.sqrt((reading.weights.imag**2).sum() / (np.abs(reading.weights) ** 2).sum()))


def at_eleven(b: Bench, need: Need) -> dict[str, KernelReading]:
    """The kernel at the start and after eleven epochs."""
    run = b.run(need)
    found = {one.label: one for one in b.history(run)}
    label = f"epoch {b.epoch(11)}"
    if label not in found:
        raise NotRun(f"{run.name} has no kernel of {label}; archive it with that epoch")
    return {"start": found["start"], "then": found[label]}


def noise_differentiates(b: Bench) -> Found:
    lean, fsn = at_eleven(b, LEAN), at_eleven(b, FSN_ELEVEN)
    zero, noisy, start = (angle_spread(one) for one in (lean["then"], fsn["then"], fsn["start"]))
    evidence = f"RMS angle {zero:.3f} started at zero, {noisy:.3f} started at {start:.3f}"
    return zero < 0.5 * noisy and noisy > start, evidence


def through_depth(b: Bench, name: str, quantity: str, words: str, rises: bool = True) -> Found:
    series = profile(b, name).values[quantity]
    change = series[-1] - series[0] if rises else series[0] - series[-1]
    return change > 0, f"{words} by depth {three(series)}"


def kept_apart(b: Bench) -> Found:
    ours, base = (profile(b, name).values["cosine"][-1] for name in ("FSN", "Kuramoto"))
    return ours < base, f"mean cosine in the last layer {ours:.3f} against {base:.3f}"


FSN_ELEVEN = FSN.seed(0).after(11)

# fmt: off
CLAIMS = (
    Claim("first-harmonic-attracts", "Section 4.4",
          "Every layer trains an attractive first harmonic (present field, mean real coefficient above zero).",
          (KERNEL,), first_attracts, every=True, early=30),
    Claim("first-harmonic-strengthens", "Section 4.4",
          "The first harmonic of the present field strengthens monotonically with depth.",
          (KERNEL,), first_strengthens, early=30),
    Claim("higher-harmonics-weaken", "Section 4.4",
          "The second and third harmonics of the present field weaken with depth, from each layer to the next.",
          (KERNEL,), lambda b: higher_weaken(b, PRESENT), early=30),
    Claim("deepest-layer-nearest-sine", "Section 4.4",
          "The deepest layer realizes the coupling function closest to a pure sine.",
          (KERNEL,), nearest_sine, early=30),
    Claim("early-layers-use-harmonics", "Sections 3.3 and 4.4",
          "The early layers spread comparable weight across all three harmonics (first half of the layers: over half "
          "of the first).",
          (KERNEL,), early_use_harmonics, early=30),
    Claim("third-harmonic-flips", "Section 4.4", "The mean third harmonic is negative in the last two layers.",
          (KERNEL,), third_flips, early=30),
    Claim("second-harmonic-flips", "Section 4.4",
          "The mean second harmonic is negative in the last layer, and only there.", (KERNEL,), second_flips, early=30),
    Claim("flips-at-small-magnitude", "Section 4.4",
          "The sign flips have small magnitude: under a quarter of the layer's first harmonic.",
          (KERNEL,), flips_are_small, early=30),
    Claim("imaginary-parts-near-zero", "Section 4.4",
          "The imaginary parts stay near zero throughout: RMS under a quarter of the layer's first harmonic.",
          (KERNEL,), imaginary_near_zero, early=30),
    Claim("successor-keeps-first-harmonic", "Section 4.4",
          "The successor field keeps a strong first harmonic at every layer: the strongest of its three.",
          (KERNEL,), successor_keeps_first, every=True, early=30),
    Claim("successor-prunes-harmonics", "Section 4.4",
          "The delay term's higher harmonics are pruned with depth, from each layer to the next.",
          (KERNEL,), lambda b: higher_weaken(b, SUCCESSOR), early=30),
    Claim("gates-are-signed", "Sections 3.3 and 4.4",
          "The value gates train to a mixture of attractive and repulsive coordinates (each over one percent).",
          (KERNEL,), gates_are_signed, early=30),
    Claim("noise-differentiates-angles", "Section 2.3",
          "Started at zero the angles fail to differentiate (here: under half the FSN's after eleven epochs, whose own "
          "grow beyond their noise).",
          (LEAN, FSN_ELEVEN), noise_differentiates),
    Claim("transformer-states-cluster", "Section 1",
          "Through depth attention drives token states toward consensus: the transformer's mean cosine rises.",
          (REFERENCE,), lambda b: through_depth(b, "transformer", "cosine", "mean cosine"), early=30),
    Claim("transformer-states-lose-rank", "Section 1",
          "Token states lose rank through depth: the transformer's effective rank falls.",
          (REFERENCE,), lambda b: through_depth(b, "transformer", "effective_rank", "effective rank", rises=False),
          early=30),
    Claim("kuramoto-synchronizes", "Sections 1 and 3.1",
          "Pure attraction synchronizes: the order parameter over tokens rises through the base layer's depth.",
          (STATES["Kuramoto"],), lambda b: through_depth(b, "Kuramoto", "token_order", "order parameter"), early=30),
    Claim("frustration-keeps-states-apart", "Abstract",
          "Frustrated synchronization replaces consensus: in the last layer FSN tokens agree less than Kuramoto's.",
          (KERNEL, STATES["Kuramoto"]), kept_apart, early=30),
)
