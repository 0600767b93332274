"""The table of decoding in docs/hub.md, from the benchmark's numbers.

python docs/site/decode_table.py      brings docs/hub.md up to date
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fsn.io import write_text_atomic

ROOT = Path(__file__).resolve().parents[2]
PAGE, NUMBERS = ROOT / "docs" / "hub.md", ROOT / "benchmarks" / "results" / "decode-cpu.json"
HEADING = "| sequences, symbols read |"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """``rows`` of ``python -m benchmarks.decode --json``; the FSN's times as multiples of the transformer's."""
    lines = [f"{HEADING} transformer, ms a symbol | FSN | FSN, lean |", "|---|---:|---:|---:|"]
    for row in rows:
        ms = row["ms"]
        times = " | ".join(f"{ms[way] / ms['transformer']:.1f} ×" for way in ("fsn", "fsn, lean"))
        lines.append(f"| {row['batch']}, {row['read']:,} | {ms['transformer']:.1f} | {times} |")
    kept = " | ".join(f"{rows[-1]['kept'][way]:,}" for way in ("transformer", "fsn", "fsn, lean"))
    return "\n".join([*lines, f"| numbers kept for a position and layer | {kept} |"])


def fill(page: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with its table replaced."""
    head, heading, rest = page.partition(HEADING)
    if not heading:
        raise SystemExit(f"{PAGE} has no table that begins with {HEADING}; put one there")
    return head + table(rows) + "\n\n" + rest.partition("\n\n")[2]


if __name__ == "__main__":
    before = PAGE.read_text("utf-8")
    after = fill(before, json.loads(NUMBERS.read_text("utf-8"))["rows"])
    if after != before:
        write_text_atomic(PAGE, after)
    print("docs/hub.md: decoding " + ("brought up to date" if after != before else "is up to date"))
