"""Sections 1, 3.3 and 4.4: what the trained kernel and gates look like; and the opening claim on consensus."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ...errors import UserError
from ...measure import coupling, states
from ...measure.coupling import KernelReading
from ...measure.states import DepthProfile
from ...measure.tables import Table, stacked
from ...train import Run
from ..bench import Bench, NotRun, measurement
from ..needs import FSN, FSN_CONVERGED, FSN_DROPOUT, KURAMOTO, LEAN, REFERENCE, Need, epochs_of
from ..rows import Claim, Found, Measurement, Result, Undecided, item, listing

CONVERGED = FSN_CONVERGED.seed(0)
PRESENT, SUCCESSOR = 0, 1

# -- Figure 2 ----------------------------------------------------------------------------------------------


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


def text(b: Bench) -> torch.Tensor:
    """The validation text on which gates and states are read, (n, T−1)."""
    return states.first_windows(b.corpus("text").valid, 256)[:, :-1]


@measurement("gates", Table, FSN_CONVERGED)
def gate_table(b: Bench, run: Run) -> Table:
    """Signs of the value gates on the first validation windows."""
    return coupling.read_gates(b.model(run), text(b))


@item("coupling", "The trained kernel as coupling functions", "Figure 2", CONVERGED)
def coupling_functions(b: Bench, out: Result) -> None:
    """Coupling functions per layer against sin Δ, harmonic magnitudes of both fields, signs, bounds, gates."""

    def row(
        title: str, value: Callable[[KernelReading], Any], paper: float | None = None, remark: str = ""
    ) -> None:
        form = ".4f" if paper is None else ".0f"
        out.row(title, paper, [CONVERGED], lambda runs: float(value(b.reading(runs[0]))), form, remark)

    attractive = "layers with an attractive first harmonic, present field"
    row(attractive, lambda r: (r.mean_real[PRESENT, :, 0] > 0).sum(), 4)
    words = "layers whose mean {} harmonic is negative, present field"
    second, third = "paper: layer four", "paper: layers three and four"
    row(words.format("second"), lambda r: r.sign_flips[PRESENT, :, 1].sum(), 1, second)
    row(words.format("third"), lambda r: r.sign_flips[PRESENT, :, 2].sum(), 2, third)
    words = "RMS first harmonic of the {} layer"
    row(words.format("present field, first"), lambda r: r.magnitude[PRESENT, 0, 0])
    row(words.format("present field, last"), lambda r: r.magnitude[PRESENT, -1, 0])
    row(words.format("successor field, first"), lambda r: r.magnitude[SUCCESSOR, 0, 0])
    row(words.format("successor field, last"), lambda r: r.magnitude[SUCCESSOR, -1, 0])
    imaginary = "largest RMS imaginary part, over the RMS first harmonic"
    row(imaginary, lambda r: imaginary_shares(r).max(), remark="paper: near zero throughout")
    run = furthest(b)
    if run is None:
        return
    reading, readings = b.reading(run), b.history(run)
    said = f"{run.name}, {epochs_of(run)} epochs"
    if b.reached(CONVERGED, 0) is None:
        said += f" (the paper's run has {CONVERGED.epochs}, so no number here stands beside the paper's)"
        out.notes.append(f"The pictures show {said}.")
    trained = (
        f"The trained kernel of {said}. Left: coupling function of each layer's present field, against "
        "sin Δ (dashed). Right: RMS magnitude of the harmonics; hatched where the mean real part is "
        "negative."
    )
    out.picture("coupling", coupling.draw_coupling, reading, reading.table(), trained)
    history = f"From the start (faint) to the best epoch (bold), through every epoch that was kept: {said}."
    shown = coupling.thinned(readings)
    out.picture("coupling-history", coupling.draw_coupling_history, shown, caption=history)
    out.tables.append(("Bounds and temperatures", reading.scales()))
    try:
        out.tables.append(("Value gates on validation text", gate_table(b, run)))
    except UserError as reason:
        out.notes.append(f"Value gates: {reason}.")
    out.live = {"kernel": {"run": run.name, "epochs": epochs_of(run), **coupling.coupling_data(readings)}}


# -- the opening claim -------------------------------------------------------------------------------------

STATES: dict[str, Need] = {
    "FSN": CONVERGED.best,
    "Kuramoto": KURAMOTO.seed(0).best,
    "transformer": REFERENCE.best,
}


@measurement("states", DepthProfile, *STATES.values())
def states_of(b: Bench, run: Run) -> DepthProfile:
    """States of one model through depth, on the first validation windows."""
    return states.depth_profile(b.model(run), text(b), run.name)


def through_depth(b: Bench, name: str, quantity: str) -> list[float]:
    """One quantity of a model's states, from the embedding to the last layer."""
    return states_of(b, b.run(STATES[name])).values[quantity]


@item("synchronization", "Consensus through depth", "Section 1", *tuple(STATES.values()))
def synchronization(b: Bench, out: Result) -> None:
    """The opening claim: attention drives token states toward consensus. Clustering, rank, order parameters
    and winding through depth, for FSN, Kuramoto attention and the transformer."""

    def change(quantity: str, runs: list[Run]) -> Measurement:
        series = states_of(b, runs[0]).values[quantity]
        return series[-1] - series[0], f"from {series[0]:.3f} to {series[-1]:.3f}"

    profiles = []
    for name, need in STATES.items():
        for quantity, words in (
            ("cosine", "mean cosine of token pairs"),
            ("effective_rank", "effective rank"),
        ):
            title = f"{name}: {words}, last layer minus embedding"
            row = out.row(title, None, [need], partial(change, quantity), "+.3f")
        if row.ours is not None:
            profiles.append(replace(states_of(b, b.run(need)), label=name))
    if profiles:
        table = stacked([p.table() for p in profiles])
        out.picture("synchronization", states.draw_states, profiles, table)


# -- claims ------------------------------------------------------------------------------------------------


def on_reading(check: Callable[[KernelReading], Found]) -> Callable[[Bench], Found]:
    """Whether something is true of the trained kernel. Where it is otherwise with the dropout that the paper lists, the
    evidence says so."""

    def judged(b: Bench) -> Found:
        true, evidence = check(b.reading(b.run(CONVERGED)))
        for run in b.by_seed(FSN_DROPOUT).values():
            with contextlib.suppress(NotRun):  # its weights were not kept
                other, numbers = check(b.reading(run))
                if other != true:
                    evidence += f"; with dropout 0.1 it {'holds' if other else 'fails'}: {numbers}"
        return true, evidence

    return judged


def on_kernel(
    values: Callable[[KernelReading], np.ndarray],
    true: Callable[[np.ndarray], Any],
    words: str = "by layer {}",
) -> Callable[[Bench], Found]:
    """Whether something is true of numbers of the trained kernel, most often one for each layer."""

    def check(reading: KernelReading) -> Found:
        found = values(reading)
        return listing(found.tolist(), lambda _: true(found), ".3f", words)

    return on_reading(check)


def off_sine(reading: KernelReading) -> np.ndarray:
    """All of a layer's present coupling function but its sine, over that."""
    mean = reading.weights[PRESENT].mean(axis=-1)
    rest = np.concatenate([mean.real[:, 1:], mean.imag], axis=1)
    return np.asarray(np.linalg.norm(rest, axis=1) / np.abs(mean.real[:, 0]))


def imaginary(reading: KernelReading) -> np.ndarray:
    """The largest and the median RMS share of imaginary parts, and the largest share of their mean over coordinates."""
    mean = reading.weights.mean(axis=-1)
    shares = imaginary_shares(reading)
    return np.array([shares.max(), np.median(shares), np.max(np.abs(mean.imag / mean.real[:, :, :1]))])


def higher_weaken(field: int) -> Callable[[Bench], Found]:
    """The paper says "monotonically" of the first harmonic alone, so the last layer is compared with the first; whether
    it holds from each layer to the next is said beside it."""

    def check(reading: KernelReading) -> Found:
        found = reading.magnitude[field, :, 1:].T
        words = "RMS n=2 {}; n=3 {}" + "; not from each layer to the next" * bool((np.diff(found) >= 0).any())
        return listing(found.tolist(), lambda _: (found[:, -1] < found[:, 0]).all(), ".3f", words)

    return on_reading(check)


def shaping(reading: KernelReading) -> np.ndarray:
    """Second and third harmonic over the first, in the first half of the layers, (fields, layers, 2)."""
    found = reading.magnitude[:, : reading.layers // 2]
    return np.asarray(found[:, :, 1:] / found[:, :, :1])


def flips_are_small(reading: KernelReading) -> Found:
    mean = reading.mean_real[PRESENT, -2:]
    flipped = (np.abs(mean[:, 1:]) / np.abs(mean[:, :1]))[mean[:, 1:] < 0]
    if not flipped.size:
        return False, "no harmonic is negative in the last two layers"
    return listing(flipped, lambda shares: max(shares) < 0.25, ".3f", "shares of the first harmonic {}")


def successor_keeps_first(reading: KernelReading) -> Found:
    found = reading.magnitude[SUCCESSOR]
    return listing(
        found[:, 0], lambda first: (first == found.max(axis=1)).all(), ".3f", "RMS n=1 by layer {}"
    )


def angle_spread(reading: KernelReading) -> float:
    """Imaginary over whole magnitude of all coefficients: about the RMS angle where angles are small."""
    return float(np.sqrt((reading.weights.imag**2).sum() / (np.abs(reading.weights) ** 2).sum()))


def at_eleven(b: Bench, need: Need) -> tuple[float, float]:
    """The spread of the angles at the start and after eleven epochs."""
    run, label = b.run(need), f"epoch {b.epoch(11)}"
    found = {one.label: one for one in b.history(run)}
    if label not in found:
        raise NotRun(f"{run.name} has no kernel of {label}; archive it with that epoch")
    return angle_spread(found["start"]), angle_spread(found[label])


def noise_differentiates(b: Bench) -> Found:
    (_, zero), (start, noisy) = at_eleven(b, LEAN), at_eleven(b, FSN_ELEVEN)
    words = "RMS angle {} started at zero, {} started at {}"
    return listing([zero, noisy, start], lambda _: zero < 0.5 * noisy and noisy > start, ".3f", words)


def states_lose_rank(b: Bench) -> Found:
    """Two measures of rank have to agree."""
    measures = ("effective_rank", "stable_rank")
    found = [through_depth(b, "transformer", name) for name in measures]
    falls = [series[-1] < series[0] for series in found]
    _, numbers = listing(found, bool, ".1f", "effective rank by depth {}; stable rank {}")
    if len(set(falls)) > 1:
        raise Undecided(f"the two measures disagree: {numbers}")
    return all(falls), numbers


FSN_ELEVEN = FSN.seed(0).after(11)

# fmt: off
CLAIMS = tuple(replace(claim, early=30) for claim in (
    Claim("first-harmonic-attracts", "Section 4.4",
          "Every layer trains an attractive first harmonic (present field, mean real coefficient above zero).",
          (CONVERGED,), on_kernel(lambda r: r.mean_real[PRESENT, :, 0], lambda x: (x > 0).all()), every=True),
    Claim("first-harmonic-strengthens", "Section 4.4",
          "The first harmonic of the present field strengthens monotonically with depth.",
          (CONVERGED,),
          on_kernel(lambda r: r.magnitude[PRESENT, :, 0], lambda x: (np.diff(x) > 0).all(), "RMS by layer {}")),
    Claim("higher-harmonics-weaken", "Section 4.4",
          "The second and third harmonics of the present field weaken with depth (here: from first to last layer).",
          (CONVERGED,), higher_weaken(PRESENT)),
    Claim("deepest-layer-nearest-sine", "Section 4.4",
          "The deepest layer realizes the coupling function closest to a pure sine.",
          (CONVERGED,),
          on_kernel(off_sine, lambda x: x.argmin() == len(x) - 1, "all else over the sine, by layer: {}")),
    Claim("early-layers-use-harmonics", "Sections 3.3 and 4.4",
          "The early layers spread comparable weight across all three harmonics (first half of the layers: over half "
          "of the first).", (CONVERGED,),
          on_kernel(lambda r: shaping(r)[PRESENT].ravel(),
                    lambda x: (x > 0.5).all(), "over the first harmonic, first half of the layers: {}")),
    Claim("third-harmonic-flips", "Section 4.4", "The mean third harmonic is negative in the last two layers.",
          (CONVERGED,), on_kernel(lambda r: r.mean_real[PRESENT, :, 2], lambda x: (x[-2:] < 0).all())),
    Claim("second-harmonic-flips", "Section 4.4",
          "The mean second harmonic is negative in the last layer, and only there.", (CONVERGED,),
          on_kernel(lambda r: r.mean_real[PRESENT, :, 1], lambda x: x[-1] < 0 and (x[:-1] > 0).all())),
    Claim("flips-at-small-magnitude", "Section 4.4",
          "The sign flips have small magnitude: under a quarter of the layer's first harmonic.",
          (CONVERGED,), on_reading(flips_are_small)),
    Claim("imaginary-parts-near-zero", "Section 4.4",
          "The imaginary parts stay near zero throughout: RMS under a quarter of the layer's first harmonic.",
          (CONVERGED,), on_kernel(imaginary, lambda x: x[0] < 0.25,
                                  "largest RMS share {}, median {}; of their mean over coordinates at most {}")),
    Claim("successor-keeps-first-harmonic", "Section 4.4",
          "The successor field keeps a strong first harmonic at every layer: the strongest of its three.",
          (CONVERGED,), on_reading(successor_keeps_first), every=True),
    Claim("successor-prunes-harmonics", "Section 4.4",
          "The delay term's higher harmonics are pruned with depth (here: from first to last layer).",
          (CONVERGED,), higher_weaken(SUCCESSOR)),
    Claim("shaping-is-in-the-present-field", "Section 4.4",
          "In the early layers multi-harmonic shaping is in the present field, anticipation in the successor field's "
          "first harmonic (first half of the layers: harmonics 2 and 3 over the first, higher in the present field).",
          (CONVERGED,), on_kernel(lambda r: shaping(r).reshape(2, -1), lambda x: (x[0] > x[1]).all(),
                                  "present {}; successor {}")),
    Claim("gates-are-signed", "Sections 3.3 and 4.4",
          "The value gates train to a mixture of attractive and repulsive coordinates (each over one percent).",
          (CONVERGED,), lambda b: listing(gate_table(b, b.run(CONVERGED)).column("repulsive"),
                                          lambda x: min(x) > 0.01 and max(x) < 0.99, lambda v: f"{100 * v:.1f} %",
                                          "repulsive share by layer {}")),
    Claim("noise-differentiates-angles", "Section 2.3",
          "Started at zero the angles fail to differentiate (here: under half the FSN's after eleven epochs, whose own "
          "grow beyond their noise).",
          (LEAN, FSN_ELEVEN), noise_differentiates),
    Claim("transformer-states-cluster", "Section 1",
          "Through depth attention drives token states toward consensus: the transformer's mean cosine rises.",
          (REFERENCE,),
          lambda b: listing(through_depth(b, "transformer", "cosine"), lambda x: x[-1] > x[0], ".3f",
                            "mean cosine by depth {}")),
    Claim("transformer-states-lose-rank", "Section 1",
          "Token states lose rank through depth (here: the transformer's effective and stable rank).",
          (REFERENCE,), states_lose_rank),
    Claim("state-winds", "Section 2.4",
          "Phases accumulate without wrapping, so the raw state that the SwiGLU reads encodes winding (here: over one "
          "percent of phases beyond half a turn where the last layer begins).",
          (CONVERGED.best,), lambda b: listing(through_depth(b, "FSN", "wound"), lambda x: x[-2] > 0.01,
                                               lambda v: f"{100 * v:.2f} %", "by depth {}")),
))
