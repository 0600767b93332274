"""codeparrot: the paper's code corpus, Python files from GitHub, cleaned and without duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fsn.data.alphabet import CODE_SYMBOLS
from fsn.data.cache import explained, locked, read_verified
from fsn.data.code_text import document
from fsn.data.corpus import Corpus
from fsn.errors import UserError
from fsn.io import write_bytes_atomic, write_text_atomic
from fsn.progress import Bar

DATASET = "codeparrot/codeparrot-clean"
SIZE = 100_000_000
_ELSE = "or use the stand-in pypi-python"


def load(folder: Path) -> Corpus:
    """The first 10^8 characters of the data set, from the cache or else streamed from the Hugging Face hub.

    The hub does not publish a hash of these characters, so the one of the first download is kept in
    ``codeparrot.sha256`` beside the text. Both files together can be carried to a machine without network.
    """
    raw = _cached(folder, aloud=False)
    if raw is None:
        with locked(folder, "codeparrot"):
            raw = _cached(folder, aloud=True)
            if raw is None:
                raw = collect(stream(), SIZE)
                with explained(folder):
                    write_bytes_atomic(folder / "codeparrot", raw)
                    write_text_atomic(folder / "codeparrot.sha256", hashlib.sha256(raw).hexdigest() + "\n")
    return Corpus.from_bytes("codeparrot", raw, symbols=CODE_SYMBOLS)


def _cached(folder: Path, aloud: bool) -> bytes | None:
    """The text in the cache, if it is there and matches the hash written beside it."""
    try:
        expected = (folder / "codeparrot.sha256").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return read_verified(folder / "codeparrot", {"sha256": expected}, aloud)


def stream() -> Iterator[str]:
    """The files of the data set in its own order, one after the other, without downloading the rest."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"codeparrot needs the package datasets: pip install datasets, {_ELSE}") from error
    try:
        for row in datasets.load_dataset(DATASET, split="train", streaming=True):
            yield row["content"]
    except UserError:
        raise
    except Exception as error:  # the hub's client raises many kinds; to the user they are one
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"the Hugging Face hub did not deliver {DATASET} ({reason[:200]}): "
            f"try again with a connection to it, {_ELSE}"
        ) from error


def collect(texts: Iterable[str], characters: int) -> bytes:
    """The first ``characters`` characters of ``texts`` in the 97 symbols, each file ending in a newline."""
    parts: list[str] = []
    left = characters
    with Bar("codeparrot, characters", total=characters) as bar:
        for text in texts:
            parts.append(document(text)[:left])
            left -= len(parts[-1])
            bar.update(len(parts[-1]))
            if left == 0:
                break
    if left:
        raise UserError(
            f"{DATASET} ended after {characters - left:,} of {characters:,} characters: try again, {_ELSE}"
        )
    return "".join(parts).encode("ascii")
