"""How the state travels: its copies for products, and the bounded residual update as an autograd function.

Between functions the state is two tensors: θ (M, KP) in float32, zeros in the padding, and a copy in the compute type
that the next product reads, [cos θ, sin θ, 1] (M, 2KP + 16) for gates and readout or [θ, 1] (M, KP + 16) for SwiGLU.
Each is an output with a gradient of its own, so the pass that reads one kind of gradient sums all kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from .common import ONES, Aside, math_mode
from .gradients import release, total
from .tiles import row_shape
from .update import residual_backward_kernel, residual_kernel


@dataclass(frozen=True)
class Drop:
    """Dropout on a residual's raw update: rate, site, counter tensor and first row of this process."""

    rate: float
    site: int
    counter: Tensor
    first_row: int

    def arguments(self) -> tuple[Tensor, int, int, int, float]:
        return self.counter, self.first_row, self.site, int(self.rate * 2**32), 1.0 / (1.0 - self.rate)


def _drop_arguments(drop: Drop | None, filler: Tensor) -> tuple[Tensor, int, int, int, float]:
    return (filler, 0, 0, 0, 1.0) if drop is None else drop.arguments()


class ResidualFunction(torch.autograd.Function):
    """θ + bound(dropout(x)) -> the new θ and its [cos, sin, 1].

    theta (M, KP) float32, x (M, KP) compute type, alpha () or None for no bound; k: how many of the columns are phases
    """

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, x: Tensor, alpha: Tensor | None, k: int, length: int, drop: Drop | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows, kp = theta.shape
        width, r, warps = row_shape("residual", kp)
        x = x.contiguous()
        out = torch.empty_like(theta)
        feat = torch.empty(rows, 2 * kp + ONES, dtype=x.dtype, device=x.device)
        residual_kernel[(triton.cdiv(rows, r),)](
            theta, x, theta if alpha is None else alpha, out, feat, *_drop_arguments(drop, theta),
            rows, length, k, kp, width, r, alpha is not None, drop is not None, math_mode(x.dtype),
            num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(x, alpha, feat)
        ctx.drop, ctx.length, ctx.k = drop, length, k
        return out, feat

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, alpha, feat = ctx.saved_tensors
        dtheta, dfeat = grads
        (rows, kp), k = x.shape, ctx.k
        width, r, warps = row_shape("residual_backward", kp)
        programs = triton.cdiv(rows, r)
        dx = torch.empty_like(x)
        dalpha = torch.empty(programs, dtype=torch.float32, device=x.device)
        write = dfeat is not None or dtheta is None
        dout = torch.empty(rows, kp, dtype=torch.float32, device=x.device) if write else dtheta
        residual_backward_kernel[(programs,)](
            x if dtheta is None else dtheta.contiguous(), x if dfeat is None else dfeat.contiguous(), feat, x,
            dalpha if alpha is None else alpha, dout, dx, dalpha, *_drop_arguments(ctx.drop, x),
            rows, ctx.length, k, kp, width, r, alpha is not None, ctx.drop is not None,
            dtheta is not None, dfeat is not None, write, math_mode(x.dtype),
            num_warps=warps,
        )  # fmt: skip
        dalpha_sum = None
        if alpha is not None:
            weights = Aside(x.device, "weights")
            with weights:
                dalpha_sum = total(dalpha, alpha)
            release(weights, (dalpha,), (dalpha_sum,))
        return dout, dx, dalpha_sum, None, None, None
