"""The fused attention half and the bounded residual as autograd functions.

State travels between them as two tensors: θ (M, k) in float32 and, where the next product needs it, a copy in the
compute type: θ itself (M, KP) for SwiGLU, or [cos θ, sin θ] (M, 2KP) for gates, modes and readout. Each is a separate
output with a gradient of its own, so every pass that reads one kind of gradient sums all kinds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from .attention_backward import field_backward_kernel, prepare_backward_kernel, softmax_backward_kernel
from .attention_forward import aggregate_kernel, attention_kernel, prepare_kernel
from .common import math_mode, mm, pad_blocks, padded, power_of_two, round_up, unpad_blocks
from .update import (
    attention_update_backward_kernel,
    features_kernel,
    residual_backward_kernel,
    update_kernel,
)

CHUNK = 1024
"""Longer sequences are handled this many query rows at a time, so attention takes (B, 1024, T), never (B, T, T)."""
ROWS = 32
"""Tokens per program of a row kernel in the backward pass (their sums leave as one partial row)."""


@dataclass
class Tile:
    """Block sizes and launch shape of one product kernel."""

    rows: int
    inner: int
    columns: int
    warps: int
    stages: int


TILES = {
    torch.bfloat16: {
        "attention": Tile(64, 32, 128, 8, 3),
        "aggregate": Tile(64, 64, 64, 8, 3),
        "softmax_backward": Tile(64, 32, 128, 4, 4),
        "field_backward": Tile(64, 64, 64, 8, 3),
    },
    torch.float32: {
        "attention": Tile(32, 32, 64, 4, 2),
        "aggregate": Tile(32, 32, 32, 4, 2),
        "softmax_backward": Tile(32, 32, 64, 4, 2),
        "field_backward": Tile(32, 32, 32, 4, 2),
    },
}
"""Chosen by measurement on an H200 (see docs/lab-notes.md); no autotuning at run time, so the first step comes soon."""
ELEMENTS = 1024
"""Elements a row kernel handles at a time, and its warps."""
WARPS = 4


@dataclass(frozen=True)
class Law:
    """The static part of a coupling law, as the kernels want it."""

    harmonics: int
    present: bool
    present_im: bool
    successor: bool
    successor_im: bool
    frame: str
    round_scores: bool
    gate: int

    @property
    def drift(self) -> int:
        if self.frame == "rest":
            return 1 if self.present_im else 0
        return 2 if self.present_im or self.successor_im else 0


@dataclass(frozen=True)
class Drop:
    """Dropout on a residual's raw update: rate, site, counter tensor and first row of this process."""

    rate: float
    site: int
    counter: Tensor
    first_row: int


def _row_tile(bk: int) -> int:
    """Rows per step of a row kernel: about a thousand elements a program."""
    return min(ROWS, max(1, ELEMENTS // bk))


def _precision(dtype: torch.dtype) -> str:
    return "tf32" if dtype == torch.bfloat16 else "ieee"


def features(theta: Tensor, dtype: torch.dtype) -> Tensor:
    """[cos θ, sin θ] padded, without a gradient.

    theta (M, k) -> (M, 2KP)
    """
    rows, k = theta.shape
    kp, bk = padded(k), power_of_two(padded(k))
    r = _row_tile(bk)
    out = torch.empty(rows, 2 * kp, dtype=dtype, device=theta.device)
    features_kernel[(triton.cdiv(rows, r),)](theta, out, rows, k, kp, bk, r, math_mode(dtype))
    return out


class FeaturesFunction(torch.autograd.Function):
    """θ -> (θ, [cos θ, sin θ]): how the embedding enters the stack."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        feat = features(theta, dtype)
        ctx.save_for_backward(feat)
        ctx.k = theta.shape[1]
        return theta.view_as(theta), feat

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (feat,) = ctx.saved_tensors
        return _fold(grads[0], grads[1], feat, ctx.k), None


def _fold(dtheta: Tensor | None, dfeat: Tensor | None, feat: Tensor, k: int) -> Tensor | None:
    """The gradient of θ from its own and that of its [cos, sin]."""
    if dfeat is None:
        return dtheta
    rows = feat.shape[0]
    kp, bk = padded(k), power_of_two(padded(k))
    out = torch.empty(rows, k, dtype=torch.float32, device=feat.device)
    residual_backward_kernel[(triton.cdiv(rows, ROWS),)](
        dtheta if dtheta is not None else out, dfeat.contiguous(), feat, feat, out, out, out, out,
        out, 0, 0, 0, 1.0, rows, 1, k, kp, bk, _row_tile(bk), ROWS,
        False, False, dtheta is not None, True, True, False,
    )  # fmt: skip
    return out


class ResidualFunction(torch.autograd.Function):
    """θ + bound(dropout(x)) -> the new θ and its [cos, sin].

    theta (M, k) float32, x (M, KP) compute type, alpha () or None for no bound
    """

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, x: Tensor, alpha: Tensor | None, length: int, drop: Drop | None, cast: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows, k = theta.shape
        kp, bk = padded(k), power_of_two(padded(k))
        r = _row_tile(bk)
        out = torch.empty_like(theta)
        second = torch.empty(rows, kp if cast else 2 * kp, dtype=x.dtype, device=x.device)
        x = x.contiguous()
        counter, first_row, site, threshold, scale = _drop_arguments(drop, theta)
        update_kernel[(triton.cdiv(rows, r),)](
            theta, x, x, x, alpha if alpha is not None else theta, out, second, second,
            counter, first_row, site, threshold, scale, rows, length, k, kp, bk, r,
            0, alpha is not None, drop is not None, cast, not cast, math_mode(x.dtype),
        )  # fmt: skip
        ctx.save_for_backward(x, alpha, second)
        ctx.drop, ctx.length, ctx.cast, ctx.k = drop, length, cast, k
        return out, second

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, alpha, second = ctx.saved_tensors
        dtheta, dsecond = grads
        rows, k = x.shape[0], ctx.k
        if ctx.cast and dsecond is not None:
            extra = dsecond[:, :k].float()
            dtheta, dsecond = extra if dtheta is None else dtheta + extra, None
        kp, bk = padded(k), power_of_two(padded(k))
        programs = triton.cdiv(rows, ROWS)
        counter, first_row, site, threshold, scale = _drop_arguments(ctx.drop, x)
        dx = torch.empty_like(x)
        dalpha = torch.empty(programs, dtype=torch.float32, device=x.device)
        write = dsecond is not None or dtheta is None
        dout = torch.empty(rows, k, dtype=torch.float32, device=x.device) if write else dtheta
        residual_backward_kernel[(programs,)](
            dtheta.contiguous() if dtheta is not None else x, dsecond.contiguous() if dsecond is not None else x,
            second, x, alpha if alpha is not None else dalpha, dout, dx, dalpha,
            counter, first_row, site, threshold, scale, rows, ctx.length, k, kp, bk, _row_tile(bk), ROWS,
            alpha is not None, ctx.drop is not None, dtheta is not None, dsecond is not None, write, True,
        )  # fmt: skip
        return dout, dx, dalpha.sum() if alpha is not None else None, None, None, None


def _drop_arguments(drop: Drop | None, filler: Tensor) -> tuple[Tensor, int, int, int, float]:
    if drop is None:
        return filler, 0, 0, 0, 1.0
    return drop.counter, drop.first_row, drop.site, int(drop.rate * 2**32), 1.0 / (1.0 - drop.rate)


def rotary_table(length: int, rates: Tensor) -> tuple[Tensor, Tensor]:
    """cos ωt and sin ωt in float32, from float64 angles.

    -> two (T, k)
    """
    angle = torch.arange(length, device=rates.device, dtype=torch.float64)[:, None] * rates.double()
    angle = angle.remainder(2 * math.pi)
    return angle.cos().float(), angle.sin().float()


class AttentionFunction(torch.autograd.Function):
    """θ + bound(gate ⊙ coupling(θ)): the whole attention half.

    theta (M, k) float32, feat (M, 2KP), weight (3k, 2k), bias (3k,), w (4, N, k), tau (), alpha () or None
    -> the new θ and its copy for the feed-forward block, cast (M, KP) or [cos, sin] (M, 2KP)
    """

    @staticmethod
    def forward(
        ctx: Any,
        theta: Tensor,
        feat: Tensor,
        weight: Tensor,
        bias: Tensor,
        w: Tensor,
        tau: Tensor,
        alpha: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        length: int,
        law: Law,
        cast: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows, k = theta.shape
        dtype, device = feat.dtype, theta.device
        batch, kp = rows // length, padded(k)
        bk = power_of_two(kp)
        r, mode = _row_tile(bk), math_mode(dtype)
        wide = pad_blocks(weight, (k, k), (kp, kp), dtype)
        pre = mm(feat, wide.t())
        q = torch.empty(rows, 2 * kp, dtype=dtype, device=device)
        key = torch.empty_like(q)
        field = torch.empty(rows, 2 * law.harmonics * kp, dtype=dtype, device=device)
        prepare_kernel[(triton.cdiv(rows, r),)](
            theta, pre, bias, cos, sin, w, q, key, field, rows, length, k, kp, bk, law.harmonics, r,
            law.present, law.present_im, law.successor, law.successor_im, mode, num_warps=WARPS,
        )  # fmt: skip
        a = torch.empty(rows, kp, dtype=dtype, device=device)
        slope = torch.empty_like(a)
        saved = None
        for r0, attention in _attention_chunks(q, key, tau, batch, length, law):
            _aggregate(attention, field, theta, w, a, slope, r0, length, law)
            saved = attention
        out = torch.empty_like(theta)
        second = torch.empty(rows, kp if cast else 2 * kp, dtype=dtype, device=device)
        update_kernel[(triton.cdiv(rows, r),)](
            theta, a, pre, bias, alpha if alpha is not None else theta, out, second, second,
            theta, 0, 0, 0, 1.0, rows, length, k, kp, bk, r,
            law.gate, alpha is not None, False, cast, not cast, mode,
        )  # fmt: skip
        attention_kept = saved if length <= CHUNK else None
        ctx.save_for_backward(
            theta,
            feat,
            wide,
            bias,
            w,
            tau,
            alpha,
            cos,
            sin,
            pre,
            q,
            key,
            field,
            a,
            slope,
            second,
            attention_kept,
        )
        ctx.length, ctx.law, ctx.cast = length, law, cast
        return out, second

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (
            theta, feat, wide, bias, w, tau, alpha, cos, sin, pre, q, key, field, a, slope, second, kept
        ) = ctx.saved_tensors  # fmt: skip
        dtheta, dsecond = grads
        length, law, cast = ctx.length, ctx.law, ctx.cast
        rows, k = theta.shape
        dtype, device = feat.dtype, theta.device
        batch, kp, n = rows // length, padded(k), law.harmonics
        bk = power_of_two(kp)
        r, mode = _row_tile(bk), math_mode(dtype)
        programs = triton.cdiv(rows, ROWS)

        def new(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.empty(*shape, dtype=kind, device=device)

        f32 = torch.float32
        dpre, da, dg = new(rows, 3 * kp), new(rows, kp), new(rows, 2 * n * kp)
        dres, delta, diag = new(rows, k, kind=f32), new(rows, kind=f32), new(rows, kind=f32)
        dalpha, dbias_v = new(programs, kind=f32), new(programs, kp, kind=f32)
        dsecond = dsecond.contiguous() if dsecond is not None else None
        attention_update_backward_kernel[(programs,)](
            dtheta.contiguous() if dtheta is not None else dres, dsecond if dsecond is not None else a,
            dsecond if dsecond is not None else a, second, theta, a, pre, bias,
            alpha if alpha is not None else dalpha, w, dres, da, dpre, dg, delta, diag, dalpha, dbias_v,
            rows, k, kp, bk, n, r, ROWS, law.gate, alpha is not None, law.drift, law.present_im, law.successor_im,
            dtheta is not None, dsecond is not None and not cast, dsecond is not None and cast, mode,
            num_warps=WARPS,
        )  # fmt: skip

        chunked = length > CHUNK
        kind = f32 if chunked else dtype
        bu = TILES[dtype]["field_backward"].rows
        down, dnext = new(rows, kp, kind=kind), new(rows, kp, kind=kind)
        partial = torch.zeros(batch * triton.cdiv(length, bu), 4 * n + 1, kp, dtype=f32, device=device)
        dq, dkey = new(rows, 2 * kp), None
        if kept is not None:
            chunks = iter([(0, kept)])
        else:
            chunks = _attention_chunks(q, key, tau, batch, length, law)
        for r0, attention in chunks:
            ds = _softmax_backward(attention, dg, field, delta, diag, tau, r0, length)
            _field_backward(attention, dg, da, theta, w, down, dnext, partial, r0, length, law)
            nr = attention.shape[1]
            part = ds[:, :, :length]
            here = dq.view(batch, length, 2 * kp)[:, r0 : r0 + nr]
            keys = key.view(batch, length, 2 * kp)
            queries = q.view(batch, length, 2 * kp)[:, r0 : r0 + nr]
            if chunked:
                here.copy_(mm(part, keys))
                more = mm(part.transpose(1, 2), queries, f32)
                dkey = more if dkey is None else dkey.add_(more)
            else:
                torch.bmm(part, keys, out=here)
                dkey = torch.bmm(part.transpose(1, 2), queries)
        assert dkey is not None
        dtheta_in, dbias_qk = new(rows, k, kind=f32), new(programs, 2, kp, kind=f32)
        dtau = new(programs, kind=f32)
        prepare_backward_kernel[(programs,)](
            theta, pre, bias, cos, sin, dq, dkey, down, dnext, da, slope, dres, dpre, dtheta_in, dbias_qk, dtau,
            rows, length, k, kp, bk, r, ROWS, law.present, law.successor, mode, num_warps=WARPS,
        )  # fmt: skip
        dweight = unpad_blocks(mm(dpre.t(), feat, f32), (k, k), (kp, kp))
        dfeat = mm(dpre, wide)
        dbias = torch.cat((dbias_qk.sum(0)[:, :k].flatten(), dbias_v.sum(0)[:k]))
        dw = _kernel_gradient(partial, law, k)
        dtau_total = torch.where(tau > 1e-6, -dtau.sum() / tau.clamp(min=1e-6), 0.0)
        dalpha_total = dalpha.sum() if alpha is not None else None
        return dtheta_in, dfeat, dweight, dbias, dw, dtau_total, dalpha_total, None, None, None, None, None


def _kernel_gradient(partial: Tensor, law: Law, k: int) -> Tensor:
    """(programs, 4N+1, KP) partial sums -> (4, N, k); the drift's share goes to the imaginary parts."""
    total = partial.sum(0)[:, :k]
    n = law.harmonics
    dw = total[: 4 * n].view(4, n, k)
    if law.drift == 1:
        dw[1] += total[4 * n]
    elif law.drift == 2:
        dw[1::2] += total[4 * n]
    return dw


def _attention_chunks(q: Tensor, key: Tensor, tau: Tensor, batch: int, length: int, law: Law) -> Any:
    """Yield (first row, attention (B, rows, TP)) until all rows are done; one chunk for T ≤ 1024."""
    tp, d, dtype = round_up(length, 16), q.shape[1], q.dtype
    tile = TILES[dtype]["attention"]
    single = tp <= 256
    columns = power_of_two(tp) if single else tile.columns
    for r0 in range(0, length, CHUNK):
        nr = min(CHUNK, length - r0)
        attention = torch.empty(batch, nr, tp, dtype=dtype, device=q.device)
        attention_kernel[(triton.cdiv(nr, tile.rows), batch)](
            q, key, tau, attention, length, tp, r0, nr, d, tile.rows, columns, tile.inner, single,
            law.round_scores and dtype == torch.bfloat16, _precision(dtype),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        yield r0, attention


def _aggregate(
    attention: Tensor,
    field: Tensor,
    theta: Tensor,
    w: Tensor,
    a: Tensor,
    slope: Tensor,
    r0: int,
    length: int,
    law: Law,
) -> None:
    batch, nr, tp = attention.shape
    k, kp = theta.shape[1], a.shape[1]
    tile = TILES[field.dtype]["aggregate"]
    bc = min(tile.columns, power_of_two(kp))
    aggregate_kernel[(triton.cdiv(nr, tile.rows), batch, triton.cdiv(kp, bc))](
        attention, field, theta, w, a, slope, length, tp, k, r0, nr, kp, law.harmonics, tile.rows, tile.inner, bc,
        law.drift, law.present_im, law.successor_im, math_mode(field.dtype), _precision(field.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _softmax_backward(
    attention: Tensor,
    dg: Tensor,
    field: Tensor,
    delta: Tensor,
    diag: Tensor,
    tau: Tensor,
    r0: int,
    length: int,
) -> Tensor:
    batch, nr, tp = attention.shape
    tile = TILES[field.dtype]["softmax_backward"]
    bn = min(tile.columns, power_of_two(tp))
    ds = torch.empty_like(attention)
    softmax_backward_kernel[(triton.cdiv(nr, tile.rows), triton.cdiv(tp, bn), batch)](
        attention, dg, field, delta, diag, tau, ds, length, tp, r0, nr, field.shape[1], tile.rows, bn, tile.inner,
        _precision(field.dtype), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return ds


def _field_backward(
    attention: Tensor, dg: Tensor, da: Tensor, theta: Tensor, w: Tensor, down: Tensor, dnext: Tensor,
    partial: Tensor, r0: int, length: int, law: Law,
) -> None:  # fmt: skip
    batch, nr, tp = attention.shape
    k, kp = theta.shape[1], da.shape[1]
    tile = TILES[dg.dtype]["field_backward"]
    bc = min(tile.columns, power_of_two(kp))
    field_backward_kernel[(triton.cdiv(length, tile.rows), batch, triton.cdiv(kp, bc))](
        attention, dg, da, theta, w, down, dnext, partial, length, tp, k, r0, nr, kp, law.harmonics,
        tile.rows, tile.inner, bc,
        law.present, law.present_im, law.successor, law.successor_im, law.drift, r0 > 0,
        math_mode(dg.dtype), _precision(dg.dtype), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
