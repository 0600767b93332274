"""The coupling's large product with what becomes of its result, so that aggregated fields never leave the chip.

A field is stored as pairs, real part beside imaginary part: of an accumulator's columns a thread holds two neighbours,
and so it finds both parts in its own registers when the product is done.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import COUNTS, apart, math_mode, sincos, tile_of
from .products import triangle
from .tiles import PASS, Tile, pass_grid, shape

MOST = 3
"""Harmonics whose sums fit into the registers; with more of them the aggregated fields are written down."""


@triton.jit
def pull(pairs, c, s):
    """Im[z̄ⁿ G] and Re[z̄ⁿ G] of aggregated fields G in pairs."""
    re, im = apart(pairs)
    return c * im - s * re, c * re + s * im


@triton.jit
def drifted(x, weight_ptr, constant_ptr, token, ok, cols, KP: tl.constexpr, DRIFT: tl.constexpr):
    """x with the drift: DRIFT 1, rest frame (weight is the diagonal's); 2, co-rotating (the sum of earlier ones).

    constant_ptr: the first number of the token's head, one for all tokens or (R, 1)
    """
    if DRIFT:
        weight = tl.load(weight_ptr + token, mask=ok, other=0.0)
        if DRIFT == 2:
            weight = -weight
        x += weight[:, None] * tl.load(constant_ptr + cols[None, :], mask=(cols < KP)[None, :], other=0.0)
    return x


@triton.jit(do_not_specialize=COUNTS)
def couple_kernel(
    a_ptr, field_ptr, theta_ptr, weight_ptr, constant_ptr, x_ptr, slope_ptr,
    T, TP, WIDTH, r0, nr, each,
    KP: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    DRIFT: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Aggregate the fields over earlier tokens and contract them with the token's own phases, N ≤ 3 harmonics.

    a (B, nr, WIDTH), rows r0 .. r0 + nr, zero from the diagonal on; field (B, TP, N, KP, 2); theta (B·T, KP); constant
    (heads, KP), ``each`` so many sequences -> x (B·T, KP): Σ_n Im[z̄ⁿ G⁽ⁿ⁾] with the drift; slope
    (B·T, KP): Σ_n n Re[z̄ⁿ G⁽ⁿ⁾], minus its derivative in θ_t
    """
    first = tl.program_id(1) * BM
    batch = tl.program_id(2).to(tl.int64)
    local = first + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    pairs = tl.program_id(0) * (2 * BC) + tl.arange(0, 2 * BC)
    wide: tl.constexpr = 2 * N * KP
    some = (pairs < 2 * KP)[None, :]
    a = a_ptr + batch * nr * WIDTH + local[:, None] * WIDTH
    field = field_ptr + batch * TP * wide + pairs[None, :]
    totals: tl.tuple = ()
    for _ in tl.static_range(N):
        totals += (tl.zeros((BM, 2 * BC), tl.float32),)
    for u in range(0, r0 + first + BM, BK):
        left = tl.load(a + (u + inner)[None, :])
        line = field + (u + inner)[:, None] * wide
        more: tl.tuple = ()
        for n in tl.static_range(N):
            more += (tl.dot(left, tl.load(line + 2 * n * KP, mask=some, other=0.0), totals[n]),)
        totals = more
    rows = r0 + local
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    ok = rows < T
    mask = ok[:, None] & (cols < KP)[None, :]
    token = batch * T + rows
    narrow = token[:, None] * KP + cols[None, :]
    s1, c1 = sincos(tl.load(theta_ptr + narrow, mask=mask, other=0.0), MATH)
    c, s = c1, s1
    x, slope = pull(totals[0], c, s)
    for n in tl.static_range(1, N):
        c, s = c * c1 - s * s1, s * c1 + c * s1
        part, steep = pull(totals[n], c, s)
        x += part
        slope += (n + 1) * steep
    x = drifted(x, weight_ptr, constant_ptr + batch // each * KP, token, ok, cols, KP, DRIFT)
    kind = x_ptr.dtype.element_ty
    tl.store(x_ptr + narrow, x.to(kind), mask=mask)
    tl.store(slope_ptr + narrow, slope.to(kind), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def contract_kernel(
    total_ptr, theta_ptr, weight_ptr, constant_ptr, x_ptr, slope_ptr,
    M, T, TP, each,
    KP: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, DRIFT: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """The same from fields that were aggregated before, total (B, TP, N, KP, 2), with any number of harmonics."""
    rows, cols, mask = tile_of(M, KP, BR, BC)
    pairs = tl.program_id(1) * (2 * BC) + tl.arange(0, 2 * BC)
    ok = rows < M
    narrow = rows[:, None] * KP + cols[None, :]
    source = total_ptr + (rows // T * TP + rows % T)[:, None] * (2 * N * KP) + pairs[None, :]
    some = ok[:, None] & (pairs < 2 * KP)[None, :]
    s1, c1 = sincos(tl.load(theta_ptr + narrow, mask=mask, other=0.0), MATH)
    c, s = c1, s1
    x = tl.zeros((BR, BC), tl.float32)
    slope = tl.zeros((BR, BC), tl.float32)
    for n in tl.static_range(N):
        more, steep = pull(tl.load(source + 2 * n * KP, mask=some, other=0.0).to(tl.float32), c, s)
        x += more
        slope += (n + 1) * steep
        c, s = c * c1 - s * s1, s * c1 + c * s1
    head = tl.where(ok, rows // T // each, 0)
    x = drifted(x, weight_ptr, constant_ptr + head[:, None] * KP, rows, ok, cols, KP, DRIFT)
    kind = x_ptr.dtype.element_ty
    tl.store(x_ptr + narrow, x.to(kind), mask=mask)
    tl.store(slope_ptr + narrow, slope.to(kind), mask=mask)


class Couple:
    """The aggregated and contracted coupling a and its slope, (M, KP) each, made chunk by chunk of query rows."""

    def __init__(
        self,
        field: Tensor,
        theta: Tensor,
        weight: Tensor,
        constant: Tensor,
        length: int,
        harmonics: int,
        drift: int,
    ) -> None:
        self.field, self.theta, self.weight, self.constant = field, theta, weight, constant
        self.length, self.n, self.drift = length, harmonics, drift
        self.each = theta.shape[0] // length * theta.shape[1] // constant.numel()
        self.a = torch.empty(theta.shape, dtype=field.dtype, device=theta.device)
        self.slope = torch.empty_like(self.a)
        fits = field.dtype != torch.float32 and harmonics <= MOST
        self.total = None if fits else torch.empty_like(field)

    def add(self, attention: Tensor, r0: int) -> None:
        """The rows from r0 on, attention (B, rows, TP)."""
        batch, rows, width = attention.shape
        if self.total is not None:
            triangle(attention, self.field, self.total, self.theta.shape[1], r0)
            return
        kp, tp = self.theta.shape[1], self.field.shape[1]
        tile: Tile = shape("COUPLE", kp)
        block = tile.rows_of(rows)
        couple_kernel[(triton.cdiv(kp, tile.columns), rows // block, batch)](
            attention, self.field, self.theta, self.weight, self.constant, self.a, self.slope,
            self.length, tp, width, r0, rows, self.each, kp, self.n, block, tile.columns, tile.inner,
            self.drift, math_mode(self.a.dtype), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def result(self) -> tuple[Tensor, Tensor]:
        """a and its slope, once all rows are there."""
        if self.total is not None:
            rows, kp = self.theta.shape
            contract_kernel[pass_grid(rows, kp)](
                self.total, self.theta, self.weight, self.constant, self.a, self.slope,
                rows, self.length, self.field.shape[1], self.each, kp, self.n, *PASS, self.drift,
                math_mode(self.a.dtype),
            )  # fmt: skip
        return self.a, self.slope
