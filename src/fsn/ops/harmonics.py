"""Phases: wrapped, as phasors, and as powers of these."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def phase_features(theta: Tensor) -> Tensor:
    """Trigonometric features of the state, what the gates read and the readout compares.

        [cos θ, sin θ]

    theta: (..., k) -> (..., 2k)
    """
    return torch.cat((theta.cos(), theta.sin()), dim=-1)


def harmonic_powers(theta: Tensor, harmonics: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of zⁿ = e^{inθ} for n = 1..N, by repeated multiplication.

        z^{n+1} = zⁿ · z

    One cosine and one sine per phase, then N−1 complex products: cheaper than N calls, and the argument of the
    cosine never grows with n, so precision does not fall with the harmonic.

    theta: (..., k) -> cos nθ, sin nθ, each (..., N, k)
    """
    c1, s1 = theta.cos(), theta.sin()
    cos, sin = [c1], [s1]
    for _ in range(harmonics - 1):
        c, s = cos[-1], sin[-1]
        cos.append(c * c1 - s * s1)
        sin.append(s * c1 + c * s1)
    return torch.stack(cos, dim=-2), torch.stack(sin, dim=-2)


def wrap(theta: Tensor) -> Tensor:
    """Phases wrapped into (−π, π]; the gradient is that of the identity.

        θ − 2π ⌈(θ − π) / 2π⌉

    theta: (...) -> (...)
    """
    turns = torch.ceil((theta.detach() - math.pi) / (2 * math.pi))
    return theta - 2 * math.pi * turns
