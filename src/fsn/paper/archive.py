"""Keeping a run for good: ``results/NAME`` holds what tables, figures and readers need of it.

results/NAME/
  config.yaml  environment.json  log.txt  DONE    what it was, what it ran on, what it said
  metrics.jsonl  timings.jsonl                    a line per epoch; of the lines per step one in every 2,000 steps
  tokenizer.json                                  only of runs on subwords
  kernel/                                         its coupling kernel after a few epochs, the best among them
  token_losses.npz                                optional: bits of every copy-depth target, half precision
  measured.json                                   optional: what the page shows of its weights
  best.safetensors                                optional: the weights of its best epoch, float32
  last/                                           optional: all a resume needs
  hashes.json                                     the sha256 of all but log and last/
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError
from ..io import check_writable, is_plain_name, write_text_atomic, writing
from ..measure.losses import FILE, losses_weights, store_losses
from ..measure.metrics import check_metrics
from ..measure.training import best_epoch
from ..progress import say
from ..train import Run, hashes, load_run
from ..train.checkpoint import Checkpoints, lines_of, read_state, resume_from
from ..train.evaluate import (
    EVALUATIONS,
    EvaluateOptions,
    append_evaluation,
    evaluate_run,
    read_evaluations,
)
from ..train.run import same_but_seed, weights_hash
from ..train.world import World, choose_device
from .bench import MEASURED, Bench, measured_weights, store_measurements, store_text
from .needs import PAPER, Scale, epochs_of
from .sections import MEASUREMENTS

WORDS = ("environment.json", "log.txt")
FILES = ("config.yaml", "DONE", "tokenizer.json", *WORDS, FILE, MEASURED)
WEIGHTS, KERNEL, STATE = "best.safetensors", "kernel", "last"
ELSEWHERE = "choose another --results"
STEPS = 2000
"""Of the lines that say how a step went, one in so many steps is kept."""
EPOCHS = (1, 2, 5, 11, 20, 30, 50)
"""Epochs whose coupling kernel is kept, besides the best."""


def archive_run(
    folder: Path,
    results: Path,
    name: str | None = None,
    resume_state: bool = False,
    weights: bool = False,
) -> Path:
    """Copy what is worth keeping of a run folder to ``results/NAME``; a later state of a run replaces an earlier one.

    Only plain files are copied: a link is left where it is. Paths in log and environment keep their last part
    only: what lay around it is nobody's business.
    """
    if name is not None and not is_plain_name(name):
        raise UserError(
            f"--name {name!r} is no plain name; give one without slashes, as of a folder in {results}"
        )
    run = load_run(folder)
    check_metrics(run)
    if not run.epochs and not run.warnings:
        raise UserError(f"{folder} has no finished epoch yet; archive it when it has one")
    target = results / (run.folder.resolve().name if name is None else name)
    _check_target(run, target)
    weights |= (target / WEIGHTS).exists() and (run.folder / WEIGHTS).exists()  # an archive keeps what it had
    resume_state |= (target / STATE).exists() and (run.folder / STATE).exists()
    for wanted, file in ((resume_state, STATE), (weights, WEIGHTS)):
        if wanted and not (run.folder / file).exists():
            raise UserError(f"{folder} has no {file}; archive it without asking for that")
    check_writable(results, ELSEWHERE)
    results.mkdir(parents=True, exist_ok=True)
    with (
        writing(target, ELSEWHERE),
        tempfile.TemporaryDirectory(dir=results, prefix=".archive-") as scratch,
    ):
        copy = Path(scratch) / "run"
        _copy(run, copy, (*FILES, *([WEIGHTS] if weights else []), *([STATE] if resume_state else [])))
        _keep_measurements(target, copy, weights_hash(run.folder))
        _put(copy, target, Path(scratch) / "before")
    return target


def _copy(run: Run, copy: Path, names: tuple[str, ...]) -> None:
    """The thin form of a run in a new folder, with hashes."""
    copy.mkdir()
    epochs = (*EPOCHS, best_epoch(run)) if epochs_of(run) else EPOCHS
    kernels = {f"epoch-{epoch:04d}.safetensors" for epoch in epochs}
    checkpoints = Checkpoints(run.folder / STATE).names() if STATE in names else []
    before = lines_of(read_state(run.folder / STATE / checkpoints[0])) if checkpoints else {}
    lines: dict[str, hashes.Entry] = {}
    for file in _files(run.folder):
        place = file.relative_to(run.folder)
        if place.parts[0] == STATE and place.parent.name in checkpoints[1:]:
            continue  # the newest is all that a resume needs
        first, target = place.parts[0], copy / place
        if first not in (*names, *hashes.GROWING) and not (first == KERNEL and place.name in kernels):
            continue
        if file.is_symlink():
            raise UserError(f"{file} is a symbolic link; an archive takes only files of the run itself")
        target.parent.mkdir(parents=True, exist_ok=True)
        if first in ("log.txt", STATE):  # checkpoints carry their own hashes
            shutil.copyfile(file, target)
            continue
        data = hashes.read(run.folder, place.as_posix())  # what is hashed below was right until now
        if first in hashes.GROWING:
            cut, _ = before.get(first, (0, None))
            done, later = (b"".join(_thinned(part.splitlines(True))) for part in (data[:cut], data[cut:]))
            lines[first] = (len(done), hashes.sha256(done))
            data = done + later
        target.write_bytes(data)
    if checkpoints:
        resume_from(copy / STATE / checkpoints[0], lines)
    for text in WORDS:
        if (copy / text).is_file():
            _without_folders(copy / text, run.folder)
    hashes.hash_files(copy)


def _keep_measurements(before: Path, copy: Path, weights: str | None) -> None:
    """What was measured for an earlier archive of the run, if it was measured on the weights that it has now."""
    for name, measured_on in ((FILE, losses_weights), (MEASURED, measured_weights)):
        if weights is not None and not (copy / name).exists() and measured_on(before) == weights:
            (copy / name).write_bytes(hashes.read(before, name))
            hashes.add(copy, name)


def _files(folder: Path) -> Iterator[Path]:
    """Every file below a folder, and every link, which is not followed."""
    return (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())


def _thinned(lines: list[bytes]) -> Iterator[bytes]:
    """All lines of metrics but most of those that only say how a step went; the last one stays."""
    for number, line in enumerate(lines, 1):
        entry = json.loads(line)
        if entry.get("kind") != "step" or entry.get("step", 0) % STEPS == 0 or number == len(lines):
            yield line


def _put(copy: Path, target: Path, before: Path) -> None:
    """Put ``copy`` in the place of ``target``, which goes to ``before``, and comes back if that fails."""
    if target.exists():
        target.rename(before)
    try:
        copy.rename(target)
    except OSError:
        with contextlib.suppress(OSError):
            before.rename(target)
        raise


def _check_target(run: Run, target: Path) -> None:
    if not target.exists():
        return
    if target.resolve() == run.folder.resolve():
        raise UserError(f"{target} is the archive itself; give the folder of the run")
    before = load_run(target)
    if not same_but_seed(run.config, before.config) or run.recipe.seed != before.recipe.seed:
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


def add_measurements(
    target: Path, source: Path, scale: Scale = PAPER, device: str = "auto", cache: Path | None = None
) -> list[str]:
    """Measure the best weights of the run ``source`` and keep what the page shows of them in its archive ``target``.

    Returns the names of the files that were written; none for a run that no table shows: on another text, with
    other windows, or begun with the weights of another.
    """
    bench = Bench.open([source], scale, device=device, cache=cache, fetch=True)
    if len(bench.found) != 1 or (weights := weights_hash(source)) is None:
        return []
    run, results = bench.found[0], target.parent
    role = scale.role_of(run.config["corpus"])
    if role is None or run.recipe.length != 256:
        return []
    written = [FILE]
    with writing(target, ELSEWHERE):
        bits = bench.losses(run, role)
        store_losses(target, weights, bench.corpus(role).sha256, bench.battery(role), bits)
        store_text(results, bench.corpus_name(role), bench.text(role))
        asked = [name for name, (*_, needs) in MEASUREMENTS.items() if bench.serves(run, needs)]
        if asked:
            store_measurements(target, weights, {name: bench.measured(run, name) for name in asked})
            written.append(MEASURED)
        for name in written:
            hashes.add(target, name)
    return written


def add_evaluations(target: Path, source: Path, device: str = "auto") -> Path:
    """Put the losses of a run's best weights, under the name of its archive, into the file beside the archives.

    Those on the test split and in windows four times as long are left out where the text has none.
    """
    run, where, file = load_run(source), choose_device(device), target.parent / EVALUATIONS
    read_evaluations(file)  # nothing is measured that could not be kept
    longer = EvaluateOptions(length=4 * run.recipe.length)
    for asked in (EvaluateOptions(), EvaluateOptions(split="test"), longer):
        try:
            _, line = evaluate_run(run, where, asked)
        except UserError as error:
            if asked == EvaluateOptions():
                raise
            say(f"left out: {error}")
            continue
        append_evaluation(file, target.name, run, World(device=where), line)
    return file
