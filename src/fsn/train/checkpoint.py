"""Checkpoints from which a run goes on as if nothing had happened.

    last/
      CURRENT                 the name of the newest checkpoint, for people
      step-00001234/
        weights.safetensors   parameters and buffers
        optimizer.safetensors AdamW's moments, PyTorch's generator state
        best.safetensors      a copy of the best weights so far
        state.json            step, epoch, position, sums so far, the sha256 of the files above
        state.sha256          the sha256 of state.json

A checkpoint is written into a folder of another name, flushed to the disk, and renamed. The one before it is kept.
Weights with NaN or Inf are never written. On reading, each file must have its sha256; a damaged checkpoint is named in
a warning, and the one before it is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..checks import check
from ..errors import UserError, reason
from ..io import parse_json, read_file, sync_folder, write_bytes_atomic
from .hashes import sha256

_NAME = re.compile(r"step-\d{8,}(-evaluated)?")


@dataclass
class Checkpoint:
    """A checkpoint that was read back whole."""

    name: str
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    best: bytes | None
    """The file of the best weights so far."""
    warnings: list[str] = field(default_factory=list)


class NonFinite(UserError):
    """A loss, gradient or weight was NaN or Inf; the weights before it are kept."""


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds NaN or Inf."""
    return next((name for name, tensor in tensors if not torch.isfinite(tensor).all()), None)


def pack(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as the bytes of a safetensors file: the same tensors and metadata give the same bytes.

    The library writes metadata in a random order, so the header is written again, sorted.
    """
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    raw = safetensors.torch.save(plain, metadata)
    length = int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + raw[8 + length :]


def unpack(data: bytes, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; ``what`` names it in a sentence."""
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{what} cannot be read ({reason(error)})") from None
    return tensors, header.get("__metadata__", {})


def _signature(state: bytes) -> bytes:
    return f"{sha256(state)}  state.json\n".encode()


def read_state(checkpoint: Path) -> dict[str, Any]:
    """state.json of a checkpoint's folder, unchecked."""
    state: dict[str, Any] = parse_json(read_file(checkpoint / "state.json"), "state.json")
    return state


def lines_of(state: dict[str, Any]) -> dict[str, tuple[int, str | None]]:
    """Of each growing file, the bytes written before a checkpoint and their sha256, which older ones do not have."""
    return state["lines"] if "lines" in state else {"metrics.jsonl": (state["metrics_bytes"], None)}


def go_on_from(checkpoint: Path, lines: dict[str, tuple[int, str]]) -> None:
    """Let a copied checkpoint go on from these bytes of the growing files, which the copy has in a thinner form."""
    state = read_state(checkpoint)
    state.pop("metrics_bytes", None)
    document = json.dumps({**state, "lines": lines}, indent=1).encode()
    write_bytes_atomic(checkpoint / "state.json", document)
    write_bytes_atomic(checkpoint / "state.sha256", _signature(document))


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current: str | None = None

    def names(self) -> list[str]:
        """Newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((p.name for p in self.folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)

    def save(
        self,
        state: dict[str, Any],
        tensors: dict[str, dict[str, Tensor]],
        best: bytes | None = None,
        evaluated: bool = False,
    ) -> str:
        """Write a checkpoint; the name of its folder."""
        name = f"step-{state['step']:08d}" + ("-evaluated" if evaluated else "")
        if name == self.current:
            return name
        bad = first_not_finite(tensors["weights"].items())
        if bad is not None:
            kept = f"; the last good state is kept in {self.folder / self.current}" if self.current else ""
            raise NonFinite(
                f"after step {state['step']} the weight {bad} is not finite{kept}; "
                "try a smaller --lr, or a --clip that is not 0"
            )
        files = {f"{part}.safetensors": pack(content) for part, content in tensors.items()}
        if best is not None:
            files["best.safetensors"] = best
        digests = {file: sha256(data) for file, data in files.items()}
        document = json.dumps({**state, "sha256": digests}, indent=1).encode()
        files |= {"state.json": document, "state.sha256": _signature(document)}
        for left in self.folder.glob(".writing-*"):
            shutil.rmtree(left, ignore_errors=True)
        temporary, target = self.folder / f".writing-{name}", self.folder / name
        try:
            temporary.mkdir(parents=True)
            for file, data in files.items():
                write_bytes_atomic(temporary / file, data)
            shutil.rmtree(target, ignore_errors=True)  # left by an earlier attempt that was not used
            os.rename(temporary, target)
            sync_folder(self.folder)
            write_bytes_atomic(self.folder / "CURRENT", f"{name}\n".encode())
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        previous, self.current = self.current, name
        for old in self.names():
            if old not in (name, previous):
                shutil.rmtree(self.folder / old, ignore_errors=True)
        return name

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None where there is none at all."""
        warnings: list[str] = []
        for name in self.names():
            try:
                found = self._read(name)
            except (UserError, KeyError, TypeError, AttributeError) as error:
                warnings.append(f"the checkpoint {self.folder / name} is damaged ({error})")
                continue
            found.warnings = warnings
            self.current = name
            return found
        if warnings:
            raise UserError(
                f"no checkpoint in {self.folder} can be read: {'; '.join(warnings)}. "
                "Move this folder away and start again"
            )
        return None

    def _read(self, name: str) -> Checkpoint:
        folder = self.folder / name
        document = read_file(folder / "state.json")
        whole = read_file(folder / "state.sha256") == _signature(document)
        check(whole, "state.json does not match state.sha256")
        state = parse_json(document, "state.json")
        files = {file: read_file(folder / file) for file in state["sha256"]}
        for file, data in files.items():
            check(sha256(data) == state["sha256"][file], f"{file} does not match its sha256")
        best = files.pop("best.safetensors", None)
        tensors = {Path(file).stem: unpack(data, file)[0] for file, data in files.items()}
        return Checkpoint(name, state, tensors, best)
