"""What a token does by itself: SwiGLU, collective modes (equation 4), winding modes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate: Tensor, up: Tensor, bias: Tensor) -> Tensor:
    """The middle of a SwiGLU block.

        SiLU(gate + b) ⊙ up

    gate, up: (..., h), bias: (h,) -> (..., h)
    """
    return F.silu(gate + bias) * up


def mean_field(
    theta: Tensor,
    gate_modes: Tensor,
    value_modes: Tensor,
    projection: Tensor,
    bias: Tensor,
    shift: Tensor | None = None,
) -> Tensor:
    """Gated coupling to learned collective modes of a token's own phases (equation 4).

        m_h = Σ_c C_hc z_c,   q = SiLU(Re m^g + b) ⊙ m^v,   a = Im( z̄ ⊙ D q )

    Complex matrices come as real pairs in a leading axis of size 2: C^g and C^v are (2, H, k), D is (2, k, H).
    ``shift`` is added to the gate's argument (a register is read through it).

    theta: (B, T, k), bias: (H,), shift: (B, T, H) or None -> (B, T, k)
    """
    cos, sin = theta.cos(), theta.sin()
    # Re(Cz) = C_re cos − C_im sin, Im(Cz) = C_re sin + C_im cos: one product of [cos, sin] with stacked blocks.
    features = torch.cat((cos, sin), dim=-1)
    gate = features @ torch.cat((gate_modes[0], -gate_modes[1]), dim=-1).mT
    mode_re, mode_im = (features @ _real(value_modes).mT).to(theta.dtype).chunk(2, dim=-1)
    argument = gate.to(theta.dtype) + bias
    if shift is not None:
        argument = argument + shift
    opening = F.silu(argument)
    q = torch.cat((opening * mode_re, opening * mode_im), dim=-1)
    back_re, back_im = (q @ _real(projection).mT).to(theta.dtype).chunk(2, dim=-1)
    return cos * back_im - sin * back_re


def _real(matrix: Tensor) -> Tensor:
    """A complex matrix that multiplies [re, im]: (2, m, n) -> (2m, 2n)"""
    re, im = matrix
    return torch.cat((torch.cat((re, -im), dim=-1), torch.cat((im, re), dim=-1)), dim=-2)


def winding_modes(theta: Tensor, gate: Tensor, value: Tensor, projection: Tensor, bias: Tensor) -> Tensor:
    """A few real gated modes that read the lifted phases, windings and all.

        D_w ( SiLU(G θ + b) ⊙ V θ )

    theta: (B, T, k), gate, value: (W, k), projection: (k, W), bias: (W,) -> (B, T, k)
    """
    opening = F.silu((theta @ gate.mT).to(theta.dtype) + bias)
    return ((opening * (theta @ value.mT).to(theta.dtype)) @ projection.mT).to(theta.dtype)
