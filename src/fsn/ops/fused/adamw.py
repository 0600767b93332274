"""The tail of a training step: the loss beside the backward pass, then norm, clipping, AdamW and counting.

Around a short forward and backward pass each small kernel costs as much as its launch. So the tail is three:

1. sums of squares of parts of the gradient;
2. AdamW, in which each program adds up those sums for itself and decides whether the step counts;
3. one program that writes down what happened.

No program reads what another program of the same launch writes, and every sum has a fixed order: the same step
gives the same bits.

PyTorch's fused optimizer gives each thread block 65,536 elements: a model of a million parameters keeps sixteen
blocks busy. This one reads and writes each number once, with every multiprocessor at work.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from .common import sum_of

BLOCK = 1024
"""Parameters a program of AdamW moves."""
PARTS = 512
"""Most parts, each with its own sum of squares, that the gradient is cut into."""
PART = 2048
"""Elements a program of the sums of squares reads at once."""


@triton.jit(do_not_specialize=["n"])
def mean_kernel(x_ptr, out_ptr, n, count, BLOCK: tl.constexpr):
    """One program: the sum of n numbers, divided by ``count``."""
    tl.store(out_ptr, sum_of(x_ptr, n, BLOCK) / count)


def mean(x: Tensor, out: Tensor, count: int) -> None:
    """out[0] = sum of ``x`` / count. Slow for long ``x``: meant to run beside something that takes longer."""
    mean_kernel[(1,)](x.contiguous(), out, x.numel(), float(count), 8192, num_warps=16)


@triton.jit
def squares_kernel(g_ptr, sums_ptr, n, BLOCK: tl.constexpr):
    """Each program adds up the squares of every num_programs-th block, starting with its own."""
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        g = tl.load(g_ptr + i, mask=i < n, other=0.0)
        acc += g * g
    tl.store(sums_ptr + tl.program_id(0), tl.sum(acc, axis=0))


def parts(n: int) -> int:
    """Parts that a gradient of ``n`` elements is cut into."""
    return min(PARTS, triton.cdiv(n, PART))


def squares(gradient: Tensor, sums: Tensor) -> None:
    """The sum of squares of each part of the gradient; ``sums`` holds :func:`parts` numbers."""
    squares_kernel[(sums.numel(),)](gradient, sums, gradient.numel(), PART, num_warps=8)


@triton.jit
def finite(x):
    return tl.abs(x) < float("inf")  # no comparison with NaN holds


@triton.jit(do_not_specialize=["count"])
def adamw_kernel(
    p_ptr, g_ptr, m_ptr, v_ptr, sums_ptr, loss_ptr, norm_ptr, steps_ptr, broken_ptr, lr_ptr,
    n, count, clip, beta1, rest1, beta2, rest2, log_beta1, log_beta2, eps, decay,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step for BLOCK parameters; nothing moves where ``broken`` is not zero or loss or norm are not finite."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    g = tl.load(g_ptr + i, mask=mask, other=0.0)  # the long loads first: they overlap with the sum
    p = tl.load(p_ptr + i, mask=mask, other=0.0)
    m = tl.load(m_ptr + i, mask=mask, other=0.0)
    v = tl.load(v_ptr + i, mask=mask, other=0.0)
    part = tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(sums_ptr + part, mask=part < count, other=0.0), axis=0))
    if tl.program_id(0) == 0:
        tl.store(norm_ptr, norm)
    good = (tl.load(broken_ptr) == 0.0) & finite(tl.load(loss_ptr) + norm)
    lr = tl.load(lr_ptr)
    step = tl.load(steps_ptr).to(tl.float64) + 1.0
    correct1 = (1.0 - tl.exp(step * log_beta1)).to(tl.float32)
    correct2 = (1.0 - tl.exp(step * log_beta2)).to(tl.float32)
    if clip > 0.0:
        g = g / tl.maximum((norm + 1e-6) / clip, 1.0)
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    p = p - lr * decay * p
    p = p - lr / correct1 * m / (tl.sqrt(v) / tl.sqrt(correct2) + eps)
    moves = i < tl.where(good, n, 0)
    tl.store(p_ptr + i, p, mask=moves)
    tl.store(m_ptr + i, m, mask=moves)
    tl.store(v_ptr + i, v, mask=moves)


def adamw(
    values: Tensor, gradient: Tensor, moment: Tensor, square: Tensor,
    sums: Tensor, loss: Tensor, norm: Tensor, steps: Tensor, broken: Tensor, lr: Tensor,
    clip: float, beta1: float, beta2: float, eps: float, decay: float,
) -> None:  # fmt: skip
    """g ← g / max(1, (‖g‖ + 1e-6) / clip), then AdamW, in place; ``clip`` 0 is off. All float32, on one device.

    ‖g‖² is the sum of ``sums``, and ‖g‖ is left in ``norm``. ``steps`` counts the steps before this one. If the step
    is not to count (``broken`` is not 0, ``loss`` or ‖g‖ are not finite) nothing else changes.
    """
    n = values.numel()
    adamw_kernel[(triton.cdiv(n, BLOCK),)](
        values, gradient, moment, square, sums, loss, norm, steps, broken, lr, n, sums.numel(), float(clip),
        beta1, 1.0 - beta1, beta2, 1.0 - beta2,
        _log(beta1), _log(beta2), eps, decay, PARTS, BLOCK,
    )  # fmt: skip


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -1e30


@triton.jit(do_not_specialize=["slots"])
def count_kernel(loss_ptr, norm_ptr, broken_ptr, steps_ptr, ring_ptr, counters_ptr, slots):
    """One program of one warp, so that it reads everything before it writes anything."""
    loss = tl.load(loss_ptr)
    norm = tl.load(norm_ptr)
    was_broken = tl.load(broken_ptr)
    steps = tl.load(steps_ptr)
    position = tl.load(counters_ptr)
    counter = tl.load(counters_ptr + 1)
    step = tl.load(counters_ptr + 2)
    broken = tl.where(finite(loss + norm), was_broken, 1.0)
    slot = ring_ptr + (step % slots) * 2
    tl.store(slot, loss)
    tl.store(slot + 1, norm)
    tl.store(broken_ptr, broken)
    tl.store(steps_ptr, steps + (1.0 - broken))
    tl.store(counters_ptr, position + 1)
    tl.store(counters_ptr + 1, counter + 1)
    tl.store(counters_ptr + 2, step + 1)


def count(loss: Tensor, norm: Tensor, broken: Tensor, steps: Tensor, ring: Tensor, counters: Tensor) -> None:
    """What a step leaves behind, after :func:`adamw`.

    ring[step % slots] = (loss, norm);  broken ← 1 if loss or norm are not finite;  steps += 1 − broken;  counters += 1

    ``counters`` holds position, dropout counter and step, int64; ``ring`` is (slots, 2) float32.
    """
    count_kernel[(1,)](loss, norm, broken, steps, ring, counters, ring.shape[0], num_warps=1)
