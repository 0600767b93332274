"""Named points inside a model that can be read and replaced without editing it.

    with fsn.record(model, "layers.*.attention") as points:
        model(tokens)
    points["layers.0.attention"]                      # (B, T, T)

    with fsn.replace(model, {"layers.1.gates.value": lambda g: g.abs()}):
        logits = model(tokens)

While a model is being probed it runs its reference path, where every named quantity exists as a tensor. A record holds
what the last call left. Where ``model.extend`` continues from a cache, points are of the new positions; scores and
attention have a column for each position so far, and ``fields`` are those of all positions so far, since a successor
completes the last.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from ..errors import UserError

Change = Callable[[Tensor], Tensor] | Tensor
PACKAGE = f"{__name__.split('.')[0]}."
"""How the names of this package's modules begin."""


def hooked(*modules: nn.Module) -> bool:
    """Whether any of them has PyTorch's own hooks, which are called where the module is, and not on a shorter path."""
    for m in modules:  # noqa: SIM110 (any() costs more, and this is asked for every symbol)
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            return True
    return False


def ours(*modules: nn.Module) -> bool:
    """Whether each of them, and each module it is made of, is exactly a class of this package, runs the ``forward`` it
    came with and is not :func:`hooked`. A subclass, a wrapper or a changed method acts where the module is called: the
    shorter paths, which read its parameters instead, ask this first."""
    for m in modules:
        if not type(m).__module__.startswith(PACKAGE) or "forward" in m.__dict__:
            return False
        if hooked(m) or not ours(*m._modules.values()):  # type: ignore[arg-type]  # one that is None is not ours
            return False
    return True


class Probe:
    """Says what happens at each named point. The one of :data:`NO_PROBE` does nothing and costs nothing."""

    active = False

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def at(self, prefix: str) -> Probe:
        return self


NO_PROBE = Probe()


class _Watching(Probe):
    """Makes the changes in the order they were asked for, then gives every record what it asked for."""

    active = True

    def __init__(
        self,
        changes: tuple[tuple[str, Change], ...] = (),
        records: tuple[tuple[tuple[str, ...], dict[str, Tensor]], ...] = (),
        seen: set[str] | None = None,
        prefix: str = "",
    ) -> None:
        self.changes, self.records, self.prefix = changes, records, prefix
        self.seen: set[str] = set() if seen is None else seen

    def at(self, prefix: str) -> Probe:
        return _Watching(self.changes, self.records, self.seen, f"{self.prefix}{prefix}.")

    def __call__(self, name: str, value: Tensor) -> Tensor:
        full = self.prefix + name
        self.seen.add(full)
        for pattern, change in self.changes:
            if fnmatch.fnmatchcase(full, pattern):
                new = change(value) if callable(change) else change
                if not isinstance(new, Tensor) or new.shape != value.shape:
                    found = f"has shape {tuple(new.shape)}" if isinstance(new, Tensor) else f"is {new!r}"
                    raise UserError(
                        f"the replacement for {full!r} {found}; return a tensor of shape {tuple(value.shape)}"
                    )
                value = new.to(value)
        for patterns, points in self.records:
            if any(fnmatch.fnmatchcase(full, pattern) for pattern in patterns):
                points[full] = value
        return value


@contextlib.contextmanager
def _watch(
    model: nn.Module, patterns: tuple[str, ...], changes: Mapping[str, Change]
) -> Iterator[dict[str, Tensor]]:
    before = getattr(model, "probe", None)
    if not isinstance(before, Probe):
        raise UserError(
            f"a {type(model).__name__} has no named points; pass the model itself, as fsn.build makes it, or a "
            "FrustratedAttention"
        )
    outer = before if isinstance(before, _Watching) else _Watching()
    points: dict[str, Tensor] = {}
    watching = _Watching(outer.changes + tuple(changes.items()), (*outer.records, (patterns, points)))
    model.probe = watching  # type: ignore[assignment]
    try:
        yield points
    finally:
        model.probe = before  # type: ignore[assignment]
        outer.seen |= watching.seen
    wanted = patterns + tuple(changes)
    idle = [w for w in wanted if not any(fnmatch.fnmatchcase(name, w) for name in watching.seen)]
    if idle and not watching.seen:
        raise UserError(
            f"{idle[0]!r} was never reached: the model was not called inside the block; call it there, "
            "as model(tokens), model.loss or model.extend"
        )
    if idle:
        names = [name for name in sorted(watching.seen) if not re.match(r"layers\.[1-9]", name)]
        raise UserError(
            f"no point of this model is called {idle[0]!r}; it has {', '.join(names)}; other layers have the same"
        )


@contextlib.contextmanager
def record(model: nn.Module, *patterns: str) -> Iterator[dict[str, Tensor]]:
    """Record the points whose names match (shell patterns; all if none is given), in the order they are reached."""
    with _watch(model, patterns or ("*",), {}) as points:
        yield points


@contextlib.contextmanager
def replace(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Replace the value at each named point by a tensor, or by a function of it."""
    with _watch(model, (), changes):
        yield
