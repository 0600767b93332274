"""What lies in the cache is verified, what does not is fetched: from the first source that has it right."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import lzma
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from fsn.data import cache, enwik8, load
from fsn.data.cache import FetchError, cache_folder, download, locked
from fsn.errors import UserError

TEXT = b"a small stand-in for a large text\n" * 100
SHA256 = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small enwik8, and two sources that both fail; the list says which were asked."""
    asked: list[str] = []

    def closed(name: str) -> bytes:
        asked.append(name)
        raise FetchError("closed")

    monkeypatch.setattr(enwik8, "SIZE", len(TEXT))
    monkeypatch.setattr(enwik8, "SHA256", SHA256)
    monkeypatch.setattr(enwik8, "from_public_address", lambda folder: closed("public"))
    monkeypatch.setattr(enwik8, "from_pypi", lambda folder: closed("pypi"))
    return asked


def packed(suffix: str, raw: bytes) -> bytes:
    if suffix == ".zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("enwik8", raw)
        return buffer.getvalue()
    return gzip.compress(raw) if suffix == ".gz" else lzma.compress(raw)


def test_the_pinned_hashes_are_complete() -> None:
    assert enwik8.SIZE == 100_000_000
    assert len(enwik8.SHA256) == len(enwik8.ZIP_SHA256) == len(enwik8.SDIST.sha256) == 64


def test_a_good_file_in_the_cache_needs_no_source(tmp_path: Path, tried: list[str]) -> None:
    (tmp_path / "enwik8").write_bytes(TEXT)
    corpus = load("enwik8", cache=tmp_path)
    assert corpus.name == "enwik8" and corpus.sha256 == SHA256 and not tried
    assert [p.name for p in tmp_path.iterdir()] == ["enwik8"]  # a cache that is only read stays as it is


@pytest.mark.parametrize("suffix", [".zip", ".gz", ".xz"])
def test_a_packed_copy_left_in_the_cache_is_used(tmp_path: Path, tried: list[str], suffix: str) -> None:
    (tmp_path / f"enwik8{suffix}").write_bytes(packed(suffix, TEXT))
    assert load("enwik8", cache=tmp_path).sha256 == SHA256
    assert (tmp_path / "enwik8").read_bytes() == TEXT and not tried


@pytest.mark.parametrize("suffix", [".zip", ".gz", ".xz"])
@pytest.mark.parametrize("damage", ["truncated", "other text", "too long", "not packed"])
def test_a_bad_packed_copy_is_named_and_passed_over(
    tmp_path: Path, tried: list[str], suffix: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = packed(suffix, TEXT)
    data = {
        "truncated": whole[: len(whole) // 2],
        "other text": packed(suffix, TEXT[::-1]),
        "too long": packed(suffix, TEXT * 3),
        "not packed": b"<html>not here</html>",
    }[damage]
    (tmp_path / f"enwik8{suffix}").write_bytes(data)
    with pytest.raises(UserError) as caught:
        load("enwik8", cache=tmp_path)
    assert tried == ["public", "pypi"]
    assert f"enwik8{suffix}: it " in str(caught.value) and str(tmp_path) in str(caught.value)
    assert ": failed: " in capsys.readouterr().err
    assert not (tmp_path / "enwik8").exists()


def test_a_corrupt_file_is_named_and_replaced(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "enwik8").write_bytes(TEXT[:-1] + b"X")
    monkeypatch.setattr(enwik8, "from_pypi", lambda folder: TEXT)
    assert load("enwik8", cache=tmp_path).sha256 == SHA256
    assert (tmp_path / "enwik8").read_bytes() == TEXT
    said = capsys.readouterr().err
    assert said.count(f"{tmp_path / 'enwik8'} is corrupt") == 1 and SHA256 in said


def test_sources_are_asked_in_order_until_one_has_the_right_text(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UserError, match=r"could not be fetched .*enwik8\.zip: closed; mingru-pytorch==0\.2\.1 on PyPI"
    ):
        load("enwik8", cache=tmp_path)
    assert tried == ["public", "pypi"]

    def wrong(folder: Path) -> bytes:
        tried.append("public")
        return TEXT + b"?"

    monkeypatch.setattr(enwik8, "from_public_address", wrong)
    with pytest.raises(UserError, match="it is not enwik8: 3,401 bytes with sha256"):
        load("enwik8", cache=tmp_path)
    monkeypatch.setattr(enwik8, "from_public_address", lambda folder: TEXT)
    tried.clear()
    assert len(load("enwik8", cache=tmp_path)) == len(TEXT)
    assert not tried  # the first source was enough


def test_the_cache_folder_is_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSN_CACHE", str(tmp_path / "from-environment"))
    assert cache_folder() == tmp_path / "from-environment"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("FSN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fsn"


def test_a_cache_that_cannot_be_used_says_what_to_set(tmp_path: Path, tried: list[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"set FSN_CACHE|repair or remove"):
        load("enwik8", cache=tmp_path / "file")


def test_a_full_disk_is_a_sentence(tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, raw: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(enwik8, "from_public_address", lambda folder: TEXT)
    monkeypatch.setattr(cache, "write_bytes_atomic", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\); .*set FSN_CACHE"):
        load("enwik8", cache=tmp_path)


def test_one_process_prepares_and_the_others_wait(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second reader that comes while the first fetches gets the file without fetching again."""
    fetching, go_on = threading.Event(), threading.Event()

    def slowly(folder: Path) -> bytes:
        tried.append("public")
        fetching.set()
        go_on.wait(10)
        return TEXT

    monkeypatch.setattr(enwik8, "from_public_address", slowly)
    readers = [threading.Thread(target=load, args=("enwik8", tmp_path)) for _ in range(3)]
    for reader in readers:
        reader.start()
    assert fetching.wait(10)
    go_on.set()
    for reader in readers:
        reader.join(10)
    assert tried == ["public"] and (tmp_path / "enwik8").read_bytes() == TEXT
    with locked(tmp_path, "enwik8"):
        pass  # and the lock is free again


ZIP = packed(".zip", TEXT)
ZIP_SHA256 = hashlib.sha256(ZIP).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serves TEXT zipped at /enwik8.zip, at the third time of asking at /later, and mistakes elsewhere."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        data = ZIP
        self.asked.append(self.path)
        if self.path == "/gone" or (self.path == "/later" and self.asked.count("/later") < 3):
            self.send_error(404, "\x1b[31mrotten\x1b[0m")
            return
        self.send_response(200)
        if self.path == "/odd":
            self.send_header("Content-Length", "a lot")
        elif self.path != "/slow":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.path == "/half":
            self.wfile.write(data[: len(data) // 2])
        elif self.path == "/other":
            self.wfile.write(bytes(len(data)))
        elif self.path == "/slow":
            with contextlib.suppress(OSError):
                for _ in range(50):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.1)
        else:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))  # between attempts
    Server.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["enwik8.zip", "later"])
def test_the_public_address_over_http(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(enwik8, "SIZE", len(TEXT))
    monkeypatch.setattr(enwik8, "SHA256", SHA256)
    monkeypatch.setattr(enwik8, "PUBLIC_ADDRESS", f"{address}/{path}")
    monkeypatch.setattr(enwik8, "ZIP_SIZE", len(ZIP))
    monkeypatch.setattr(enwik8, "ZIP_SHA256", ZIP_SHA256)
    assert load("enwik8", cache=tmp_path).sha256 == SHA256
    assert sorted(p.name for p in tmp_path.iterdir()) == [".enwik8.lock", "enwik8"]


@pytest.mark.parametrize(
    ("path", "size", "reason"),
    [
        ("half", 10_000, "the download was interrupted"),
        ("enwik8.zip", 10, "larger than the 10"),
        ("other", 10_000, "not file.zip: its sha256 differs"),
        ("odd", 10_000, "is invalid|its sha256"),
        ("gone", 10_000, r"^the server answered with status 404$"),
    ],
)
def test_a_broken_download_is_a_reason_to_go_on(
    address: str, path: str, size: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FetchError, match=reason):
        download(f"{address}/{path}", tmp_path / "file.zip", ZIP_SHA256, "x", size)
    assert not (tmp_path / "file.zip").exists()
    assert "rotten" not in "".join(capsys.readouterr())
    assert len(Server.asked) == (1 if size == 10 else 1 + cache.RETRIES)


def test_a_download_has_its_time(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even from a server that sends a byte now and then."""
    monkeypatch.setattr(cache, "LIMIT_S", 0.5)
    start = time.monotonic()
    with pytest.raises(FetchError, match="takes longer than"):
        download(f"{address}/slow", tmp_path / "file.zip", ZIP_SHA256, "x", 10_000)
    assert time.monotonic() - start < 3


def test_a_closed_network_is_a_reason_to_go_on(address: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no connection"):
        download("http://127.0.0.1:9/enwik8.zip", tmp_path / "file.zip", ZIP_SHA256, "x", 10)


def test_a_full_disk_while_downloading_is_not_blamed_on_the_network(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache._Bounded, "write", full)
    with pytest.raises(OSError, match="No space left"):
        download(f"{address}/enwik8.zip", tmp_path / "file.zip", ZIP_SHA256, "x", 10_000)


def test_an_encrypted_zip_is_passed_over(tmp_path: Path, tried: list[str]) -> None:
    data = bytearray(packed(".zip", TEXT))
    data[6] |= 1  # the flag for encryption, in the file's header and in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "enwik8.zip").write_bytes(data)
    with pytest.raises(UserError, match=r"enwik8\.zip: it cannot be unpacked .*encrypted"):
        load("enwik8", cache=tmp_path)
    assert tried == ["public", "pypi"]
