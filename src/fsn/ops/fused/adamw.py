"""Clipping and AdamW over one flat vector in one pass.

The library's fused optimizer gives each thread block 65,536 elements: a model of a million parameters keeps sixteen
blocks busy. This one reads and writes each number once, with every multiprocessor at work.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def adamw_kernel(
    p_ptr, g_ptr, m_ptr, v_ptr, norm_ptr, step_ptr, broken_ptr, lr_ptr,
    n, clip, beta1, rest1, beta2, rest2, log_beta1, log_beta2, eps, decay, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step for BLOCK parameters; nothing moves where ``broken`` is not zero. ``step`` counts this step already."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    if tl.load(broken_ptr) == 0.0:
        lr = tl.load(lr_ptr)
        step = tl.load(step_ptr).to(tl.float64)
        correct1 = (1.0 - tl.exp(step * log_beta1)).to(tl.float32)
        correct2 = (1.0 - tl.exp(step * log_beta2)).to(tl.float32)
        g = tl.load(g_ptr + i, mask=mask, other=0.0)
        if clip > 0.0:
            g = g / tl.maximum((tl.load(norm_ptr) + 1e-6) / clip, 1.0)
        p = tl.load(p_ptr + i, mask=mask, other=0.0)
        m = tl.load(m_ptr + i, mask=mask, other=0.0)
        v = tl.load(v_ptr + i, mask=mask, other=0.0)
        m = beta1 * m + rest1 * g
        v = beta2 * v + rest2 * g * g
        p = p - lr * decay * p
        p = p - lr / correct1 * m / (tl.sqrt(v) / tl.sqrt(correct2) + eps)
        tl.store(p_ptr + i, p, mask=mask)
        tl.store(m_ptr + i, m, mask=mask)
        tl.store(v_ptr + i, v, mask=mask)


def adamw(
    values: Tensor, gradient: Tensor, moment: Tensor, square: Tensor, norm: Tensor, step: Tensor, broken: Tensor,
    lr: Tensor, clip: float, beta1: float, beta2: float, eps: float, decay: float,
) -> None:  # fmt: skip
    """g ← g / max(1, (‖g‖ + 1e-6) / clip), then AdamW, in place; ``clip`` 0 is off. All float32, on one device."""
    n = values.numel()
    adamw_kernel[(triton.cdiv(n, BLOCK),)](
        values, gradient, moment, square, norm, step, broken, lr, n, float(clip),
        beta1, 1.0 - beta1, beta2, 1.0 - beta2,
        _log(beta1), _log(beta2), eps, decay, BLOCK,
    )  # fmt: skip


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -1e30
