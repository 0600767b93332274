"""Feed-forward blocks: SwiGLU on the lifted phases, on periodic features, and collective modes.

Each takes the phases and, where the state carries one, a register, and returns the raw update (B, T, k).
A register is read through the gate: a learned linear map of it is added to the gate's argument. That is the
least that lets every block depend on it, and it is the same for all blocks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape))


def _draw(*weights: nn.Parameter | None) -> None:
    """PyTorch's default for ``nn.Linear``: uniform in ±1/√n for n real inputs; a complex one, (2, out, in), is two."""
    for weight in weights:
        if weight is not None:
            bound = (weight.shape[-1] * (2 if weight.dim() == 3 else 1)) ** -0.5
            weight.uniform_(-bound, bound)


class SwiGLU(nn.Module):
    """down( SiLU(gate x + b) ⊙ up x ), one bias on the gate, zero at the start.

    Gate and up projection are one matrix, gate first. Shared by FSN and transformer.

    x (B, T, n) -> (B, T, out)
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        register: int = 0,
        dropout: float = 0.0,
        site: int = 0,
    ) -> None:
        super().__init__()
        self.gate_up = _empty(2 * hidden, inputs)
        self.bias = _empty(hidden)
        self.down = _empty(outputs, hidden)
        self.register_in = _empty(hidden, register) if register else None
        self.dropout, self.site = dropout, site
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        _draw(self.gate_up, self.down, self.register_in)
        self.bias.zero_()

    def forward(
        self, x: Tensor, register: Tensor | None = None, dropout_key: ops.DropoutKey | None = None
    ) -> Tensor:
        gate, up = F.linear(x, self.gate_up).to(x.dtype).chunk(2, dim=-1)
        if self.register_in is not None and register is not None:
            gate = gate + (register @ self.register_in.mT).to(x.dtype)
        hidden = ops.dropout(ops.swiglu(gate, up, self.bias), self.dropout, dropout_key, self.site)
        return F.linear(hidden, self.down).to(x.dtype)


class TorusSwiGLU(SwiGLU):
    """SwiGLU that reads [cos θ, sin θ] instead of θ: periodic, blind to winding."""

    def forward(
        self, x: Tensor, register: Tensor | None = None, dropout_key: ops.DropoutKey | None = None
    ) -> Tensor:
        return super().forward(ops.phase_features(x), register, dropout_key)


class MeanField(nn.Module):
    """Gated coupling to H collective modes of the phases (equation 4), and optionally W winding modes.

    Complex C^g, C^v, D as real pairs and one bias per mode: H·(6k + 1) parameters. Each winding mode is a real
    gated mode that reads the lifted θ and writes straight into the update, 3k + 1 parameters. The paper leaves
    the initialisation open: here the entries of C and D are uniform with the variance that ``nn.Linear`` has for
    the same number of real inputs, 2k for C and 2H for D, and the gate bias starts at zero as in SwiGLU.

    Phases are small at first, so that m is near the row sums of C, whatever the text says, and the block turns all
    tokens alike. ``start`` takes that away: ``centred`` rows of C sum to zero, ``zero`` is D = 0.

    theta (B, T, k) -> (B, T, k)
    """

    def __init__(
        self, k: int, modes: int, winding: int = 0, register: int = 0, start: str = "uniform"
    ) -> None:
        super().__init__()
        self.gate_modes = _empty(2, modes, k)
        self.value_modes = _empty(2, modes, k)
        self.projection = _empty(2, k, modes)
        self.bias = _empty(modes)
        self.register_in = _empty(modes, register) if register else None
        self.winding, self.start = winding, start
        if winding:
            self.winding_gate = _empty(winding, k)
            self.winding_value = _empty(winding, k)
            self.winding_projection = _empty(k, winding)
            self.winding_bias = _empty(winding)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        _draw(self.gate_modes, self.value_modes, self.projection, self.register_in)
        if self.start == "centred":
            for rows in (self.gate_modes, self.value_modes):
                rows.sub_(rows.mean(-1, keepdim=True))
        elif self.start == "zero":
            self.projection.zero_()
        self.bias.zero_()
        if self.winding:
            _draw(self.winding_gate, self.winding_value, self.winding_projection)
            self.winding_bias.zero_()

    def forward(
        self, theta: Tensor, register: Tensor | None = None, dropout_key: ops.DropoutKey | None = None
    ) -> Tensor:
        shift = None
        if self.register_in is not None and register is not None:
            shift = (register @ self.register_in.mT).to(theta.dtype)
        update = ops.mean_field(theta, self.gate_modes, self.value_modes, self.projection, self.bias, shift)
        if self.winding:
            update = update + ops.winding_modes(
                theta, self.winding_gate, self.winding_value, self.winding_projection, self.winding_bias
            )
        return update


class NoFeedForward(nn.Module):
    """No block at all: the layer is its attention half."""

    def forward(
        self, theta: Tensor, register: Tensor | None = None, dropout_key: ops.DropoutKey | None = None
    ) -> Tensor:
        return torch.zeros_like(theta)
