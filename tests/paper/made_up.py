"""Run folders made of numbers: what the registry reads, without any training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import fsn
from fsn.data import enwik8
from fsn.measure.losses import store_losses
from fsn.models import config_to_dict
from fsn.paper.bench import Bench
from fsn.paper.needs import PAPER, Need, Scale
from fsn.train.run import weights_hash

CORPORA: dict[str, dict[str, Any]] = {
    "enwik8": {"name": "enwik8", "sha256": enwik8.SHA256, "symbols": bytes(range(205)).hex()},
    "codeparrot": {"name": "codeparrot", "sha256": "c0" * 32, "symbols": bytes(range(97)).hex()},
    "pypi-python": {"name": "pypi-python", "sha256": "91" * 32, "symbols": bytes(range(97)).hex()},
}
OWN = {"text": "enwik8", "code": "codeparrot"}


def corpus_section(scale: Scale, role: str, name: str | None = None) -> dict[str, Any]:
    if scale.name == "paper":
        return CORPORA[name or OWN[role]]
    corpus = scale.load(scale.corpora[role][0], None)
    return {"name": corpus.name, "sha256": corpus.sha256, "symbols": corpus.symbols.hex()}


def write_run(
    root: Path,
    need: Need,
    losses: Sequence[float | None],
    *,
    seed: int = 0,
    scale: Scale = PAPER,
    corpus: str | None = None,
    name: str | None = None,
    epoch_s: float = 100.0,
    device: str = "a GPU",
    recipe: dict[str, Any] | None = None,
    weights: bytes | None = None,
    **columns: Any,
) -> Path:
    """A run of ``need`` whose epoch i + 1 ended at ``losses[i]`` bits; ``None`` is a loss that was not finite."""
    section = corpus_section(scale, need.role, corpus)
    config = scale.config(need, len(section["symbols"]) // 2)
    settled = {"precision": "bf16", "engine": "graph", "epochs": max(len(losses), 1), **(recipe or {})}
    whole = {
        "preset": f"{need.family}-{need.size}",
        "model": config_to_dict(config),
        "recipe": {**scale.recipe(need, seed).to_dict(), **settled},
        "corpus": section,
        "fsn_version": fsn.__version__,
        "format": 1,
    }
    long = f"-{need.length}" if need.length != 256 else ""
    changed = "".join(f"-{value}" for _, value in need.overrides)
    folder = root / (name or f"{need.family}-{need.size}{changed}-{need.role}{long}-s{seed}")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    lines = [
        {
            "kind": "epoch",
            "epoch": i + 1,
            "complete": True,
            "step": 10 * (i + 1),
            "train_loss_bits": loss,
            "valid_bits": loss,
            "valid_bits_second_half": None if loss is None else loss - 0.08,
            "valid_precision": "fp32",
            "tokens_per_s": 1e6,
            "eval_tokens_per_s": 3e6,
            "train_s": 0.9 * epoch_s,
            "valid_s": 0.1 * epoch_s,
            "cumulative_s": epoch_s * (i + 1),
            "peak_memory_gb": 1.0,
            "best": True,
            **columns,
        }
        for i, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    about = {"device": device, "fsn": fsn.__version__, "commit": "0" * 40, "packages": {"torch": "2"}}
    (folder / "environment.json").write_text(json.dumps(about), "utf-8")
    if weights is not None:
        (folder / "best.safetensors").write_bytes(weights)
    return folder


def bench_of(root: Path, scale: Scale = PAPER, cache: Path | None = None) -> Bench:
    """Only a smaller scale's texts, which nobody has to fetch, are at hand."""
    fetch = scale is not PAPER
    return Bench.open([root], scale, device="cpu", cache=cache or root / "no-cache", fetch=fetch)


def falling(end: float, drop: float, epochs: int, rate: float = 1.0) -> list[float]:
    """A curve that reaches ``end + drop / epochs`` at its last epoch."""
    return [end + drop / (i + 1) ** rate for i in range(epochs)]


def write_losses(
    folder: Path, role: str, bench: Bench, bits: Callable[[np.ndarray], np.ndarray], noise: float = 0.02
) -> None:
    """Losses of every copy-depth target as a function of its depth, with a little noise from the folder's name."""
    battery = bench.battery(role)
    generator = np.random.default_rng(sum(folder.name.encode()))
    wobble = noise * generator.standard_normal(battery.depth.shape)
    values = (bits(battery.depth.astype(float)) + wobble).astype(np.float32)
    weights = weights_hash(folder)
    assert weights is not None
    store_losses(folder, weights, bench.corpus(role).sha256, battery, values)
