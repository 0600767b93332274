"""An item: one table or figure of the paper, the runs it rests on, and how it is made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fsn.measure import Table
from fsn.paper.bench import Bench
from fsn.paper.needs import Need
from fsn.paper.rows import COMPUTED, MISSING, PARTIAL, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure and the numbers it shows. ``draw`` takes the surface: any, light or dark."""

    name: str
    caption: str
    draw: Callable[[str], Figure]
    table: Table | None = None


def picture(
    name: str, caption: str, draw: Callable[[Any, str], Figure], table: Table | None = None
) -> Picture:
    """A picture drawn with :mod:`fsn.measure.plots`, loaded when it is needed: ``draw(plots, surface)``."""

    def with_plots(surface: str) -> Figure:
        from fsn.measure import plots

        return draw(plots, surface)

    return Picture(name, caption, with_plots, table)


@dataclass
class Result:
    """What an item found: rows beside the paper's, further tables, pictures, remarks, data for the page."""

    rows: list[Row] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    live: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """``measured``, ``computed``, ``partly`` or ``missing``."""
        states = {row.state for row in self.rows}
        if states == {MISSING}:
            return "missing"
        if MISSING in states or PARTIAL in states:
            return "partly"
        return "computed" if states == {COMPUTED} else "measured"


@dataclass(frozen=True)
class Item:
    """One table or figure. ``roles`` are the texts it reads besides the runs."""

    name: str
    title: str
    where: str
    about: str
    compute: Callable[[Bench], Result]
    needs: tuple[Need, ...] = ()
    roles: tuple[str, ...] = ()
