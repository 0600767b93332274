"""Sections 3.3 and 4.4: what the trained kernel and gates look like; and the opening claim on consensus."""

from __future__ import annotations

import numpy as np

from fsn.paper import needs
from fsn.paper.bench import Bench, NotRun
from fsn.paper.claims.claim import Claim, claim, listed
from fsn.paper.items.coupling import KERNEL, PRESENT, SUCCESSOR, gate_table
from fsn.paper.items.synchronization import MODELS, profile

CLAIMS: list[Claim] = []


def three(values: object) -> str:
    return listed([float(v) for v in np.asarray(values)], lambda v: f"{v:.3f}".replace("-", "−"))


def rises(values: np.ndarray) -> bool:
    return bool((np.diff(values) > 0).all())


@claim(
    CLAIMS,
    "first-harmonic-attracts",
    "Section 4.4",
    "Every layer trains an attractive first harmonic (present field, mean real coefficient above zero).",
    KERNEL,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).mean_real[PRESENT, :, 0]
    return bool((found > 0).all()), f"by layer {three(found)}"


@claim(
    CLAIMS,
    "first-harmonic-strengthens",
    "Section 4.4",
    "The first harmonic of the present field strengthens monotonically with depth.",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).magnitude[PRESENT, :, 0]
    return rises(found), f"RMS by layer {three(found)}"


@claim(
    CLAIMS,
    "higher-harmonics-weaken",
    "Section 4.4",
    "The second and third harmonics of the present field weaken with depth (last layer below first).",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).magnitude[PRESENT]
    fine = bool((found[-1, 1:] < found[0, 1:]).all())
    return fine, f"RMS n=2 {three(found[:, 1])}; n=3 {three(found[:, 2])}"


@claim(
    CLAIMS,
    "deepest-layer-nearest-sine",
    "Section 4.4",
    "The deepest layer realizes the coupling function closest to a pure sine.",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    mean = b.reading(b.run(KERNEL)).mean_real[PRESENT]
    rest = np.sqrt((mean[:, 1:] ** 2).sum(axis=1)) / np.abs(mean[:, 0])
    return int(np.argmin(rest)) == len(rest) - 1, f"higher harmonics over the first, by layer: {three(rest)}"


@claim(
    CLAIMS,
    "early-layers-use-harmonics",
    "Sections 3.3 and 4.4",
    "The early layers put nontrivial weight on the second and third harmonics (over a quarter of the first).",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).magnitude[PRESENT, 0]
    return bool((found[1:] > 0.25 * found[0]).all()), f"first layer, RMS by harmonic {three(found)}"


@claim(
    CLAIMS,
    "third-harmonic-flips",
    "Section 4.4",
    "The mean third harmonic is negative in the last two layers.",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).mean_real[PRESENT, :, 2]
    return bool((found[-2:] < 0).all()), f"by layer {three(found)}"


@claim(
    CLAIMS,
    "second-harmonic-flips",
    "Section 4.4",
    "The mean second harmonic is negative in the last layer, and only there.",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).mean_real[PRESENT, :, 1]
    return bool(found[-1] < 0 and (found[:-1] > 0).all()), f"by layer {three(found)}"


@claim(
    CLAIMS,
    "flips-at-small-magnitude",
    "Section 4.4",
    "The sign flips have small magnitude: under a quarter of the layer's first harmonic.",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    mean = b.reading(b.run(KERNEL)).mean_real[PRESENT]
    share = np.abs(mean[-2:, 1:]) / np.abs(mean[-2:, :1])
    flipped = share[mean[-2:, 1:] < 0]
    if not flipped.size:
        return False, "no harmonic is negative in the last two layers"
    return bool((flipped < 0.25).all()), f"shares of the first harmonic {three(flipped)}"


@claim(
    CLAIMS,
    "imaginary-parts-near-zero",
    "Section 4.4",
    "The imaginary parts stay near zero: coordinate means under a tenth of the layer's first harmonic.",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    reading = b.reading(b.run(KERNEL))
    mean = np.abs(reading.weights.imag.mean(axis=-1))
    share = mean / reading.magnitude[:, :, :1]
    rms = reading.rms_imaginary / reading.magnitude[:, :, :1]
    return bool(
        (share < 0.1).all()
    ), f"largest mean share {share.max():.3f}, largest RMS share {rms.max():.3f}"


@claim(
    CLAIMS,
    "successor-keeps-first-harmonic",
    "Section 4.4",
    "The successor field keeps a strong first harmonic at every layer: the strongest of its three.",
    KERNEL,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).magnitude[SUCCESSOR]
    return bool((found.argmax(axis=1) == 0).all()), f"RMS n=1 by layer {three(found[:, 0])}"


@claim(
    CLAIMS,
    "successor-prunes-harmonics",
    "Section 4.4",
    "The delay term's higher harmonics are pruned with depth (last layer below first).",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    found = b.reading(b.run(KERNEL)).magnitude[SUCCESSOR]
    fine = bool((found[-1, 1:] < found[0, 1:]).all())
    return fine, f"RMS n=2 {three(found[:, 1])}; n=3 {three(found[:, 2])}"


@claim(
    CLAIMS,
    "gates-are-signed",
    "Sections 3.3 and 4.4",
    "The value gates train to a mixture of attractive and repulsive coordinates (each over one percent).",
    KERNEL,
)
def _(b: Bench) -> tuple[bool, str]:
    gates = gate_table(b, b.run(KERNEL))
    if gates is None:
        raise NotRun("the text is not here; --fetch gets it")
    repulsive = [float(row["repulsive"]) for row in gates.rows]
    fine = all(0.01 < share < 0.99 for share in repulsive)
    return fine, "repulsive share by layer " + listed(repulsive, lambda v: f"{100 * v:.1f} %")


@claim(
    CLAIMS,
    "noise-differentiates-angles",
    "Section 2.3",
    "Started at zero the angles fail to differentiate: the lean kernel's imaginary parts stay below the "
    "FSN's.",
    needs.LEAN,
    needs.FSN.seed(0).after(11),
)
def _(b: Bench) -> tuple[bool, str]:
    lean, fsn = (
        float(np.sqrt((b.reading(b.run(n)).weights.imag ** 2).mean()))
        for n in (needs.LEAN, needs.FSN.seed(0).after(11))
    )
    return lean < fsn, f"RMS imaginary part {lean:.4f} against {fsn:.4f}"


@claim(
    CLAIMS,
    "transformer-states-cluster",
    "Section 1",
    "Through depth attention drives token states toward consensus: the transformer's mean cosine rises.",
    MODELS["transformer"],
)
def _(b: Bench) -> tuple[bool, str]:
    series = profile(b, "transformer").values["cosine"]
    return series[-1] > series[0], f"mean cosine by depth {three(series)}"


@claim(
    CLAIMS,
    "transformer-states-lose-rank",
    "Section 1",
    "Token states lose rank through depth: the transformer's effective rank falls.",
    MODELS["transformer"],
)
def _(b: Bench) -> tuple[bool, str]:
    series = profile(b, "transformer").values["effective_rank"]
    return series[-1] < series[0], f"effective rank by depth {three(series)}"


@claim(
    CLAIMS,
    "kuramoto-synchronizes",
    "Sections 1 and 3.1",
    "Pure attraction synchronizes: the order parameter over tokens rises through the base layer's depth.",
    MODELS["Kuramoto"],
)
def _(b: Bench) -> tuple[bool, str]:
    series = profile(b, "Kuramoto").values["token_order"]
    return series[-1] > series[0], f"order parameter by depth {three(series)}"


@claim(
    CLAIMS,
    "frustration-keeps-states-apart",
    "Abstract",
    "Frustrated synchronization replaces consensus: in the last layer FSN tokens agree less than Kuramoto's.",
    MODELS["FSN"],
    MODELS["Kuramoto"],
)
def _(b: Bench) -> tuple[bool, str]:
    ours, base = (profile(b, name).values["cosine"][-1] for name in ("FSN", "Kuramoto"))
    return ours < base, f"mean cosine in the last layer {ours:.3f} against {base:.3f}"
