"""The attention half as one autograd function: θ + bound(gate ⊙ coupling(θ))."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from . import tiles
from .attention_backward import field_backward_kernel, prepare_backward_kernel, softmax_backward_kernel
from .attention_forward import aggregate_kernel, attention_kernel, prepare_kernel
from .common import ONES, column_sum, math_mode, mm, pack, padded, power_of_two, round_up, unpack
from .tiles import BLOCK, ROW_WARPS, TILES, precision, row_tile
from .update import attention_update_backward_kernel, update_kernel


@dataclass(frozen=True)
class Law:
    """The static part of a coupling law, as the kernels want it. ``gate`` is 1 for signed, 2 for softplus."""

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
        """0: no constant part, 1: that of the rest frame, 2: that of the co-rotating frame."""
        if self.frame == "rest":
            return 1 if self.present_im else 0
        return 2 if self.present_im or self.successor_im else 0

    @property
    def parts(self) -> tuple[bool, bool, bool, bool]:
        return self.present, self.present_im, self.successor, self.successor_im


def rotary_table(length: int, rates: Tensor) -> tuple[Tensor, Tensor]:
    """cos ωt and sin ωt in float32, from float64 angles.

    -> two (T, k)
    """
    angle = torch.arange(length, device=rates.device, dtype=torch.float64)[:, None] * rates.double()
    angle = angle.remainder(2 * math.pi)
    return angle.cos().float(), angle.sin().float()


class AttentionFunction(torch.autograd.Function):
    """theta (M, k) float32, feat (M, 2KP + 16), weight (3k, 2k), bias (3k,), w (4, N, k), tau (), alpha () or None
    -> the new θ and its [θ, 1] (M, KP + 16)
    """

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, feat: Tensor, weight: Tensor, bias: Tensor, w: Tensor, tau: Tensor,
        alpha: Tensor | None, cos: Tensor, sin: Tensor, length: int, law: Law,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)
        rows, k = theta.shape
        dtype, device = feat.dtype, theta.device
        batch, kp, tp = rows // length, padded(k), round_up(length, BLOCK)
        bk, mode = power_of_two(kp), math_mode(dtype)
        wide = pack(weight, bias, (k, k), (kp, kp), dtype)
        pre = mm(feat, wide.t())
        q = torch.empty(batch * tp, 2 * kp, dtype=dtype, device=device)
        key = torch.empty_like(q)
        field = torch.empty(rows, 2 * law.harmonics * kp, dtype=dtype, device=device)
        r = row_tile("prepare", bk)
        prepare_kernel[(triton.cdiv(batch * tp, r),)](
            theta, pre, cos, sin, w, q, key, field, batch, length, tp, k, kp, bk, law.harmonics, r,
            *law.parts, mode, num_warps=ROW_WARPS["prepare"],
        )  # fmt: skip
        a = torch.empty(rows, kp, dtype=dtype, device=device)
        slope = torch.empty_like(a)
        own = torch.empty(rows, dtype=torch.float32, device=device)
        kept = None
        for r0, attention in attention_chunks(q, key, tau, own, batch, length, law):
            aggregate(attention, own, field, theta, w, a, slope, r0, length, law)
            kept = attention if tp <= tiles.CHUNK else None
        out = torch.empty_like(theta)
        cast = torch.empty(rows, kp + ONES, dtype=dtype, device=device)
        r = row_tile("update", bk)
        update_kernel[(triton.cdiv(rows, r),)](
            theta, a, pre, theta if alpha is None else alpha, out, cast, cast, theta, 0, 0, 0, 1.0,
            rows, length, k, kp, bk, r, law.gate, alpha is not None, False, True, False, mode,
            num_warps=ROW_WARPS["update"],
        )  # fmt: skip
        ctx.save_for_backward(
            theta, feat, wide, w, tau, alpha, cos, sin, pre, q, key, field, a, slope, own, cast, kept
        )
        ctx.length, ctx.law = length, law
        return out, cast

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        theta, feat, wide, w, tau, alpha, cos, sin, pre, q, key, field, a, slope, own, cast, kept = (
            ctx.saved_tensors
        )
        dtheta, dcast = grads
        length, law = ctx.length, ctx.law
        rows, k = theta.shape
        dtype, device = feat.dtype, theta.device
        batch, kp, n, tp = rows // length, padded(k), law.harmonics, round_up(length, BLOCK)
        bk, mode = power_of_two(kp), math_mode(dtype)
        f32 = torch.float32

        def new(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.empty(*shape, dtype=kind, device=device)

        r = row_tile("update_backward", bk)
        programs = triton.cdiv(rows, r)
        dpre, da, dg = new(rows, 3 * kp), new(rows, kp), new(rows, 2 * n * kp)
        dres, delta, diag = new(rows, k, kind=f32), new(rows, kind=f32), new(rows, kind=f32)
        dalpha = new(programs, kind=f32)
        attention_update_backward_kernel[(programs,)](
            dres if dtheta is None else dtheta.contiguous(), a if dcast is None else dcast.contiguous(),
            a, cast, theta, a, pre, delta if alpha is None else alpha, w, dres, da, dpre, dg, delta, diag, dalpha,
            rows, k, kp, bk, n, r, law.gate, alpha is not None, law.drift, law.present_im, law.successor_im,
            dtheta is not None, False, dcast is not None, mode, num_warps=ROW_WARPS["update_backward"],
        )  # fmt: skip

        chunked = kept is None
        down, dnext = (new(rows, kp, kind=f32 if chunked else dtype) for _ in range(2))
        partial = partial_sums(batch, length, kp, law, dtype, device)
        keys, queries = key.view(batch, tp, 2 * kp), q.view(batch, tp, 2 * kp)
        dq, dkey = new(batch, tp, 2 * kp), None
        chunks = attention_chunks(q, key, tau, own, batch, length, law) if chunked else iter([(0, kept)])
        for r0, attention in chunks:
            ds = softmax_backward(attention, own, dg, field, delta, diag, tau, r0, length)
            field_backward(attention, own, dg, da, theta, w, down, dnext, partial, r0, length, law)
            last = r0 + attention.shape[1]
            if chunked:
                dq[:, r0:last] = mm(ds, keys)
                more = mm(ds.transpose(1, 2), queries[:, r0:last], f32)
                dkey = more if dkey is None else dkey.add_(more)
            else:
                torch.bmm(ds, keys, out=dq)
                dkey = torch.bmm(ds.transpose(1, 2), queries)
        r = row_tile("prepare_backward", bk)
        programs = triton.cdiv(rows, r)
        dtheta_in, dtau = new(rows, k, kind=f32), new(programs, kind=f32)
        prepare_backward_kernel[(programs,)](
            theta, pre, cos, sin, dq, dkey, down, dnext, da, slope, dres, dpre, dtheta_in, dtau,
            rows, length, tp, k, kp, bk, r, law.present, law.successor, mode,
            num_warps=ROW_WARPS["prepare_backward"],
        )  # fmt: skip
        dweight, dbias = unpack(mm(dpre.t(), feat, f32), (k, k), (kp, kp), 3 * k)
        return (
            dtheta_in, mm(dpre, wide), dweight, dbias, kernel_gradient(partial, law, k),
            temperature_gradient(dtau, tau), None if alpha is None else dalpha.sum(), None, None, None, None,
        )  # fmt: skip


def temperature_gradient(partial: Tensor, tau: Tensor) -> Tensor:
    """−Σ dq·q / τ, and nothing where τ rests on its floor."""
    return torch.where(tau > 1e-6, -partial.sum() / tau, 0.0)


def partial_sums(
    batch: int, length: int, kp: int, law: Law, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Room for one row of sums per block of positions; zeros where the law leaves parts unwritten."""
    blocks = triton.cdiv(length, TILES[dtype]["field_backward"].rows)
    make = torch.empty if all(law.parts) else torch.zeros
    return make(batch * blocks, 4 * law.harmonics + 1, kp, dtype=torch.float32, device=device)


def kernel_gradient(partial: Tensor, law: Law, k: int) -> Tensor:
    """(blocks, 4N + 1, KP) partial sums -> (4, N, k); the drift's share goes to the imaginary parts."""
    total = column_sum(partial.flatten(1)).view(partial.shape[1:])[:, :k]
    n = law.harmonics
    dw = total[: 4 * n].unflatten(0, (4, n))
    if law.drift == 1:
        dw[1] += total[4 * n]
    elif law.drift == 2:
        dw[1::2] += total[4 * n]
    return dw


def attention_chunks(
    q: Tensor, key: Tensor, tau: Tensor, own: Tensor, batch: int, length: int, law: Law
) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, attention (B, rows, TP)) until all rows are done; one chunk for T ≤ 1024."""
    tp, d, dtype = round_up(length, BLOCK), q.shape[1], q.dtype
    tile = TILES[dtype]["attention"]
    single = tp <= 256
    columns = power_of_two(tp) if single else tile.columns
    for r0 in range(0, tp, tiles.CHUNK):
        nr = min(tiles.CHUNK, tp - r0)
        attention = torch.empty(batch, nr, tp, dtype=dtype, device=q.device)
        attention_kernel[(nr // tile.rows, batch)](
            q, key, tau, attention, own, length, tp, r0, nr, d, tile.rows, columns, tile.inner, single,
            law.round_scores and dtype == torch.bfloat16, precision(dtype),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        yield r0, attention


def aggregate(
    attention: Tensor, own: Tensor, field: Tensor, theta: Tensor, w: Tensor, a: Tensor, slope: Tensor,
    r0: int, length: int, law: Law,
) -> None:  # fmt: skip
    batch, nr, tp = attention.shape
    k, kp = theta.shape[1], a.shape[1]
    tile = TILES[field.dtype]["aggregate"]
    bc = min(tile.columns, power_of_two(kp))
    aggregate_kernel[(nr // tile.rows, batch, triton.cdiv(kp, bc))](
        attention, own, field, theta, w, a, slope, length, tp, k, r0, nr, kp, law.harmonics,
        tile.rows, tile.inner, bc, law.drift, law.present_im, law.successor_im,
        math_mode(field.dtype), precision(field.dtype), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def softmax_backward(
    attention: Tensor, own: Tensor, dg: Tensor, field: Tensor, delta: Tensor, diag: Tensor, tau: Tensor,
    r0: int, length: int,
) -> Tensor:  # fmt: skip
    batch, nr, tp = attention.shape
    tile = TILES[field.dtype]["softmax_backward"]
    bn = tile.columns if tp % tile.columns == 0 else BLOCK
    ds = torch.empty_like(attention)
    softmax_backward_kernel[(nr // tile.rows, tp // bn, batch)](
        attention, own, dg, field, delta, diag, tau, ds, length, tp, r0, nr, field.shape[1],
        tile.rows, bn, tile.inner, precision(field.dtype), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return ds


def field_backward(
    attention: Tensor, own: Tensor, dg: Tensor, da: Tensor, theta: Tensor, w: Tensor, down: Tensor, dnext: Tensor,
    partial: Tensor, r0: int, length: int, law: Law,
) -> None:  # fmt: skip
    batch, nr, tp = attention.shape
    k, kp = theta.shape[1], da.shape[1]
    tile = TILES[dg.dtype]["field_backward"]
    bc = min(tile.columns, power_of_two(kp))
    field_backward_kernel[(triton.cdiv(length, tile.rows), batch, triton.cdiv(kp, bc))](
        attention, own, dg, da, theta, w, down, dnext, partial, length, tp, k, r0, nr, kp, law.harmonics,
        tile.rows, tile.inner, bc, *law.parts, law.drift, r0 > 0, math_mode(dg.dtype), precision(dg.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
