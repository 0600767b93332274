"""The workbench: the runs an item or a claim asks for, the texts, and everything measured on them, once.

What ``results/`` keeps of texts and weights, so that the page needs neither of them:

results/texts/NAME.npz      the copy-depth battery of a text, the share of deep targets, its first training windows
results/RUN/measured.json   what was measured on a run's best weights: gates, states, attention, lesions
results/evaluations.jsonl   a line for each loss of a run's weights on a whole split, in float32
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from ..data import Corpus
from ..data.cache import cache_folder
from ..errors import UserError
from ..io import atomic_file, write_text_atomic
from ..measure import copy_depth, coupling, losses
from ..measure.copy_depth import BINS, Battery, bin_name
from ..measure.coupling import KernelReading
from ..measure.looks import Looks
from ..measure.metrics import (
    check_comparable,
    check_metrics,
    diverged_at,
    first_epochs,
    median_epoch,
    valid_bits,
)
from ..measure.seeds import ADDED, rounded
from ..measure.states import first_windows
from ..measure.tables import Table
from ..measure.training import best_epoch
from ..models import LanguageModel
from ..report.html import plain
from ..train import Run, load_run
from ..train.evaluate import best_loss
from ..train.run import folders_below, weights_hash
from ..train.sweep import Job
from ..train.world import choose_device
from .needs import PAPER, SAME_RECIPE, Need, Scale, epochs_of, setting_of

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
TEXTS, MEASURED = "texts", "measured.json"
ARRAYS, NUMBERS = ("windows", "enriched", "depth", "distance"), ("length", "stride")
"""What is kept of a battery; the paper's texts have no documents to keep apart."""
BIN_NAMES = [bin_name(edges) for edges in BINS]
START_WINDOWS = 16
"""Windows of the training text that are kept beside the runs."""


@dataclass(frozen=True)
class Text:
    """What the page reads of a text."""

    sha256: str
    vocab_size: int
    battery: Battery
    deep_share: float
    """Share of validation targets of copy depth 24 and more."""
    start: torch.Tensor
    """The first training tokens, (windows, length)."""


def store_text(results: Path, name: str, text: Text) -> None:
    """Write ``results/texts/NAME.npz``."""
    parts = {name: getattr(text.battery, name) for name in (*ARRAYS, *NUMBERS)}
    parts |= {"deep_share": text.deep_share, "vocab_size": text.vocab_size, "start": text.start.numpy()}
    parts["sha256"] = np.frombuffer(text.sha256.encode(), np.uint8)
    path = results / TEXTS / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        np.savez_compressed(file, **parts)


def stored_text(roots: Iterable[Path], name: str) -> Text | None:
    """The text kept below one of these folders, if there is one."""
    path = next((path for root in roots if (path := root / TEXTS / f"{name}.npz").is_file()), None)
    if path is None:
        return None
    try:
        with np.load(path, allow_pickle=False) as kept:
            battery = Battery(*(kept[name] for name in ARRAYS), *(int(kept[name]) for name in NUMBERS))
            sha256, start = kept["sha256"].tobytes().decode("ascii"), torch.from_numpy(kept["start"])
            return Text(sha256, int(kept["vocab_size"]), battery, float(kept["deep_share"]), start)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or delete it") from None


def store_measurements(folder: Path, weights: str, found: Mapping[str, Any]) -> None:
    """Write ``measured.json`` into a run folder: tables, looks and depth profiles of these weights, by name."""
    kept = plain({"weights": weights, **found})
    write_text_atomic(folder / MEASURED, json.dumps(kept, indent=1) + "\n")


def measured_weights(folder: Path) -> str | None:
    """The sha256 of the weights that a folder's measurements are those of; None where there are none."""
    try:
        return str(json.loads((folder / MEASURED).read_text(encoding="utf-8"))["weights"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stored_measurement(run: Run, name: str, kind: type[Any]) -> Any:
    """What was measured on a run's best weights, if it was kept and belongs to them."""
    try:
        kept = json.loads((run.folder / MEASURED).read_text(encoding="utf-8"))
        if weights_hash(run.folder) not in (None, kept["weights"]):
            return None
        fields = {key: value for key, value in kept[name].items() if key in kind.__dataclass_fields__}
        if kind is Looks:
            fields |= {"offsets": tuple(fields["offsets"]), "weights": np.array(fields["weights"])}
        return kind(**fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# -- the bench --------------------------------------------------------------------------------------------


class NotRun(UserError):
    """A statement that cannot be judged yet, because runs it rests on do not exist."""


def once(*views: str) -> Callable[[F], F]:
    """Make what a function of a bench returns only once; for each of its ``views`` once, if it depends on which runs
    serve (``"early"``) or on their curves (``"lower"``)."""

    def wrap(make: F) -> F:
        @functools.wraps(make)
        def made(bench: Bench, /, *args: Any) -> Any:
            plain = ((one.folder, len(one.metrics)) if isinstance(one, Run) else one for one in args)
            key = (make.__qualname__, *plain, *(getattr(bench, view) for view in views))
            if key not in bench._made:
                bench._made[key] = make(bench, *args)
            return bench._made[key]

        return cast(F, made)

    return wrap


@dataclass
class Bench:
    """Runs, texts and measurements, each made once. Runs are recognised by their config; their names mean nothing."""

    scale: Scale
    device: str = "auto"
    cache: Path | None = None
    fetch: bool = False
    """Whether a corpus that is not at hand may be fetched."""
    early: int = 0
    """If not zero, a run of this many epochs serves where more are asked for."""
    lower: bool = False
    """See :meth:`lowered`."""
    roots: tuple[Path, ...] = ()
    found: list[Run] = field(default_factory=list)
    """Every run on the paper's texts below the roots; those that cannot be used are ``refused`` with a reason."""
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """The corpus that serves in each role."""
    _made: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        roots: Sequence[str | os.PathLike[str]],
        scale: Scale = PAPER,
        prefer: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Bench:
        """Read every run folder below ``roots``; ``prefer`` names the corpus of a role where several serve."""
        bench = cls(scale, names=dict(prefer or {}), roots=tuple(map(Path, roots)), **options)
        candidates: dict[str, list[Run]] = {}
        for folder in (folder for root in roots for folder in folders_below(Path(root))):
            try:
                run = load_run(folder)
                role = scale.role_of(run.config["corpus"])
                if role is None or "begin_with" in run.config:  # the paper's runs begin with new weights
                    continue
                check_metrics(run)
                if run.model_config is not None and run.recipe is not None:
                    candidates.setdefault(role, []).append(run)
            except UserError as error:
                bench.refused.append(str(error))
            except (KeyError, TypeError, AttributeError) as error:
                bench.refused.append(
                    f"{folder} cannot be read by this version of fsn ({type(error).__name__}: {error})"
                )
        for role, runs in candidates.items():
            bench._settle(role, runs)
        return bench

    def _settle(self, role: str, runs: list[Run]) -> None:
        """Keep the runs of one text: losses on different texts cannot stand in one table."""
        order, asked = self.scale.corpora[role], self.names.get(role)
        texts = {str(run.config["corpus"]["sha256"]): run.config["corpus"]["name"] for run in reversed(runs)}
        counts = Counter(str(run.config["corpus"]["sha256"]) for run in runs)

        def rank(sha256: str) -> tuple[int, int]:
            name = texts[sha256]
            return counts[sha256], -(order.index(name) if name in order else len(order))

        chosen = max((text for text in counts if asked in (None, texts[text])), key=rank, default="")
        for run in runs:
            corpus = run.config["corpus"]
            if corpus["sha256"] == chosen:
                self.found.append(run)
                self.names[role] = texts[chosen] if texts[chosen] in order else order[0]
            else:
                self.refused.append(
                    f"{run.folder} was trained on another text ({corpus['name']}, sha256 "
                    f"{str(corpus['sha256'])[:8]}) than the other {role} runs; it is left out"
                )
        if self.stands_in(role):
            self.notes.append(
                f"Code is {self.names[role]}, which stands in for the paper's {order[0]}: "
                "levels of loss differ with the text, comparisons between models remain."
            )

    def corpus_name(self, role: str) -> str:
        """The corpus of a role, whether or not it has runs."""
        return self.names.get(role, self.scale.corpora[role][0])

    def stands_in(self, role: str) -> bool:
        """Whether the corpus of a role is not the paper's own."""
        return self.corpus_name(role) != self.scale.corpora[role][0]

    def corpus_said(self, role: str) -> str:
        """The corpus of a role, and what it stands in for."""
        own = f" in place of {self.scale.corpora[role][0]}" if self.stands_in(role) else ""
        return self.corpus_name(role) + own

    def matching(self, need: Need, seed: int) -> list[Run]:
        """The runs of this model, recipe, text and seed, the furthest first; of equals that with the better curve, then
        that in ``results``."""
        return sorted(
            (run for run in self.found if self._is(run, need, seed)),
            key=lambda run: (-epochs_of(run), rounded(run), "results" not in run.folder.parts, run.name),
        )

    def _is(self, run: Run, need: Need, seed: int) -> bool:
        if run.recipe.seed != seed or self.scale.role_of(run.config["corpus"]) != need.role:
            return False
        wanted = self.scale.recipe(need, seed)
        if any(getattr(run.recipe, name) != getattr(wanted, name) for name in SAME_RECIPE):
            return False
        return bool(run.model_config == self.scale.config(need, run.model_config.vocab_size))

    def serves(self, run: Run, needs: Iterable[Need]) -> bool:
        """Whether a run is one of some needs, however far it got."""
        return any(self._is(run, need, seed) for need in needs for seed in need.seeds)

    def find(self, need: Need, seed: int) -> Run | None:
        """The best run for one seed, whether or not it has got far enough."""
        return next(iter(self.matching(need, seed)), None)

    def reached(self, need: Need, seed: int) -> Run | None:
        """A run that has the epochs asked for, or that diverged on the way there, as it stood then."""
        wanted, speed = self.epoch(need.epochs), need.reads == "speed"
        runs = self.matching(need, seed)
        if speed:  # that which shared its device least
            runs.sort(key=lambda run: np.nan_to_num(median_epoch(run), nan=np.inf))
        for run in runs:
            if need.reads == "weights" and epochs_of(run) > wanted and best_epoch(run) > wanted:
                continue
            if epochs_of(run) >= wanted or diverged_at(run) is not None:
                return run if speed else first_epochs(run, wanted)
        return None

    def used(self, needs: Iterable[Need]) -> list[Run]:
        """Every run that serves one of the needs, once."""
        return list({run.folder: run for need in needs for run in self.by_seed(need).values()}.values())

    def lowered(self) -> Bench | None:
        """This bench with curves of rounded coherences lower by all that rounding may have added: what comes out
        otherwise there rests on them. ``None`` where there are no such curves."""

        def lower(line: dict[str, Any]) -> dict[str, Any]:
            names = ("valid_bits", "valid_bits_second_half")
            return line | {name: line[name] - ADDED[1] for name in names if line.get(name) is not None}

        if self.lower or not any(map(rounded, self.found)):
            return None
        runs = [replace(r, metrics=[*map(lower, r.metrics)]) if rounded(r) else r for r in self.found]
        return replace(self, found=runs, lower=True)

    @once()
    def evaluated(self, run: Run) -> float | None:
        """The float32 loss of a run's best weights on the validation split, where it is known."""
        return best_loss(run)

    def lowest(self, run: Run) -> float:
        """The lowest validation loss of a run; of a rounded curve the float32 loss of these weights, where it is known;
        ``nan`` where no loss was finite."""
        curve = min((x for x in valid_bits(run) if math.isfinite(x)), default=math.nan)
        whole = next((one for one in self.found if one.folder == run.folder), run)
        if not rounded(run) or math.isnan(curve) or best_epoch(run) != best_epoch(whole):
            return curve
        found = self.evaluated(run)
        return curve if found is None else found

    def standing(self, needs: Iterable[Need]) -> Standing:
        """Which of the runs are there; a run that several needs ask for counts once, at its most epochs."""
        wanted: dict[Need, int] = {}
        for need in needs:
            for seed in need.seeds:
                key = replace(need, seeds=(seed,), epochs=0, reads="curve")
                wanted[key] = max(wanted.get(key, 0), need.epochs)
        standing = Standing(self)
        for key, epochs in wanted.items():
            need = key.after(epochs)
            if self.reached(need, need.seeds[0]) is not None:
                standing.there.append(need)
            else:
                standing.rest.append((need, self.find(need, need.seeds[0])))
        return standing

    def stand_in(self, roles: Iterable[str]) -> str:
        """Which texts are not the paper's own, in words; nothing where all are."""
        return "; ".join(f"on {self.corpus_said(r)}" for r in sorted(roles) if self.stands_in(r))

    # -- runs ----------------------------------------------------------------------------------------------

    def in_hand(self, members: Mapping[str, Sequence[Need]]) -> list[str]:
        """Those of several models, or pairs of models, that have runs: at least one. A sentence about all of them is
        judged on these, so far."""
        found = [name for name, needs in members.items() if all(map(self.by_seed, needs))]
        if not found:
            missing = self.standing(need for needs in members.values() for need in needs).absent()
            raise NotRun(f"missing: {missing}")
        return found

    def epoch(self, epochs: int) -> int:
        """The paper's epoch at this scale."""
        return self.scale.epochs(epochs)

    def by_seed(self, need: Need) -> dict[int, Run]:
        """The runs that are there, by seed."""
        found = {seed: self.reached(need, seed) for seed in need.seeds}
        if 0 < self.early < need.epochs and not any(found.values()):
            found = {seed: self.reached(need.after(self.early), seed) for seed in found}
        return {seed: run for seed, run in found.items() if run is not None}

    def runs(self, need: Need, whole: bool = False) -> list[Run]:
        """The runs that are there, at least one, or ``whole``: of every seed; :class:`NotRun` says what is missing."""
        found, asked = list(self.by_seed(need).values()), len(need.seeds)
        if not found:
            raise NotRun(f"missing: {self.standing([need]).absent()}")
        check_comparable(found)
        if whole and len(found) < asked:
            raise NotRun(f"needs all {asked} seeds of {need.model}, and {len(found)} are there")
        return found

    def run(self, need: Need) -> Run:
        """The one run of a need with one seed."""
        return self.runs(need)[0]

    def begun(self, need: Need) -> list[Run]:
        """The runs that are there or on their way, as far as they are."""
        found = [self.find(need, seed) for seed in need.seeds]
        return [run for run in found if run is not None and epochs_of(run)]

    def same_setting(self, *groups: Sequence[Run]) -> None:
        """Stop a comparison of seconds that were not measured alike."""
        settings = sorted({setting_of(run) for group in groups for run in group})
        if len(settings) > 1:
            raise NotRun(
                f"timed in different settings ({'; '.join(settings)}), so seconds cannot be compared; "
                "train these runs on one device with one precision and engine"
            )

    # -- texts ---------------------------------------------------------------------------------------------

    @once()
    def corpus(self, role: str) -> Corpus:
        """The text of a role. It is fetched only if that was allowed."""
        name = self.corpus_name(role)
        if not self.fetch and not any(cache_folder(self.cache).glob(f"{name}*")):
            raise NotRun(f"the text {name} is not here; --fetch gets it")
        return self.scale.load(name, self.cache)

    @once()
    def text(self, role: str) -> Text:
        """What tables read of a role's text: as it was kept beside the runs, else from the text itself."""
        scale = self.scale
        kept = stored_text(self.roots, self.corpus_name(role))
        texts = [text for run in self.found if scale.role_of(text := run.config["corpus"]) == role]
        if kept is not None and all(text["sha256"] == kept.sha256 for text in texts):
            found, extra = kept.battery, int(kept.battery.enriched.sum())
            asked = (256, 128, scale.standard, scale.enriched)
            if asked == (found.length, found.stride, len(found.windows) - extra, extra):
                return kept
        corpus = self.corpus(role)
        labels = copy_depth.label_corpus(corpus, cache=self.cache)
        start = first_windows(corpus.train, 256, START_WINDOWS).to(torch.uint8)
        battery = copy_depth.battery(labels, scale.standard, scale.enriched)
        return Text(corpus.sha256, corpus.vocab_size, battery, labels.share(24), start)

    def battery(self, role: str) -> Battery:
        """The standard and the enriched slice of a role's text."""
        return self.text(role).battery

    # -- single runs ---------------------------------------------------------------------------------------

    @once()
    def losses(self, run: Run, role: str) -> NDArray[np.float32]:
        """Bits of every target of the battery under a run's best weights."""
        kept = losses.stored_losses(run, self.battery(role))
        if kept is not None:
            return kept
        return losses.run_losses(run, self.corpus(role), self.battery(role), choose_device(self.device))

    @once()
    def model(self, run: Run) -> LanguageModel:
        return run.load_model("best")

    @once()
    def reading(self, run: Run) -> KernelReading:
        """The kernel of a run's best weights, from them or from what was kept of that epoch."""
        if weights_hash(run.folder) is not None:
            return coupling.read_kernel(self.model(run), run.name)
        best = best_epoch(run)
        kept = next((model for epoch, model in run.kernels() if epoch == best), None)
        if kept is None:
            raise NotRun(f"{run.name} has neither weights nor the kernel of its best epoch, {best}")
        return coupling.read_kernel(kept, run.name)

    @once()
    def history(self, run: Run) -> list[KernelReading]:
        """The kernel at the start, after every epoch that was kept, and as trained."""
        return coupling.through_training(run, self.reading(run))

    @once()
    def measured(self, run: Run, name: str) -> Any:
        """What was measured on a run's best weights: as it was kept beside it, else measured now."""
        measure, kind, _ = MEASUREMENTS[name]
        kept = stored_measurement(run, name, kind)
        return measure(self, run) if kept is None else kept

    # -- copy depth ----------------------------------------------------------------------------------------

    def against(self, role: str, runs: Mapping[str, Run], base: NDArray[Any]) -> Table:
        """Margins by bin, one row per run and bin, against the losses ``base`` of every target."""
        losses = {name: self.losses(run, role) for name, run in runs.items()}
        return copy_depth.margin_table(losses, base, self.battery(role))


MEASUREMENTS: dict[str, tuple[Callable[[Bench, Run], Any], type[Any], tuple[Need, ...]]] = {}
"""What is measured on the weights of single runs, and of which runs the page shows it."""


def measurement(name: str, kind: type[T], *needs: Need) -> Callable[..., Callable[[Bench, Run], T]]:
    """Make a function that measures a run's weights known: ``fsn archive --measure`` keeps the table, looks or depth
    profile that it returns."""

    def register(measure: Callable[[Bench, Run], T]) -> Callable[[Bench, Run], T]:
        MEASUREMENTS[name] = (measure, kind, needs)
        return lambda bench, run: bench.measured(run, name)

    return register


@dataclass
class Standing:
    """Where the runs of some needs stand, each as a need of one seed: there, begun, or missing."""

    bench: Bench
    there: list[Need] = field(default_factory=list)
    rest: list[tuple[Need, Run | None]] = field(default_factory=list)
    """What is begun, with its run, or missing, as it was asked for."""

    @property
    def begun(self) -> list[tuple[Need, Run]]:
        return [(need, run) for need, run in self.rest if run is not None]

    @property
    def complete(self) -> bool:
        return not self.rest

    @property
    def total(self) -> int:
        return len(self.there) + len(self.rest)

    def absent(self) -> str:
        """What is not there yet, in words: seeds of one model together."""
        groups: dict[tuple[Need, str], list[int]] = {}
        for need, run in self.rest:
            have = "" if run is None else f" (has {epochs_of(run)})"
            shown = replace(need, seeds=()).after(self.bench.epoch(need.epochs))
            groups.setdefault((shown, have), []).extend(need.seeds)
        return "; ".join(
            need.seed(*seeds).words(self.bench.corpus_name(need.role)) + have
            for (need, have), seeds in groups.items()
        )

    def jobs(self, runs: Path) -> list[Job]:
        """What must be trained, as runs of a sweep, in folders named by what they are; those begun in ``runs`` resume
        there."""
        found, scale = [], self.bench.scale
        for need, begun in self.rest:
            corpus, recipe = self.bench.corpus_name(need.role), scale.recipe(need, need.seeds[0])
            parts = [need.preset, *(f"{name}-{value}" for name, value in need.overrides), corpus]
            parts += [f"length{recipe.length}"] if need.length != 256 else []
            out = runs / "-".join([*parts, f"seed{recipe.seed}"])
            if begun is not None and runs.resolve() in begun.folder.resolve().parents:
                out = begun.folder
            model, extend = scale.overrides(need), begun is not None
            found.append(Job(out.name, need.preset, corpus, out, recipe, model, extend=extend))
        return found

    def bring(self, runs: Path) -> None:
        """Copy what was begun elsewhere, with all a resume needs, to where :meth:`jobs` resumes it."""
        for (_, run), job in zip(self.rest, self.jobs(runs), strict=True):
            if run is not None and not job.out.exists() and (run.folder / "last").is_dir() and epochs_of(run):
                shutil.copytree(run.folder, job.out, ignore=shutil.ignore_patterns("lock"))


def sweep_text(jobs: Sequence[Job], about: str, out: Path) -> str:
    """A sweep file of these jobs, for ``fsn sweep``."""
    lines = [f"# {about}", yaml.safe_dump({"out": str(out)}).rstrip(), "runs:" if jobs else "runs: []"]
    for job in jobs:
        named = {"name": job.name, "preset": job.preset, "corpus": job.corpus, "seed": job.recipe.seed}
        length = {"epochs": job.recipe.epochs, "length": job.recipe.length}
        whole = named | length | ({"model": dict(job.model)} if job.model else {})
        flow = yaml.safe_dump(whole, sort_keys=False, default_flow_style=True, width=math.inf)
        lines.append(f"  - {flow.rstrip()}")
    return "\n".join(lines) + "\n"


def cell(table: Table, run: str, name: str) -> Mapping[str, float]:
    """The row of one run and bin in a table of margins."""
    for row in table.where(run=run, bin=name).rows:
        return row
    raise NotRun(f"needs {run}")
