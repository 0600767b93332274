"""``fsn inspect``: what every instrument found on one run, as one page with its tables and figures beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ..checks import check
from ..io import check_writable, write_bytes_atomic, write_text_atomic, writing
from ..measure import Finding, Subject, inspect_run
from ..measure.finding import applicable, instruments
from ..measure.style import figure_bytes, require_matplotlib
from ..train.commands import RunPath
from ..train.run import SHIPPED, find_run, load_run
from ..train.world import choose_device
from .html import data_table, escape, figure, page

SHORT = 12
"""Tables of more rows are folded away on the page and left out on the terminal."""


def inspect(
    run: RunPath,
    /,
    *,
    against: Path | None = None,
    parts: tuple[str, ...] = (),
    windows: int = 256,
    which: Literal["best", "last"] = "best",
    corpus: str | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Look inside a run: its coupling functions, its loss by copy depth, what each field does, where it looks.

    For example:
      fsn inspect runs/fsn-seed0
      fsn inspect runs/fsn-seed0 --against runs/transformer-seed0
      fsn inspect runs/fsn-seed0 --parts coupling

    Writes inspection.html, with every table and figure as a file beside it.

    Args:
        run: The run folder, finished or not.
        against: Another run on the same text; then also where the first is ahead of it.
        parts: Which instruments to use, by default all that apply: {instruments}.
        windows: How many validation windows to read.
        which: The weights of the best epoch, or the last ones saved.
        corpus: Where the text is now, if the run's corpus was a path that has moved.
        out: Where to write; by default the folder inspection in the run's own (of a run that comes with fsn: here).
        device: auto, cpu, cuda or cuda:1.
    """
    require_matplotlib()
    seen = load_run(find_run(run))
    chosen = applicable(seen, parts)
    check(
        bool(chosen), f"{seen.name} has no data for {', '.join(parts)}; leave out --parts for all that it has"
    )
    other = None if against is None else load_run(find_run(against))
    shipped = seen.folder.parent == SHIPPED  # nothing is written into the package
    folder = out or (Path(f"{seen.name}-inspection") if shipped else seen.folder / "inspection")
    check_writable(folder, "choose another --out")
    text = seen.load_corpus(corpus)
    subject = Subject(seen, text, other, which, windows, choose_device(device))
    found = inspect_run(subject, chosen)
    for finding in found.values():
        print(f"\n{finding.title}\n{finding.sentence}")
        for table in list(finding.tables.values())[:1]:
            if len(table) <= SHORT:
                print(f"\n{table.to_markdown()}", end="")
    left = [name for name in parts or instruments() if name not in chosen]
    if left:
        print(f"\nleft out, because {seen.name} has no data for them: {', '.join(left)}")
    with writing(folder, "choose another --out"):
        text_name, model = seen.config["corpus"]["name"], seen.config["model"]
        step = seen.best["step"] if which == "best" and seen.best else seen.step
        lede = f"{model.get('kind', 'model')} of {model.get('layers', '?')} layers on {text_name}, step {step:,}."
        written = write_findings("Inspection", seen.name, lede, found, folder)
    print(f"\nwritten: {written[0]}, with {len(written) - 1} tables and figures beside it")


inspect.__doc__ = (inspect.__doc__ or "").replace("{instruments}", ", ".join(instruments()))


def write_findings(
    kind: str, title: str, lede: str, findings: Mapping[str, Finding], folder: Path
) -> list[Path]:
    """Tables as CSV, figures as SVG, and one page with all of them, named by its kind (``inspection.html``); returns
    what was written, the page first."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    sections = []
    for part, finding in findings.items():
        body = [f'<section id="{escape(part)}"><h2>{escape(finding.title)}</h2>']
        body.append(f'<p class="finding">{escape(finding.sentence)}</p>')
        for name, draw in finding.figures.items():
            caption = f"{finding.title}: {name}"
            path, svg = folder / f"{name}.svg", figure_bytes(draw(), caption)
            write_bytes_atomic(path, svg)
            written.append(path)
            body.append(figure(svg, caption))
        for name, table in finding.tables.items():
            path = folder / f"{name}.csv"
            table.write_csv(path)
            written.append(path)
            fold = "" if len(table) <= SHORT else f"<summary>{escape(name)}, {len(table)} rows</summary>"
            shown = data_table(table)
            body.append(f'<div class="card">{f"<details>{fold}{shown}</details>" if fold else shown}</div>')
        sections.append("\n".join([*body, "</section>"]))
    contents = "".join(
        f'<li><a href="#{escape(part)}">{escape(finding.title)}</a></li>'
        for part, finding in findings.items()
    )
    head = (
        f'<header class="top"><p class="eyebrow">{escape(kind)}</p><h1>{escape(title)}</h1>'
        f'<p class="lede">{escape(lede)}</p>'
        + (f'<nav><ol class="contents">{contents}</ol></nav></header>' if len(findings) > 1 else "</header>")
    )
    html = "\n".join([head, "<main>", *sections, "</main>"])
    file, about = folder / f"{kind.lower()}.html", f"{kind}: {title}."
    write_text_atomic(file, page(f"{title}: {kind.lower()}", html, description=about))
    return [file, *written]
