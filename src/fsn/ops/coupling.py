"""What a token does with what it finds: the frustrated coupling law (equation 2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_choice
from .harmonics import harmonic_powers
from .law import FRAMES


class Pair(NamedTuple):
    """Complex coefficients as real pairs: ``re`` and ``im``, each (N, k), or (N, 1) for one value per harmonic, or
    (B, 1, N, k) where sequences have their own (heads).

    ``im`` is None for a real kernel.
    """

    re: Tensor
    im: Tensor | None


def successor_advance(x: Tensor) -> Tensor:
    """z_{+1}: the sequence advanced by one position; the last entry has no successor and is zero.

    x: (B, T, ...) -> (B, T, ...)
    """
    return torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), dim=1)


def fields(theta: Tensor, w0: Pair | None, w1: Pair | None, harmonics: int) -> Tensor:
    """What each position offers to those that attend to it: the delay folded into the values.

        F_u⁽ⁿ⁾ = w0⁽ⁿ⁾ z_uⁿ + w1⁽ⁿ⁾ z_{u+1}ⁿ

    Folding before the T² product means that product is paid once for both terms.

    theta: (B, T, k) -> (B, T, N, 2, k), real and imaginary part in the axis of size 2
    """
    cos, sin = harmonic_powers(theta, harmonics)
    re, im = torch.zeros_like(cos), torch.zeros_like(sin)
    if w0 is not None:
        re, im = _add_product(re, im, w0, cos, sin)
    if w1 is not None:
        re, im = _add_product(re, im, w1, successor_advance(cos), successor_advance(sin))
    return torch.stack((re, im), dim=-2)


def _add_product(re: Tensor, im: Tensor, w: Pair, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(re + i im) + w · (cos + i sin)"""
    re, im = re + w.re * cos, im + w.re * sin
    if w.im is not None:
        re, im = re - w.im * sin, im + w.im * cos
    return re, im


def aggregate_fields(attention: Tensor, field: Tensor, first: int = 0) -> Tensor:
    """The attended sum over strictly earlier positions.

        G_t⁽ⁿ⁾ = Σ_{u<t} A_tu F_u⁽ⁿ⁾

    ``first`` is the position of the first row of attention (for a cache that continues a sequence).

    attention: (B, T, U), field: (B, U, N, 2, k) -> (B, T, N, 2, k)
    """
    total = attention.tril(first - 1) @ field.flatten(2)
    return total.unflatten(2, field.shape[2:]).to(attention.dtype)


def contract_fields(theta: Tensor, total: Tensor) -> Tensor:
    """The pull of the aggregated fields on each token.

        Σ_n Im[ z̄_tⁿ G_t⁽ⁿ⁾ ] = Σ_n ( cos nθ_t · Im G⁽ⁿ⁾ − sin nθ_t · Re G⁽ⁿ⁾ )

    theta: (B, T, k), total: (B, T, N, 2, k) -> (B, T, k)
    """
    cos, sin = harmonic_powers(theta, total.shape[-3])
    return (cos * total[..., 1, :] - sin * total[..., 0, :]).sum(dim=-2)


def drift(attention: Tensor, w0: Pair | None, w1: Pair | None, frame: str, first: int = 0) -> Tensor | None:
    """The constant part of the update, by frame: None where the kernel is real.

    *rest*: equation 2 as the paper writes it. The diagonal has a closed form because z̄ⁿ zⁿ = 1:

        + A_tt Σ_n Im w0⁽ⁿ⁾

    *co-rotating*: couple with sin(nΔ + φ) − sin φ instead of sin(nΔ + φ), which removes the uniform rotation
    that imaginary parts would otherwise give to every token, whatever it attends to. The diagonal term cancels
    and the rest is

        − Σ_{u<t} A_tu Σ_n (Im w0⁽ⁿ⁾ + Im w1⁽ⁿ⁾)

    where the first factor is 1 − A_tt as long as rows sum to one (with dropout, or a probe, they need not).

    attention: (B, T, U), rows from position ``first`` on -> (B, T, k) or broadcastable to it
    """
    check_choice("frame", frame, FRAMES)
    im0 = w0.im.sum(dim=-2) if w0 is not None and w0.im is not None else None
    im1 = w1.im.sum(dim=-2) if w1 is not None and w1.im is not None else None
    if frame == "rest":
        return None if im0 is None else attention.diagonal(first, -2, -1).unsqueeze(-1) * im0
    present = [im for im in (im0, im1) if im is not None]
    return None if not present else -attention.tril(first - 1).sum(dim=-1, keepdim=True) * sum(present)


def coupling(
    theta: Tensor,
    attention: Tensor,
    w0: Pair | None,
    w1: Pair | None,
    harmonics: int,
    frame: str = "co-rotating",
    field: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """The update direction a_t (equation 2), in either frame.

        a_t = Σ_n Im[ z̄_tⁿ ⊙ ( A ( w0⁽ⁿ⁾ ⊙ zⁿ + w1⁽ⁿ⁾ ⊙ z_{+1}ⁿ ) )_t ]

    The sum runs over strictly earlier positions; what the diagonal adds is in :func:`drift`. Position u
    contributes its successor only for u + 1 ≤ t, so the law is causal. Memory is O(T² + T·N·k).
    ``field`` takes the place of the fields made from θ and the coefficients. With it, θ and attention may begin at
    position ``first`` of the sequence that the fields cover.

    theta: (B, T, k), attention: (B, T, U), field: (B, U, N, 2, k) -> (B, T, k)
    """
    field = fields(theta, w0, w1, harmonics) if field is None else field
    total = aggregate_fields(attention, field, first)
    pull = contract_fields(theta, total)
    constant = drift(attention, w0, w1, frame, first)
    return pull if constant is None else pull + constant
