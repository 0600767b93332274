"""What ``results/`` keeps of texts and weights, so that the page needs neither of them.

results/texts/NAME.npz      the copy-depth battery of a text, the share of deep targets, its first training windows
results/RUN/measured.json   what was measured on a run's best weights: gates, states, attention, lesions
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import UserError
from ..io import atomic_file, write_text_atomic
from ..measure import Battery, DepthProfile, Looks, Table, weights_hash
from ..train import Run

TEXTS, MEASURED = "texts", "measured.json"
ARRAYS, NUMBERS = ("windows", "enriched", "depth", "distance"), ("length", "stride")
"""What is kept of a battery; the paper's texts have no documents to keep apart."""
Finding = TypeVar("Finding", Table, Looks, DepthProfile)


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


def store_findings(folder: Path, weights: str, findings: Mapping[str, Any]) -> None:
    """Write ``measured.json`` into a run folder: tables, looks and depth profiles of these weights, by name."""
    plain = {name: _plain(finding) for name, finding in findings.items()}
    write_text_atomic(folder / MEASURED, json.dumps({"weights": weights, **plain}, indent=1) + "\n")


def stored_finding(run: Run, name: str, kind: type[Finding]) -> Finding | None:
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


def _plain(finding: Any) -> Any:
    """Dataclasses, arrays and numbers as JSON has them."""
    if dataclasses.is_dataclass(finding) and not isinstance(finding, type):
        fields = {field.name: getattr(finding, field.name) for field in dataclasses.fields(finding)}
        return {name: _plain(value) for name, value in fields.items()}
    if isinstance(finding, Mapping):
        return {str(key): _plain(value) for key, value in finding.items()}
    if isinstance(finding, np.ndarray):
        return _plain(finding.tolist())
    if isinstance(finding, list | tuple):
        return [_plain(value) for value in finding]
    if isinstance(finding, np.generic):
        finding = finding.item()
    return None if isinstance(finding, float) and math.isnan(finding) else finding
