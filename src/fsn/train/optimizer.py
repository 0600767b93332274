"""AdamW over one flat vector.

Weight decay applies to every parameter, so all of them fit into one vector. Then a step is one kernel, the global norm
of the gradient is one reduction, and processes exchange gradients in one all-reduce. The parameters of the modules are
views into the vector.
"""

from __future__ import annotations

from collections.abc import Set

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from ..ops import fused
from .recipe import Recipe

_ALIGN = 32  # floats: each parameter starts on a 128-byte boundary


class FlatParameters:
    """The parameters of a module and their gradients as views into two vectors.

    ``values`` holds the weights, ``gradient`` the gradient. ``message`` is the gradient followed by a few spare numbers
    that are all-reduced with it.
    """

    SPARE = _ALIGN

    def __init__(self, module: nn.Module) -> None:
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("this module has no parameters to train")
        device, dtype = named[0][1].device, named[0][1].dtype
        self.slots: dict[str, tuple[int, torch.Size]] = {}
        size = 0
        for name, p in named:
            if p.dtype != dtype or dtype not in (torch.float32, torch.float64):
                raise TypeError(f"parameter {name} is {p.dtype}; the trainer keeps weights in float32")
            self.slots[name] = (size, p.shape)
            size += -(-p.numel() // _ALIGN) * _ALIGN
        self.values = torch.zeros(size, dtype=dtype, device=device)
        self.message = torch.zeros(size + self.SPARE, dtype=dtype, device=device)
        self.gradient = self.message[:size]
        self.spare = self.message[size:]
        for name, p in named:
            view = self.view(self.values, name)
            view.copy_(p.detach())
            p.data = view
            p.grad = self.view(self.gradient, name)
        self.parameters = dict(named)
        self.places = {p.data_ptr(): self.view(self.gradient, n) for n, p in named if p.numel()}
        """For a backward pass that writes gradients itself: address of a parameter -> its part of ``gradient``."""

    def view(self, vector: Tensor, name: str) -> Tensor:
        """The part of ``vector`` that belongs to parameter ``name``, in its shape."""
        start, shape = self.slots[name]
        return vector[start : start + shape.numel()].view(shape)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        return {name: self.view(vector, name) for name in self.slots}

    def release(self) -> None:
        """Set gradients to None, so that a backward pass assigns its results instead of accumulating."""
        for p in self.parameters.values():
            p.grad = None

    @torch.no_grad()
    def collect(self, written: Set[int] = frozenset(), add: bool = False) -> None:
        """Copy the gradients of a backward pass into the vector, in as few kernels as possible.

        ``written``: addresses of the parameters whose gradient the pass wrote into the vector itself. If autograd
        returns another one, from a second use of the parameter, it is added. ``add``: add all to the vector.
        """
        copied: list[tuple[Tensor, Tensor]] = []
        added: list[tuple[Tensor, Tensor]] = []
        for name, p in self.parameters.items():
            view, grad = self.view(self.gradient, name), p.grad
            adds = add or p.data_ptr() in written
            if grad is None and not adds:
                view.zero_()
            elif grad is not None and grad.data_ptr() != view.data_ptr():
                (added if adds else copied).append((view, grad))
            p.grad = view
        for pairs, some, one in (
            (copied, torch._foreach_copy_, Tensor.copy_),
            (added, torch._foreach_add_, Tensor.add_),
        ):
            plain = [pair for pair in pairs if pair[1].is_contiguous()]
            if plain:
                some([view for view, _ in plain], [grad for _, grad in plain])
            for view, grad in pairs:
                if not grad.is_contiguous():  # in the foreach call it would slow down all
                    one(view, grad)


class Optimizer:
    """Clip the gradient to a global norm, then AdamW; nothing happens while ``broken`` is 1.

        g ← g / max(1, (‖g‖ + 10⁻⁶) / clip)
        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²
        p ← p − lr λ p − lr m̂ / (√v̂ + ε)

    Everything the step reads is a tensor on the device, so it can be captured in a CUDA graph. ``broken`` is set when a
    loss or gradient is not finite; the weights then stay those before it.
    """

    def __init__(self, flat: FlatParameters, recipe: Recipe) -> None:
        self.flat, self.recipe = flat, recipe
        device = flat.values.device
        self.fused = fused.available(device)
        """Whether :meth:`finish` can run."""
        exact = torch.float32 if device.type == "cuda" or self.fused else torch.float64
        self.lr = torch.tensor(recipe.lr, dtype=exact, device=device)
        """The learning rate. A step reads it on the device, so that it can change between replays of a graph."""
        self.moment, self.square = torch.zeros_like(flat.values), torch.zeros_like(flat.values)
        self.steps, self.broken = torch.zeros((), device=device), torch.zeros((), device=device)
        self._scale = torch.ones((), device=device)
        if self.fused:
            from ..ops.fused.adamw import parts

            self._norm = torch.zeros((), device=device)
            self._sums = torch.zeros(parts(flat.gradient.numel()), device=device)

    @torch.no_grad()
    def step(self, norm: Tensor) -> None:
        """Clip the gradient and update the weights with PyTorch's kernels; ``broken`` is already set for this step.

        PyTorch's fused AdamW divides the gradient by ``grad_scale`` and skips the step where ``found_inf`` is 1. They
        are made for mixed-precision scaling; here they do the clipping and the stop.
        """
        flat, r = self.flat, self.recipe
        if r.clip > 0:
            self._scale.copy_(((norm + 1e-6) / r.clip).clamp_(min=1.0))
        adamw(
            [flat.values], [flat.gradient], [self.moment], [self.square], [], [self.steps],
            fused=True, grad_scale=self._scale, found_inf=self.broken, amsgrad=False, maximize=False,
            lr=self.lr, beta1=r.beta1, beta2=r.beta2, eps=r.eps, weight_decay=r.weight_decay,
        )  # fmt: skip

    @torch.no_grad()
    def finish(self, loss: Tensor, ring: Tensor, counters: Tensor) -> None:
        """All after the gradient in three kernels: norm, checks, clipping, AdamW, and counting.

        Writes (loss, norm) to slot step % len(ring) of ``ring`` and adds one to each of ``counters`` (position,
        dropout counter, step). From a loss or norm that is not finite on, ``broken`` is 1 and nothing changes.
        """
        from ..ops.fused import adamw as kernels

        flat, r = self.flat, self.recipe
        kernels.squares(flat.gradient, self._sums)
        kernels.adamw(
            flat.values, flat.gradient, self.moment, self.square,
            self._sums, loss, self._norm, self.steps, self.broken, self.lr,
            r.clip, r.beta1, r.beta2, r.eps, r.weight_decay,
        )  # fmt: skip
        kernels.count(loss, self._norm, self.broken, self.steps, ring, counters)

    def state_dict(self) -> dict[str, Tensor]:
        """The moments, parameter by parameter, and the number of steps."""
        state = {f"moment.{n}": t for n, t in self.flat.split(self.moment).items()}
        state |= {f"square.{n}": t for n, t in self.flat.split(self.square).items()}
        return state | {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy into the existing tensors, which a captured graph refers to."""
        own = self.state_dict()
        if set(own) != set(state):
            different = sorted(set(own) ^ set(state))
            raise KeyError(f"optimizer state does not fit the model: {different[0]}")
        for name, tensor in own.items():
            tensor.copy_(state[name].to(tensor.device))

    def tensors(self) -> list[Tensor]:
        """All that a step changes, for saving and restoring around a warm-up."""
        return [self.flat.values, self.moment, self.square, self.steps, self.broken]
