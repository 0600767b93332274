"""How the state travels: its copies for products, and the bounded residual update as an autograd function.

Between functions the state is two tensors: θ (M, KP) in float32, zeros in the padding, and a copy in the compute type
that the next product reads, [cos θ, sin θ, 1] (M, 2KP + 16) for gates and readout or [θ, 1] (M, KP + 16) for SwiGLU.
Each is an output with a gradient of its own, so the pass that reads one kind of gradient sums all kinds.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .common import ONES, Aside, math_mode
from .dropout import Drop, drop_arguments
from .gradients import release, total
from .tiles import row_shape
from .update import residual_backward_kernel, residual_kernel


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
            theta, x, theta if alpha is None else alpha, out, feat,
            rows, length, k, *drop_arguments(drop, theta), kp, width, r, alpha is not None, math_mode(x.dtype),
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
            dalpha if alpha is None else alpha, dout, dx, dalpha,
            rows, ctx.length, k, *drop_arguments(ctx.drop, x), kp, width, r, alpha is not None,
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
