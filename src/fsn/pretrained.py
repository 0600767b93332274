"""Trained models by name or path: ``fsn.load``.

``weights/`` beside this file holds two finished runs, which every installation carries. They are run folders like any
other, with weights in float16 and without the lines of single steps; ``docs/site/ship.py`` made them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from .data import Alphabet, Encoding, load_tokenizer
from .data.encoding import TOKENIZER_FILE
from .errors import UserError, needs, reason
from .io import parse_json, read_file, user_path
from .models import LanguageModel, config_from_dict
from .train import find_run, load_run
from .train.checkpoint import unpack
from .train.run import SHIPPED, with_weights
from .train.world import choose_device

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(folder.name for folder in SHIPPED.iterdir() if (folder / "config.yaml").is_file())


def load(name: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> LanguageModel:
    """A trained model in evaluation mode, with its tokenizer: ``load("fsn-1m").generate("The Roman ", 200)``.

    ``name`` is a run folder, a folder that ``fsn export`` wrote, a model that comes with the package (``fsn-1m``,
    ``transformer-1m``), or ``user/model`` on Hugging Face, whose weights are downloaded; no code is run from there.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise UserError(f"a {type(name).__name__} names no model; pass fsn-1m, or the path of a run folder")
    text = os.fspath(name)
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            'this PyTorch sees no CUDA GPU; pass device="cpu", or install a CUDA build of PyTorch'
        )
    device = device if str(device) == "meta" else choose_device(str(device))
    folder = find_run(user_path(text))
    if (folder / "config.yaml").is_file():
        return load_run(folder).load_model("best", device)
    if (folder / "config.json").is_file():
        return load_exported(folder, device)
    if text and folder.exists():
        raise UserError(f"{text} is neither a run folder nor one that `fsn export` wrote; it has no config")
    if HUB_NAME.fullmatch(text):
        return load_exported(fetch_from_hub(text), device)
    raise UserError(
        f"there is no model {text!r}: {' and '.join(shipped())} come with fsn; or give a run folder, a folder that "
        "`fsn export` wrote, or user/model on Hugging Face"
    )


def load_exported(folder: Path, device: str | torch.device = "cpu") -> LanguageModel:
    """A model from ``config.json`` and ``model.safetensors``, without transformers."""
    try:
        config = parse_json(read_file(folder / "config.json"), "config.json")
        kind, architecture, symbols, end = (
            config.get(x) for x in ("model_type", "architecture", "symbols", "end")
        )
        known = isinstance(symbols, str) if end is None else type(end) is int
        if kind != "fsn" or not isinstance(architecture, dict) or not known:
            raise UserError("it is not a model of this version of fsn")
        tokenizer: Encoding
        if end is None:
            tokenizer = Alphabet(bytes.fromhex(symbols))
        else:
            tokenizer = load_tokenizer(str(folder / TOKENIZER_FILE), end)
        weights, _ = unpack(read_file(folder / "model.safetensors"), "model.safetensors")
        window = int(config.get("window", LanguageModel.window))
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{folder} cannot be read ({error}); write it again with `fsn export`") from None
    weights = {key.removeprefix("model."): value for key, value in weights.items()}
    what = f"the weights in {folder}"
    model = with_weights(config_from_dict(architecture), weights, what, file="config.json")
    model.tokenizer, model.window = tokenizer, window
    return model.to(device)


def fetch_from_hub(name: str) -> Path:
    """The folder to which huggingface_hub has downloaded ``user/model``."""
    huggingface_hub = needs(
        "huggingface_hub",
        f"there is no folder {name} here, and downloading a model of that name needs huggingface_hub: "
        "pip install huggingface_hub",
    )
    wanted = ["config.json", "model.safetensors", TOKENIZER_FILE]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # huggingface_hub raises many types: network, unknown name, no access
        raise UserError(
            f"there is no folder {name} here, and none of that name came from Hugging Face ({reason(error)}); "
            f"{' and '.join(shipped())} come with fsn"
        ) from None
