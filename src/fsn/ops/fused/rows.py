"""A few tokens' phases in a program's registers: rows in pieces.

Tiles have sides that are powers of two, and 176 phases in a tile of 256 leave a third of the lanes idle, in kernels
that instructions hold up as much as memory does. So a row is a tuple of tiles of W columns, a quarter of that power of
two: three of 64 here. All have the same layout: what is summed over a row is added piece by piece where it lies, and
crosses lanes once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .common import sincos


@triton.jit
def within(ok, cols, END: tl.constexpr, p: tl.constexpr, W: tl.constexpr):
    """Mask of piece p: rows that exist, columns before END."""
    if (p + 1) * W <= END:
        return ok[:, None]
    else:
        return ok[:, None] & (cols < END)[None, :]


@triton.jit
def load_row(ptr, start, ok, KP: tl.constexpr, W: tl.constexpr):
    """KP numbers from each start (R,) on -> pieces (R, W), zeros where there is nothing"""
    pieces: tl.tuple = ()
    for p in tl.static_range((KP + W - 1) // W):
        cols = p * W + tl.arange(0, W)
        mask = within(ok, cols, KP, p, W)
        pieces += (tl.load(ptr + start[:, None] + cols[None, :], mask=mask, other=0.0),)
    return pieces


@triton.jit
def store_row(ptr, start, ok, pieces, KP: tl.constexpr, W: tl.constexpr):
    """The reverse."""
    for p in tl.static_range((KP + W - 1) // W):
        cols = p * W + tl.arange(0, W)
        mask = within(ok, cols, KP, p, W)
        tl.store(ptr + start[:, None] + cols[None, :], pieces[p].to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def ones_columns(ptr, start, ok):
    """Sixteen columns from each start on: one, then zeros."""
    extra = tl.arange(0, 16)
    value = tl.where(extra == 0, 1.0, 0.0)[None, :] + tl.zeros((start.shape[0], 16), tl.float32)
    tl.store(ptr + start[:, None] + extra[None, :], value.to(ptr.dtype.element_ty), mask=ok[:, None])


@triton.jit
def store_row_and_one(ptr, start, ok, pieces, KP: tl.constexpr, W: tl.constexpr):
    """The same with sixteen columns behind it, one and zeros."""
    P: tl.constexpr = (KP + W - 1) // W
    if P * W < KP + 16:
        store_row(ptr, start, ok, pieces, KP, W)
        ones_columns(ptr + KP, start, ok)
    else:
        for p in tl.static_range(P):
            cols = p * W + tl.arange(0, W)
            value = pieces[p]
            if (p + 1) * W > KP:
                value = tl.where(cols[None, :] < KP, value, tl.where(cols == KP, 1.0, 0.0)[None, :])
            mask = within(ok, cols, KP + 16, p, W)
            tl.store(ptr + start[:, None] + cols[None, :], value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def only_phases(pieces, k, KP: tl.constexpr, W: tl.constexpr):
    """Zeros in the padding, columns k to KP: fewer than sixteen, so most pieces have none."""
    kept: tl.tuple = ()
    for p in tl.static_range((KP + W - 1) // W):
        value = pieces[p]
        if (p + 1) * W > KP - 16:
            cols = p * W + tl.arange(0, W)
            value = tl.where((cols < k)[None, :], value, 0.0)
        kept += (value,)
    return kept


@triton.jit
def map_row(function: tl.constexpr, xs, MATH: tl.constexpr):
    """An elementary function of every number."""
    values: tl.tuple = ()
    for p in tl.static_range(len(xs)):
        values += (function(xs[p], MATH),)
    return values


@triton.jit
def wide_row(pieces):
    """In float32."""
    wide: tl.tuple = ()
    for p in tl.static_range(len(pieces)):
        wide += (pieces[p].to(tl.float32),)
    return wide


@triton.jit
def rounded_row(pieces, kind: tl.constexpr):
    """What is left of them in another type, in float32."""
    rounded: tl.tuple = ()
    for p in tl.static_range(len(pieces)):
        rounded += (pieces[p].to(kind).to(tl.float32),)
    return rounded


@triton.jit
def dot_row(xs, ys):
    """Σ x y over each row -> (R,)"""
    total = xs[0] * ys[0]
    for p in tl.static_range(1, len(xs)):
        total += xs[p] * ys[p]
    return tl.sum(total, axis=1)


@triton.jit
def sum_row(xs):
    """Σ x over each row -> (R,)"""
    total = xs[0]
    for p in tl.static_range(1, len(xs)):
        total += xs[p]
    return tl.sum(total, axis=1)


@triton.jit
def largest_in_row(xs):
    """max |x| over each row -> (R,)"""
    largest = tl.abs(xs[0])
    for p in tl.static_range(1, len(xs)):
        largest = tl.maximum(largest, tl.abs(xs[p]))
    return tl.max(largest, axis=1)


@triton.jit
def scale_row(xs, factor):
    """Each row times its own number, factor (R,)"""
    scaled: tl.tuple = ()
    for p in tl.static_range(len(xs)):
        scaled += (xs[p] * factor[:, None],)
    return scaled


@triton.jit
def add_rows(xs, ys):
    total: tl.tuple = ()
    for p in tl.static_range(len(xs)):
        total += (xs[p] + ys[p],)
    return total


@triton.jit
def multiply_rows(xs, ys):
    product: tl.tuple = ()
    for p in tl.static_range(len(xs)):
        product += (xs[p] * ys[p],)
    return product


@triton.jit
def sincos_row(thetas, MATH: tl.constexpr):
    """-> sines, cosines"""
    sines: tl.tuple = ()
    cosines: tl.tuple = ()
    for p in tl.static_range(len(thetas)):
        s, c = sincos(thetas[p], MATH)
        sines += (s,)
        cosines += (c,)
    return sines, cosines


@triton.jit
def store_features(feat_ptr, thetas, rows, ok, k, KP: tl.constexpr, W: tl.constexpr, MATH: tl.constexpr):
    """[cos θ, sin θ, 1] (rows, 2KP + 16), zeros in the padding"""
    sines, cosines = sincos_row(thetas, MATH)
    start = rows * (2 * KP + 16)
    store_row(feat_ptr, start, ok, only_phases(cosines, k, KP, W), KP, W)
    store_row_and_one(feat_ptr + KP, start, ok, only_phases(sines, k, KP, W), KP, W)
