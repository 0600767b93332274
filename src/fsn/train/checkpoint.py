"""Checkpoints, from which a run resumes bit for bit.

    last/
      CURRENT                 the name of the newest checkpoint, for people
      step-00001234/
        weights.safetensors   parameters and buffers
        optimizer.safetensors AdamW's moments, PyTorch's generator state
        best.safetensors      a copy of the best weights so far
        state.json            step, epoch, position, sums so far, the sha256 of the files above
        state.sha256          the sha256 of state.json

A checkpoint is written to a temporary folder, flushed to the disk, and renamed. The one before it stays. Weights with
NaN or Inf are never written. On reading, each file must have its sha256; a warning names a damaged checkpoint, and the
one before it is used.
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
from torch import Tensor, nn

from ..checks import check
from ..errors import UserError, reason
from ..io import parse_json, read_file, sync_folder, write_bytes_atomic
from .hashes import sha256
from .optimizer import Optimizer

_NAME = re.compile(r"step-\d{8,}(-evaluated)?")


@dataclass
class Checkpoint:
    """A checkpoint as read from the disk, every file with its sha256."""

    name: str
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    best: bytes | None
    """best.safetensors, byte for byte."""
    warnings: list[str] = field(default_factory=list)


class NonFinite(UserError):
    """A loss, gradient or weight was NaN or Inf; the weights before it are saved."""


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds NaN or Inf."""
    return next((name for name, tensor in tensors if not torch.isfinite(tensor).all()), None)


def pack(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as the bytes of a safetensors file: the same tensors and metadata give the same bytes.

    The package safetensors writes metadata in a random order, so the header is sorted here.
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


def load_weights(
    model: nn.Module,
    weights: dict[str, Tensor],
    what: str,
    strict: bool = True,
    file: str = "config.yaml",
) -> None:
    """Load weights into the model that a config in ``file`` describes; ``what`` names them in a sentence."""
    bad = first_not_finite(weights.items())
    check(bad is None, f"{what} hold NaN or Inf in {bad}: the run diverged; take those of another")
    try:
        model.load_state_dict(weights, strict=strict)
    except RuntimeError:
        raise UserError(
            f"{what} do not fit its {file}: one of the two was changed; restore the right one"
        ) from None


def tensors_of(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint, by file: weights; AdamW's moments and PyTorch's generator states."""
    generators = {"rng.cpu": torch.get_rng_state()}
    if optimizer.lr.is_cuda:
        generators["rng.cuda"] = torch.cuda.get_rng_state(optimizer.lr.device)
    return {"weights": model.state_dict(), "optimizer": optimizer.state_dict() | generators}


def restore(tensors: dict[str, dict[str, Tensor]], model: nn.Module, optimizer: Optimizer, what: str) -> None:
    """Load what :func:`tensors_of` gave, or weights alone; ``what`` names the weights in a sentence."""
    if "weights" in tensors:
        load_weights(model, tensors["weights"], what)
    if "optimizer" in tensors:
        moments = dict(tensors["optimizer"])
        torch.set_rng_state(moments.pop("rng.cpu"))
        on_gpu = moments.pop("rng.cuda", None)
        if on_gpu is not None and optimizer.lr.is_cuda:
            torch.cuda.set_rng_state(on_gpu, optimizer.lr.device)
        optimizer.load_state_dict(moments)


def _hash_line(state: bytes) -> bytes:
    """The content of state.sha256."""
    return f"{sha256(state)}  state.json\n".encode()


def read_state(checkpoint: Path) -> dict[str, Any]:
    """state.json of a checkpoint's folder, unchecked."""
    state: dict[str, Any] = parse_json(read_file(checkpoint / "state.json"), "state.json")
    return state


def lines_of(state: dict[str, Any]) -> dict[str, tuple[int, str | None]]:
    """Of each growing file, the bytes written before a checkpoint and their sha256, which older states do not have."""
    return state["lines"] if "lines" in state else {"metrics.jsonl": (state["metrics_bytes"], None)}


def resume_from(checkpoint: Path, lines: dict[str, tuple[int, str]]) -> None:
    """Make a copied checkpoint resume from these bytes of the growing files, of which the copy has fewer lines."""
    state = read_state(checkpoint)
    state.pop("metrics_bytes", None)
    document = json.dumps({**state, "lines": lines}, indent=1).encode()
    write_bytes_atomic(checkpoint / "state.json", document)
    write_bytes_atomic(checkpoint / "state.sha256", _hash_line(document))


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
            saved = f"; the last good state is saved in {self.folder / self.current}" if self.current else ""
            raise NonFinite(
                f"after step {state['step']} the weight {bad} is not finite{saved}; "
                "try a smaller --lr, or a --clip that is not 0"
            )
        files = {f"{part}.safetensors": pack(content) for part, content in tensors.items()}
        if best is not None:
            files["best.safetensors"] = best
        digests = {file: sha256(data) for file, data in files.items()}
        document = json.dumps({**state, "sha256": digests}, indent=1).encode()
        files |= {"state.json": document, "state.sha256": _hash_line(document)}
        for leftover in self.folder.glob(".writing-*"):
            shutil.rmtree(leftover, ignore_errors=True)
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
        """The newest undamaged checkpoint; None where there is none at all."""
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
        unchanged = read_file(folder / "state.sha256") == _hash_line(document)
        check(unchanged, "state.json does not match state.sha256")
        state = parse_json(document, "state.json")
        files = {file: read_file(folder / file) for file in state["sha256"]}
        for file, data in files.items():
            check(sha256(data) == state["sha256"][file], f"{file} does not match its sha256")
        best = files.pop("best.safetensors", None)
        tensors = {Path(file).stem: unpack(data, file)[0] for file, data in files.items()}
        return Checkpoint(name, state, tensors, best)
