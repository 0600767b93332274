"""``fsn export``: write a run as a folder for ``from_pretrained``: weights, configuration, tokenizer, model card."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import logging

from ..data import Alphabet, Encoding, Subwords
from ..errors import UserError
from ..io import writing
from ..measure.metrics import validated_in
from ..models import config_to_dict
from ..models.generate import first_token
from ..progress import say
from ..train import Run, find_run, load_run
from ..train.checkpoint import Checkpoints, read_state
from ..train.commands import RunPath
from ..train.evaluate import best_loss
from ..versions import untested
from .model import FSNForCausalLM, HubConfig

PROMPT = "The city of "
CARD = """---
library_name: transformers
pipeline_tag: text-generation
license: mit
tags: [fsn, {level}-level]
---
# {name}

{what} trained on {corpus}, exported from a run of [fsn](https://arxiv.org/abs/2606.18694).

| | |
|---|---|
| parameters | {parameters:,} |
| symbols | {symbols} |
| window | {window} |
| validation | {bits} |
| seed, steps | {seed}, {steps:,} |
| device, commit | {device}, {commit} |

```python
import fsn.hub  # or trust_remote_code=True below
from transformers import pipeline

write = pipeline("text-generation", "path/to/this/folder")
print(write({prompt}, max_new_tokens=200)[0]["generated_text"])
```
"""


NewFolder = Annotated[Path, tyro.conf.arg(metavar="OUT")]


def export(run: RunPath, out: NewFolder, /, *, which: Literal["best", "last"] = "best") -> None:
    """Write a trained run as a model for Hugging Face tools: weights, configuration, tokenizer, card.

    For example:
      fsn export runs/fsn-seed0 hub/fsn-seed0

    and then, in Python, `import fsn.hub` and
    `transformers.pipeline("text-generation", "hub/fsn-seed0")("The city of ")`.

    Args:
        run: The run folder.
        out: The folder to write, which must be empty or new.
        which: The weights of the best epoch, or the last ones saved.
    """
    odd = untested("CPU", ["transformers"])
    if odd:
        say(odd)
    logging.disable_progress_bar()  # that of transformers, which would stay on the screen
    written = export_run(run, out, which)
    print(f"exported: {written}")
    for file in sorted(written.iterdir()):
        print(f"  {file.name}  {file.stat().st_size:,} bytes")


def export_run(folder: Path, out: Path, which: Literal["best", "last"] = "best") -> Path:
    """Write a run to ``out`` for transformers; nothing is left there if that fails."""
    run = load_run(find_run(folder))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder; choose another name")
    trained = run.load_model(which)
    tokenizer = make_tokenizer(run.encoding, run.recipe.length)
    alphabet = run.encoding if isinstance(run.encoding, Alphabet) else None
    first = first_token(run.encoding)
    config = HubConfig(
        architecture=config_to_dict(run.model_config),
        window=run.recipe.length,
        symbols=alphabet and alphabet.symbols.hex(),
        line_break=first if alphabet else None,
        end=None if alphabet else first,
    )
    model = FSNForCausalLM(config)
    model.model.load_state_dict(trained.state_dict())
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.8, top_k=0, pad_token_id=len(run.encoding), bos_token_id=first,
        eos_token_id=None if alphabet else first,
    )  # fmt: skip
    with writing(out, "choose another folder"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
            made = Path(scratch) / "model"
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            (made / "README.md").write_text(card(run, which, model.model.parameter_count()))
            for file in made.iterdir():
                file.chmod(0o644)
            if out.exists():
                out.rmdir()
            made.rename(out)
    return out


def last_step(run: Run) -> int:
    """That of the newest checkpoint, where there is one."""
    checkpoints = Checkpoints(run.folder / "last")
    names = checkpoints.names()
    return int(read_state(checkpoints.folder / names[0])["step"]) if names else run.step


def validated(run: Run, best: Mapping[str, Any]) -> str:
    """The loss of the best weights: that in float32 where it is known."""
    bits, precision = best_loss(run), validated_in(run)
    rounded = "" if bits is not None or precision == "fp32" else f" (validated in {precision})"
    return f"{best['valid_bits'] if bits is None else bits:.4f} bits per symbol{rounded}"


def prompt_for(encoding: Encoding) -> str:
    """The card's example, or letters that the model has."""
    with contextlib.suppress(UserError):
        encoding.encode(PROMPT)
        return PROMPT
    known = bytes(encoding.symbols) if isinstance(encoding, Alphabet) else b""
    return "".join(chr(value) for value in known if 32 < value < 127)[: len(PROMPT)]


def card(run: Run, which: Literal["best", "last"], parameters: int) -> str:
    """The model card."""
    best = run.best if which == "best" else None
    bits, steps = "not measured", last_step(run)
    if best is not None:
        bits, steps = f"{validated(run, best)}, epoch {best['epoch']}", best["step"]
        if "valid_bits_per_byte" in best:
            bits += f", {best['valid_bits_per_byte']:.4f} bits per byte"
    config, n = run.config, len(run.encoding)
    character = isinstance(run.encoding, Alphabet)
    return CARD.format(
        level="character" if character else "subword",
        name=run.name,
        what=config.get("preset") or config["model"].get("kind", "a model"),
        corpus=config["corpus"]["name"],
        parameters=parameters,
        prompt=json.dumps(prompt_for(run.encoding)),
        symbols=f"{n}, one for each byte value of the corpus" if character else f"{n} subwords",
        window=run.recipe.length,
        bits=bits,
        seed=run.recipe.seed,
        steps=steps,
        device=run.environment.get("device") or "unknown",
        commit=str(run.environment.get("commit") or "unknown")[:7],
    )


# -- the tokenizer --------------------------------------------------------------------------------------------

PADDING = "<pad>"
UNKNOWN = "<unk>"
END = "<|endoftext|>"
"""Begins and ends a text. The model reads it as a line break; it is a special token because decoding drops special
tokens, which must not happen to line breaks."""


def make_tokenizer(encoding: Encoding, window: int = 256) -> PreTrainedTokenizerFast:
    """A run's encoding as a tokenizer of transformers. Padding is on the left, as generation needs it."""
    if isinstance(encoding, Alphabet):
        inner, padding, end = _from_alphabet(encoding)
    elif isinstance(encoding, Subwords):
        inner, padding, end = _from_subwords(encoding)
    else:
        raise UserError(
            "the run was trained on tokens without a tokenizer; train it with --tokenizer to export it"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=padding,
        bos_token=end,
        eos_token=end,
        unk_token=UNKNOWN if isinstance(encoding, Alphabet) else None,
        padding_side="left",
        split_special_tokens=True,  # a text may contain "<pad>"
        model_max_length=window - 1,
        clean_up_tokenization_spaces=False,
    )


def _from_subwords(encoding: Subwords) -> tuple[Tokenizer, str, str]:
    """The run's own tokenizer; its end-of-document token begins and ends texts. After its tokens comes one for padding,
    which is masked, so that the model does not need it."""
    inner = Tokenizer.from_str(encoding.tokenizer.to_str())
    if inner.id_to_token(encoding.end) is None:
        inner.add_special_tokens([AddedToken(END, special=True)])
    padding = PADDING
    while inner.token_to_id(padding) is not None:
        padding = f"<{padding}>"
    inner.add_special_tokens([AddedToken(padding, special=True)])
    end = inner.id_to_token(encoding.end)
    if end is None or inner.token_to_id(padding) != len(encoding):
        raise UserError(
            "the token numbers of the run's tokenizer have gaps, which transformers does not support"
        )
    return inner, padding, end


def _from_alphabet(alphabet: Alphabet) -> tuple[Tokenizer, str, str]:
    """The tokens of ``alphabet``, in its order; after them padding, unknown bytes, and the end of a text.

    The model has none of the three: padding is masked, an unknown byte is refused, and the end of a text becomes a line
    break.
    """
    letters = bytes_to_unicode()
    vocabulary = {letters[value]: token for token, value in enumerate(alphabet.symbols)}
    vocabulary |= {mark: len(alphabet) + place for place, mark in enumerate((PADDING, UNKNOWN, END))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner, PADDING, END
