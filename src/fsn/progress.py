"""Progress that reads well everywhere: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TypeVar

from .text import printable

T = TypeVar("T")

PLAIN_INTERVAL_S = 10.0


def say(line: str) -> None:
    """Print a line on standard error, escapes made visible. A closed one, or one nobody reads, stops nothing."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(printable(line, "lines"), file=sys.stderr, flush=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings, title=title)
    for row in rows:
        table.add_row(*(printable(cell, "rich") for cell in row))
    Console().print(table)


def count(x: float) -> str:
    """1234567 -> 1.23 M"""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if x >= 0.999995 * size:  # 999,999 is 1.00 M
            return f"{x / size:.2f}{letter}"
    return f"{x:.0f}"


def duration(seconds: float) -> str:
    """Seconds in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Bar:
    """A progress bar with free fields, e.g. ``bar.update(1, loss="2.31", rate="1.2 Mtok/s")``; empty ones
    are not shown.

    Used as a context manager. Where standard error is not a terminal it prints one plain line at most every
    ten seconds, and one at the end. With ``shown=False``, or a total of one, it only counts.
    """

    def __init__(
        self, description: str, total: int | None = None, done: int = 0, *, shown: bool = True
    ) -> None:
        self.description, self.total, self.done, self.shown = description, total, done, shown and total != 1
        self.fields: dict[str, str] = {}
        self.terminal = (
            self.shown and sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
        )
        self._start = self._last_line = time.monotonic()
        self._start_done = done
        self._line_done = -1

    def __enter__(self) -> Bar:
        if self.terminal:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TextColumn("{task.fields[extra]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                refresh_per_second=8,
            )
            self._task = self._progress.add_task(
                printable(self.description, "rich"), total=self.total, completed=self.done, extra=""
            )
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.terminal:
            with contextlib.suppress(OSError):
                self._progress.stop()
        elif self.done != self._line_done and time.monotonic() - self._start > 2.0:
            self._print_line()

    def update(self, n: int = 1, **fields: str) -> None:
        self.done += n
        self.fields.update(fields)
        if self.terminal:
            extra = "  ".join(f"{name} {value}" for name, value in self.fields.items() if value)
            with contextlib.suppress(OSError):
                self._progress.update(self._task, completed=self.done, extra=extra)
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL_S:
            self._print_line()

    def _print_line(self) -> None:
        now = time.monotonic()
        self._last_line, self._line_done = now, self.done
        parts = [f"{self.description}: {self.done:,}"]
        if self.total:
            parts[0] += f" of {self.total:,}"
            made = self.done - self._start_done
            if made > 0 and self.done < self.total:
                left = (now - self._start) / made * (self.total - self.done)
                parts.append(f"{left:.0f} s left")
        parts += [f"{name} {value}" for name, value in self.fields.items() if value]
        if self.shown:
            say(", ".join(parts))


def track(iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a progress bar around it."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Bar(description, total) as bar:
        for item in iterable:
            yield item
            bar.update()
