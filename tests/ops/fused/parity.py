"""How far the fused functions are from the reference: forward and every gradient, against float64.

Each function here builds inputs, runs one fused autograd function and the same mathematics composed from
``fsn.ops`` in float64, and returns the relative errors by name. They take and return plain values only, so
that they can run in this process on a GPU or in another one under Triton's interpreter
(``interpreter.py``).

The error of a tensor is ‖fused − reference‖ / ‖reference‖. Three kinds of gradient need a larger denominator:

- A scalar's gradient (τ, α, s) is a sum of one number per token, of both signs. Where they cancel, a small
  sum of large numbers is left, and its relative error says nothing about them. The denominator is at least
  the sum of their absolute values: errors of a share ε of each number give an error of at most ε on this
  scale.
- The gradients of gates, kernel and SwiGLU are nearly scalars where k = 1. Their denominator is at least the
  root of the sum over tokens of the squares: what the gradient is worth if the signs are random. Where k is
  large this changes nothing.
- A gradient that is exactly zero (a kernel's, where there is one position only) has no relative error.
  Denominators are kept above 1e-3 of what the gradient of the output is worth, ``FLOOR`` times its norm.

In bfloat16 the weights are drawn among numbers that bfloat16 has, so that packing them is exact and what is
measured is the function, not the rounding of its arguments.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fsn import ops
from fsn.ops.fused.attention import DRIFT, AttentionFunction, rotary_table, stack
from fsn.ops.fused.common import padded, power_of_two, round_up
from fsn.ops.fused.dropout import Drop, dropped_attention
from fsn.ops.fused.embedding import EmbeddingFunction
from fsn.ops.fused.mean_field import MeanFieldFunction
from fsn.ops.fused.readout import ROWS, R, ReadoutFunction, cross_entropy_backward_kernel
from fsn.ops.fused.residual import ResidualFunction
from fsn.ops.fused.score_gradient import softmax_backward
from fsn.ops.fused.swiglu import SwiGLUFunction, gate_and_up, pack_swiglu, through_middle
from fsn.ops.fused.tiles import BLOCK
from tests import small
from tests.ops.fused.inputs import (
    Errors,
    Inputs,
    features,
    limited,
    pad_columns,
    pairs,
    per_token,
    relative,
    spread_out,
    with_ones,
)

FLOOR = 1e-3
FIRST_ROW = 3


def dropout_key(device: str) -> ops.DropoutKey:
    """A key that a process with rows of a larger batch would have, its counter beyond 32 bits."""
    return ops.DropoutKey(torch.tensor(2**33 + 12345, device=device), FIRST_ROW)


def drop(rate: float, site: int, device: str) -> Drop | None:
    """The same for a kernel."""
    return Drop(rate, site, *dropout_key(device)) if rate else None


def attention(
    T: int,
    k: int,
    N: int,
    batch: int = 2,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    parts: str = "w0 im0 w1 im1",
    frame: str = "co-rotating",
    gate: str = "signed",
    bound: bool = True,
    round_scores: bool = False,
    score: bool = False,
    spread: float | None = None,
    winding: float = 0.0,
    dropout: float = 0.0,
    dropout_update: float = 0.0,
    **limits: int | None,
) -> Errors:
    """The attention half, θ + bound(gate ⊙ coupling(θ)), from the features on.

    ``spread`` is the standard deviation σ of the phases. A token's coherence with itself is k, with others
    about k exp(−σ²), and τ = √k: by default σ² = 2/√k, so that attention is neither even nor all on the
    diagonal.
    ``winding`` is how many whole turns the phases have made, as a standard deviation. ``dropout`` acts on the attention
    weights, ``dropout_update`` on the gated coupling. ``limits``: see :func:`limited`.
    """
    spread = (2 * k**-0.5) ** 0.5 if spread is None else spread
    inputs = Inputs(dtype, device, seed)
    there = [part in parts.split() for part in ("w0", "im0", "w1", "im1")]
    phases = inputs.draw(batch * T, k, scale=spread, rounded=False)
    if winding:
        phases += 2 * torch.pi * inputs.draw(batch * T, k, scale=winding).round()
    theta, theta64 = inputs.leaf("theta", phases)
    weight, weight64 = inputs.leaf("weight", inputs.draw(3 * k, 2 * k, scale=0.3 * (2 * k) ** -0.5))
    bias, bias64 = inputs.leaf("bias", inputs.draw(3 * k, scale=0.3, shift=1.0))
    w, w64 = inputs.leaf("w", inputs.draw(4, N, k, scale=0.5))
    with torch.no_grad():
        absent = torch.tensor([not p for p in there], device=w.device)
        w[absent], w64[absent] = 0, 0
    tau, tau64 = inputs.leaf("tau", torch.tensor(k**0.5, device=device))
    alpha, alpha64 = inputs.leaf("alpha", torch.tensor(-2.5, device=device)) if bound else (None, None)
    rates = ops.rotary_rates(k).to(device)
    weights = inputs.leaf("score", inputs.draw(2, k, scale=0.5, rounded=False)) if score else (None, None)
    law = ops.CouplingLaw(N, there[0], there[2], there[1] or there[3], frame, score_successor=score)
    assert list(law.parts) == there
    grad_state, grad_copy = inputs.draw(batch * T, k), inputs.draw(batch * T, k)

    state, feat = features(theta, inputs.dtype)
    made = stack(law, k, *(part if present else None for part, present in zip(w, there, strict=True)))
    with limited(**limits):
        new, copy = AttentionFunction.apply(
            state,
            feat,
            weight,
            bias,
            made.w,
            tau,
            alpha,
            weights[0],
            *rotary_table(T, rates),
            T,
            law,
            gate == "positive",
            round_scores,
            made,
            None,
            True,
            drop(dropout, 4, device),
            drop(dropout_update, 7, device),
        )
        new = new[:, :k]
        ((new * grad_state).sum() + (copy[:, :k].float() * grad_copy).sum()).backward()

    state64 = theta64.view(batch, T, k)
    raw = F.linear(ops.phase_features(state64), weight64, bias64)
    raw.retain_grad()
    query, key, value = raw.split(k, dim=-1)
    value = F.softplus(value) if gate == "positive" else value
    tau_t = spread_out(tau64, batch, T, 1)
    alpha_t = None if alpha64 is None else spread_out(alpha64, batch, T, 1)
    gates = ops.normalise_gate(query), ops.normalise_gate(key)
    score_t = None
    if weights[1] is not None:
        score_t = weights[1].detach()[:, None, None].expand(2, batch, T, k).clone().requires_grad_()
    attended = ops.causal_softmax(small.scores(state64, *gates, rates, tau_t, successor=score_t))
    key_of_masks = dropout_key(device)
    attended = ops.dropout(attended, dropout, key_of_masks, 4)
    w_t = w64.detach()[:, None, None].expand(4, batch, T, N, k).clone()
    w_t.requires_grad_()
    total = ops.aggregate_fields(attended, ops.fields(state64, *pairs(w_t, there), N))
    update = ops.contract_fields(state64, total)
    constant = ops.drift(attended, *pairs(w64, there), frame)
    update = value * (update if constant is None else update + constant)
    update = ops.dropout(update, dropout_update, key_of_masks, 7)
    if alpha_t is not None:
        update = ops.norm_matched_tanh(update, alpha_t)
    new64 = (state64 + update).flatten(0, 1)
    grad = grad_state.double() + grad_copy.double()
    (new64 * grad).sum().backward()

    assert tau_t.grad is not None and raw.grad is not None and w_t.grad is not None
    tau64.grad = tau_t.grad.sum()
    per_token = raw.grad.norm().item()
    worth = {"tau": tau_t.grad.abs().sum().item(), "bias": per_token, "weight": per_token * k**0.5}
    worth["w"] = w_t.grad.norm().item()
    through_fields = w_t.grad.sum(dim=(1, 2))
    w64.grad = through_fields if w64.grad is None else w64.grad + through_fields
    if score_t is not None and weights[1] is not None:
        assert score_t.grad is not None
        weights[1].grad, worth["score"] = score_t.grad.sum(dim=(1, 2)), score_t.grad.norm().item()
    if alpha_t is not None and alpha64 is not None:
        assert alpha_t.grad is not None
        alpha64.grad, worth["alpha"] = alpha_t.grad.sum(), alpha_t.grad.abs().sum().item()
    errors = {
        "state": relative(new, new64),
        "copy": relative(copy[:, :k], new64),
        "update": relative(
            new - theta, update.flatten(0, 1), max(update.norm().item(), 0.1 * new64.norm().item())
        ),
    }
    gradient = w.grad
    assert gradient is not None
    gradient[absent] = 0  # of coefficients that do not exist; whoever stacks them drops it
    return errors | inputs.gradient_errors(worth, FLOOR * grad.norm().item())


def residual(
    T: int,
    k: int,
    batch: int = 2,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    bound: bool = True,
    dropout: float = 0.0,
    scale: float = 1.0,
    first: int = 0,
    outputs: str = "state features",
) -> Errors:
    """θ + bound(dropout(x)) and the features of the result; x is zero before column ``first``, negative from there."""
    inputs = Inputs(dtype, device, seed)
    theta, theta64 = inputs.leaf("theta", inputs.draw(batch * T, k, rounded=False))
    values = inputs.draw(batch * T, k, scale=scale)
    if first:
        values = -values.abs() * (torch.arange(k, device=device) >= first)
    x, x64 = inputs.leaf("x", values)
    alpha, alpha64 = inputs.leaf("alpha", torch.tensor(3.0, device=device)) if bound else (None, None)
    grad_state = inputs.draw(batch * T, k) * ("state" in outputs)
    grad_features = inputs.draw(batch * T, 2 * k) * ("features" in outputs)
    wide = padded(k)
    new, feat = ResidualFunction.apply(
        pad_columns(theta, wide), pad_columns(x, wide).to(inputs.dtype), alpha, k, T, drop(dropout, 6, device)
    )
    new = new[:, :k]
    both = torch.cat((feat[:, :k], feat[:, wide : wide + k]), dim=1).float()
    loss = theta.new_zeros(())
    if "state" in outputs:
        loss = loss + (new * grad_state).sum()
    if "features" in outputs:
        loss = loss + (both * grad_features).sum()
    loss.backward()

    update = ops.dropout(x64.view(batch, T, k), dropout, dropout_key(device), 6)
    alpha_t = None
    if alpha64 is not None:
        alpha_t = spread_out(alpha64, batch, T, 1)
        update = ops.norm_matched_tanh(update, alpha_t)
    new64 = theta64 + update.flatten(0, 1)
    both64 = ops.phase_features(new64)
    ((new64 * grad_state.double()).sum() + (both64 * grad_features.double()).sum()).backward()
    worth: dict[str, float] = {}
    if alpha_t is not None and alpha64 is not None:
        assert alpha_t.grad is not None
        alpha64.grad, worth["alpha"] = alpha_t.grad.sum(), alpha_t.grad.abs().sum().item()
    errors = {"state": relative(new, new64), "features": relative(both, both64)}
    return errors | inputs.gradient_errors(worth)


def swiglu(
    rows: int,
    k: int,
    hidden: int,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    keep: bool = False,
    T: int = 1,
    dropout: float = 0.0,
) -> Errors:
    """down( dropout( SiLU(gate x + b) ⊙ up x ) ), rows of sequences of T tokens"""
    inputs = Inputs(dtype, device, seed)
    x, x64 = inputs.leaf("x", inputs.draw(rows, k))
    gate_up, gate_up64 = inputs.leaf("gate_up", inputs.draw(2 * hidden, k, scale=k**-0.5))
    bias, bias64 = inputs.leaf("bias", inputs.draw(hidden, scale=0.3))
    down, down64 = inputs.leaf("down", inputs.draw(k, hidden, scale=hidden**-0.5))
    grad = inputs.draw(rows, k)
    wide, dropping = with_ones(x, inputs.dtype), drop(dropout, 5, device)
    out = SwiGLUFunction.apply(wide, gate_up, bias, down, None, keep, T, dropping)[:, :k].float()
    (out * grad).sum().backward()
    both = x64 @ gate_up64.mT
    gate, up = both.chunk(2, dim=-1)
    middle = ops.swiglu(gate, up, bias64).view(-1, T, hidden)
    middle = ops.dropout(middle, dropout, dropout_key(device), 5).flatten(0, 1)
    both.retain_grad()
    out64 = middle @ down64.mT
    (out64 * grad.double()).sum().backward()
    assert both.grad is not None
    worth = {
        "gate_up": per_token(both.grad, x64),
        "bias": both.grad[:, :hidden].norm().item(),
        "down": per_token(grad.double(), middle),
    }
    return {"out": relative(out, out64)} | inputs.gradient_errors(worth)


def mean_field(
    rows: int, k: int, modes: int, dtype: str = "float32", device: str = "cpu", seed: int = 0
) -> Errors:
    """Im( z̄ ⊙ D q ), equation 4; the gradient of θ comes back through its copy."""
    inputs = Inputs(dtype, device, seed)
    theta, theta64 = inputs.leaf("theta", inputs.draw(rows, k, rounded=False))
    gate, gate64 = inputs.leaf("gate", inputs.draw(2, modes, k, scale=(2 * k) ** -0.5))
    value, value64 = inputs.leaf("value", inputs.draw(2, modes, k, scale=(2 * k) ** -0.5))
    projection, projection64 = inputs.leaf("projection", inputs.draw(2, k, modes, scale=(2 * modes) ** -0.5))
    bias, bias64 = inputs.leaf("bias", inputs.draw(modes, scale=0.3))
    grad = inputs.draw(rows, k)
    cast = with_ones(theta, inputs.dtype)
    state = pad_columns(theta, padded(k)).detach()
    out = MeanFieldFunction.apply(state, cast, gate, value, projection, bias)[:, :k].float()
    (out * grad).sum().backward()
    out64 = ops.mean_field(theta64, gate64, value64, projection64, bias64)
    (out64 * grad.double()).sum().backward()
    features = ops.phase_features(theta64).norm(dim=1)
    share = (grad.double().norm(dim=1) * features).norm().item() * k**-0.5
    worth = dict.fromkeys(("gate", "value", "projection", "bias"), share)
    worth["theta"] = (
        (grad.double() * out64).norm().item()
    )  # at k = 1 what comes through z̄ and through z cancels
    return {"out": relative(out, out64)} | inputs.gradient_errors(worth)


def readout(
    rows: int,
    k: int,
    symbols: int,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    keep: bool = True,
    ignored: int = 0,
) -> Errors:
    """Cross-entropy of s · coherence with prototypes, from θ on; of the first ``ignored`` rows none is asked for."""
    inputs = Inputs(dtype, device, seed)
    theta, theta64 = inputs.leaf("theta", inputs.draw(rows, k, rounded=False))
    prototypes, prototypes64 = inputs.leaf("prototypes", inputs.draw(symbols, k, rounded=False))
    scale, scale64 = inputs.leaf("scale", torch.tensor(1.5 * k**-0.5, device=device))
    targets = torch.randint(symbols, (rows,), generator=inputs.generator).to(device)
    targets[:ignored] = -100
    grad = inputs.draw(rows).abs()
    _, feat = features(theta, inputs.dtype)
    loss = ReadoutFunction.apply(feat, prototypes, scale, targets, keep)
    (loss * grad).sum().backward()
    scale_t = spread_out(scale64, rows, 1)
    logits = scale_t * ops.coherences(theta64[None], prototypes64)[0]
    loss64 = ops.cross_entropy(logits[None], targets[None])[0]
    (loss64 * grad.double()).sum().backward()
    assert scale_t.grad is not None
    scale64.grad = scale_t.grad.sum()
    return {"loss": relative(loss, loss64)} | inputs.gradient_errors(
        {"scale": scale_t.grad.abs().sum().item()}
    )


def readout_scale(
    common: float, rows: int = 64, symbols: int = 41, device: str = "cpu", seed: int = 0
) -> float:
    """The error of the scale's gradient in float32 where all coherences of a row have ``common`` in common.

    That part drops out of the softmax, and has to drop out of this gradient too, whatever rounding does to it.
    """
    generator = torch.Generator().manual_seed(seed)
    vp = round_up(symbols, 16)
    z = pad_columns(common + torch.randn(rows, symbols, generator=generator), vp).to(device)
    targets = torch.randint(symbols, (rows,), generator=generator).to(device)
    scale, dloss = torch.tensor(0.05, device=device), torch.ones(rows, device=device)
    exact = scale.double().requires_grad_()
    losses = F.cross_entropy(exact * z[:, :symbols].double(), targets, reduction="none")
    losses.sum().backward()
    lse = (scale.double() * z[:, :symbols].double()).logsumexp(dim=1).float()
    dz, dscale = torch.empty_like(z), torch.empty(rows // ROWS, device=device)
    cross_entropy_backward_kernel[(rows // ROWS,)](
        z, targets, scale, lse, dloss, dz, dscale, rows, symbols, vp, power_of_two(vp), R, ROWS
    )
    assert exact.grad is not None
    return relative(dscale.sum(), exact.grad)


def embedding(
    rows: int, k: int, symbols: int, dtype: str = "float32", device: str = "cpu", seed: int = 0
) -> Errors:
    """A table's rows by token, and the features of them."""
    inputs = Inputs(dtype, device, seed)
    table, table64 = inputs.leaf("table", inputs.draw(symbols, k, rounded=False))
    tokens = torch.randint(symbols, (rows,), generator=inputs.generator).to(device)
    grad_state, grad_features = inputs.draw(rows, k), inputs.draw(rows, 2 * k)
    state, feat = EmbeddingFunction.apply(table, tokens, inputs.dtype)
    wide = padded(k)
    padding = state[:, k:].abs().sum().item() + sum(
        feat[:, i + k : i + wide].abs().sum().item() for i in (0, wide)
    )
    both = torch.cat((feat[:, :k], feat[:, wide : wide + k]), dim=1).float()
    state = state[:, :k]
    ((state * grad_state).sum() + (both * grad_features).sum()).backward()
    state64 = table64[tokens]
    both64 = ops.phase_features(state64)
    ((state64 * grad_state.double()).sum() + (both64 * grad_features.double()).sum()).backward()
    errors = {"state": relative(state, state64), "features": relative(both, both64), "padding": padding}
    return errors | inputs.gradient_errors()


def dropout_masks(
    place: str,
    rate: float,
    counter: int,
    site: int,
    first_row: int,
    dtype: str = "float32",
    T: int = 7,
    k: int = 5,
    batch: int = 3,
    device: str = "cpu",
) -> dict[str, Any]:
    """Which elements the kernels of a place keep, forward and backward, and which the reference keeps."""
    count, kind = torch.tensor(counter, device=device), getattr(torch, dtype)
    dropping, key = Drop(rate, site, count, first_row), ops.DropoutKey(count, first_row)
    found = globals()[f"_{place}_masks"](dropping, kind, T, k, batch)
    reference = ops.dropout(torch.ones(found["forward"].shape, device=device), rate, key, site)
    if place == "attention":
        reference = reference.tril()
    masks = found | {"reference": reference}
    return {name: (mask != 0).int().flatten().tolist() for name, mask in masks.items()}


Masks = dict[str, Tensor]


def _residual_masks(drop: Drop, dtype: torch.dtype, T: int, k: int, batch: int) -> Masks:
    device = drop.counter.device
    x = torch.ones(batch * T, padded(k), dtype=dtype, device=device, requires_grad=True)
    theta = torch.zeros(batch * T, padded(k), device=device)
    new, _ = ResidualFunction.apply(theta, x, None, k, T, drop)
    new.sum().backward()
    assert x.grad is not None
    return {"forward": new[:, :k].view(batch, T, k), "backward": x.grad[:, :k]}


def _update_masks(drop: Drop, dtype: torch.dtype, T: int, k: int, batch: int) -> Masks:
    """θ is zero, so that the new θ is the update; value gates are [cos θ, 0], so that their gradient is that of cos θ.

    In the rest frame the first token of a sequence has an update too.
    """
    device = drop.counter.device
    theta, feat = features(torch.zeros(batch * T, k, device=device), dtype)
    feat = feat.detach().requires_grad_()
    weight = torch.zeros(3 * k, 2 * k, device=device)
    weight[2 * k :, :k] = torch.eye(k, device=device)
    law = ops.CouplingLaw(1, frame="rest")
    made = stack(law, k, *(torch.ones(1, k, device=device) for _ in range(4)))
    one = torch.ones((), device=device)
    new, _ = AttentionFunction.apply(
        theta, feat, weight, torch.zeros(3 * k, device=device), made.w, one, None, None,
        *rotary_table(T, ops.rotary_rates(k).to(device)), T, law, False, False, made, None, True, None, drop,
    )  # fmt: skip
    new.sum().backward()
    assert feat.grad is not None
    return {"forward": new[:, :k].view(batch, T, k), "backward": feat.grad[:, :k]}


def _hidden_masks(drop: Drop, dtype: torch.dtype, T: int, k: int, batch: int) -> Masks:
    hidden, device = 2 * k + 1, drop.counter.device
    gate_up, down = torch.ones(2 * hidden, k, device=device), torch.ones(k, hidden, device=device)
    w1, w2 = pack_swiglu(gate_up, torch.ones(hidden, device=device), down, dtype)
    gu, middle = gate_and_up(with_ones(torch.ones(batch * T, k, device=device), dtype), w1, hidden, T, drop)
    dy = torch.ones(batch * T, padded(k), dtype=dtype, device=device)
    dgu, again = through_middle(dy, w2, gu, None, hidden, T, drop)
    return {
        "forward": middle[:, :hidden].view(batch, T, hidden),
        "backward": dgu[:, :hidden],
        "again": again[:, :hidden],
    }


def _attention_masks(drop: Drop, dtype: torch.dtype, T: int, k: int, batch: int) -> Masks:
    """All weights and the gradients of what is kept of them are one, and each row says that it sums to more: then dS is
    positive where dropout keeps a weight, and nowhere else."""
    device, tp = drop.counter.device, round_up(T, BLOCK)
    weights = torch.ones(batch, tp, tp, device=device).tril(-1)
    weights[:, T:] = 0
    own = torch.ones(4, batch * T, device=device)
    own[1] = 1 + 2 * weights[:, :T].sum(dim=2).flatten()
    weights, turn, rest = weights.to(dtype), torch.empty_like(own[0]), DRIFT["rest"]
    read = dropped_attention(weights, own, drop, 0, T, rest, turn)[:, :T, :T].float()
    field = torch.zeros(batch, tp, 2 * padded(k), dtype=dtype, device=device)
    field[:, :, 0] = 1
    ds = softmax_backward(weights, own, field, field, own[0], own[0, 0], 0, T, rest, padded(k), None, drop)
    return {
        "forward": read + torch.diag_embed(turn.view(batch, T)),
        "backward": ds[:, :T, :T] > 0,
    }
