"""Named points inside a model that can be read and replaced without editing it.

    with fsn.record(model, "layers.*.attention") as points:
        model(tokens)
    points["layers.0.attention"]                      # (B, T, T)

    with fsn.replace(model, {"layers.1.gates.value": lambda g: g.abs()}):
        logits = model(tokens)

While a model is being probed it runs its reference path, where every named quantity exists as a tensor.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from ..errors import UserError

Change = Callable[[Tensor], Tensor] | Tensor


class Probe:
    """Says what happens at each named point. The one of :data:`NO_PROBE` does nothing and costs nothing."""

    active = False

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def at(self, prefix: str) -> Probe:
        return self


NO_PROBE = Probe()


class _Watching(Probe):
    active = True

    def __init__(self, patterns: tuple[str, ...], changes: Mapping[str, Change], prefix: str = "") -> None:
        self.patterns, self.changes, self.prefix = patterns, changes, prefix
        self.points: dict[str, Tensor] = {}
        self.seen: set[str] = set()

    def at(self, prefix: str) -> Probe:
        child = _Watching(self.patterns, self.changes, f"{self.prefix}{prefix}.")
        child.points, child.seen = self.points, self.seen
        return child

    def __call__(self, name: str, value: Tensor) -> Tensor:
        full = self.prefix + name
        self.seen.add(full)
        for pattern, change in self.changes.items():
            if fnmatch.fnmatchcase(full, pattern):
                new = change(value) if callable(change) else change
                if new.shape != value.shape:
                    raise UserError(
                        f"the replacement for {full!r} has shape {tuple(new.shape)}; "
                        f"return a tensor of shape {tuple(value.shape)}"
                    )
                value = new.to(value)
        if any(fnmatch.fnmatchcase(full, pattern) for pattern in self.patterns):
            self.points[full] = value
        return value


@contextlib.contextmanager
def _watch(model: nn.Module, patterns: tuple[str, ...], changes: Mapping[str, Change]) -> Iterator[_Watching]:
    before: Probe = getattr(model, "probe", NO_PROBE)
    inherited = before if isinstance(before, _Watching) else None
    watching = _Watching(
        patterns + (inherited.patterns if inherited else ()),
        {**(inherited.changes if inherited else {}), **changes},
    )
    model.probe = watching  # type: ignore[assignment]
    try:
        yield watching
        if inherited is not None:
            inherited.points.update(watching.points)
            inherited.seen |= watching.seen
    finally:
        model.probe = before  # type: ignore[assignment]
    wanted = patterns + tuple(changes)
    idle = [w for w in wanted if not any(fnmatch.fnmatchcase(name, w) for name in watching.seen)]
    if idle and watching.seen:
        raise UserError(
            f"no point of this model is called {idle[0]!r}; it has {', '.join(sorted(watching.seen)[:40])}"
        )


@contextlib.contextmanager
def record(model: nn.Module, *patterns: str) -> Iterator[dict[str, Tensor]]:
    """Record the points whose names match (shell patterns; all of them if none is given)."""
    with _watch(model, patterns or ("*",), {}) as watching:
        yield watching.points


@contextlib.contextmanager
def replace(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Replace the value at each named point by a tensor, or by a function of it."""
    with _watch(model, (), changes):
        yield
