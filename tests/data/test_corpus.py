"""Corpora from bytes, files, folders and the standard library: symbols, splits, and errors that help."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsn.data import CODE_SYMBOLS, Alphabet, Corpus, Windows, available, load, normalise_code, python_code
from fsn.errors import UserError


@pytest.mark.parametrize("n", [1, 19, 20, 100, 1_000_003])
def test_splits_are_90_5_5_in_the_texts_own_order(n: int) -> None:
    raw = bytes(np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8))
    corpus = Corpus.from_bytes("x", raw)
    assert (len(corpus.train), len(corpus.train) + len(corpus.valid)) == (n * 90 // 100, n * 95 // 100)
    assert len(corpus) == n
    whole = torch.cat([corpus.train, corpus.valid, corpus.test])
    assert corpus.alphabet.decode_bytes(whole) == raw
    assert corpus.sha256 == hashlib.sha256(raw).hexdigest()


@given(st.binary(min_size=1, max_size=400))
def test_symbols_are_the_sorted_distinct_bytes_and_round_trip(raw: bytes) -> None:
    alphabet = Alphabet.of(raw)
    assert list(alphabet.symbols) == sorted(set(raw))
    tokens = alphabet.encode(raw)
    assert tokens.dtype == torch.uint8
    assert [alphabet.symbols[t] for t in tokens.tolist()] == list(raw)
    assert alphabet.decode_bytes(tokens) == raw
    assert alphabet.decode_bytes(tokens.long()) == raw


def test_text_round_trips_through_a_corpus() -> None:
    corpus = Corpus.from_bytes("x", "naïve café, 10 €\n".encode() * 30)
    text = "café 10 €"
    assert corpus.decode(corpus.encode(text)) == text
    assert corpus.decode(corpus.encode("é")[:1]) == "\ufffd"
    assert corpus.encode("").shape == (0,)
    assert "x" in repr(corpus) and str(corpus.vocab_size) in repr(corpus)


def test_a_foreign_symbol_is_named() -> None:
    corpus = Corpus.from_bytes("x", b"abc" * 10)
    with pytest.raises(UserError, match="b'z' is not among the 3 symbols"):
        corpus.encode("abzab")
    with pytest.raises(UserError, match="between 0 and 2"):
        corpus.decode(torch.tensor([0, 3]))


def test_bytes_that_are_not_utf8_are_taken_as_a_command_line_hands_them_over() -> None:
    argument = b"a\xffb".decode("utf-8", "surrogateescape")
    assert Alphabet(b"ab\xff").encode(argument).tolist() == [0, 2, 1]
    with pytest.raises(UserError, match=r"b'\\xff' is not among the 2 symbols"):
        Alphabet(b"ab").encode(argument)
    assert Alphabet(CODE_SYMBOLS).decode(Alphabet(CODE_SYMBOLS).encode(argument)) == "a?b"
    with pytest.raises(UserError, match=r"'\\ud800', half of a character"):
        Alphabet(b"ab").encode("a\ud800b")


@pytest.mark.parametrize("symbols", [b"", b"ba", b"aab"])
def test_an_alphabet_is_sorted_and_distinct(symbols: bytes) -> None:
    with pytest.raises(UserError, match="rising order"):
        Alphabet(symbols)


def test_encoding_is_fast() -> None:
    raw = np.random.default_rng(0).integers(0, 205, 10_000_000, dtype=np.uint8).tobytes()
    start = time.perf_counter()
    corpus = Corpus.from_bytes("x", raw)
    assert time.perf_counter() - start < 2.0  # 100 MB: well under a second on an idle machine
    assert corpus.vocab_size == 205


def test_normalising_keeps_to_the_97_symbols() -> None:
    assert len(CODE_SYMBOLS) == 97
    assert normalise_code("a\r\nb\rc\n\td\x0c\x00\ufeff~") == "a\nb\nc\n\td~"
    assert normalise_code("café ﬁ ４ “漢字” e\u0301 \U0001f600") == "cafe fi 4 ???? e ?"


@given(st.text(st.characters(exclude_categories=[]), max_size=60))
def test_normalising_is_idempotent_and_complete(text: str) -> None:
    normal = normalise_code(text)
    assert set(normal.encode("ascii")) <= set(CODE_SYMBOLS)
    assert normalise_code(normal) == normal
    assert Alphabet(CODE_SYMBOLS).decode(Alphabet(CODE_SYMBOLS).encode(text)) == normal


def test_the_standard_library_is_a_corpus() -> None:
    first, second = load("python-stdlib"), load("python-stdlib")
    assert first.symbols == CODE_SYMBOLS and first.vocab_size == 97
    assert first.sha256 == second.sha256 and torch.equal(first.train, second.train)
    assert len(first) > 4_000_000
    counts = torch.bincount(first.train.long(), minlength=97)
    assert int((counts > 0).sum()) >= 96  # the library itself is written without tabs
    text = first.decode(first.train)
    assert "class OrderedDict(dict):" in text and "def fetch_archive" not in text


def test_the_standard_library_comes_in_a_fixed_order_without_what_varies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    files = [
        "b.py",
        "a.py",
        "json/__init__.py",
        "x.txt",
        "test/t.py",
        "site-packages/p.py",
        "_sysconfigdata_l.py",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"\n# {name} ü\r\n\n", encoding="utf-8")
    kept = sorted(files[:3], key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert [p.relative_to(tmp_path).as_posix() for p in python_code.source_files(tmp_path)] == kept
    assert python_code.load_stdlib(tmp_path).decode() == "".join(f"# {name} u\n" for name in kept)


def test_a_python_without_sources_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="no source files"):
        python_code.load_stdlib(tmp_path)


def test_a_file_is_taken_byte_for_byte(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 4
    (tmp_path / "bytes").write_bytes(raw)
    corpus = load(tmp_path / "bytes")
    assert corpus.name == str(tmp_path / "bytes")
    assert corpus.vocab_size == 256 and corpus.sha256 == hashlib.sha256(raw).hexdigest()
    assert corpus.alphabet.decode_bytes(corpus.train) == raw[: 1024 * 90 // 100]


def test_a_folder_is_its_text_files_in_the_order_of_their_paths(tmp_path: Path) -> None:
    contents = {
        "b.txt": b"bb\n",
        "a/z.txt": "é no end".encode(),
        "a-c": b"minus\n",
        "empty": b"",
        "binary": b"a\0b",
        "latin": b"\xe9",
        ".hidden": b"no",
        ".git/config": b"no",
    }
    for name, raw in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    corpus = load(str(tmp_path))
    whole = torch.cat([corpus.train, corpus.valid, corpus.test])
    assert corpus.decode(whole) == "minus\né no end\nbb\n"  # a-c, a/z.txt, b.txt
    assert corpus.left_out == "2 of 6 files are not UTF-8 text and were left out: binary, latin"
    assert corpus.within(Alphabet(bytes(range(256)))).left_out == corpus.left_out


def test_files_that_are_left_out_are_counted_and_the_first_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert load(tmp_path).left_out == ""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "0").write_bytes(b"\xe9")
    assert load(tmp_path).left_out == "1 of 2 files is not UTF-8 text and was left out: sub/0"
    for number in range(1, 8):
        (tmp_path / "sub" / str(number)).write_bytes(b"\xe9")
    said = "8 of 9 files are not UTF-8 text and were left out: sub/0, sub/1, sub/2, sub/3, sub/4 and 3 more"
    assert load(tmp_path).left_out == said
    (tmp_path / "a.txt").unlink()
    with pytest.raises(UserError, match=r"8 of 8 files are not UTF-8 text .*; choose one with text in it"):
        load(tmp_path)


def test_the_names_of_files_left_out_can_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "two\nlines").write_bytes(b"\xe9")
    (tmp_path / os.fsdecode(b"\xff.bin")).write_bytes(b"\xe9")
    said = load(tmp_path).left_out
    assert said.encode() and said.endswith(": two\\nlines, \\xff.bin")


def test_an_unknown_corpus_lists_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        load("enwik9")
    for name, line in available():
        assert name in str(caught.value) and line
    assert "'enwik9'" in str(caught.value) and "path of a file or folder" in str(caught.value)
    assert [name for name, _ in available()] == ["enwik8", "python-stdlib", "codeparrot", "pypi-python"]
    with pytest.raises(UserError, match="no corpus or file"):
        load("")


def test_empty_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="the file is empty"):
        load(tmp_path / "empty")
    with pytest.raises(UserError, match="holds no text files"):
        load(tmp_path / "folder")
    with pytest.raises(UserError, match="is empty"):
        Corpus.from_bytes("x", b"")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"dangling cannot be read \(No such file"):
        load(tmp_path / "dangling")

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(UserError, match=f"{path} is not a regular file"):
            load(path)
    with pytest.raises(UserError, match="a user that is not known here"):
        load("~nosuchuser/text")
    with pytest.raises(UserError, match="zero byte"):
        load("a\0b")
    name = tmp_path / os.fsdecode(b"caf\xe9.txt")
    name.write_text("text " * 10)
    assert len(load(name)) == 50

    def forbidden(path: Path, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "secret").write_text("x")
    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(UserError, match=r"secret cannot be read \(Permission denied\)"):
        load(tmp_path / "secret")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="everything may be read here")
def test_a_forbidden_subfolder_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(UserError, match="closed cannot be read"):
        load(tmp_path)


def test_a_text_shorter_than_a_window_says_what_would_do(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("too short\n" * 30)
    corpus = load(tmp_path / "short")
    assert len(Windows(corpus.train)) == 1
    with pytest.raises(UserError, match=r"15 symbols, fewer than one window of 256: .* at least 5,120"):
        Windows(corpus.valid, stride=128)
