"""The attention half as one autograd function: θ + bound(gate ⊙ coupling(θ))."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..law import CouplingLaw
from . import DRIFT, gradients, tiles
from .attention_backward import field_backward_kernel, prepare_backward_kernel
from .attention_forward import fields_kernel, query_folded_key_kernel, query_key_kernel, stack_kernel
from .common import ONES, Aside, math_mode, mm, pack, padded, round_up, transposed_mm
from .couple import Couple
from .dropout import Drop, drop_arguments, dropped_attention
from .products import triangle
from .score_gradient import softmax_backward
from .scores import attention_chunks
from .tiles import BLOCK, row_shape
from .update import coupling_update_backward_kernel, coupling_update_kernel

SIGNED, POSITIVE = 1, 2
"""How the kernels know the value gate."""


def drift_weight(drift: int, own: Tensor) -> Tensor:
    """What turns the token: the diagonal's weight (row 0 of ``own``) or the sum of all earlier ones (row 1)."""
    return own[0 if drift == DRIFT["rest"] else 1]


def rotary_table(length: int, rates: Tensor) -> tuple[Tensor, Tensor]:
    """cos ωt and sin ωt in float32, from float64 angles; no rotation in the padding.

    -> two (T, KP)
    """
    wide = torch.nn.functional.pad(rates.double(), (0, padded(len(rates)) - len(rates)))
    angle = torch.arange(length, device=rates.device, dtype=torch.float64)[:, None] * wide
    angle = angle.remainder(2 * math.pi)
    return angle.cos().float(), angle.sin().float()


def pack_gates(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """weight (3k, 2k), bias (3k,) -> (3KP, 2KP + 16)"""
    k = weight.shape[0] // 3
    return pack(weight, bias, (k, k), (padded(k), padded(k)), dtype)


@dataclass
class Coefficients:
    """A layer's kernel as the passes read it, and the parameters it is made of: w0 re, im, w1 re, im."""

    w: Tensor
    """(4, N, KP) float32, zeros for what does not exist"""
    constant: Tensor
    """(KP,): what the drift's weight multiplies"""
    parameters: tuple[Tensor | None, ...]


class StackFunction(torch.autograd.Function):
    """Up to four tensors that expand to (N, k) -> (4, N, KP), and the drift's constant (KP,), in one pass.

    The pass runs ``aside``, the function itself does not: autograd would run its backward there too, beside the others.
    """

    @staticmethod
    def forward(
        ctx: Any, law: CouplingLaw, k: int, aside: Aside | None, *parts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        some = next(p for p in parts if p is not None)
        n, kp = law.harmonics, padded(k)
        wide = [(some if p is None else p).expand(n, k) for p in parts]
        strides = [step for p in wide for step in p.stride()]
        there = [p is not None for p in parts]
        with contextlib.nullcontext() if aside is None else aside:
            out = torch.empty(4 * n + 1, kp, dtype=torch.float32, device=some.device)
            stack_kernel[(triton.cdiv(kp, 128),)](
                *wide, out, *strides, k, n, kp, DRIFT[law.drift], *there, 128
            )
        ctx.shapes, ctx.k = [None if p is None else p.shape for p in parts], k
        ctx.set_materialize_grads(False)
        constant = out[4 * n]
        ctx.mark_non_differentiable(constant)
        return out[: 4 * n].view(4, n, kp), constant

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dw = grads[0]
        shapes = zip(range(4), ctx.shapes, strict=True)
        dw = None if dw is None else dw[:, :, : ctx.k]
        own = [None if dw is None or shape is None else dw[i].sum_to_size(shape) for i, shape in shapes]
        return None, None, None, *own


def stack(law: CouplingLaw, k: int, *parts: Tensor | None, aside: Aside | None = None) -> Coefficients:
    """A layer's coefficients, made on the main stream or ``aside``: then they must not be read before it is joined."""
    w, constant = StackFunction.apply(law, k, aside, *parts)
    return Coefficients(w, constant, parts)


class AttentionFunction(torch.autograd.Function):
    """theta (M, KP) float32, feat (M, 2KP + 16), weight (3k, 2k), bias (3k,), w (4, N, KP), tau (), alpha () or None,
    score (2, k) or None -> the new θ (M, KP) and its [θ, 1] (M, KP + 16).

    ``score`` is λ, the successor's weight in the score; ``made`` is where w comes from, ``wide`` the packed weight and
    bias where they are packed already. The fields are the largest tensor here by far and the cheapest to make: without
    ``keep_fields`` the backward pass makes them again. Dropout: on the attention weights, and on the gated coupling.
    """

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, feat: Tensor, weight: Tensor, bias: Tensor, w: Tensor, tau: Tensor,
        alpha: Tensor | None, score: Tensor | None, cos: Tensor, sin: Tensor, length: int, law: CouplingLaw,
        positive_gate: bool, round_scores: bool, made: Coefficients, wide: Tensor | None = None,
        keep_fields: bool = True, drop_attention: Drop | None = None, drop_update: Drop | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)
        (rows, kp), k = theta.shape, weight.shape[0] // 3
        dtype, device = feat.dtype, theta.device
        batch, tp = rows // length, round_up(length, BLOCK)
        mode, gate = math_mode(dtype), POSITIVE if positive_gate else SIGNED
        aside = Aside(device)
        with aside:
            field = coupling_fields(theta, w, length, law.parts, dtype)
        wide = pack_gates(weight, bias, dtype) if wide is None else wide
        pre = mm(feat, wide.t())
        q = torch.empty(batch * tp, 2 * kp, dtype=dtype, device=device)
        key = torch.empty_like(q)
        width, r, warps = row_shape("query_key", kp)
        scored = score is not None
        own = torch.empty(5 if scored else 4, rows, dtype=torch.float32, device=device)
        if scored:
            r = tiles.rows_of_steps(64 * tiles.FOLDED_ROWS // width, tiles.SCORE_STEPS)
            query_folded_key_kernel[(triton.cdiv(batch * tp, r * tiles.SCORE_STEPS),)](
                theta, pre, cos, sin, score, q, key, own, batch, length, tp, k, batch,
                kp, width, r, tiles.SCORE_STEPS, mode, num_warps=max(1, width // 64),
            )  # fmt: skip
        else:
            query_key_kernel[(triton.cdiv(batch * tp, r),)](
                theta, pre, cos, sin, q, key, batch, length, tp, k, kp, width, r, mode, num_warps=warps
            )  # fmt: skip
        drift = DRIFT[law.drift]
        weight_of_drift = drift_weight(drift, own) if drop_attention is None else torch.empty_like(own[0])
        coupling = Couple(field, theta, weight_of_drift, made.constant, length, law.harmonics, drift)
        kept = None
        for r0, attention in attention_chunks(q, key, tau, own, batch, length, round_scores, False, scored):
            read = dropped_attention(attention, own, drop_attention, r0, length, drift, weight_of_drift)
            aside.join()
            coupling.add(read, r0)
            if tp <= tiles.CHUNK and attention.nbytes <= tiles.KEPT_ATTENTION:
                kept = attention
        a, slope = coupling.result()
        out = torch.empty_like(theta)
        cast = torch.empty(rows, kp + ONES, dtype=dtype, device=device)
        width, r, warps = row_shape("update", kp)
        coupling_update_kernel[(triton.cdiv(rows, r),)](
            theta, a, pre, theta if alpha is None else alpha, out, cast,
            rows, length, k, *drop_arguments(drop_update, theta), kp, width, r, gate, alpha is not None, mode,
            num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(
            theta, feat, wide, weight, bias, w, made.constant, tau, alpha, score, cos, sin, pre, q, key,
            field if keep_fields else None, a, slope, own, kept, weight_of_drift,
        )  # fmt: skip
        ctx.drop_attention, ctx.drop_update = drop_attention, drop_update
        ctx.length, ctx.law, ctx.gate, ctx.round_scores = length, law, gate, round_scores
        ctx.parameters = made.parameters
        return out, cast

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (
            theta, feat, wide, weight, bias, w, constant, tau, alpha, score, cos, sin, pre, q, key, field, a,
            slope, own, kept, weight_of_drift,
        ) = ctx.saved_tensors  # fmt: skip
        arrives = [g is not None for g in grads]
        dout, dcast = (theta if g is None else g.contiguous() for g in grads)
        length, law, drift = ctx.length, ctx.law, DRIFT[ctx.law.drift]
        (rows, kp), k = theta.shape, weight.shape[0] // 3
        dtype, device = feat.dtype, theta.device
        batch, n, tp = rows // length, law.harmonics, round_up(length, BLOCK)
        mode = math_mode(dtype)
        f32 = torch.float32

        def new(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.empty(*shape, dtype=kind, device=device)

        aside, made = Aside(device), None
        if field is None:
            with aside:
                field = coupling_fields(theta, w, length, law.parts, dtype)
            made = aside.mark()
        width, r, warps = row_shape("update_backward", kp)
        programs = triton.cdiv(batch * tp, r)
        dpre, da, dg = new(rows, 3 * kp), new(rows, kp), new(batch, tp, 2 * n * kp)
        turn = torch.zeros(rows, dtype=f32, device=device) if drift == 0 else new(rows, kind=f32)
        dalpha = new(programs, kind=f32)
        coupling_update_backward_kernel[(programs,)](
            dout, dcast, theta, a, pre, turn if alpha is None else alpha, constant, da, dpre, dg, turn, dalpha,
            batch, length, tp, batch, k, *drop_arguments(ctx.drop_update, theta), kp, width, n, r, ctx.gate,
            alpha is not None, drift, *arrives, mode, num_warps=warps,
        )  # fmt: skip

        scored = score is not None
        down = new(rows, kind=f32) if scored else None
        drop = ctx.drop_attention
        keys, queries = key.view(batch, tp, 2 * kp), q.view(batch, tp, 2 * kp)
        if kept is not None:
            with aside:
                read = dropped_attention(kept, own, drop, 0, length, drift, None)
                df = triangle(read, dg, torch.empty_like(dg), kp, transposed=True)
                multiplied = aside.mark()
                dfield, partial = field_backward(df, weight_of_drift, da, theta, w, length, law.parts, drift)
            aside.wait(made)
            ds = softmax_backward(kept, own, dg, field, turn, tau, 0, length, drift, kp, down, drop)
            aside.wait(multiplied)
            del dg, field  # their memory serves what follows
            dq, dkey = ds @ keys, ds.transpose(1, 2) @ queries
            aside.join()
        else:
            aside.join()
            sums = f32 if tp > tiles.CHUNK else dtype  # chunks add to them
            dq, dkey = new(batch, tp, 2 * kp), new(batch, tp, 2 * kp, kind=sums)
            df = new(batch, tp, 2 * n * kp, kind=sums)
            for r0, attention in attention_chunks(
                q, key, tau, own, batch, length, ctx.round_scores, True, scored
            ):
                ds = softmax_backward(attention, own, dg, field, turn, tau, r0, length, drift, kp, down, drop)
                triangle(ds, keys, dq, kp, r0)
                read = dropped_attention(attention, own, drop, r0, length, drift, None)
                triangle(read, dg, df, kp, r0, transposed=True)
                triangle(ds, queries, dkey, kp, r0, transposed=True)
            dfield, partial = field_backward(df, weight_of_drift, da, theta, w, length, law.parts, drift)
        width, r, warps = row_shape("prepare_backward", kp)
        steps = tiles.SCORE_ROWS if scored else 1
        r = tiles.rows_of_steps(r, steps)
        programs = triton.cdiv(batch * tp, r * steps)
        dtheta_in, dtau = new(rows, kp, kind=f32), new(programs, kind=f32)
        dscore_part = new(programs, 2, kp, kind=f32) if scored else dtau
        prepare_backward_kernel[(programs,)](
            theta, pre, cos, sin, dq, dkey, dfield, da, slope, dout, dcast, score if scored else theta,
            down if scored else theta, dpre, dtheta_in, dtau, dscore_part,
            batch, length, tp, k, batch, kp, width, r, steps, scored, *arrives, mode, num_warps=warps,
        )  # fmt: skip
        weights = Aside(device, "weights")
        with weights:
            dweight, dbias = gradients.settle(transposed_mm(dpre, feat), weight, bias, (k, k), (kp, kp))
            dw, dtau_sum, dalpha_sum = gradients.coefficients(
                partial, w, k, ctx.parameters, law.parts, drift, dtau, tau, dalpha, alpha
            )
            dscore = gradients.column_sums(dscore_part, score) if scored else None
        dfeat = mm(dpre, wide)
        results = dweight, dbias, dw if ctx.needs_input_grad[4] else None, dtau_sum, dalpha_sum, dscore
        gradients.release(weights, (dpre, feat, partial, dtau, dalpha, dscore_part), results)
        return dtheta_in, dfeat, *results, *(None,) * 11


def coupling_fields(
    theta: Tensor, w: Tensor, length: int, parts: Sequence[bool], dtype: torch.dtype
) -> Tensor:
    """theta (M, KP), w (4, N, KP), or one for each head (heads, 4, N, KP), whose ``parts`` exist -> F (B, TP, 2N·KP)"""
    (rows, kp), n = theta.shape, w.shape[-2]
    batch, tp, tile = rows // length, round_up(length, BLOCK), tiles.shape("FIELDS", kp)
    field = torch.empty(batch, tp, 2 * n * kp, dtype=dtype, device=theta.device)
    fields_kernel[(triton.cdiv(batch * tp, tile.rows), triton.cdiv(kp, tile.columns))](
        theta, w, field, batch, length, tp, batch * 4 * n * kp // w.numel(),
        kp, n, tile.rows, tile.columns, *parts, math_mode(dtype), num_warps=tile.warps,
    )  # fmt: skip
    return field


def field_backward(
    df: Tensor, weight: Tensor, da: Tensor, theta: Tensor, w: Tensor, length: int, parts: Sequence[bool],
    drift: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """df (B, TP, 2N·KP) -> its share of dθ (M, KP), and partial sums for the coefficients (blocks, 4N + 1, KP)."""
    kp, n, tp = da.shape[1], w.shape[-2], df.shape[1]
    strip: tiles.Strip = tiles.shape("STRIP", kp)
    blocks = df.shape[0] * tp // strip.tokens
    dtheta = torch.empty_like(da)
    partial = torch.empty(blocks, 4 * n + 1, kp, dtype=torch.float32, device=df.device)
    for n0 in range(0, n, 3):
        field_backward_kernel[(blocks, triton.cdiv(kp, strip.columns))](
            df, weight, da, theta, w, dtheta, partial, length, tp, df.shape[0] * 4 * n * kp // w.numel(),
            kp, strip.columns, n, n0, min(3, n - n0), strip.tokens, strip.stages,
            *parts, drift if n0 == 0 else 0, n0 > 0, math_mode(da.dtype), num_warps=strip.warps,
        )  # fmt: skip
    return dtheta, partial
