"""The attention half on a CPU: the reference's mathematics with backward passes written by hand.

What costs time on a CPU, beside the products, is how often large tensors pass through it. So a few sequences are taken
at a time, whose fields fit into the cache of a core; the blocks of attention end at the diagonal; phasors are complex
numbers, so that sines are taken once; and derivatives use that ∂zⁿ/∂θ = i n zⁿ. The reference in ``ops`` stays the
oracle: the tests compare values and every gradient, and second derivatives go through it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import bound, scores
from .coupling import Pair, aggregate_fields, contract_fields, fields
from .harmonics import phase_features
from .precision import transformed

ROWS = 64
"""Rows of attention at a time: above the diagonal of such a block is the only waste."""
POSITIONS = 512
"""As many sequences at a time as have about so many positions."""


def applies(x: Tensor) -> bool:
    """Whether the functions here take this tensor: float32 on a CPU, neither under autocast nor traced or transformed.

    ``FSN_FUSED=0`` in the environment switches them off, as it does kernels.
    """
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._is_tracing()
        and not transformed()
        and os.environ.get("FSN_FUSED", "1") != "0"
    )


def _batched(grad: Tensor) -> bool:
    """Whether many gradients come as one, as for ``jacobian(vectorize=True)``."""
    return transformed() or torch._C._functorch.is_legacy_batchedtensor(grad)


def _reference_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], options: Sequence[Any], grad: Tensor
) -> Iterator[Tensor | None]:
    """Gradients that can be differentiated once more."""
    with torch.enable_grad():
        # Views of their own: θ comes out of earlier layers, and what it owes to a weight they share is not this one's.
        own = [None if x is None else x.view_as(x) for x in inputs]
        wanted = [x for x in own if x is not None and x.requires_grad]
        output = function(*own, *options)
        found = iter(torch.autograd.grad(output, wanted, grad, create_graph=True, allow_unused=True))
    return (next(found) if x is not None and x.requires_grad else None for x in own)


# -- from phases to the raw update ---------------------------------------------------------------------------------


def attention_half(
    theta: Tensor,
    weight: Tensor,
    bias: Tensor,
    rates: Tensor,
    tau: Tensor,
    w0: Pair | None,
    w1: Pair | None,
    harmonics: int,
    frame: str,
    score: Tensor | None = None,
    positive_value: bool = False,
) -> Tensor:
    """Gates, scores, attention, coupling and value gate, wherever :func:`applies` holds.

    ``weight`` and ``bias`` are those of :class:`fsn.nn.Gates`, the rest is as in :func:`fsn.ops.synchronize`.

    theta (B, T, k), weight (3k, 2k), bias (3k,), rates (k,), tau () -> (B, T, k)
    """
    k = theta.shape[-1]
    kernel = [None if w is None else _complex(w.re, w.im).expand(harmonics, k) for w in (w0, w1)]
    turning = [
        w.im.sum(0) for w in ((w0,) if frame == "rest" else (w0, w1)) if w is not None and w.im is not None
    ]
    turn = None if not turning else sum(turning[1:], turning[0]).expand(k)
    weights = None if score is None else _complex(*score).expand(k)
    update: Tensor = _AttentionHalf.apply(
        theta, weight, bias, tau.clamp(min=scores.FLOOR), turn, *kernel, weights, rates,
        harmonics, frame == "rest", positive_value, torch.is_grad_enabled(),
    )  # fmt: skip
    return update


def _complex(re: Tensor, im: Tensor | None) -> Tensor:
    return torch.complex(re, torch.zeros_like(re) if im is None else im)


def _attention_half(
    theta: Tensor, weight: Tensor, bias: Tensor, tau: Tensor, turn: Tensor | None, w0: Tensor | None,
    w1: Tensor | None, score: Tensor | None, rates: Tensor, harmonics: int, at_rest: bool, positive: bool, _: bool,
) -> Tensor:  # fmt: skip
    """The same by the reference."""
    query, key, value = F.linear(phase_features(theta), weight, bias).chunk(3, dim=-1)
    query = scores.rotary_features(theta, scores.normalise_gate(query), rates)
    own = key = scores.rotary_features(theta, scores.normalise_gate(key), rates)
    if score is not None:
        key = scores.fold_successors(own, torch.stack((score.real, score.imag)))
    attention = scores.causal_softmax(
        scores.coherence_scores(query, key, tau, own=None if score is None else own)
    )
    pairs = [None if w is None else Pair(w.real, w.imag) for w in (w0, w1)]
    pull = contract_fields(theta, aggregate_fields(attention, fields(theta, pairs[0], pairs[1], harmonics)))
    if turn is not None:
        pull = pull + (attention.diagonal(0, -2, -1) - (0 if at_rest else 1))[..., None] * turn
    return (F.softplus(value) if positive else value) * pull


class _AttentionHalf(torch.autograd.Function):
    """w0, w1 (N, k) and λ (k,) complex, the drift's rate ``turn`` (k,). A position's weight on itself is kept apart
    from those on earlier ones."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, weight: Tensor, bias: Tensor, tau: Tensor, turn: Tensor | None, w0: Tensor | None,
        w1: Tensor | None, score: Tensor | None, rates: Tensor, *options: Any,
    ) -> Tensor:  # fmt: skip
        harmonics, at_rest, positive, grad = options
        (batch, length, k), features = theta.shape, phase_features(theta)
        raw = (features.flatten(0, 1) @ weight.mT).view(batch, length, 3, k)
        pull, update = torch.empty_like(theta), torch.empty_like(theta)
        slope = torch.empty_like(theta) if grad else None
        itself = theta.new_empty(batch, length)
        rotation, later = _rotation(rates, theta), torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
        kept: list[Tensor] = []
        parts: list[Tensor] = []
        for some in _sequences(theta):
            gate = F.softplus(raw[some].add_(bias.view(3, k))[:, :, :2])
            mean = gate.mean(dim=-1, keepdim=True)
            gate.div_(_held(mean, tau))
            sides = _sides(features[some], rotation, gate)
            query, own = sides[:, :, 0].flatten(2), sides[:, :, 1].flatten(2)
            keys = own if score is None else _folded(own, score)
            unit = torch.complex(*features[some].chunk(2, dim=-1))
            field = _fields(unit, w0, w1, harmonics)
            total = torch.empty_like(field)
            for rows in _blocks(length):
                seen, new = slice(rows.stop), rows.stop - rows.start
                attention = query[:, rows] @ keys[:, seen].mT
                if score is not None:  # a token must not see its own successor
                    plain = (query[:, rows] * own[:, rows]).sum(-1)
                    attention.diagonal(rows.start, -2, -1).copy_(plain)
                attention[..., rows].masked_fill_(later[:new, :new], float("-inf"))
                attention = attention.softmax(dim=-1)
                diagonal = attention.diagonal(rows.start, -2, -1)
                itself[some, rows] = diagonal
                diagonal.zero_()
                torch.bmm(attention, field[:, seen], out=total[:, rows])
                kept += [attention] if grad else []
            plain, weighted = _contract(_harmonics(total, harmonics), unit.conj_physical_())
            pull[some] = plain.imag
            if slope is not None:
                torch.neg(weighted.real, out=slope[some])
            if turn is not None:
                pull[some].addcmul_((itself[some] - (0 if at_rest else 1))[..., None], turn)
            value = raw[some][:, :, 2]
            torch.mul(pull[some], F.softplus(value) if positive else value, out=update[some])
            parts += [gate, mean, sides] if grad else []
        if grad:
            ctx.options = options
            inputs = theta, weight, bias, tau, turn, w0, w1, score, rates
            ctx.save_for_backward(*inputs, features, raw, pull, slope, itself, *parts, *kept)
        return update

    @staticmethod
    def backward(ctx: Any, dupdate: Tensor) -> Any:
        harmonics, at_rest, positive, _ = ctx.options
        saved = ctx.saved_tensors  # read once: a checkpoint unpacks them no second time
        inputs, (features, raw, pull, slope, itself, *rest) = saved[:9], saved[9:]
        if torch.is_grad_enabled() or _batched(dupdate):
            return *_reference_gradients(_attention_half, inputs, ctx.options, dupdate), *[None] * 4
        theta, weight, _, tau, turn, w0, w1, score, rates = inputs
        length, k = theta.shape[1:]
        rotation, chunks, blocks = _rotation(rates, theta), list(_sequences(theta)), list(_blocks(length))
        draw, dtheta, dtau = torch.empty_like(raw), torch.empty_like(theta), torch.zeros_like(tau)
        dturn, dw0, dw1, dscore = (None if w is None else w.new_zeros(w.shape) for w in (turn, w0, w1, score))
        for i, some in enumerate(chunks):
            gate, mean, sides = rest[3 * i : 3 * i + 3]
            attentions = rest[3 * len(chunks) + i * len(blocks) :][: len(blocks)]
            part, dpart, given = raw[some], draw[some], dupdate[some]
            # the value gate, and how the pull depends on θ_t itself
            value = part[:, :, 2]
            torch.mul(given, pull[some], out=dpart[:, :, 2])
            if positive:
                dpart[:, :, 2].mul_(value.sigmoid())
            dpull = given * (F.softplus(value) if positive else value)
            moved = torch.mul(dpull, slope[some], out=dtheta[some])
            ditself = theta.new_zeros(itself[some].shape)
            if turn is not None and dturn is not None:
                ditself = dpull @ turn
                dturn += torch.einsum("bt,btk->k", itself[some] - (0 if at_rest else 1), dpull)
            # back through attention; dG⁽ⁿ⁾ = i dpull zⁿ
            query, own = sides[:, :, 0].flatten(2), sides[:, :, 1].flatten(2)
            keys = own if score is None else _folded(own, score)
            unit = torch.complex(*features[some].chunk(2, dim=-1))
            field = _fields(unit, w0, w1, harmonics)
            dtotal = _powers(torch.complex(torch.zeros_like(dpull), dpull), unit, harmonics)
            dfield, dkeys, dquery = torch.empty_like(field), torch.empty_like(keys), torch.empty_like(query)
            downs: list[Tensor] = []
            for rows, attention in zip(reversed(blocks), reversed(attentions), strict=True):
                seen = slice(rows.stop)
                keep = 0.0 if rows.stop == length else 1.0  # the first time there is no sum yet
                dfield[:, seen].baddbmm_(attention.mT, dtotal[:, rows], beta=keep)
                dattention = dtotal[:, rows] @ field[:, seen].mT
                dattention.diagonal(rows.start, -2, -1).copy_(ditself[:, rows])
                attention = attention.clone()
                attention.diagonal(rows.start, -2, -1).copy_(itself[some, rows])
                dscores = torch._softmax_backward_data(dattention, attention, -1, attention.dtype)
                if score is not None:
                    diagonal = dscores.diagonal(rows.start, -2, -1)
                    downs.insert(0, diagonal.clone())
                    diagonal.zero_()
                torch.bmm(dscores, keys[:, seen], out=dquery[:, rows])
                dkeys[:, seen].baddbmm_(dscores.mT, query[:, rows], beta=keep)
            if score is not None and dscore is not None:
                down = torch.cat(downs, dim=1)[..., None]
                dkeys = _unfold(dkeys, own, score, dscore).addcmul_(down, query)
                dquery.addcmul_(down, own)
            moved.add_(
                _fields_backward(_harmonics(dfield, harmonics), unit.conj_physical_(), w0, w1, dw0, dw1)
            )
            # gates and features: q = g e^{iφ}, dφ = g Im(dq e^{−iφ}), dg = Re(dq e^{−iφ})
            (cos, sin), dgate = _turned(features[some], rotation), torch.empty_like(gate)
            for j, side in enumerate((dquery, dkeys)):
                dcos, dsin = side.chunk(2, dim=-1)
                moved.addcmul_(gate[:, :, j], (dsin * cos).addcmul_(dcos, sin, value=-1))
                torch.mul(dcos, cos, out=dgate[:, :, j]).addcmul_(dsin, sin)
            # g = p / mean p: dp = (dg − mean(dg ⊙ g)) / mean p, the second term only where the mean is not held
            shared = (dgate * gate).mean(dim=-1, keepdim=True)
            dtau -= k * shared[:, :, 0].sum() / tau
            shared[:, :, 0] *= tau
            held = _held(mean, tau)
            dgate.sub_(shared.mul_(mean > scores.FLOOR)).div_(held)
            torch.mul(dgate, part[:, :, :2].sigmoid(), out=dpart[:, :, :2])
        flat = draw.view(-1, 3 * k)
        dfeatures = (flat @ weight).view_as(features)
        for some in chunks:
            (cos, sin), (dcos, dsin) = features[some].chunk(2, dim=-1), dfeatures[some].chunk(2, dim=-1)
            dtheta[some].addcmul_(cos, dsin).addcmul_(sin, dcos, value=-1)
        dweight = flat.mT @ features.flatten(0, 1)
        return dtheta, dweight, flat.sum(0), dtau, dturn, dw0, dw1, dscore, None, *[None] * 4


def _sequences(theta: Tensor) -> Iterator[slice]:
    step = max(1, POSITIONS // theta.shape[1])
    return (slice(i, min(i + step, theta.shape[0])) for i in range(0, theta.shape[0], step))


def _blocks(length: int) -> Iterator[slice]:
    return (slice(i, min(i + ROWS, length)) for i in range(0, length, ROWS))


def _rotation(rates: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """cos ωt and sin ωt: two (T, k)"""
    angle = (torch.arange(theta.shape[1], dtype=rates.dtype)[:, None] * rates).to(theta.dtype)
    return angle.cos(), angle.sin()


def _turned(features: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """e^{i(θ + ωt)} = e^{iθ} e^{iωt}: (b, T, 2k) -> two (b, T, k)"""
    (cos, sin), (turn_cos, turn_sin) = features.chunk(2, dim=-1), rotation
    re = (cos * turn_cos).addcmul_(sin, turn_sin, value=-1)
    return re, (sin * turn_cos).addcmul_(cos, turn_sin)


def _held(mean: Tensor, tau: Tensor) -> Tensor:
    """What gates are divided by: their mean, and τ for the query's. (b, T, 2, 1) -> (b, T, 2, 1)"""
    held = mean.clamp(min=scores.FLOOR)
    held[:, :, 0] *= tau
    return held


def _sides(features: Tensor, rotation: tuple[Tensor, Tensor], gate: Tensor) -> Tensor:
    """Both sides of the scores' product: (b, T, 2k), (b, T, 2, k) -> (b, T, 2, 2, k)"""
    sides = gate.new_empty(*gate.shape[:3], 2, gate.shape[3])
    for part, turned in enumerate(_turned(features, rotation)):
        torch.mul(gate, turned[:, :, None], out=sides[:, :, :, part])
    return sides


def _folded(keys: Tensor, score: Tensor) -> Tensor:
    """:func:`fsn.ops.fold_successors`"""
    return scores.fold_successors(keys, torch.stack((score.real, score.imag)))


def _unfold(dkeys: Tensor, own: Tensor, score: Tensor, dscore: Tensor) -> Tensor:
    """The gradient of keys from that of folded ones, dk_{u+1} += λ̄ dk̃_u, and dλ = Σ k̄_{u+1} dk̃_u into ``dscore``"""
    folded, plain = (torch.complex(*x.chunk(2, dim=-1)) for x in (dkeys, own))
    dscore += (plain[:, 1:].conj() * folded[:, :-1]).sum((0, 1))
    folded[:, 1:] += score.conj() * folded[:, :-1].clone()
    return torch.cat((folded.real, folded.imag), dim=-1)


def _harmonics(x: Tensor, harmonics: int) -> Tensor:
    """Real (b, T, 2Nk) as complex (b, T, N, k)"""
    return torch.view_as_complex(x.unflatten(2, (harmonics, -1, 2)))


def _powers(first: Tensor, unit: Tensor, harmonics: int) -> Tensor:
    """first · zⁿ for n = 1..N: complex (b, T, k) -> real (b, T, 2Nk)"""
    out = unit.new_empty(*unit.shape[:2], harmonics, unit.shape[2])
    for n in range(harmonics):
        first = torch.mul(first, unit, out=out[:, :, n])
    return torch.view_as_real(out).flatten(2)


def _fields(unit: Tensor, w0: Tensor | None, w1: Tensor | None, harmonics: int) -> Tensor:
    """w0⁽ⁿ⁾ zⁿ + w1⁽ⁿ⁾ z_{+1}ⁿ: complex (b, T, k) -> real (b, T, 2Nk)"""
    field = unit.new_empty(*unit.shape[:2], harmonics, unit.shape[2])
    power, other = unit, torch.empty_like(unit[:, 1:])
    for n, out in enumerate(field.unbind(2)):
        power = power * unit if n else unit
        if w0 is None:
            out.zero_()
        else:
            torch.mul(power, w0[n], out=out)
        if w1 is not None:
            out[:, :-1].add_(torch.mul(power[:, 1:], w1[n], out=other))
    return torch.view_as_real(field).flatten(2)


def _fields_backward(
    dfield: Tensor, conjugate: Tensor, w0: Tensor | None, w1: Tensor | None, dw0: Tensor | None, dw1: Tensor | None
) -> Tensor:  # fmt: skip
    """dθ = Σ n Im w̄ (dF z̄ⁿ), over both fields, and dw = Σ_t dF z̄ⁿ into ``dw0`` and ``dw1``

    dfield (b, T, N, k), conjugate (b, T, k): z̄ -> (b, T, k)
    """
    total, power, made = torch.zeros_like(conjugate), conjugate, torch.empty_like(conjugate)
    for n, given in enumerate(dfield.unbind(2)):
        power = power * conjugate if n else conjugate
        for w, dw, shift in ((w0, dw0, 0), (w1, dw1, 1)):
            if w is None or dw is None:
                continue
            at = slice(shift, None)
            along = torch.mul(given[:, : given.shape[1] - shift], power[:, at], out=made[:, at])
            dw[n] += along.sum((0, 1))
            total[:, at].add_(along.mul_((n + 1) * w[n].conj()))
    return total.imag


def _contract(total: Tensor, conjugate: Tensor) -> tuple[Tensor, Tensor]:
    """Σ z̄ⁿ G⁽ⁿ⁾ and Σ n z̄ⁿ G⁽ⁿ⁾, a polynomial in z̄ and z̄ times its derivative, by Horner's rule.

    total (b, T, N, k), conjugate (b, T, k): z̄ -> two (b, T, k)
    """
    *lower, value = total.unbind(2)
    slope = None
    for coefficient in reversed(lower):
        slope = value if slope is None else (slope * conjugate).add_(value)
        value = (value * conjugate).add_(coefficient)
    value = value * conjugate
    return value, value if slope is None else (slope * conjugate).mul_(conjugate).add_(value)


# -- bound ---------------------------------------------------------------------------------------------------------


def norm_matched_tanh(x: Tensor, alpha: Tensor) -> Tensor:
    """:func:`fsn.ops.norm_matched_tanh` wherever :func:`applies` holds."""
    least = torch.finfo(x.dtype).tiny ** 0.4  # below it tanh x is x, and squares might vanish
    plain = x.detach() if torch.is_grad_enabled() else x
    squashed = plain.tanh()
    size, other = (torch.linalg.vector_norm(y, dim=-1, keepdim=True) for y in (plain, squashed))
    low, high = (float(y) for y in size.aminmax())
    if not math.isfinite(high):
        return bound.norm_matched_tanh(x, alpha)
    if low < least:
        size, other = size.clamp_(min=least), other.clamp_(min=least)
    if not torch.is_grad_enabled():
        return x * other.div_(size).mul_(alpha.abs())
    bounded: Tensor = _Bound.apply(x, alpha, squashed, size, other)
    return bounded


class _Bound(torch.autograd.Function):
    """y = s x with s = |α| ‖tanh x‖ / ‖x‖:  dx = s dy + (dy · y) (t (1 − t²) / ‖t‖² − x / ‖x‖²),  t = tanh x"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, squashed: Tensor, size: Tensor, other: Tensor) -> Tensor:
        ratio = other / size
        ctx.save_for_backward(x, alpha, squashed, size, other, ratio)
        return x * (alpha.abs() * ratio)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, alpha, squashed, size, other, ratio = ctx.saved_tensors
        if torch.is_grad_enabled() or _batched(dy):
            return *_reference_gradients(bound.norm_matched_tanh, (x, alpha), (), dy), None, None, None
        along = (dy * x).sum(-1, keepdim=True).mul_(ratio)
        dalpha = (along * alpha.sign()).sum_to_size(alpha.shape)
        along.mul_(alpha.abs())
        scale, back, out = alpha.abs() * ratio, along / size.square(), along / other.square()
        dx = torch.empty_like(x)
        for i in range(x.shape[0]):
            t = squashed[i]
            torch.addcmul(t, t * t, t, value=-1, out=dx[i]).mul_(out[i])
            dx[i].addcmul_(x[i], back[i], value=-1).addcmul_(dy[i], scale[i])
        return dx, dalpha, None, None, None
