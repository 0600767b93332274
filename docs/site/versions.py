"""The page of tested versions, from the table in ``fsn.versions``.

python docs/site/versions.py > docs/versions.md
"""

from __future__ import annotations

from fsn.versions import TESTED


def markdown() -> str:
    """docs/versions.md"""
    lines = [
        "# Tested versions",
        "",
        "Made from `src/fsn/versions.py` by `python docs/site/versions.py > docs/versions.md`. Other versions may well "
        "work: nothing is refused, `fsn train` says in one line which of its versions are not here, and on a GPU the "
        "fused kernels are checked against the reference before their first use ([the fast path](fast-path.md)).",
        "",
        "| torch | Triton | transformers | Python | device | what was run | status |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in TESTED:
        cells = (row.torch, row.triton, row.transformers, row.python, row.device, row.done, row.status)
        lines.append(f"| {' | '.join(cell or '–' for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
