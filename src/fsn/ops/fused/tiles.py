"""Block sizes and launch shapes, chosen by measurement on an H200 (docs/lab-notes.md).

Nothing is tuned at run time, so the first step of a fresh process comes soon and two runs take the same path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton

BLOCK = 64
"""Sequences are padded to a multiple of this inside the attention kernels, so that their products need no masks."""
KEPT = 1 << 30
"""Bytes of fields that all layers together may keep for the backward pass; above that each layer makes them again."""
CHUNK = 2048
"""Longer sequences take this many query rows at a time: attention is (B, 2048, T), never (B, T, T)."""
KEPT_ATTENTION = 1 << 28
"""Bytes of attention that one layer may keep for the backward pass; above that, and in chunks, it is computed again."""


@dataclass(frozen=True)
class Tile:
    """The score kernel: block of query rows, of features, of key columns; warps and pipeline stages."""

    rows: int
    inner: int
    columns: int
    warps: int
    stages: int

    def rows_of(self, count: int) -> int:
        """Rows of a program where there are ``count`` in all, a multiple of BLOCK."""
        return self.rows if count % self.rows == 0 else BLOCK

    def inner_of(self, count: int) -> int:
        """Features at a time where there are ``count`` in all: products load whole blocks of them, without masks."""
        return math.gcd(self.inner, count)


SCORES = Tile(128, 32, 256, 8, 3)
"""Scores of rows in one piece, in bfloat16."""
WIDE_SCORES = Tile(64, 32, 512, 8, 3)
"""The same of twice as many columns."""
EXACT_SCORES = Tile(32, 32, 256, 4, 2)
"""The same in float32."""
LONG_SCORES = Tile(128, 32, 128, 8, 4)
"""Scores of longer rows, tile by tile, in bfloat16."""
EXACT_LONG_SCORES = Tile(32, 32, 64, 4, 2)
"""The same in float32."""
TRIANGLE = Tile(64, 32, 128, 4, 4)
"""Products of attention with fields: rows, tokens at a time, columns."""
COUPLE = Tile(64, 64, 16, 4, 2)
"""The same with what becomes of the result: rows, tokens at a time, phases."""
FULL = 256
"""Sequences up to this long are not cut: cuBLAS multiplies them in full, zeros above the diagonal and all (25 µs
against 29)."""
ON_CHIP = 512
"""Sequences up to this long: a row of the softmax's gradient stays on the chip."""
SCORE_GRADIENT = Tile(64, 64, 256, 8, 4)
"""The softmax's gradient with the product that feeds it: rows, numbers of a field at a time, columns at most."""
WIDE_SCORE_GRADIENT = Tile(64, 32, ON_CHIP, 8, 4)
"""The same with rows in two halves."""
LONG_SCORE_GRADIENT = Tile(128, 64, 128, 8, 3)
"""The product and the sums over its rows for longer ones, tile by tile, in bfloat16."""
EXACT_LONG_SCORE_GRADIENT = Tile(32, 16, 64, 4, 2)
"""The sums alone, in float32."""
FEEDFORWARD = Tile(128, 32, 64, 4, 4)
"""SwiGLU's first product with what follows it."""
FEEDFORWARD_BACKWARD = Tile(64, 32, 64, 4, 3)
"""The product that feeds the middle's gradient with that gradient."""
FEEDFORWARD_WIDEST = 512
"""Hidden units up to which that is faster than cuBLAS's product and a pass of its own (at 1,024: 10 % slower)."""
PASS = 32, 64
"""Rows and columns of a program that works element by element."""
FIELDS = Tile(8, 1, 64, 4, 1)
"""Tokens and columns of a program that writes the fields."""


@dataclass(frozen=True)
class Strip:
    """The fields' backward pass: a program walks down so many tokens in a strip of columns, rows ahead in flight."""

    tokens: int
    columns: int
    warps: int
    stages: int


STRIP = Strip(32, 64, 1, 4)

ROWS = {
    "query_key": 2,
    "update": 2,
    "residual": 2,
    "update_backward": 1,
    "prepare_backward": 1,
    "residual_backward": 1,
}
"""Row kernels: rows of a program where their pieces (``rows.py``) are 64 columns wide."""


SCORE_STEPS = 4
"""With the successor in the score: rows that a program of queries and keys makes one after the other."""
SCORE_ROWS = 8
"""The same of the pass back to gates and phases: each program leaves a row of partial sums."""


FOLDED_ROWS = 1
"""The same of queries and keys with the successor in the score: such rows side by side in a program."""
NARROW_PHASES = 128
"""Up to so many phases, padded, ``NARROW`` has the word: heads of a layer rather than a whole model."""
NARROW: dict[str, Tile | Strip | tuple[int, int]] = {
    "COUPLE": Tile(64, 32, 32, 4, 3),
    "LONG_SCORES": Tile(64, 128, 128, 4, 1),
    "LONG_SCORE_GRADIENT": Tile(64, 64, 128, 4, 3),
    "SCORES": Tile(64, 32, 256, 8, 3),
    "STRIP": Strip(64, 64, 1, 4),
    "TRIANGLE": Tile(128, 64, 128, 8, 3),
    "rows.prepare_backward": (2, 1),
    "rows.update": (8, 1),
    "rows.update_backward": (8, 4),
}
"""Shapes by name where few phases are another case; a row kernel's is ``rows.`` and its name, with rows and warps."""


def shape(name: str, kp: int) -> Any:
    """The tile or strip of this name for so many phases, padded."""
    if kp <= NARROW_PHASES and name in NARROW:
        return NARROW[name]
    return globals()[name]


def row_shape(kernel: str, kp: int) -> tuple[int, int, int]:
    """Columns in a piece of a row of ``kp`` numbers, rows per program, warps: two or four numbers a thread."""
    whole = max(16, triton.next_power_of_2(kp))
    width = max(min(64, whole), whole // 4)
    own = NARROW.get(f"rows.{kernel}") if kp <= NARROW_PHASES else None
    rows, warps = own if isinstance(own, tuple) else (ROWS[kernel], max(1, width // 128))
    return width, max(1, min(BLOCK, 64 * rows // width)), warps


def rows_of_steps(rows: int, steps: int) -> int:
    """Rows side by side of a program that makes ``steps`` of each: together they stay within a block of a sequence."""
    return max(1, min(rows, BLOCK // steps))


def pass_grid(rows: int, columns: int) -> tuple[int, int]:
    """Programs for a pass over so many rows and columns."""
    return -(-rows // PASS[0]), -(-columns // PASS[1])


def precision(dtype: torch.dtype) -> str:
    """How float32 operands are multiplied: as IEEE float32 unless the user allowed TensorFloat-32."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return "ieee"
    return "tf32"
