"""The command ``fsn inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fsn.io import check_writable, writing
from fsn.measure.inspection import PARTS, Part, applicable, inspect_run, shown, write_findings
from fsn.train.commands import RunPath
from fsn.train.run import load_run
from fsn.train.world import choose_device


def inspect(
    run: RunPath,
    /,
    *,
    against: Path | None = None,
    parts: tuple[Part, ...] = PARTS,
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

    Writes inspection.md with figures and tables. A model without coupling is asked for the rest.

    Args:
        run: The run folder, finished or not.
        against: Another run on the same text; then also where the first is ahead of it.
        parts: What to look at: coupling, depth, lesions, looks (attention when a text repeats itself), states.
        windows: How many validation windows to read.
        which: The weights of the best epoch, or the last ones saved.
        corpus: Where the text is now, if the run's corpus was a path that has moved.
        out: Where to write; by default the folder inspection in the run's own.
        device: auto, cpu, cuda or cuda:1.
    """
    seen = load_run(run)
    chosen = applicable(seen, parts)
    other = None if against is None else load_run(against)
    folder = out or seen.folder / "inspection"
    check_writable(folder, "choose another --out")
    text = seen.load_corpus(corpus)
    found = inspect_run(
        seen, text, against=other, which=which, parts=chosen, windows=windows, device=choose_device(device)
    )
    for finding in found:
        for name in ("depth", "lesions", "looks"):
            if name in finding.tables:
                print(f"\n{finding.title}\n\n{shown(name, finding.tables[name]).to_markdown()}", end="")
    left = [part for part in parts if part not in chosen]
    if left:
        print(f"\n{seen.name} is a transformer: it has no {' and no '.join(left)} to look at")
    with writing(folder, "choose another --out"):
        written = write_findings(seen, found, folder)
    print(f"\nwritten: {written[0]}, with {len(written) - 1} tables and figures beside it")
