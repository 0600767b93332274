"""The whole model family once more, in slow loops, written from the paper's equations.

This file is what the package is checked against, so it shares no code with it: it reads the numbers of a
``state_dict`` and the fields of a config, and nothing else. One sequence at a time, scalars in float64, one
loop per index of the formula. Where the package folds, stacks or factors a formula, this file does not: the
coupling is summed in its polar form (equation 3), scores are cosines of differences rather than dot products,
and collective modes use Python's complex numbers.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Arrays = Mapping[str, Array]


def logits(config: Any, arrays: Arrays, tokens: NDArray[np.int64]) -> Array:
    """Logits (B, T, V) of the model with these parameters."""
    one = _fsn if hasattr(config, "coupling") else _transformer
    return np.stack([one(config, arrays, row) for row in tokens])


# --- pieces both models use ---------------------------------------------------------------------------------


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _silu(x: float) -> float:
    return x / (1.0 + math.exp(-x))


def _matvec(matrix: Array, vector: Array) -> Array:
    """Σ_j M_ij v_j, one i at a time."""
    out = np.zeros(matrix.shape[0])
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[i] += matrix[i, j] * vector[j]
    return out


def _softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    return [w / sum(weights) for w in weights]


def _swiglu(gate_up: Array, bias: Array, down: Array, x: Array, shift: Array | None) -> Array:
    """down( SiLU(gate x + b) ⊙ up x ); a register enters the gate's argument."""
    hidden = len(bias)
    gate, up = _matvec(gate_up[:hidden], x), _matvec(gate_up[hidden:], x)
    middle = np.zeros(hidden)
    for h in range(hidden):
        argument = gate[h] + bias[h] + (0.0 if shift is None else shift[h])
        middle[h] = _silu(argument) * up[h]
    return _matvec(down, middle)


# --- the FSN ------------------------------------------------------------------------------------------------


def _fsn(config: Any, arrays: Arrays, tokens: NDArray[np.int64]) -> Array:
    length, k = len(tokens), config.k
    theta = np.array([arrays["embedding.phases"][token] for token in tokens])
    wrapped = config.state == "wrapped"
    memory = np.zeros((length, arrays["layers.0.register.weight"].shape[0])) if wrapped else None

    for i in range(config.layers):
        part = {
            name.removeprefix(f"layers.{i}."): a
            for name, a in arrays.items()
            if name.startswith(f"layers.{i}.")
        }
        gates = [_gates(config, arrays["gates.weight"], arrays["gates.bias"], phases) for phases in theta]
        attention = _attention(theta, gates, float(arrays["tau"]), part.get("coupling.kernel.score"))
        moves = np.zeros((length, k))
        for t in range(length):
            raw = np.zeros(k)
            for c in range(k):
                raw[c] = gates[t][2][c] * _pull(config.coupling, part, theta, attention, t, c)
            moves[t] = _bound(config, part.get("attention_bound.alpha"), raw)
        theta = theta + moves
        for t in range(length):
            if memory is not None:
                memory[t] += _matvec(part["register.weight"], moves[t])
            raw = _feedforward(config, part, theta[t], None if memory is None else memory[t])
            move = _bound(config, part.get("feedforward_bound.alpha"), raw)
            theta[t] += move
            if memory is not None:
                memory[t] += _matvec(part["register.weight"], move)
            if wrapped:
                theta[t] = [_wrapped(angle) for angle in theta[t]]

    prototypes, scale = arrays["readout.prototypes"], float(arrays["readout.scale"])
    out = np.zeros((length, len(prototypes)))
    for t in range(length):
        for v in range(len(prototypes)):
            out[t, v] = scale * sum(math.cos(theta[t, c] - prototypes[v, c]) for c in range(k))
    return out


def _gates(config: Any, weight: Array, bias: Array, phases: Array) -> tuple[Array, Array, Array]:
    """Query and key gate: softplus, then divided by their mean. Value gate: the linear map, signed."""
    k = config.k
    features = np.array([math.cos(a) for a in phases] + [math.sin(a) for a in phases])
    raw = _matvec(weight, features) + bias
    query = np.array([_softplus(x) for x in raw[:k]])
    key = np.array([_softplus(x) for x in raw[k : 2 * k]])
    value = raw[2 * k :]
    if config.value_gate == "positive":
        value = np.array([_softplus(x) for x in value])
    return query / max(query.mean(), 1e-6), key / max(key.mean(), 1e-6), value


def _attention(
    theta: Array, gates: list[tuple[Array, Array, Array]], tau: float, successor: Array | None
) -> list[list[float]]:
    """Equation 1: s_tu = (1/τ) Σ_c g^q_c(t) g^k_c(u) cos(θ_t,c − θ_u,c + ω_c (t − u)), softmax over u ≤ t.

    With the successor in the score, for u < t also
    g^q_c(t) g^k_c(u+1) |λ_c| cos(θ_t,c − θ_u+1,c + ω_c (t − u − 1) − arg λ_c).
    """
    length, k = theta.shape
    rows = []
    for t in range(length):
        scores = []
        for u in range(t + 1):
            total = 0.0
            for c in range(k):
                rate = 10000.0 ** (-c / k)
                difference = theta[t, c] - theta[u, c] + rate * (t - u)
                total += gates[t][0][c] * gates[u][1][c] * math.cos(difference)
                if successor is not None and u < t:
                    column = min(c, successor.shape[1] - 1)
                    gain, angle = cmath.polar(complex(successor[0, column], successor[1, column]))
                    difference = theta[t, c] - theta[u + 1, c] + rate * (t - u - 1)
                    total += gates[t][0][c] * gates[u + 1][1][c] * gain * math.cos(difference - angle)
            scores.append(total / max(tau, 1e-6))
        rows.append(_softmax(scores))
    return rows


def _coefficient(part: Arrays, name: str, n: int, c: int) -> complex:
    """w⁽ⁿ⁾ of coordinate c, where the model has one."""
    re, im = part.get(f"coupling.kernel.{name}_re"), part.get(f"coupling.kernel.{name}_im")
    if re is None:
        return 0j
    column = min(c, re.shape[1] - 1)  # a shared kernel has a single column
    return complex(re[n - 1, column], 0.0 if im is None else im[n - 1, column])


def _pull(law: Any, part: Arrays, theta: Array, attention: list[list[float]], t: int, c: int) -> float:
    """Equation 2 in the polar form of equation 3, one coordinate of one token.

    Σ_n Σ_{u<t} A_tu [ ρ₀ sin(n(θ_u − θ_t) + φ₀) + ρ₁ sin(n(θ_{u+1} − θ_t) + φ₁) ] + A_tt Σ_n Im w₀⁽ⁿ⁾

    In the co-rotating frame sin φ is subtracted from every sine and the diagonal adds nothing.
    """
    total = 0.0
    for n in range(1, law.harmonics + 1):
        if law.learned:
            w0, w1 = _coefficient(part, "present", n, c), _coefficient(part, "successor", n, c)
        else:
            w0, w1 = complex(law.present and n == 1), complex(law.delay and n == 1)  # a plain sine
        rest = law.frame == "rest"
        for u in range(t):
            for w, source in ((w0, theta[u, c]), (w1, theta[u + 1, c])):
                gain, angle = cmath.polar(w)
                sine = math.sin(n * (source - theta[t, c]) + angle)
                total += attention[t][u] * gain * (sine if rest else sine - math.sin(angle))
        if rest:
            total += attention[t][t] * w0.imag
    return total


def _bound(config: Any, alpha: Array | None, x: Array) -> Array:
    """x · ‖α tanh(x)‖ / ‖x‖, zero at zero."""
    if config.bound == "none" or alpha is None:
        return x
    norm = math.sqrt(sum(value**2 for value in x))
    reference = math.sqrt(sum((float(alpha) * math.tanh(value)) ** 2 for value in x))
    return x * (reference / norm) if norm > 0 else np.zeros_like(x)


def _feedforward(config: Any, part: Arrays, phases: Array, memory: Array | None) -> Array:
    if config.feedforward == "none":
        return np.zeros_like(phases)
    shift = None if memory is None else _matvec(part["feedforward.register_in"], memory)
    if config.feedforward in ("swiglu", "torus-swiglu"):
        x = phases
        if config.feedforward == "torus-swiglu":
            x = np.array([math.cos(a) for a in phases] + [math.sin(a) for a in phases])
        return _swiglu(
            part["feedforward.gate_up"], part["feedforward.bias"], part["feedforward.down"], x, shift
        )
    update = _collective_modes(part, phases, shift)
    if config.feedforward == "mean-field-winding":
        update = update + _swiglu(
            np.concatenate((part["feedforward.winding_gate"], part["feedforward.winding_value"])),
            part["feedforward.winding_bias"],
            part["feedforward.winding_projection"],
            phases,
            None,
        )
    return update


def _collective_modes(part: Arrays, phases: Array, shift: Array | None) -> Array:
    """Equation 4: m = C z, q = SiLU(Re m^g + b) ⊙ m^v, a = Im( z̄ ⊙ D q )."""
    gate_modes, value_modes = part["feedforward.gate_modes"], part["feedforward.value_modes"]
    projection, bias = part["feedforward.projection"], part["feedforward.bias"]
    k, modes = len(phases), len(bias)
    z = [cmath.exp(1j * a) for a in phases]
    q = []
    for h in range(modes):
        gate = sum(complex(gate_modes[0, h, c], gate_modes[1, h, c]) * z[c] for c in range(k))
        value = sum(complex(value_modes[0, h, c], value_modes[1, h, c]) * z[c] for c in range(k))
        argument = gate.real + bias[h] + (0.0 if shift is None else shift[h])
        q.append(_silu(argument) * value)
    out = np.zeros(k)
    for c in range(k):
        back = sum(complex(projection[0, c, h], projection[1, c, h]) * q[h] for h in range(modes))
        out[c] = (z[c].conjugate() * back).imag
    return out


def _wrapped(angle: float) -> float:
    """Into (−π, π], one turn at a time."""
    while angle > math.pi:
        angle -= 2 * math.pi
    while angle <= -math.pi:
        angle += 2 * math.pi
    return angle


# --- the transformer ----------------------------------------------------------------------------------------


def _layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return np.array(
        [
            w * (value - mean) / math.sqrt(variance + 1e-5) + b
            for value, w, b in zip(x, weight, bias, strict=True)
        ]
    )


def _rope(x: Array, t: int) -> Array:
    """Pairs (c, c + d/2) turn by t · 10000^(−c/(d/2))."""
    half = len(x) // 2
    out = np.zeros_like(x)
    for c in range(half):
        turned = complex(x[c], x[c + half]) * cmath.exp(1j * t * 10000.0 ** (-c / half))
        out[c], out[c + half] = turned.real, turned.imag
    return out


def _shifted(
    config: Any, mix: Array | None, keys: list[Array], values: list[Array]
) -> tuple[list[Array], list[Array]]:
    """Keys and values mixed with their predecessors', one number at a time; before the first stands zero."""
    if config.shift == "none":
        return keys, values
    size = config.width // config.heads
    new_keys, new_values = [], []
    for t in range(len(keys)):
        key, value = np.zeros(config.width), np.zeros(config.width)
        for c in range(config.width):
            head, inside = divmod(c, size)
            key_before = keys[t - 1][c] if t > 0 else 0.0
            value_before = values[t - 1][c] if t > 0 else 0.0
            if config.shift == "key-offset":
                slow = inside % (size // 2) >= size // 4
                key[c], value[c] = (key_before if slow else keys[t][c]), values[t][c]
                continue
            assert mix is not None
            a, b, e, f = (mix[i, head, 0, inside if mix.shape[-1] > 1 else 0] for i in range(4))
            key[c] = a * keys[t][c] + b * key_before
            value[c] = e * values[t][c] + f * value_before
        new_keys.append(key)
        new_values.append(value)
    return new_keys, new_values


def _transformer(config: Any, arrays: Arrays, tokens: NDArray[np.int64]) -> Array:
    length, width = len(tokens), config.width
    size = width // config.heads
    x = np.array([arrays["embedding.weight"][token] for token in tokens])
    for i in range(config.layers):
        at = f"layers.{i}."
        queries, keys, values = [], [], []
        for t in range(length):
            normed = _layer_norm(
                x[t], arrays[at + "attention_norm.weight"], arrays[at + "attention_norm.bias"]
            )
            qkv = _matvec(arrays[at + "attention.qkv"], normed)
            queries.append(qkv[:width])
            keys.append(qkv[width : 2 * width])
            values.append(qkv[2 * width :])
        keys, values = _shifted(config, arrays.get(at + "attention.shift.mix"), keys, values)
        for t in range(length):
            mixed = np.zeros(width)
            for head in range(config.heads):
                mine = slice(head * size, (head + 1) * size)
                query = _rope(queries[t][mine], t)
                scores = []
                for u in range(t + 1):
                    key = _rope(keys[u][mine], u)
                    scores.append(sum(query[c] * key[c] for c in range(size)) / math.sqrt(size))
                for u, weight in enumerate(_softmax(scores)):
                    mixed[mine] += weight * values[u][mine]
            x[t] = x[t] + _matvec(arrays[at + "attention.out"], mixed)
        for t in range(length):
            normed = _layer_norm(
                x[t], arrays[at + "feedforward_norm.weight"], arrays[at + "feedforward_norm.bias"]
            )
            x[t] = x[t] + _swiglu(
                arrays[at + "feedforward.gate_up"],
                arrays[at + "feedforward.bias"],
                arrays[at + "feedforward.down"],
                normed,
                None,
            )
    return np.array([_matvec(arrays["head.weight"], row) + arrays["head.bias"] for row in x])
