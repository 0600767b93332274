"""Run a notebook's cells in order, without Jupyter: what they print and draw becomes their output.

``python -m tests.examples.notebook FILE...`` writes the outputs into the notebooks, so that they can be read without
running them.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def run(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """What the code cells leave behind; their outputs are put into ``notebook``. Gradients are on or off as before."""
    import torch

    with torch.set_grad_enabled(torch.is_grad_enabled()):
        return _run(notebook, name)


def _run(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    namespace: dict[str, Any] = {"__name__": name}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        said, value = io.StringIO(), None
        with contextlib.redirect_stdout(said):
            exec(compile(tree, f"{name}, cell {number}", "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"{name}, cell {number}", "eval"), namespace)
        outputs: list[dict[str, Any]] = []
        if said.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": lines(said.getvalue())})
        for figure in map(plt.figure, plt.get_fignums()):
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png", dpi=90, bbox_inches="tight", metadata={"Software": None})
            picture = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
            outputs.append({"output_type": "display_data", "data": picture, "metadata": {}})
            value = None
        plt.close("all")
        if value is not None:
            text = {"text/plain": lines(repr(value))}
            outputs.append(
                {"output_type": "execute_result", "execution_count": number, "data": text, "metadata": {}}
            )
        cell["execution_count"], cell["outputs"] = number, outputs
    return namespace


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def write(notebook: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        found = read(file)
        run(found, file.name)
        write(found, file)
