"""The demo: three small models, a few minutes, two CPU cores, and a page that shows what came of it.

- :mod:`~fsn.demo.plan`: which models, of what size, trained how
- :mod:`~fsn.demo.training`: train them side by side
- :mod:`~fsn.demo.findings`: measure them
- :mod:`~fsn.demo.story`: write the page
- :mod:`~fsn.demo.command`: ``fsn demo``
"""

from __future__ import annotations

from fsn.demo.findings import measure
from fsn.demo.plan import Entry, Plan, make_plan
from fsn.demo.story import write_page
from fsn.demo.training import train_all

__all__ = ["Entry", "Plan", "make_plan", "measure", "train_all", "write_page"]
