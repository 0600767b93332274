"""The workbench: the runs an item or a claim asks for, the texts, and everything measured on them, once.

What ``results/`` keeps of texts and weights, so that the page needs neither of them:

results/texts/NAME.npz      the copy-depth battery of a text, the share of deep targets, its first training windows
results/RUN/measured.json   what was measured on a run's best weights: gates, states, attention, lesions
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .. import measure
from ..data import Corpus, Windows
from ..errors import UserError
from ..io import atomic_file, write_text_atomic
from ..measure import BINS, Battery, DepthProfile, KernelReading, Looks, Table, bin_name, weights_hash
from ..train import Run
from ..train.world import choose_device
from .needs import (
    CODE_FSN,
    CODE_NO_PHASES,
    CODE_TRANSFORMER,
    FSN_CONVERGED,
    KURAMOTO,
    NO_PHASES,
    REFERENCE,
    Library,
    Need,
    Scale,
    Standing,
    epochs_of,
    setting_of,
)

T = TypeVar("T")
Measured = TypeVar("Measured", Table, Looks, DepthProfile)
TEXTS, MEASURED = "texts", "measured.json"
ARRAYS, NUMBERS = ("windows", "enriched", "depth", "distance"), ("length", "stride")
"""What is kept of a battery; the paper's texts have no documents to keep apart."""
FAMILIES: dict[str, dict[str, Need]] = {
    "text": {"Base layer": KURAMOTO.best, "FSN": FSN_CONVERGED.best, "No phases": NO_PHASES.best},
    "code": {"FSN": CODE_FSN.best, "No phases": CODE_NO_PHASES.best},
}
"""The models of the copy-depth tables."""
REFERENCES: dict[str, Need] = {"text": REFERENCE.best, "code": CODE_TRANSFORMER.best}
"""What they are measured against: on text one converged transformer, on code the mean of three."""
BIN_NAMES = [bin_name(edges) for edges in BINS]
DEEP_BINS = [bin_name(edges) for edges in BINS if edges[0] >= 4]
START_WINDOWS = 16
"""Windows of the training text that are kept beside the runs."""
SHALLOW_BINS = [name for name in BIN_NAMES if name not in DEEP_BINS]


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


def store_text(results: Path, name: str, text: Text) -> Path:
    """Write ``results/texts/NAME.npz``."""
    parts: dict[str, NDArray[Any]] = {
        name: np.asarray(getattr(text.battery, name)) for name in (*ARRAYS, *NUMBERS)
    }
    parts |= {"deep_share": np.asarray(text.deep_share), "vocab_size": np.asarray(text.vocab_size)}
    parts |= {"start": text.start.numpy(), "sha256": np.frombuffer(text.sha256.encode(), np.uint8)}
    path = results / TEXTS / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        np.savez_compressed(file, **parts)  # type: ignore[arg-type]
    return path


def stored_text(roots: Iterable[Path], name: str) -> Text | None:
    """The text kept below one of these folders, if there is one."""
    for path in (Path(root) / TEXTS / f"{name}.npz" for root in roots):
        if not path.is_file():
            continue
        try:
            with np.load(path, allow_pickle=False) as kept:
                found = {key: kept[key] for key in kept.files}
            battery = Battery(*(found[name] for name in ARRAYS), *(int(found[name]) for name in NUMBERS))
            text = found["sha256"].tobytes().decode("ascii")
            start = torch.from_numpy(found["start"])
            return Text(text, int(found["vocab_size"]), battery, float(found["deep_share"]), start)
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise UserError(f"{path} cannot be read ({error}); restore it, or delete it") from None
    return None


def store_measurements(folder: Path, weights: str, found: Mapping[str, Any]) -> None:
    """Write ``measured.json`` into a run folder: tables, looks and depth profiles of these weights, by name."""
    plain = {name: _plain(one) for name, one in found.items()}
    write_text_atomic(folder / MEASURED, json.dumps({"weights": weights, **plain}, indent=1) + "\n")


def stored_measurement(run: Run, name: str, kind: type[Measured]) -> Measured | None:
    """What was measured on a run's best weights, if it was kept and belongs to them."""
    try:
        kept = json.loads((run.folder / MEASURED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or weights_hash(run.folder) not in (None, kept.get("weights")):
        return None
    data = kept.get(name)
    if not isinstance(data, dict):
        return None
    try:
        fields = {key: value for key, value in data.items() if key in kind.__dataclass_fields__}
        if kind is Looks:
            fields |= {"offsets": tuple(fields["offsets"]), "weights": np.array(fields["weights"])}
        return kind(**fields)
    except (KeyError, TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Dataclasses, arrays and numbers as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


# -- the bench --------------------------------------------------------------------------------------------


class NotRun(UserError):
    """A statement that cannot be judged yet, because runs it rests on do not exist."""


@dataclass
class Bench:
    """Runs, texts and measurements, each made once."""

    library: Library
    device: str = "auto"
    cache: Path | None = None
    fetch: bool = False
    """Whether a corpus that is not at hand may be fetched."""
    early: int = 0
    """If not zero, a run of this many epochs serves where more are asked for."""
    _made: dict[Any, Any] = field(default_factory=dict)

    @property
    def scale(self) -> Scale:
        return self.library.scale

    def from_epoch(self, epochs: int) -> Bench:
        """The same bench, on which runs of this many epochs serve where more are asked for."""
        return dataclasses.replace(self, early=epochs)

    def stand_in(self, roles: Iterable[str]) -> str:
        """Which texts are not the paper's own, in words; nothing where all are."""
        return "; ".join(
            f"on {self.library.corpus_said(r)}" for r in sorted(roles) if self.library.stands_in(r)
        )

    def memo(self, key: Any, make: Callable[[], T], of_runs: bool = False) -> T:
        """``make()``, once for each key; an error is made once too. ``of_runs``: it depends on which runs serve."""
        key = (key, self.early if of_runs else 0)
        if key not in self._made:
            try:
                self._made[key] = (True, make())
            except UserError as error:
                self._made[key] = (False, error)
        fine, value = self._made[key]
        if not fine:
            raise value
        kept: T = value
        return kept

    # -- runs ----------------------------------------------------------------------------------------------

    def epoch(self, epochs: int) -> int:
        """The paper's epoch at this scale."""
        return self.scale.epochs(epochs)

    def standing(self, needs: Sequence[Need]) -> Standing:
        return self.library.standing(needs)

    def by_seed(self, need: Need) -> dict[int, Run]:
        """The runs that are there, by seed."""
        found = {seed: self.library.reached(need, seed) for seed in self.scale.seeds(need)}
        if 0 < self.early < need.epochs and not any(found.values()):
            found = {seed: self.library.reached(need.after(self.early), seed) for seed in found}
        return {seed: run for seed, run in found.items() if run is not None}

    def runs(self, need: Need) -> list[Run]:
        """The runs that are there, at least one; :class:`NotRun` says what to train otherwise."""
        found = list(self.by_seed(need).values())
        if not found:
            raise NotRun(f"missing: {self.standing([need]).absent()}")
        measure.check_comparable(found)
        return found

    def every(self, need: Need) -> list[Run]:
        """The runs of every seed; :class:`NotRun` where one is not there."""
        found, asked = self.runs(need), len(self.scale.seeds(need))
        if len(found) < asked:
            raise NotRun(f"needs all {asked} seeds of {need.model}, and {len(found)} are there")
        return found

    def run(self, need: Need) -> Run:
        """The one run of a need with one seed."""
        return self.runs(need)[0]

    def begun(self, need: Need) -> list[Run]:
        """The runs that are there or on their way, as far as they are."""
        found = [self.library.find(need, seed) for seed in self.scale.seeds(need)]
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

    def corpus(self, role: str) -> Corpus:
        """The text of a role. It is fetched only if that was allowed."""
        name = self.library.corpus_name(role)
        if not self.fetch and not self.scale.at_hand(name, self.cache):
            raise NotRun(f"the text {name} is not here; --fetch gets it")
        return self.memo(("corpus", role), lambda: self.scale.load(name, self.cache))

    def text(self, role: str) -> Text:
        """What tables read of a role's text: as it was kept beside the runs, else from the text itself."""
        return self.memo(("text", role), lambda: self._stored_text(role) or self._measured_text(role))

    def _stored_text(self, role: str) -> Text | None:
        kept = stored_text(self.library.roots, self.library.corpus_name(role))
        runs = [run for run in self.library.runs if self.scale.role_of(run.config["corpus"]) == role]
        if kept is None or any(run.config["corpus"]["sha256"] != kept.sha256 for run in runs):
            return None
        asked = (self.scale.length(256), self.scale.depth_stride, self.scale.standard, self.scale.enriched)
        found, extra = kept.battery, int(kept.battery.enriched.sum())
        return kept if asked == (found.length, found.stride, len(found.windows) - extra, extra) else None

    def _measured_text(self, role: str) -> Text:
        corpus, length, stride = self.corpus(role), self.scale.length(256), self.scale.depth_stride
        labels = measure.label_corpus(corpus, "valid", length, stride, cache=self.cache)
        windows = Windows(corpus.train, 256, 256)
        start = windows.gather(torch.arange(min(START_WINDOWS, len(windows)))).to(torch.uint8)
        battery = measure.battery(labels, self.scale.standard, self.scale.enriched)
        return Text(corpus.sha256, corpus.vocab_size, battery, labels.share(24), start)

    def battery(self, role: str) -> Battery:
        """The standard and the enriched slice of a role's text."""
        return self.text(role).battery

    # -- single runs ---------------------------------------------------------------------------------------

    def losses(self, run: Run, role: str) -> NDArray[np.float32]:
        """Bits of every target of the battery under a run's best weights."""

        def make() -> NDArray[np.float32]:
            kept = measure.stored_losses(run, self.battery(role))
            if kept is not None:
                return kept
            device = choose_device(self.device)
            return measure.run_losses(
                run, self.corpus(role), self.battery(role), device=device, cache=self.cache
            )

        return self.memo(("losses", run.folder), make)

    def model(self, run: Run) -> nn.Module:
        return self.memo(("model", run.folder), lambda: run.load_model("best"))

    def reading(self, run: Run) -> KernelReading:
        """The kernel of a run's best weights, from them or from what was kept of that epoch."""

        def make() -> KernelReading:
            if weights_hash(run.folder) is not None:
                return measure.read_kernel(self.model(run), run.name)
            best = measure.best_epoch(run).epoch
            kept = next((model for epoch, model in run.kernels() if epoch == best), None)
            if kept is None:
                raise NotRun(f"{run.name} has neither weights nor the kernel of its best epoch, {best}")
            return measure.read_kernel(kept, run.name)

        return self.memo(("kernel", run.folder), make)

    def history(self, run: Run) -> list[KernelReading]:
        """The kernel at the start, after every epoch that was kept, and as trained."""
        return self.memo(("history", run.folder), lambda: measure.through_training(run, self.reading(run)))

    def measured(
        self, run: Run, name: str, kind: type[Measured], measure: Callable[[], Measured]
    ) -> Measured:
        """What was measured on a run's best weights: as it was kept beside it, else measured now."""

        def make() -> Measured:
            kept = stored_measurement(run, name, kind)
            return measure() if kept is None else kept

        return self.memo((name, run.folder), make)

    # -- copy depth ----------------------------------------------------------------------------------------

    def reference(self, role: str) -> NDArray[np.float64]:
        """Loss of every target under the reference: one run, or the mean of several."""
        runs = self.runs(REFERENCES[role])
        return self.memo(
            ("reference", role),
            lambda: np.mean([self.losses(run, role).astype(np.float64) for run in runs], axis=0),
            of_runs=True,
        )

    def against(self, role: str, runs: Mapping[str, Run], base: NDArray[Any]) -> Table:
        """Margins by bin, one row per run and bin, against the losses ``base`` of every target."""
        losses = {name: self.losses(run, role) for name, run in runs.items()}
        return measure.margin_table(losses, base, self.battery(role), resamples=self.scale.cluster_resamples)

    def seed_names(self, role: str, family: str) -> dict[str, Run]:
        """A family's runs by their names in the margins table: ``"FSN, s0"``."""
        return {f"{family}, s{seed}": run for seed, run in self.by_seed(FAMILIES[role][family]).items()}

    def margins(self, role: str) -> Table:
        """Margins against the reference, one row per run and bin, of every family that has runs."""

        def make() -> Table:
            runs = {k: v for family in FAMILIES[role] for k, v in self.seed_names(role, family).items()}
            return self.against(role, runs, self.reference(role))

        return self.memo(("margins", role), make, of_runs=True)

    def cell(self, role: str, run: str, name: str) -> Mapping[str, float]:
        """The row of one run and bin."""
        return cell(self.margins(role), run, name)

    def seed_margins(self, role: str, family: str, name: str) -> measure.SeedSummary:
        """Mean, deviation and extremes over seeds of the margin on one bin."""
        self.runs(FAMILIES[role][family])
        seeds = self.seed_names(role, family)
        return measure.seed_summary([self.cell(role, run, name)["margin"] for run in seeds])

    def curve(self, family: str, role: str = "text") -> measure.DepthCurve:
        """Seed-mean margin of a family at every exact depth."""
        runs = self.runs(FAMILIES[role][family])
        return self.memo(
            ("curve", role, family),
            lambda: measure.depth_curve(
                [self.losses(run, role) for run in runs],
                self.reference(role),
                self.battery(role),
                self.scale.position_resamples,
            ),
            of_runs=True,
        )


def cell(table: Table, run: str, name: str) -> Mapping[str, float]:
    """The row of one run and bin in a table of margins."""
    return table.where(run=run, bin=name).rows[0]
