"""Keeping a run for good: ``results/NAME`` holds what tables, figures and readers need of it.

results/NAME/
  config.yaml  metrics.jsonl  timings.jsonl                     what it was and how it went
  environment.json  log.txt  DONE
  best.safetensors                                              the weights of its best epoch
  tokenizer.json                                                only of runs on subwords
  kernel/                                                       its coupling kernel after every epoch
  token_losses.npz                                              optional: bits of every copy-depth target
  last/                                                         optional: all a resume needs
  hashes.json                                                   the sha256 of all but log and last/
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..io import check_writable, is_plain_name, write_text_atomic, writing
from ..measure import load_runs, store_losses
from ..measure.losses import FILE
from ..train import Run, hashes, load_run
from ..train.run import same_but_seed
from .bench import Bench
from .runs import PAPER, Library, Scale, epochs_of

TEXTS = ("environment.json", "log.txt")
KEPT = ("config.yaml", *hashes.GROWING, *TEXTS, "best.safetensors", "tokenizer.json", "DONE", "kernel", FILE)
STATE = "last"
ELSEWHERE = "choose another --results"


def archive_run(folder: Path, results: Path, name: str | None = None, resume_state: bool = False) -> Path:
    """Copy a run folder to ``results/NAME``; a later state of the same run replaces an earlier one.

    Paths in log and environment keep their last part only: what lay around it is nobody's business.
    """
    if name is not None and not is_plain_name(name):
        raise UserError(
            f"--name {name!r} is no plain name; give one without slashes, as of a folder in {results}"
        )
    run = load_runs([folder], comparable=False)[0]
    if not run.epochs and not run.warnings:
        raise UserError(f"{folder} has no finished epoch yet; archive it when it has one")
    target = results / (run.folder.resolve().name if name is None else name)
    _check_target(run, target)
    if resume_state and not (run.folder / STATE).is_dir():
        raise UserError(f"{folder} has no resume state in {STATE}/; archive it without --resume-state")
    check_writable(results, ELSEWHERE)
    with writing(target, ELSEWHERE):
        _replace(target, run.folder, (*KEPT, STATE) if resume_state else KEPT)
    return target


def _replace(target: Path, folder: Path, names: Sequence[str]) -> None:
    """Put files and folders of these names in ``folder``, as far as they are there, in the place of ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".archive-") as scratch:
        copy = Path(scratch) / "run"
        for name in names:
            for file in (folder / name, *(folder / name).rglob("*")):
                if file.is_symlink():
                    raise UserError(
                        f"{file} is a symbolic link; an archive takes only files of the run itself"
                    )
                if file.is_file():
                    relative = file.relative_to(folder).as_posix()
                    if name not in ("log.txt", STATE):  # what is signed below was right until now
                        hashes.read(folder, relative)
                    place = copy / relative
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, place)
        for text in TEXTS:
            if (copy / text).is_file():
                _without_folders(copy / text, folder)
        hashes.sign(copy)
        before = Path(scratch) / "before"
        if target.exists():
            target.rename(before)
        try:
            copy.rename(target)
        except BaseException:
            if before.exists():
                before.rename(target)
            raise


def _check_target(run: Run, target: Path) -> None:
    if not target.exists():
        return
    if target.resolve() == run.folder.resolve():
        raise UserError(f"{target} is the archive itself; give the folder of the run")
    before = load_run(target)
    same = same_but_seed(run.config, before.config) and run.recipe.seed == before.recipe.seed
    if not same:
        raise UserError(f"{target} holds another run; choose a name with --name")
    if epochs_of(run) < epochs_of(before):
        raise UserError(
            f"{target} has {epochs_of(before)} epochs and {run.folder} has {epochs_of(run)}; the longer "
            "one is kept"
        )


ABSOLUTE = re.compile(r"""(?<![\w./:~-])/(?:[^\s/"',:;]+/)*([^\s/"',:;]+)""")
"""A path from the root, of whichever machine the run was made on. Addresses (https://…) and ratios (a/b) are not."""


def _without_folders(file: Path, folder: Path) -> None:
    text = file.read_text(encoding="utf-8", errors="replace")
    here = {folder.resolve(), folder.absolute(), *folder.resolve().parents, Path.cwd(), Path.home()}
    for path in sorted(here, key=lambda path: -len(path.parts)):
        if len(path.parts) > 2:  # a name may hold spaces, which the pattern takes for its end
            text = text.replace(f"{path}/", "").replace(str(path), path.name)
    write_text_atomic(file, ABSOLUTE.sub(r"\1", text))


def add_losses(target: Path, scale: Scale = PAPER, device: str = "auto", cache: Path | None = None) -> bool:
    """Measure every copy-depth target under an archived run's best weights and keep the losses beside them.

    Only runs of a role's text and of the copy-depth window length have such targets, and only such as begin with new
    weights are compared by them.
    """
    run = load_run(target)
    bench = Bench(Library.open([target], scale), device=device, cache=cache)
    role = bench.scale.role_of(run.config["corpus"])
    if role is None or run.recipe.length != bench.scale.length(256) or "begin_with" in run.config:
        return False
    bits = bench.losses(run, role)
    with writing(target, ELSEWHERE):
        store_losses(target, bench.corpus(role).sha256, bench.battery(role), bits)
        hashes.add(target, FILE)
    return True
