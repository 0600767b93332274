"""What an instrument is given and what it returns; how it becomes known.

An instrument is one file of this folder. It measures, and ends with a function that looks at one run:

    @instrument("lesions", applies=has_coupling)
    def inspect(subject: Subject) -> Finding: ...

No list names it: :func:`instruments` imports every file here, and ``fsn inspect`` uses all that apply.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from ..data import Corpus
from ..errors import UserError
from ..models import FSNConfig, LanguageModel
from ..train.run import Run
from .metrics import check_comparable, check_corpus
from .tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .copy_depth import Battery


@dataclass(frozen=True)
class Finding:
    """What an instrument found: a sentence, tables and figures by file name."""

    title: str
    sentence: str
    tables: Mapping[str, Table]
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """One run to be looked at, and maybe another ``against`` which it is compared; what is costly is made once."""

    run: Run
    corpus: Corpus
    against: Run | None = None
    which: Literal["best", "last"] = "best"
    windows: int = 256
    device: str | torch.device = "cpu"

    def __post_init__(self) -> None:
        if self.windows < 4:
            raise UserError(f"{self.windows} windows are too few to say anything; give at least 4")
        check_corpus(self.run, self.corpus)
        if self.against is not None:
            check_comparable([self.run, self.against])

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def other(self) -> str:
        """The name of the second run, which differs from the first's."""
        assert self.against is not None
        return self.against.name if self.against.name != self.name else f"{self.name} (other)"

    @cached_property
    def models(self) -> dict[str, LanguageModel]:
        """The run's model by its name; after it the best weights of the other run, if there is one."""
        found = {self.name: self.run.load_model(self.which, self.device)}
        if self.against is not None:
            found[self.other] = self.against.load_model("best", self.device)
        return found

    @cached_property
    def battery(self) -> Battery:
        """Validation windows, and a quarter as many again where the text repeats itself most."""
        from .copy_depth import battery, label_corpus

        recipe = self.run.recipe
        labels = label_corpus(self.corpus, "valid", recipe.length, recipe.eval_stride)
        end = self.corpus.document_end(recipe.separate_documents)
        return dataclasses.replace(battery(labels, self.windows, self.windows // 4), end=end)


def has_coupling(run: Run) -> bool:
    """Whether the run's model is of the FSN family."""
    return isinstance(run.model_config, FSNConfig)


Inspect = Callable[[Subject], Finding]
_KNOWN: dict[str, tuple[Inspect, Callable[[Run], bool]]] = {}


def instrument(name: str, applies: Callable[[Run], bool] = lambda run: True) -> Callable[[Inspect], Inspect]:
    """Make a function from a subject to a finding known under ``name``; ``applies`` says whether a run has what it
    measures."""

    def register(inspect: Inspect) -> Inspect:
        _KNOWN[name] = (inspect, applies)
        return inspect

    return register


def instruments() -> list[str]:
    """The names of all instruments in this folder."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")
    return sorted(_KNOWN)


def applicable(run: Run, names: Sequence[str] = ()) -> list[str]:
    """Which instruments of these names (of all, without names) apply to a run."""
    known = instruments()
    for name in names:
        if name not in known:
            raise UserError(f"there is no instrument {name!r}; choose among {', '.join(known)}")
    return [name for name in known if (name in names or not names) and _KNOWN[name][1](run)]


def inspect_run(subject: Subject, names: Sequence[str] = ()) -> dict[str, Finding]:
    """What every instrument that applies found, by its name."""
    return {name: _KNOWN[name][0](subject) for name in applicable(subject.run, names)}
