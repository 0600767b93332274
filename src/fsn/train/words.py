"""Numbers in words, and a progress bar that shows nothing."""

from __future__ import annotations


class NoBar:
    """Stands in for :class:`fsn.progress.Bar` where nothing is to be shown."""

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, n: int = 1, **fields: str) -> None:
        return None


def count(x: float) -> str:
    """1234567 -> 1.23 M"""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if x >= size:
            return f"{x / size:.2f}{letter}"
    return f"{x:.0f}"


def duration(seconds: float) -> str:
    """Seconds in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
