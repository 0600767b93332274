"""What a step must cost at least: its products at the device's rate, or its traffic at the device's bandwidth.

FLOPs: two per multiply-add of every matrix product of the forward pass, over the pairs u ≤ t where a
product is causal, and twice as many again backward. Element-wise work (sines, softmax, bounds) is free
here.

Bytes: what cannot stay on the chip even if each half of a layer were one kernel that recomputes all it
needs. Forward, every half-layer reads the state and writes it; backward, it reads the state and the
gradient and writes the gradient; all in float32. Weights are read once forward and once backward, their
gradients written, and AdamW reads weight, gradient and two moments and writes three of them.

The floor is the larger of the two times. Both ceilings are measured in the same process, on large operands.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from fsn.models import Config, FSNConfig, count_parameters

FLOAT = 4


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s of one large product and bytes/s of one large copy, reads and writes counted."""

    flops: float
    bandwidth: float
    product: str

    def or_higher(self, other: Ceilings) -> Ceilings:
        return Ceilings(max(self.flops, other.flops), max(self.bandwidth, other.bandwidth), self.product)


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of a step, training or evaluation."""

    flops: float
    bytes: float

    def floor_ms(self, ceilings: Ceilings) -> float:
        return 1e3 * max(self.flops / ceilings.flops, self.bytes / ceilings.bandwidth)

    def limit(self, ceilings: Ceilings) -> str:
        products = self.flops / ceilings.flops > self.bytes / ceilings.bandwidth
        return "products" if products else "traffic"

    def against(self, ms: float, ceilings: Ceilings) -> dict[str, float | str]:
        """How far a measured time is from the floor."""
        least = self.floor_ms(ceilings)
        return {"floor_ms": least, "floor": self.limit(ceilings), "share_of_floor": least / ms}


def forward_flops(config: Config, batch: int, positions: int, causal: bool = True) -> float:
    """Of all matrix products of one forward pass; ``causal=False`` counts all T² pairs, as a plain product does."""
    pairs = batch * positions * ((positions + 1) / 2 if causal else positions)
    dense, along = _multiply_adds(config)
    return 2 * (batch * positions * dense + pairs * along)


def symbol_flops(config: Config, read: int) -> float:
    """Of all matrix products for one symbol more, after ``read`` others that a cache remembers."""
    dense, along = _multiply_adds(config)
    return 2 * (dense + (read + 1) * along)


def _multiply_adds(config: Config) -> tuple[float, float]:
    """In all layers and the readout: for a token, and for a pair of tokens."""
    if isinstance(config, FSNConfig):
        k, harmonics = config.k, config.coupling.harmonics
        dense = 2 * k * 3 * k + _feedforward(config)
        along = 2 * k + 2 * harmonics * k  # scores, and the fields that attention adds up
        return config.layers * dense + 2 * k * config.vocab_size, config.layers * along
    width = config.width
    dense = 4 * width * width + 3 * width * (config.hidden or 4 * width)
    return config.layers * dense + width * config.vocab_size, config.layers * 2 * width


def _feedforward(config: FSNConfig) -> int:
    """Multiply-adds per token of a feed-forward block, its register included."""
    k, register = config.k, config.register_size
    if config.feedforward == "none":
        return 0
    if config.feedforward in ("swiglu", "torus-swiglu"):
        inputs = k if config.feedforward == "swiglu" else 2 * k
        hidden = config.hidden or 2 * inputs
        return hidden * (2 * inputs + k + register) + 2 * register * k
    modes, winding = config.collective_modes, config.winding_modes
    return modes * (2 * k + 4 * k + 4 * k + register) + 3 * winding * k + 2 * register * k


def training(config: Config, batch: int, positions: int) -> Work:
    """One step: forward, backward, AdamW."""
    state = _state_bytes(config, batch, positions)
    weights = FLOAT * count_parameters(config)
    return Work(3 * forward_flops(config, batch, positions), (2 + 3) * state + (1 + 1 + 1 + 4 + 3) * weights)


def evaluation(config: Config, batch: int, positions: int) -> Work:
    """One forward pass."""
    state = _state_bytes(config, batch, positions)
    return Work(forward_flops(config, batch, positions), 2 * state + FLOAT * count_parameters(config))


def _state_bytes(config: Config, batch: int, positions: int) -> float:
    """The state of all tokens, once for every half-layer."""
    width = config.k if isinstance(config, FSNConfig) else config.width
    return FLOAT * batch * positions * width * 2 * config.layers


def measure_ceilings(device: torch.device) -> Ceilings:
    """The rate of a large product (bfloat16 on a GPU, float32 on a CPU) and of a large copy."""
    gpu = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if gpu else (1024, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)
    seconds = _seconds(lambda: torch.mm(a, b, out=out), device)
    source = torch.empty((1 << 30 if gpu else 1 << 26) // FLOAT, device=device).normal_()
    target = torch.empty_like(source)
    copying = _seconds(lambda: target.copy_(source), device)
    name = f"{size}³ in {str(dtype).removeprefix('torch.')}"
    return Ceilings(2 * size**3 / seconds, 2 * source.nbytes / copying, name)


def _seconds(action: object, device: torch.device, blocks: int = 7) -> float:
    """The median time of a call, over a few blocks of a few calls."""
    assert callable(action)
    times = []
    for block in range(blocks + 1):
        _wait(device)
        start = time.perf_counter()
        for _ in range(5):
            action()
        _wait(device)
        if block:
            times.append((time.perf_counter() - start) / 5)
    return sorted(times)[len(times) // 2]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
