"""Rows that are compiled on a CPU too; a module of its own, so that another process can import it."""

from __future__ import annotations

import dataclasses
import os

import torch

from benchmarks.measure import SYMBOLS, Case
from fsn.models import preset
from fsn.train.recipe import Recipe


class Compiled(Case):
    """A row whose step goes through ``torch.compile``."""

    def recipe(self, device: torch.device) -> Recipe:
        return dataclasses.replace(super().recipe(device), engine="compile")


class Deadly(Case):
    """A row that ends its process."""

    def recipe(self, device: torch.device) -> Recipe:
        os._exit(3)


def transformer(kind: type[Case], length: int = 8) -> Case:
    config = preset("transformer-1m", SYMBOLS, width=8, layers=1)
    return kind("transformer", "1m", length, 2, config)


def fsn(length: int, size: str = "1m") -> Case:
    return Case("fsn", size, length, 2, preset(f"fsn-{size}", SYMBOLS, k=6, layers=1))
