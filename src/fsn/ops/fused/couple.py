"""The coupling's two large products with what becomes of their results, so that aggregated fields never leave the chip.

A field is stored as pairs, real part beside imaginary part: of an accumulator's columns a thread holds two neighbours,
and so it finds both parts in its own registers when the product is done.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention_backward import load_pair
from .common import COUNTS, apart, beside, math_mode, sincos, tile_of
from .products import triangle
from .tiles import BLOCK, COUPLE, PASS, UNCOUPLE, pass_grid

MOST = 3
"""Harmonics whose sums fit into the registers; with more of them the aggregated fields are written down."""


@triton.jit
def pull(pairs, c, s):
    """Im[z̄ⁿ G] and Re[z̄ⁿ G] of aggregated fields G in pairs."""
    re, im = apart(pairs)
    return c * im - s * re, c * re + s * im


@triton.jit
def drifted(x, weight_ptr, constant_ptr, token, ok, cols, KP: tl.constexpr, DRIFT: tl.constexpr):
    """x with the drift: DRIFT 1, rest frame (weight is the diagonal's); 2, co-rotating (the sum of earlier ones)."""
    if DRIFT:
        weight = tl.load(weight_ptr + token, mask=ok, other=0.0)
        if DRIFT == 2:
            weight = -weight
        x += weight[:, None] * tl.load(constant_ptr + cols, mask=cols < KP, other=0.0)[None, :]
    return x


@triton.jit(do_not_specialize=COUNTS)
def couple_kernel(
    a_ptr, field_ptr, theta_ptr, weight_ptr, constant_ptr, x_ptr, slope_ptr,
    T, TP, WIDTH, r0, nr,
    KP: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    DRIFT: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Aggregate the fields over earlier tokens and contract them with the token's own phases, N ≤ 3 harmonics.

    a (B, nr, WIDTH), rows r0 .. r0 + nr, zero from the diagonal on; field (B, TP, N, KP, 2); theta (B·T, KP) ->
    x (B·T, KP): Σ_n Im[z̄ⁿ G⁽ⁿ⁾] with the drift; slope (B·T, KP): Σ_n n Re[z̄ⁿ G⁽ⁿ⁾], minus its derivative in θ_t
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
    g1 = tl.zeros((BM, 2 * BC), tl.float32)
    g2 = tl.zeros((BM, 2 * BC), tl.float32)
    g3 = tl.zeros((BM, 2 * BC), tl.float32)
    for u in range(0, r0 + first + BM, BK):
        left = tl.load(a + (u + inner)[None, :])
        line = field + (u + inner)[:, None] * wide
        g1 = tl.dot(left, tl.load(line, mask=some, other=0.0), g1)
        if N > 1:
            g2 = tl.dot(left, tl.load(line + 2 * KP, mask=some, other=0.0), g2)
        if N > 2:
            g3 = tl.dot(left, tl.load(line + 4 * KP, mask=some, other=0.0), g3)
    rows = r0 + local
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    ok = rows < T
    mask = ok[:, None] & (cols < KP)[None, :]
    token = batch * T + rows
    narrow = token[:, None] * KP + cols[None, :]
    s1, c1 = sincos(tl.load(theta_ptr + narrow, mask=mask, other=0.0), MATH)
    c, s = c1, s1
    x, slope = pull(g1, c, s)
    if N > 1:
        c, s = c * c1 - s * s1, s * c1 + c * s1
        more, steep = pull(g2, c, s)
        x += more
        slope += 2.0 * steep
    if N > 2:
        c, s = c * c1 - s * s1, s * c1 + c * s1
        more, steep = pull(g3, c, s)
        x += more
        slope += 3.0 * steep
    x = drifted(x, weight_ptr, constant_ptr, token, ok, cols, KP, DRIFT)
    kind = x_ptr.dtype.element_ty
    tl.store(x_ptr + narrow, x.to(kind), mask=mask)
    tl.store(slope_ptr + narrow, slope.to(kind), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def contract_kernel(
    total_ptr, theta_ptr, weight_ptr, constant_ptr, x_ptr, slope_ptr,
    M, T, TP,
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
    x = drifted(x, weight_ptr, constant_ptr, rows, ok, cols, KP, DRIFT)
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
        self.a = torch.empty(theta.shape, dtype=field.dtype, device=theta.device)
        self.slope = torch.empty_like(self.a)
        fits = field.dtype != torch.float32 and harmonics <= MOST
        self.total = None if fits else torch.empty_like(field)

    def add(self, attention: Tensor, r0: int) -> None:
        """The rows from r0 on, attention (B, rows, TP)."""
        (batch, rows, width), tile = attention.shape, COUPLE
        if self.total is not None:
            triangle(attention, self.field, self.total, r0)
            return
        kp, tp = self.theta.shape[1], self.field.shape[1]
        block = tile.rows if rows % tile.rows == 0 else BLOCK
        couple_kernel[(triton.cdiv(kp, tile.columns), rows // block, batch)](
            attention, self.field, self.theta, self.weight, self.constant, self.a, self.slope,
            self.length, tp, width, r0, rows, kp, self.n, block, tile.columns, tile.inner,
            self.drift, math_mode(self.a.dtype), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def result(self) -> tuple[Tensor, Tensor]:
        """a and its slope, once all rows are there."""
        if self.total is not None:
            rows, kp = self.theta.shape
            contract_kernel[pass_grid(rows, kp)](
                self.total, self.theta, self.weight, self.constant, self.a, self.slope,
                rows, self.length, self.field.shape[1], kp, self.n, *PASS, self.drift, math_mode(self.a.dtype),
            )  # fmt: skip
        return self.a, self.slope


@triton.jit
def shares(
    pairs, c, s, w_ptr, out_ptr, part, n, cols, N: tl.constexpr, KP: tl.constexpr, HAS_IM: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """P = dF z̄ⁿ for one harmonic and one of the two fields (part 0 or 2): its sum over tokens is written down, and
    n + 1 times Im P Re w − Re P Im w, what it gives to θ, returned.

    The sum is a product with rows of ones: between threads it would cost many times more. So P is rounded to the
    compute type, as stored gradients of the fields are.
    """
    inside = cols < KP
    p_im, p_re = pull(pairs, c, s)
    w_re = load_pair(w_ptr, part, n, cols, inside, N, KP, True)
    w_im = load_pair(w_ptr, part + 1, n, cols, inside, N, KP, HAS_IM)
    both = beside(p_re, p_im).to(KIND)
    ones = tl.full((16, both.shape[0]), 1.0, tl.float32).to(KIND)
    sums = tl.dot(ones, both)
    place = tl.program_id(0) * both.shape[1] + tl.arange(0, both.shape[1])
    out = out_ptr + ((part + place % 2) * N + n) * KP + place // 2
    top = tl.arange(0, 16) == 0
    tl.store(out[None, :] + tl.zeros((16, 1), tl.int32), sums, mask=top[:, None] & (place < 2 * KP)[None, :])
    return (n + 1) * (w_re[None, :] * p_im - w_im[None, :] * p_re)


@triton.jit
def all_shares(
    g1, g2, g3, theta, keep, w_ptr, out_ptr, part, cols,
    N: tl.constexpr, KP: tl.constexpr, HAS_IM: tl.constexpr, KIND: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """:func:`shares` of all harmonics: what one field gives to the phases ``theta``; nothing where ``keep`` is zero."""
    s1, c1 = sincos(theta, MATH)
    c, s = c1 * keep, s1 * keep
    grad = shares(g1, c, s, w_ptr, out_ptr, part, 0, cols, N, KP, HAS_IM, KIND)
    if N > 1:
        c, s = c * c1 - s * s1, s * c1 + c * s1
        grad += shares(g2, c, s, w_ptr, out_ptr, part, 1, cols, N, KP, HAS_IM, KIND)
    if N > 2:
        c, s = c * c1 - s * s1, s * c1 + c * s1
        grad += shares(g3, c, s, w_ptr, out_ptr, part, 2, cols, N, KP, HAS_IM, KIND)
    return grad


@triton.jit(do_not_specialize=COUNTS)
def uncouple_kernel(
    a_ptr, dg_ptr, theta_ptr, w_ptr, da_ptr, weight_ptr, here_ptr, next_ptr, partial_ptr,
    T, TP,
    KP: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr,
    HAS0: tl.constexpr, HAS0I: tl.constexpr, HAS1: tl.constexpr, HAS1I: tl.constexpr,
    DRIFT: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """dF = Aᵀ dG, and at once what it means for the phases and for the coefficients, N ≤ 3 harmonics.

    F_u holds θ_u through w0 and θ_{u+1} through w1. With P0 = dF_u z̄_uⁿ and P1 = dF_u z̄_{u+1}ⁿ: dw0⁽ⁿ⁾ = Σ_u P0 and
    dw1⁽ⁿ⁾ = Σ_u P1; to θ_u goes Σ_n n (Im P0 Re w0 − Re P0 Im w0), to θ_{u+1} the same of P1 and w1.

    a (B, TP, TP), dg (B, TP, N, KP, 2), theta, da (B·T, KP), weight (B·T,) of the drift -> here, next (B·T, KP), and
    partial (B·TP / BM, 4N + 1, KP): sums for w0 re, im, w1 re, im, and for the drift's constant.
    """
    first = tl.program_id(1) * BM
    batch = tl.program_id(2).to(tl.int64)
    rows = first + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    pairs = tl.program_id(0) * (2 * BC) + tl.arange(0, 2 * BC)
    wide: tl.constexpr = 2 * N * KP
    some = (pairs < 2 * KP)[None, :]
    a = a_ptr + batch * TP * TP + rows[None, :]
    dg = dg_ptr + batch * TP * wide + pairs[None, :]
    g1 = tl.zeros((BM, 2 * BC), tl.float32)
    g2 = tl.zeros((BM, 2 * BC), tl.float32)
    g3 = tl.zeros((BM, 2 * BC), tl.float32)
    for t in range(first, TP, BK):
        left = tl.trans(tl.load(a + (t + inner)[:, None] * TP))
        line = dg + (t + inner)[:, None] * wide
        g1 = tl.dot(left, tl.load(line, mask=some, other=0.0), g1)
        if N > 1:
            g2 = tl.dot(left, tl.load(line + 2 * KP, mask=some, other=0.0), g2)
        if N > 2:
            g3 = tl.dot(left, tl.load(line + 4 * KP, mask=some, other=0.0), g3)
    cols = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = cols < KP
    ok = rows < T
    mask = ok[:, None] & inside[None, :]
    token = batch * T + rows
    narrow = token[:, None] * KP + cols[None, :]
    out = partial_ptr + (batch * tl.num_programs(1) + tl.program_id(1)) * ((4 * N + 1) * KP)
    kind: tl.constexpr = here_ptr.dtype.element_ty
    if HAS0:
        theta = tl.load(theta_ptr + narrow, mask=mask, other=0.0)
        keep = tl.where(ok, 1.0, 0.0)[:, None]
        grad = all_shares(g1, g2, g3, theta, keep, w_ptr, out, 0, cols, N, KP, HAS0I, kind, MATH)
        tl.store(here_ptr + narrow, grad.to(kind), mask=mask)
    if HAS1:
        follows = rows + 1 < T
        there = follows[:, None] & inside[None, :]
        theta = tl.load(theta_ptr + narrow + KP, mask=there, other=0.0)
        keep = tl.where(follows, 1.0, 0.0)[:, None]
        grad = all_shares(g1, g2, g3, theta, keep, w_ptr, out, 2, cols, N, KP, HAS1I, kind, MATH)
        tl.store(next_ptr + narrow + KP, grad.to(kind), mask=there)
        if first == 0:
            tl.store(next_ptr + batch * T * KP + cols, tl.zeros((BC,), kind), mask=inside)
    if DRIFT:
        weight = tl.load(weight_ptr + token, mask=ok, other=0.0)
        if DRIFT == 2:
            weight = -weight
        da = tl.load(da_ptr + narrow, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + 4 * N * KP + cols, tl.sum(da * weight[:, None], axis=0), mask=inside)


def uncouple(
    attention: Tensor, dg: Tensor, theta: Tensor, w: Tensor, da: Tensor, weight: Tensor, length: int,
    parts: tuple[bool, bool, bool, bool], drift: int,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """attention (B, TP, TP), dg (B, TP, 2N·KP) -> shares of dθ, one (M, KP) for each field, and partial sums for the
    coefficients (blocks, 4N + 1, KP)."""
    (batch, tp, _), tile = dg.shape, UNCOUPLE
    kp, n = da.shape[1], w.shape[1]
    block = tile.rows if tp % tile.rows == 0 else BLOCK
    here, following = torch.empty_like(da), torch.empty_like(da)
    partial = torch.empty(batch * tp // block, 4 * n + 1, kp, dtype=torch.float32, device=da.device)
    uncouple_kernel[(triton.cdiv(kp, tile.columns), tp // block, batch)](
        attention, dg, theta, w, da, weight, here, following, partial,
        length, tp, kp, n, block, tile.columns, tile.inner, *parts, drift, math_mode(da.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return [share for share, there in ((here, parts[0]), (following, parts[2])) if there], partial
