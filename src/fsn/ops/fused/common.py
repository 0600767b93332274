"""What the kernels share: elementary functions, tiles, products, padding.

Internal buffers are padded so that rows start on 16-byte boundaries whatever k is: ``KP`` is k rounded up to a
multiple of 16. Padding holds zeros, so it adds nothing to any sum.

Types: the state θ and every reduction are float32; operands of matrix products have the compute type, bfloat16
or float32 (with IEEE products).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.language.extra import libdevice
except ImportError:  # an interpreter-only build
    libdevice = tl.math

INTERPRETING = bool(triton.knobs.runtime.interpret) if hasattr(triton, "knobs") else False

COUNTS = ["M", "T", "nr", "r0", "first_row", "site", "threshold"]
"""Arguments that only count or mask: kernels are not compiled anew for each kind of value they take."""

MATH_PLAIN = 0
"""Plain ``tl.sin`` and ``tl.cos``: what the interpreter knows."""
MATH_EXACT = 1
"""libdevice: full float32 accuracy at any argument."""
MATH_FAST = 2
"""Reduce by 2π in two steps, then the hardware's sine: absolute error about 1e-6, enough for bfloat16."""


def math_mode(dtype: torch.dtype) -> int:
    if INTERPRETING:
        return MATH_PLAIN
    return MATH_FAST if dtype == torch.bfloat16 else MATH_EXACT


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def padded(k: int) -> int:
    return round_up(k, 16)


def power_of_two(n: int) -> int:
    return max(16, triton.next_power_of_2(n))


def tl_type(dtype: torch.dtype) -> Any:
    return {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[dtype]


def mm(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """a @ b for matrices or batches of them, accumulated in float32, written in ``out_dtype``."""
    if out_dtype is None or out_dtype == a.dtype:
        return a @ b
    if a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=out_dtype) if a.dim() == 3 else torch.mm(a, b, out_dtype=out_dtype)
    return (a.float() @ b.float()).to(out_dtype)


def pad_blocks(
    w: Tensor, sizes: tuple[int, int], padded_sizes: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Cast a matrix made of blocks of ``sizes`` and pad each block with zeros to ``padded_sizes``."""
    if sizes == padded_sizes:
        return w.to(dtype)
    rows, cols = w.shape[0] // sizes[0], w.shape[1] // sizes[1]
    out = torch.zeros(rows, padded_sizes[0], cols, padded_sizes[1], dtype=dtype, device=w.device)
    out[:, : sizes[0], :, : sizes[1]] = w.view(rows, sizes[0], cols, sizes[1])
    return out.view(rows * padded_sizes[0], cols * padded_sizes[1])


def unpad_blocks(w: Tensor, sizes: tuple[int, int], padded_sizes: tuple[int, int]) -> Tensor:
    """The inverse, for gradients."""
    if sizes == padded_sizes:
        return w
    rows, cols = w.shape[0] // padded_sizes[0], w.shape[1] // padded_sizes[1]
    blocks = w.view(rows, padded_sizes[0], cols, padded_sizes[1])
    return blocks[:, : sizes[0], :, : sizes[1]].reshape(rows * sizes[0], cols * sizes[1])


@triton.jit
def sincos(x, MATH: tl.constexpr):
    if MATH == 2:
        turns = tl.floor(x * 0.15915494309189535 + 0.5)
        r = x - turns * 6.28125
        r = r - turns * 1.9353071795864769e-3
        s = libdevice.fast_sinf(r)
        c = libdevice.fast_cosf(r)
    elif MATH == 1:
        s = libdevice.sin(x)
        c = libdevice.cos(x)
    else:
        s = tl.sin(x)
        c = tl.cos(x)
    return s, c


@triton.jit
def power(theta_ptr, mask, n, MATH: tl.constexpr):
    """cos and sin of (n+1)θ. Loads θ anew: registers are dearer here than a cached load and a few products."""
    s1, c1 = sincos(tl.load(theta_ptr, mask=mask, other=0.0), MATH)
    c, s = c1, s1
    for _ in range(n):
        c, s = c * c1 - s * s1, s * c1 + c * s1
    return c, s


@triton.jit
def tanh(x):
    """Accurate for small arguments too, where 1 − 2/(e^{2x}+1) would cancel."""
    x2 = x * x
    series = x * (1.0 - x2 * (0.3333333333 - x2 * 0.1333333333))
    big = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(tl.abs(x), 20.0)) + 1.0)
    return tl.where(tl.abs(x) < 0.04, series, tl.where(x < 0, -big, big))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def mix32(x):
    """The 32-bit hash of ``ops/dropout.py``, in native unsigned arithmetic."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x42365345
    return x ^ (x >> 16)


@triton.jit
def keep_mask(counter, rows_in_batch, columns, site, threshold):
    """True where dropout keeps an element; the same bits as the reference."""
    golden = tl.full((1,), 0x9E3779B9, tl.uint32)
    seed = mix32(counter.to(tl.uint32) + site.to(tl.uint32) * golden)
    row_seed = mix32(seed + rows_in_batch.to(tl.uint32) * golden)
    return mix32(row_seed ^ mix32((columns + 1).to(tl.uint32))) >= threshold.to(tl.uint32)
