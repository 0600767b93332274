"""Dropout inside kernels: the masks of ``ops/dropout.py``, bit by bit, from the same counter.

A kernel with dropout takes what :func:`drop_arguments` gives, six arguments in a row; the last of them is a constant,
so that a kernel without dropout is compiled without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS
from .tiles import PASS


@dataclass(frozen=True)
class Drop:
    """Dropout at one place of a model: rate, site, counter tensor and first row of this process."""

    rate: float
    site: int
    counter: Tensor
    first_row: int


def drop_arguments(drop: Drop | None, filler: Tensor) -> tuple[Tensor, int, int, int, float, bool]:
    """counter, first row, site, threshold, scale, DROPOUT; the filler is a tensor that stands for no counter."""
    if drop is None:
        return filler, 0, 0, 0, 1.0, False
    return drop.counter, drop.first_row, drop.site, int(drop.rate * 2**32), 1.0 / (1.0 - drop.rate), True


@triton.jit
def mix32(x):
    """The 32-bit hash of ``ops/dropout.py``, in native unsigned arithmetic."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x42365345
    return x ^ (x >> 16)


@triton.jit
def keep_mask(counter, rows_in_batch, columns, site, threshold):
    """True where dropout keeps an element; the same bits as the reference."""
    seed = mix32(counter.to(tl.uint32) ^ mix32((site + 1).to(tl.uint32)))
    row_seed = mix32(seed ^ mix32((rows_in_batch + 1).to(tl.uint32)))
    return mix32(row_seed ^ mix32((columns + 1).to(tl.uint32))) >= threshold.to(tl.uint32)


@triton.jit
def dropped(x, tokens, cols, T, width, drop, DROPOUT: tl.constexpr):
    """Elements of a (B, T, width) tensor with dropout's mask and scale, or as they are.

    x, tokens (of B·T) and cols (of ``width``) broadcast; drop: counter_ptr, first_row, site, threshold, keep_scale
    """
    if DROPOUT:
        column = (tokens % T * width + cols).to(tl.int32)
        keep = keep_mask(tl.load(drop[0]), tokens // T + drop[1], column, drop[2], drop[3])
        return tl.where(keep, x * drop[4], 0.0)
    else:
        return x


@triton.jit(do_not_specialize=COUNTS)
def attention_dropout_kernel(
    a_ptr, own_ptr, out_ptr, weight_ptr,
    T, TP, r0, nr,
    counter_ptr, first_row, site, threshold, keep_scale, DROPOUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, DRIFT: tl.constexpr,
):  # fmt: skip
    """Dropout on the rows r0 .. r0 + nr of attention, up to their last column; and what turns the tokens.

    a, out (B, nr, TP), zeros from the diagonal on; own (4, B·T), its first row the diagonal -> weight (B·T,): the
    dropped diagonal (DRIFT 1), the sum of the dropped weights before it (2), or nothing (0). Blocks divide all sizes.
    """
    batch = tl.program_id(1).to(tl.int64)
    local = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = r0 + local
    token = batch * T + rows
    drop = (counter_ptr, first_row, site, threshold, keep_scale)
    line = batch * nr * TP + local[:, None] * TP
    kind = out_ptr.dtype.element_ty
    total = tl.zeros((BM,), tl.float32)
    for u0 in range(0, r0 + nr, BN):
        u = u0 + tl.arange(0, BN)
        a = tl.load(a_ptr + line + u[None, :]).to(tl.float32)
        a = dropped(a, token[:, None], u[None, :], T, T, drop, DROPOUT).to(kind)
        tl.store(out_ptr + line + u[None, :], a)
        total += tl.sum(a.to(tl.float32), axis=1)
    if DRIFT == 1:
        own = tl.load(own_ptr + token, mask=rows < T, other=0.0)
        total = dropped(own, token, rows, T, T, drop, DROPOUT)
    if DRIFT:
        tl.store(weight_ptr + token, total, mask=rows < T)


def dropped_attention(
    attention: Tensor, own: Tensor, drop: Drop | None, r0: int, length: int, drift: int, weight: Tensor | None
) -> Tensor:
    """The rows of ``attention`` (B, n, TP) from r0 on with dropout, or as they are; ``weight`` (M,) takes the drift's
    weights, unless they are known."""
    if drop is None:
        return attention
    batch, nr, tp = attention.shape
    out = torch.empty_like(attention)
    rows, columns = PASS
    attention_dropout_kernel[(nr // rows, batch)](
        attention, own, out, own if weight is None else weight, length, tp, r0, nr,
        *drop_arguments(drop, own), rows, columns, 0 if weight is None else drift,
    )  # fmt: skip
    return out
