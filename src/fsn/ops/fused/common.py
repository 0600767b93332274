"""What the kernels share: elementary functions, tiles, products, padding.

Internal buffers are padded so that rows start on 16-byte boundaries whatever k is: ``KP`` is k rounded up to a
multiple of 16. Padding holds zeros, so it adds nothing to any sum, and loads are masked at KP, not at k: a mask at an
odd k would split every load into single numbers.

Types: the state θ and every reduction are float32; operands of matrix products have the compute type, bfloat16
or float32 (with IEEE products).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.language.extra import libdevice
except ImportError:  # an interpreter-only build
    libdevice = tl.math

INTERPRETING = bool(triton.knobs.runtime.interpret) if hasattr(triton, "knobs") else False

COUNTS = [
    "M", "B", "T", "nr", "r0", "n", "first_row", "site", "threshold", "blocks", "biased",
    "again", "bias_again", "taus", "alphas", "each", "hidden",
]  # fmt: skip
"""Arguments that only count or mask: kernels are not compiled anew for each kind of value they take."""

MATH_PLAIN = 0
"""Plain ``tl.sin`` and ``tl.cos``: what the interpreter knows."""
MATH_EXACT = 1
"""libdevice: full float32 accuracy at any argument."""
MATH_FAST = 2
"""The hardware's own functions, for bfloat16. Sine after reduction by 2π in two steps: absolute error about 1e-6;
exponential and logarithm about 1e-6, tanh 5e-4 relative. A bfloat16 number is known to 4e-3."""


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


def mm(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """a @ b for matrices or batches of them, accumulated in float32, written in ``out_dtype``."""
    if out_dtype is None or out_dtype == a.dtype:
        return a @ b
    if a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=out_dtype) if a.dim() == 3 else torch.mm(a, b, out_dtype=out_dtype)
    return (a.float() @ b.float()).to(out_dtype)


def transposed_mm(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ y in float32, the sum over all rows that makes a weight's gradient: (M, a), (M, b) -> (a, b)"""
    return mm(x.t(), y, torch.float32)


ONES = 16
"""Extra columns behind an operand; the first holds ones, so that a product adds a bias and its gradient for free."""


@triton.jit
def pack_kernel(
    w_ptr, b_ptr, out_ptr,
    R, C, BLOCKS, BIASED,
    RP: tl.constexpr, CP: tl.constexpr, WIDTH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A float32 matrix of R x C blocks -> the compute type, each block padded to RP x CP, a bias column behind."""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    i, r = rows // RP, rows % RP
    j, c = cols // CP, cols % CP
    source = i * R + r
    row_ok = r < R
    inside = row_ok[:, None] & ((c < C) & (j < BLOCKS))[None, :]
    value = tl.load(w_ptr + source[:, None] * (BLOCKS * C) + (j * C + c)[None, :], mask=inside, other=0.0)
    biased = row_ok & (source < BIASED)
    bias = tl.load(b_ptr + source, mask=biased, other=0.0)
    value = tl.where((cols == BLOCKS * CP)[None, :], bias[:, None], value)
    out = out_ptr + rows[:, None].to(tl.int64) * WIDTH + cols[None, :]
    tl.store(out, value.to(out_ptr.dtype.element_ty), mask=(cols < WIDTH)[None, :])


class Aside:
    """Run a block beside the main stream: what it needs exists, and its results are not to be read before :meth:`join`.

    Weight gradients and other work off the critical path overlap with memory-bound passes this way. Inside a
    CUDA graph it becomes a parallel branch. Blocks of one lane follow each other, lanes run side by side; the lane of
    the weights' gradients gives way to everything else. On the CPU the block simply runs.

    A block may launch kernels and make tensors, but not apply a function that autograd differentiates: autograd runs
    its backward on the stream of its forward, where it takes memory that the main stream may still be reading.
    """

    _streams: ClassVar[dict[tuple[int, int, str], torch.cuda.Stream]] = {}

    def __init__(self, device: torch.device, lane: str = "fields") -> None:
        self.side = None
        if device.type == "cuda":
            self.main = torch.cuda.current_stream(device)
            key = (self.main.device_index, self.main.stream_id, lane)
            if key not in self._streams:
                self._streams[key] = torch.cuda.Stream(device, priority=0 if lane == "weights" else -1)
            self.side = self._streams[key]

    def __enter__(self) -> Aside:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "work beside the main stream must not be recorded by autograd: use torch.no_grad(), or for second "
                "derivatives the reference (FSN_FUSED=0 in the environment)"
            )
        if self.side is not None:
            self.side.wait_stream(self.main)
            self.context = torch.cuda.stream(self.side)
            self.context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.side is not None:
            self.context.__exit__(*error)

    def mark(self) -> torch.cuda.Event | None:
        """The point that the lane has reached, for :meth:`wait`."""
        return None if self.side is None else self.side.record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """The main stream waits for a point of the lane."""
        if mark is not None:
            self.main.wait_event(mark)

    def join(self) -> None:
        """The main stream waits for the block.

        Memory made in the block returns to the side stream's pool when it is freed, and the next block begins by
        waiting for all that the main stream has been given until then: no reader can be overtaken.
        """
        if self.side is not None:
            self.main.wait_stream(self.side)


def pack(
    w: Tensor, bias: Tensor | None, sizes: tuple[int, int], padded_sizes: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Cast a matrix made of blocks of ``sizes``, pad each block to ``padded_sizes``, put the bias in a column behind.

    w (i·R, j·C), bias (≤ i·R,) or None -> (i·RP, j·CP + 16); rows of a bias that is shorter stay zero
    """
    rows, cols = w.shape[0] // sizes[0], w.shape[1] // sizes[1]
    width = cols * padded_sizes[1] + ONES
    out = torch.empty(rows * padded_sizes[0], width, dtype=dtype, device=w.device)
    pack_kernel[(out.shape[0] // 16, triton.cdiv(width, 128))](
        w, w if bias is None else bias, out, sizes[0], sizes[1], cols, 0 if bias is None else bias.shape[0],
        padded_sizes[0], padded_sizes[1], width, 16, 128,
    )  # fmt: skip
    return out


@triton.jit
def tile_of(M, WIDTH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """The rows and columns of this program's tile of an (M, WIDTH) matrix, and which of them exist."""
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    return rows, cols, (rows < M)[:, None] & (cols < WIDTH)[None, :]


@triton.jit
def beside(re, im):
    """Real and imaginary parts (R, C) -> pairs of neighbours (R, 2C)"""
    return tl.reshape(tl.join(re, im), (re.shape[0], 2 * re.shape[1]))


@triton.jit
def apart(pairs):
    """(R, 2C) of neighbouring pairs -> real and imaginary parts, (R, C) each"""
    return tl.split(tl.reshape(pairs, (pairs.shape[0], pairs.shape[1] // 2, 2)))


@triton.jit
def sum_of(part_ptr, n, BLOCK: tl.constexpr):
    """The sum of n numbers, always in the same order."""
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, n, BLOCK):
        at = i + tl.arange(0, BLOCK)
        acc += tl.load(part_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    return tl.sum(acc, axis=0)


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
def tanh(x, MATH: tl.constexpr):
    """Accurate for small arguments too, where 1 − 2/(e^{2x}+1) would cancel; the hardware's own where that will do."""
    if MATH == 2:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    elif MATH == 1:
        return libdevice.tanh(x)
    else:
        x2 = x * x
        series = x * (1.0 - x2 * (0.3333333333 - x2 * 0.1333333333))
        big = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(tl.abs(x), 20.0)) + 1.0)
        return tl.where(tl.abs(x) < 0.04, series, tl.where(x < 0, -big, big))


@triton.jit
def sigmoid(x, MATH: tl.constexpr):
    if MATH == 2:
        return libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf(-x))
    else:
        return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x, MATH: tl.constexpr):
    if MATH == 2:
        return tl.maximum(x, 0.0) + libdevice.fast_logf(1.0 + libdevice.fast_expf(-tl.abs(x)))
    else:
        return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def softplus_and_slope(x, MATH: tl.constexpr):
    """softplus(x) and its derivative, sigmoid(x), from one exponential."""
    if MATH == 2:
        e = libdevice.fast_expf(-tl.abs(x))
        slope = libdevice.fast_dividef(tl.where(x > 0, 1.0, e), 1.0 + e)
        return tl.maximum(x, 0.0) + libdevice.fast_logf(1.0 + e), slope
    else:
        return softplus(x, MATH), sigmoid(x, MATH)
