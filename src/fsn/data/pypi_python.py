"""pypi-python: 10^8 characters of Python source that anyone behind a package mirror can build.

A stand-in for codeparrot where its hub is closed. ``pypi_python.json`` pins well-known packages by version,
file name and SHA-256; the text that must come out of them is pinned by its SHA-256 too. The rules:

1. Every ``.py`` file of every wheel that is valid UTF-8 is brought to the 97 symbols.
2. Files that do not look written by hand are left out (after the rules of codeparrot-clean), and so is a file
   that equals an earlier one up to white space.
3. No package gives more than ``package_limit`` characters, so that none sets the tone.
4. The files of all packages are put in the order of their fingerprints, a fixed shuffle that makes the three
   splits alike, and the text is cut at exactly ``characters``.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fsn.data.alphabet import CODE_SYMBOLS
from fsn.data.cache import DAMAGED, FetchError, obtain
from fsn.data.code_text import document, fingerprint, is_written_by_hand, take
from fsn.data.corpus import Corpus
from fsn.data.pip_fetch import Archive, fetch_archive
from fsn.progress import Bar

DOWNLOADS_AT_ONCE = 4
ARCHIVES = "pypi-python.archives"


@dataclass(frozen=True)
class Recipe:
    """What the corpus is made of, and what must come out."""

    archives: tuple[Archive, ...]
    characters: int
    package_limit: int
    sha256: str

    @staticmethod
    def from_json(text: str) -> Recipe:
        fields = json.loads(text)
        archives = tuple(Archive(**archive) for archive in fields.pop("archives"))
        return Recipe(archives=archives, **fields)


def recipe() -> Recipe:
    """The committed recipe."""
    file = resources.files("fsn.data").joinpath("pypi_python.json")
    return Recipe.from_json(file.read_text(encoding="utf-8"))


def load(folder: Path, made_of: Recipe | None = None) -> Corpus:
    """The corpus from the cache folder, built there if need be (minutes, mostly downloads)."""
    made_of = made_of or recipe()

    def source(folder: Path) -> bytes:
        return build(folder, made_of)

    sources = [(f"{len(made_of.archives)} packages on PyPI", source)]
    raw = obtain("pypi-python", folder, made_of.characters, {"sha256": made_of.sha256}, sources)
    shutil.rmtree(folder / ARCHIVES, ignore_errors=True)  # verified: they are not needed any more
    return Corpus.from_bytes("pypi-python", raw, symbols=CODE_SYMBOLS)


def build(folder: Path, made_of: Recipe) -> bytes:
    """Download the archives and make the text. An interrupted build finds the archives it already has."""
    wheels = fetch_all(made_of.archives, folder / ARCHIVES)
    text = compose(wheels, made_of.characters, made_of.package_limit)
    if len(text) < made_of.characters:
        raise FetchError(f"the packages give {len(text):,} characters, fewer than {made_of.characters:,}")
    return text.encode("ascii")


def fetch_all(archives: tuple[Archive, ...], folder: Path) -> list[Path]:
    """All archives in ``folder``, a few downloads at a time."""
    paths = []
    with (
        ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool,
        Bar("pypi-python, packages", total=len(archives)) as bar,
    ):
        futures = [pool.submit(fetch_archive, archive, folder) for archive in archives]
        try:
            for archive, future in zip(archives, futures, strict=True):
                paths.append(future.result())
                bar.update(1, got=archive.name)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return paths


def compose(wheels: list[Path], characters: int, package_limit: int) -> str:
    """The text of the corpus from its wheels, by the rules above."""
    seen: set[str] = set()
    kept: list[tuple[str, str]] = []
    found = 0
    with Bar("pypi-python, packages read", total=len(wheels)) as bar:
        for wheel in wheels:
            own = []
            for text in source_texts(wheel):
                mark = fingerprint(text)
                if mark not in seen and is_written_by_hand(text):
                    seen.add(mark)
                    own.append((mark, text))
            left = package_limit
            for mark, text in sorted(own):
                left -= len(text)
                if left < 0:
                    break
                kept.append((mark, text))
                found += len(text)
            bar.update(1, characters=f"{found:,}")
    return take((text for _, text in sorted(kept)), characters)


def source_texts(wheel: Path) -> Iterator[str]:
    """The Python files of a wheel in the order of their names, as documents of the corpus."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if not name.endswith(".py"):
                    continue
                try:
                    text = document(archive.read(name).decode("utf-8"))
                except UnicodeDecodeError:
                    continue
                if text:
                    yield text
    except DAMAGED as error:
        raise FetchError(f"{wheel.name} cannot be unpacked ({error})") from error
