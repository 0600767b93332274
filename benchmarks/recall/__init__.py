"""Recall on tests that others wrote: small models, synthetic tasks, one table. ``python -m benchmarks.recall``"""

from __future__ import annotations
