"""The FSN's stack through fused kernels: the same function as the reference, one pass per stage.

Tokens are laid out as M = B·T rows. Only this module knows how layers map onto the kernels; it reads parameters from
the ordinary modules, so that weights, checkpoints and probes do not depend on the path taken.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import ops
from ..nn import PLAIN, Context, CouplingKernel, MeanField, PhaseEmbedding, SwiGLU, hooked, ours
from ..ops import fused
from ..ops.fused import check
from .config import Config, FSNConfig

if TYPE_CHECKING:
    from .fsn import FSN, FSNLayer


CONFIG = {
    *("coupling", "layers", "hidden", "modes", "modes_start", "winding"),
    *("readout_start", "tau_start", "alpha_start"),
    *("dropout", "dropout_hidden", "dropout_attention", "dropout_update"),
}
CONFIG_SOME: dict[str, Collection[Any]] = {
    "vocab_size": range(fused.WIDEST + 1),
    "k": range(fused.WIDEST + 1),
    "feedforward": ("swiglu", "torus-swiglu", "mean-field", "mean-field-winding", "none"),
    "bound": ("tanh", "none"),
    "value_gate": ("signed", "positive"),
    "rounding": ("both", "scores", "logits", "none"),
}
"""Fields of a config whose every value the kernels compute, and values of others. The law's are in ``ops/law.py``."""


def supports(
    config: Config, device: torch.device, dtype: torch.dtype = torch.bfloat16, length: int = 256
) -> bool:
    """Whether a model of this config runs fused on this device, in this compute type, on sequences this long.

    All else is the reference's. The first answer for a GPU checks the kernels there (``selfcheck.py``).
    """
    if not (isinstance(config, FSNConfig) and fused.available(device)):
        return False
    if not (config.coupling.fast and ops.covered(config, CONFIG, CONFIG_SOME)):
        return False
    if device.type not in check.CHECKED or fused.forced():
        return True
    from .selfcheck import agrees  # which makes a model, and models are made of what is here

    return agrees(config, device, dtype, length)


def applies(model: FSN, tokens: Tensor, context: Context = PLAIN) -> bool:
    """Whether this call runs fused: whole sequences without padding or documents, neither probed nor hooked nor
    compiled, in float32 or bfloat16 autocast, through modules that are all ours."""
    from .fsn import FSN  # which is made of what is here

    if (
        model.probe.active
        or context.probe.active
        or context.cache is not None
        or context.masked is not None
        or torch.compiler.is_compiling()
        or type(model).phases is not FSN.phases
        # in a model of transformers the embedding has another forward, with the same rows for these tokens
        or type(model.embedding) is not PhaseEmbedding
        or hooked(model.embedding)
        or not ours(model.gates, model.readout, *model.layers)
    ):
        return False
    dtype = fused.compute_dtype(model.embedding.phases)
    return dtype is not None and supports(model.config, tokens.device, dtype, tokens.shape[1])


def parts_of(kernel: CouplingKernel) -> list[Tensor | None]:
    """w0 re, im, w1 re, im; None for what does not exist."""
    return [getattr(kernel, f"{field}_{part}") for field in ("present", "successor") for part in ("re", "im")]


def modes_of(block: MeanField) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return block.gate_modes, block.value_modes, block.projection, block.bias


def pack_block(block: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """The weights of a feed-forward block that has kernels of its own; None for another one."""
    from ..ops.fused.mean_field import pack_modes
    from ..ops.fused.swiglu import pack_swiglu

    if type(block) is SwiGLU:
        return pack_swiglu(block.gate_up, block.bias, block.down, dtype)
    if isinstance(block, MeanField):
        return pack_modes(*modes_of(block), dtype)
    return None


class Pass:
    """What one pass through the stack shares between layers: weights in the form the kernels read. What the first half
    of a layer does not need is packed beside it."""

    def __init__(
        self, model: FSN, batch: int, length: int, dtype: torch.dtype, dropout_key: ops.DropoutKey | None
    ) -> None:
        from ..ops.fused.attention import pack_gates, stack
        from ..ops.fused.common import Aside
        from ..ops.fused.readout import pack_prototypes
        from ..ops.fused.tiles import KEPT

        self.model, self.length, self.dtype, self.dropout_key = model, length, dtype, dropout_key
        with torch.no_grad():
            self.gates = pack_gates(model.gates.weight, model.gates.bias, dtype)
        law, k = model.config.coupling, model.config.k
        self.packing = aside = Aside(model.tau.device, "packing")
        """Where coefficients (but the first), blocks and prototypes are made: to be joined before they are read."""
        self.coefficients = [
            stack(law, k, *parts_of(layer.kernel), aside=aside if i else None)
            for i, layer in enumerate(model.stack)
        ]
        with torch.no_grad(), aside:
            self.blocks = [pack_block(layer.feedforward, dtype) for layer in model.stack]
            self.prototypes = pack_prototypes(model.readout.prototypes, dtype)
        self.rotary = rotary_tables(model, length)
        self.keep = fields_size(model, batch, length, dtype) <= KEPT
        """What the backward pass could make again is kept for it: there is room."""


def fields_size(model: FSN, batch: int, length: int, dtype: torch.dtype) -> int:
    """Bytes of the fields of all layers."""
    from ..ops.fused.common import padded, round_up
    from ..ops.fused.tiles import BLOCK

    config = model.config
    numbers = config.layers * 2 * config.coupling.harmonics * padded(config.k)
    return batch * round_up(length, BLOCK) * numbers * dtype.itemsize


def final_features(model: FSN, tokens: Tensor, dropout_key: ops.DropoutKey | None) -> tuple[Tensor, Pass]:
    """[cos θ, sin θ, 1] of the last state, padded, and what the pass prepared.

    tokens (B, T) -> (B·T, 2KP + 16) in the compute type
    """
    from ..ops.fused.embedding import EmbeddingFunction

    dtype = fused.compute_dtype(model.embedding.phases)
    assert dtype is not None
    with torch.autocast(tokens.device.type, enabled=False):
        shared = Pass(model, tokens.shape[0], tokens.shape[1], dtype, dropout_key)
        table = model.embedding.phases
        learns = torch.is_grad_enabled() and table.requires_grad
        theta, feat = EmbeddingFunction.apply(table, tokens.flatten(), dtype, learns)
        for i, layer in enumerate(model.stack):
            theta, feat = _layer(layer, i, shared, theta, feat)
    return feat, shared


def rotary_tables(model: FSN, length: int) -> tuple[Tensor, Tensor]:
    """cos ωt and sin ωt for a length, from tables that are made once and kept.

    None is ever freed: a captured CUDA graph may read it. Their lengths are powers of two, so that together they have
    fewer than twice the rows of the longest, however many lengths are asked for.
    """
    from ..ops.fused.attention import rotary_table
    from ..ops.fused.common import power_of_two

    rows, device = power_of_two(length), model.tau.device
    tables = model.__dict__.setdefault("_rotary", {})
    if (rows, device) not in tables:
        with torch.inference_mode(False):
            tables[rows, device] = rotary_table(rows, ops.rotary_rates(model.config.k).to(device))
    cos, sin = tables[rows, device]
    return cos[:length], sin[:length]


def _layer(layer: FSNLayer, index: int, shared: Pass, theta: Tensor, feat: Tensor) -> tuple[Tensor, Tensor]:
    from ..ops.fused.attention import AttentionFunction
    from ..ops.fused.common import padded
    from ..ops.fused.dropout import Drop
    from ..ops.fused.mean_field import MeanFieldFunction
    from ..ops.fused.residual import ResidualFunction
    from ..ops.fused.swiglu import SwiGLUFunction

    model, length, dtype, dropout_key = shared.model, shared.length, shared.dtype, shared.dropout_key
    config, k, made = model.config, model.config.k, shared.coefficients[index]
    options = config.coupling, config.value_gate == "positive", layer.coupling.round_scores

    def drop(rate: float, site: int) -> Drop | None:
        if dropout_key is None or not rate:
            return None
        return Drop(rate, site, dropout_key.counter, dropout_key.first_row)

    score: Tensor | None = layer.kernel.score
    if score is not None and score.shape[1] < k:  # one number for all phases: autograd makes the sum
        score = score.expand(2, k).contiguous()
    theta, copy = AttentionFunction.apply(
        theta, feat, model.gates.weight, model.gates.bias, made.w, model.tau,
        layer.attention_bound.alpha, score, *shared.rotary, length, *options, made, shared.gates,
        shared.keep or index == config.layers - 1,
        drop(layer.coupling.dropout, layer.coupling.site), drop(layer.dropout_update, layer.site + 1),
    )  # fmt: skip
    if index == 0:
        shared.packing.join()
    block = layer.feedforward
    if type(block) is SwiGLU:
        raw = SwiGLUFunction.apply(
            copy, block.gate_up, block.bias, block.down, shared.blocks[index], shared.keep, length,
            drop(block.dropout, block.site),
        )  # fmt: skip
    elif isinstance(block, MeanField):
        raw = MeanFieldFunction.apply(theta, copy, *modes_of(block), shared.blocks[index])
        if block.winding:  # a SwiGLU of a few hidden units
            gate_up = torch.cat((block.winding_gate, block.winding_value))
            raw = raw + SwiGLUFunction.apply(
                copy, gate_up, block.winding_bias, block.winding_projection, None, shared.keep
            )
    else:
        with torch.autocast(theta.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            state = theta[:, :k].reshape(-1, length, k)
            raw = block(state, None, dropout_key).reshape(-1, k).to(dtype)
        raw = torch.nn.functional.pad(raw, (0, padded(k) - k))
    alpha, dropping = layer.feedforward_bound.alpha, drop(layer.dropout, layer.site)
    return ResidualFunction.apply(theta, raw, alpha, k, length, dropping)


def loss(model: FSN, tokens: Tensor, targets: Tensor, dropout_key: ops.DropoutKey | None) -> Tensor:
    """Per-token cross-entropy (B, T) in nats."""
    from ..ops.fused.readout import ReadoutFunction

    feat, shared = final_features(model, tokens, dropout_key)
    readout = model.readout
    keep = not readout.round_output or feat.dtype == torch.float32
    with torch.autocast(tokens.device.type, enabled=False):
        flat = ReadoutFunction.apply(
            feat, readout.prototypes, readout.scale, targets.flatten(), keep, shared.prototypes
        )
    return flat.view(tokens.shape)


def logits(model: FSN, tokens: Tensor, dropout_key: ops.DropoutKey | None) -> Tensor:
    """Logits (B, T, V) in float32."""
    from ..ops.fused.common import padded

    feat, _ = final_features(model, tokens, dropout_key)
    k = model.config.k
    wide = padded(k)
    features = torch.cat((feat[:, :k], feat[:, wide : wide + k]), dim=1)
    prototypes = ops.phase_features(model.readout.prototypes)
    z = ops.product(features, prototypes.to(features.dtype).mT, model.readout.round_output)
    return (model.readout.scale * z.float()).view(*tokens.shape, -1)
