"""Measurements of speed, run as modules: ``python -m benchmarks.step``."""

from __future__ import annotations
