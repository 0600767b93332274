"""Any tokenizer, token files and tables of documents: tokens that mean their text, and errors that help."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import logging
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, pre_tokenizers

from fsn.data import (
    Alphabet,
    Corpus,
    ReadOptions,
    Subwords,
    TokenIds,
    Windows,
    from_record,
    load,
    load_tokenizer,
)
from fsn.errors import UserError
from fsn.models.generate import first_token
from tests.data.subwords import END, TEXT, byte_pairs, documents


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_pairs()


@pytest.fixture
def saved(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_text_in_subwords_is_cut_where_its_bytes_are(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    plain = load(tmp_path / "text")
    corpus = load(tmp_path / "text", reading=ReadOptions(tokenizer=str(saved)))
    assert corpus.sha256 == plain.sha256 and corpus.vocab_size == len(load_tokenizer(str(saved)))
    assert corpus.train.dtype == torch.int16 and len(corpus) < len(plain) / 2
    whole = torch.cat([corpus.train.long(), corpus.valid.long(), corpus.test.long()])
    assert corpus.decode(whole) == TEXT
    assert corpus.n_bytes is not None and sum(corpus.n_bytes) == len(TEXT.encode())
    assert abs(corpus.n_bytes[0] - len(plain.train)) < 4 and abs(corpus.n_bytes[1] - len(plain.valid)) < 4
    share = corpus.tokens_per_byte("valid")
    assert share == len(corpus.valid) / corpus.n_bytes[1] and plain.tokens_per_byte("valid") == 1.0
    again = from_record(corpus.record(), saved.parent)
    assert again == corpus.encoding and corpus.within(again) is corpus
    with pytest.raises(UserError, match="another tokenizer than the model's"):
        plain.within(again)
    with pytest.raises(UserError, match="made of subwords"):
        _ = corpus.symbols


def test_letters_that_spell_a_special_token_are_letters(tokenizer: Tokenizer) -> None:
    encoding = Subwords(tokenizer)
    assert encoding.end == tokenizer.token_to_id(END)
    tokens = encoding.encode(f"a {END} b")
    assert encoding.end not in tokens.tolist() and encoding.decode(tokens) == f"a {END} b"
    assert first_token(encoding) == encoding.end


def test_a_tokenizer_without_an_end_gets_one() -> None:
    encoding = Subwords(byte_pairs(end=None))
    assert encoding.end == len(encoding) - 1 and encoding.decode(torch.tensor([encoding.end])) == ""


def test_settings_of_a_tokenizer_do_not_cut_texts(tokenizer: Tokenizer) -> None:
    short = Tokenizer.from_str(tokenizer.to_str())
    short.enable_truncation(4)
    short.enable_padding(length=100)
    assert Subwords(short).decode(Subwords(short).encode(TEXT)) == TEXT


def test_long_texts_are_encoded_in_pieces(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = Subwords(tokenizer)
    whole = encoding.encode(TEXT)
    monkeypatch.setattr("fsn.data.encoding.PIECE", 100)
    pieces = encoding.encode(TEXT)
    assert encoding.decode(pieces) == TEXT and len(pieces) < 1.2 * len(whole)


def test_tokens_come_out_as_text_one_by_one(tokenizer: Tokenizer) -> None:
    text = "the phase é 日本 of a field " * 30
    for encoding in (Subwords(tokenizer), Alphabet.of(text.encode())):
        stream = encoding.streamed()
        shown = [stream(int(token)) for token in encoding.encode(text)]
        assert "".join(shown) + stream(None) == text and "\ufffd" not in "".join(shown)


def test_the_tokens_of_a_long_text_are_kept_and_verified(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FSN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    how = ReadOptions(tokenizer=str(saved))
    fresh = load(tmp_path / "text", reading=how)
    assert not (tmp_path / "cache").exists()  # a short one is not worth it
    monkeypatch.setattr("fsn.data.corpus.CACHED_FROM", 0)
    load(tmp_path / "text", reading=how)
    made = [path for path in (tmp_path / "cache").glob("tokens-*") if path.suffix != ".sha256"]
    assert len(made) == 3

    def never(*arguments: object) -> None:
        raise AssertionError("encoded again")

    with monkeypatch.context() as patch:
        patch.setattr(Subwords, "encode_each", never)
        patch.setattr(Subwords, "gives_back", lambda *text: True)
        again = load(tmp_path / "text", reading=how)
    assert all(torch.equal(getattr(again, part), getattr(fresh, part)) for part in ("train", "valid", "test"))
    raw = bytearray(made[0].read_bytes())
    raw[7] ^= 1
    made[0].write_bytes(raw)
    mended = load(tmp_path / "text", reading=how)
    assert torch.equal(mended.train, fresh.train) and "is corrupt" in capsys.readouterr().err


@pytest.mark.parametrize("texts", [["one document"], ["aaaa", "bbbb"], ["x" * 100, "y" * 3], ["ab"] * 40])
def test_a_whole_text_has_one_end_between_documents(tmp_path: Path, texts: list[str]) -> None:
    """Splits without a document are an end token alone."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = load(tmp_path / "rows.jsonl", reading=ReadOptions(text_column="text"), whole=True)
    tokens = corpus.tokens(None)
    assert int((tokens == corpus.end).sum()) == len(texts) + 1
    symbols = sum(map(len, texts))
    assert corpus.tokens_per_byte(None) == (symbols + len(texts) + 1) / symbols


def test_documents_are_packed_with_the_end_before_each(saved: Path, tmp_path: Path) -> None:
    texts = documents(40)
    rows = [json.dumps({"text": text, "n": i}) for i, text in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows[:20]) + "\n\n" + "\n".join(rows[20:]))
    for tokenizer in (None, str(saved)):
        corpus = load(tmp_path / "rows.jsonl", reading=ReadOptions(tokenizer=tokenizer, text_column="text"))
        assert corpus.end is not None
        found = []
        for part in (corpus.train, corpus.valid, corpus.test):
            tokens = part.long()
            assert tokens[0] == tokens[-1] == corpus.end
            places = (tokens == corpus.end).nonzero().flatten().tolist()
            found += [corpus.decode(tokens[a + 1 : b]) for a, b in itertools.pairwise(places)]
        assert found == texts
        assert corpus.n_bytes is not None and sum(corpus.n_bytes) == sum(len(text.encode()) for text in texts)
        assert corpus.record()["text_column"] == "text"
        windows = Windows(corpus.train, 64, 16, corpus.end)
        batch = windows.gather(torch.arange(4))
        numbers = windows.documents(batch)
        assert numbers is not None and numbers.shape == batch.shape
        assert torch.equal(numbers.diff(dim=1) == 1, batch[:, 1:] == corpus.end)
    assert Windows(corpus.train, 64, 16).documents(batch) is None


def test_parquet_and_folders_of_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    texts = documents(30)
    (tmp_path / "shards").mkdir()
    table = pyarrow.table({"body": [*texts[:20], None, ""], "n": list(range(22))})
    pyarrow.parquet.write_table(table, tmp_path / "shards" / "a.parquet")
    (tmp_path / "shards" / "b.jsonl").write_text("".join(json.dumps({"body": t}) + "\n" for t in texts[20:]))
    corpus = load(tmp_path / "shards", reading=ReadOptions(text_column="body"))
    assert corpus.sha256 == Corpus.from_documents("x", texts).sha256
    assert corpus.left_out == "2 of 32 documents are empty and were left out"
    with pytest.raises(UserError, match=r"a\.parquet has no column 'text'; it has body, n"):
        load(tmp_path / "shards" / "a.parquet", reading=ReadOptions(text_column="text"))
    with pytest.raises(UserError, match="holds int64, not text"):
        load(tmp_path / "shards" / "a.parquet", reading=ReadOptions(text_column="n"))
    with pytest.raises(UserError, match="give the column of the text with --text-column"):
        load(tmp_path / "shards" / "a.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        load(tmp_path / "bad.parquet", reading=ReadOptions(text_column="text"))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('{"text": "a"}\n{"text"\n', r"line 2 of .*rows\.jsonl is not JSON"),
        ("[" * 100_000, r"line 1 of .*rows\.jsonl is not JSON"),
        ('{"body": "a"}', "has no column 'text'; it has body"),
        ("[1, 2]", "has no column 'text'; it is not an object"),
        ('{"text": 3}', "column 'text' in line 1 .* is not text"),
        ('{"text": ""}\n{"text": null}', "no document with text in it"),
        ('{"text": "a\\u0000b"}', "holds a zero byte"),
        ('{"text": "\\ud800"}', r"document 1 holds '\\ud800', half of a character"),
        ("", "no document with text in it"),
    ],
)
def test_bad_rows_are_one_sentence(tmp_path: Path, lines: str, sentence: str) -> None:
    (tmp_path / "rows.jsonl").write_text(lines)
    with pytest.raises(UserError, match=sentence):
        load(tmp_path / "rows.jsonl", reading=ReadOptions(text_column="text"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_table_is_not_read_as_text(tmp_path: Path, name: str) -> None:
    """Its brackets and field names would be learned, and nobody would notice."""
    (tmp_path / name).write_text('{"text": "a"}\n' * 100)
    with pytest.raises(UserError, match=f"{name} is a table: give the column of the text"):
        load(tmp_path / name)


@pytest.mark.parametrize("kind", ["bin16", "bin32", "npy16", "npy64"])
def test_token_files_are_mapped(tmp_path: Path, kind: str) -> None:
    dtype: Any = {"bin16": np.uint16, "bin32": np.uint32, "npy16": np.uint16, "npy64": np.int64}[kind]
    numbers = np.random.default_rng(0).integers(0, 60_000, 2000).astype(dtype)
    if kind.startswith("bin"):
        path, reading = tmp_path / "x.bin", ReadOptions(token_dtype=numbers.dtype.name, vocab_size=60_000)
        numbers.tofile(path)
    else:
        path, reading = tmp_path / "x.npy", ReadOptions(vocab_size=60_000)
        np.save(path, numbers)
    corpus = load(path, reading=reading)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (1800, 100, 100)
    assert corpus.encoding == TokenIds(60_000) and corpus.tokens_per_byte("valid") is None
    assert isinstance(corpus.train.numpy().base, np.memmap) or corpus.train.numpy().base is not None
    batch = Windows(corpus.train, 32, 16).gather(torch.tensor([3, 7]))
    assert torch.equal(batch[1], torch.from_numpy(numbers[112:144].astype(np.int64)))
    again = load(
        path,
        reading=ReadOptions.from_record(corpus.record()),
        encoding=from_record(corpus.record(), tmp_path),
    )
    assert again.sha256 == corpus.sha256 and again.record() == corpus.record()
    with pytest.raises(UserError, match=r"holds the token 59\d\d\d, but there are only 50,000"):
        load(path, reading=ReadOptions(token_dtype=reading.token_dtype, vocab_size=50_000))


def test_the_folder_that_nanogpt_makes(tmp_path: Path, saved: Path) -> None:
    encoding = load_tokenizer(str(saved))
    for name, text in (("train.bin", TEXT), ("val.bin", TEXT[:500])):
        encoding.encode(text).numpy().astype(np.uint16).tofile(tmp_path / name)
    corpus = load(tmp_path, reading=ReadOptions(token_dtype="uint16", tokenizer=str(saved)))
    assert corpus.decode(corpus.valid) == TEXT[:500] and corpus.end == encoding.end
    share = corpus.tokens_per_byte("valid")
    assert share is not None and share == len(corpus.valid) / len(TEXT[:500].encode())
    assert len(corpus.test) == 0 and corpus.tokens_per_byte("test") is None
    with pytest.raises(UserError, match="fewer than one window"):
        Windows(corpus.test, 32, 16)
    with pytest.raises(UserError, match="but the tokenizer has"):
        load(tmp_path, reading=ReadOptions(token_dtype="uint16", tokenizer=str(saved), vocab_size=7))


def test_bytes_are_counted_document_by_document(tokenizer: Tokenizer) -> None:
    encoding, text = Subwords(tokenizer), "日本の größe " * 40
    end, body = torch.tensor([encoding.end]), encoding.encode(text)
    assert encoding.count_bytes(body, "x") == len(text.encode())
    several = torch.cat([end, body, end, end, body[:7], end])
    assert encoding.count_bytes(several.to(torch.int16), "x") == len(
        (text + encoding.decode(body[:7])).encode()
    )


def test_bad_token_files_are_one_sentence(tmp_path: Path) -> None:
    np.zeros(100, dtype=np.uint16).tofile(tmp_path / "x.bin")
    both = r"give their number with --vocab-size, or .* --tokenizer, and their type with --token-dtype uint16"
    with pytest.raises(UserError, match=both):
        load(tmp_path / "x.bin")
    with pytest.raises(UserError, match="give --token-dtype uint16"):
        load(tmp_path / "x.bin", reading=ReadOptions(vocab_size=10))
    with pytest.raises(UserError, match="token_dtype is 'float32'; it takes one of uint16, uint32"):
        ReadOptions(token_dtype="float32")  # type: ignore[arg-type]
    for name, raw, said in (
        ("odd.bin", b"abc", "cannot be read as tokens"),
        ("no.bin", b"", "no.bin is empty"),
    ):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=said):
            load(tmp_path / name, reading=ReadOptions(token_dtype="uint16", vocab_size=10))
    for name, array in {"f.npy": np.zeros(9), "two.npy": np.zeros((3, 3), dtype=np.int64)}.items():
        np.save(tmp_path / name, array)
        with pytest.raises(UserError, match="write one row of integers"):
            load(tmp_path / name, reading=ReadOptions(vocab_size=10))
    np.save(tmp_path / "minus.npy", np.array([1, -1]))
    with pytest.raises(UserError, match="holds the token -1"):
        load(tmp_path / "minus.npy", reading=ReadOptions(vocab_size=10))
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot be read as tokens"):
        load(tmp_path / "objects.npy", reading=ReadOptions(vocab_size=10))


def test_bad_tokenizers_are_one_sentence(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\xffb" * 100)
    with pytest.raises(UserError, match=r"reads UTF-8, but byte 1 of .*text is b'\\xff'"):
        load(tmp_path / "text", reading=ReadOptions(tokenizer=str(saved)))
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(UserError, match=r"no\.json is not a tokenizer"):
        load_tokenizer(str(tmp_path / "no.json"))
    with pytest.raises(UserError, match=r"there is no tokenizer '.*nowhere'"):
        load_tokenizer(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"there is no tokenizer 'mistyped\.json': give the path"):
        load_tokenizer("mistyped.json")
    with pytest.raises(UserError, match="not known here"):
        load_tokenizer("~nosuchuser/x")
    with pytest.raises(UserError, match="is not a regular file: give the path of a tokenizer"):
        load_tokenizer("/dev/zero")
    with pytest.raises(UserError, match="give the path of a tokenizer"):
        load_tokenizer("")
    for odd in (ReadOptions(token_dtype="uint16"), ReadOptions(vocab_size=5)):
        with pytest.raises(UserError, match=r"does not apply to .*, which is text"):
            load(tmp_path / "text", reading=odd)
    with pytest.raises(
        UserError, match="--text-column does not apply to python-stdlib, which is a corpus by name"
    ):
        load("python-stdlib", reading=ReadOptions(text_column="x"))
    record = Corpus.from_documents("x", documents(3), load_tokenizer(str(saved))).record()
    saved.write_text(byte_pairs(end=None).to_str())
    with pytest.raises(UserError, match="is not the tokenizer this run was trained with"):
        from_record(record, tmp_path)


def test_a_tokenizer_that_loses_text_gives_no_bits_per_byte() -> None:
    from tokenizers import normalizers

    tokenizer = byte_pairs()
    tokenizer.normalizer = normalizers.Lowercase()
    corpus = Corpus.from_bytes("x", b"Text With Capitals\n" * 50, encoding=Subwords(tokenizer))
    assert corpus.n_bytes is None and corpus.tokens_per_byte("valid") is None


def test_a_folder_that_transformers_saved(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_pairs(end="<done>"), eos_token="<done>")
    fast.save_pretrained(tmp_path)
    encoding = load_tokenizer(str(tmp_path))
    assert encoding.end == fast.eos_token_id and encoding.decode(encoding.encode("the phase")) == "the phase"


def test_a_name_that_is_no_file_is_sought_in_what_was_downloaded_and_then_on_the_hub(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped path never, and without a network one sentence comes at once, without the client's retries."""
    transformers, hub = pytest.importorskip("transformers"), pytest.importorskip("huggingface_hub")
    asked: list[object] = []

    def found(source: str, local_files_only: bool, **_: object) -> object:
        asked.append((source, local_files_only))
        logging.getLogger("huggingface_hub.utils").warning("retrying")
        if local_files_only and source != "kept":
            raise OSError("it is not in the cache")
        return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_pairs(), eos_token=END)

    def model_info(name: str, timeout: float) -> None:
        if name == "nobody/knows":
            raise ConnectionError("no network")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", found)
    monkeypatch.setattr(hub, "model_info", model_info)
    for mistyped in ("nope.json", "runs/nope.json", "runs/tiny/words", "./words", "/words"):
        with pytest.raises(UserError, match="there is no tokenizer"):
            load_tokenizer(mistyped)
    assert asked == []
    assert load_tokenizer("kept").end == load_tokenizer("some/one").end
    assert asked == [("kept", True), ("some/one", True), ("some/one", False)]
    with pytest.raises(UserError, match=r"there is no tokenizer 'nobody/knows' \(no network\)"):
        load_tokenizer("nobody/knows")
    said = capsys.readouterr().err
    assert "retrying" not in said and said.count("looking for the tokenizer") == 2


@pytest.mark.parametrize("sizes", [[540] * 10, [40] * 17 + [4000] + [3], [9000, 1, 1]])
def test_few_documents_are_cut_where_the_parts_begin(sizes: list[int], saved: Path) -> None:
    texts = [("größe " * size)[:size] for size in sizes]
    whole = "".join(texts).encode()
    plain = Corpus.from_documents("x", texts)
    assert min(len(plain.train), len(plain.valid)) < 50, "uncut, one part has next to nothing"
    for encoding in (None, load_tokenizer(str(saved))):
        corpus = Corpus.from_documents("x", texts, encoding, cut=True)
        parts = [corpus.tokens(split) for split in ("train", "valid", "test")]
        spoken = [corpus.decode(part[part != corpus.end]).encode() for part in parts]
        assert b"".join(spoken) == whole and corpus.sha256 == plain.sha256
        assert corpus.n_bytes == tuple(map(len, spoken))
        assert abs(len(spoken[1]) - len(whole) / 20) < 4 and abs(len(spoken[2]) - len(whole) / 20) < 4
        assert all(part[0] == part[-1] == corpus.end for part in parts)
        assert corpus.record()["cut_documents"] is True and "cut_documents" not in plain.record()


def test_the_whole_text_has_each_end_once(saved: Path) -> None:
    texts = documents(40)
    corpus = Corpus.from_documents("x", texts, load_tokenizer(str(saved)))
    assert int((corpus.tokens(None) == corpus.end).sum()) == 41
    share = corpus.tokens_per_byte(None)
    assert share == len(corpus.tokens(None)) / sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_compressed_text_is_read_as_text(tmp_path: Path, suffix: str, pack: Any) -> None:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in documents(30)).encode()
    for name, raw, reading in (
        ("a.txt", TEXT.encode(), None),
        ("b.jsonl", rows, ReadOptions(text_column="text")),
    ):
        (tmp_path / name).write_bytes(raw)
        (tmp_path / (name + suffix)).write_bytes(pack(raw))
        plain, packed = (load(tmp_path / x, reading=reading) for x in (name, name + suffix))
        assert plain.sha256 == packed.sha256 and torch.equal(plain.train, packed.train)
    with pytest.raises(UserError, match=r"is a table: give the column"):
        load(tmp_path / f"b.jsonl{suffix}")
    (tmp_path / f"bad{suffix}").write_bytes(pack(TEXT.encode())[:-9])
    with pytest.raises(UserError, match=r"cannot be unpacked"):
        load(tmp_path / f"bad{suffix}")


def test_compressed_texts_in_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "packed").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "plain" / name).write_text(TEXT)
        (tmp_path / "packed" / f"{name}.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "packed" / "c.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    plain, packed = (load(tmp_path / name) for name in ("plain", "packed"))
    assert (
        plain.sha256 == packed.sha256 and "1 of 3 files" in packed.left_out and "c.txt.gz" in packed.left_out
    )
    (tmp_path / "rows.parquet.gz").write_bytes(b"")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(
        UserError, match=r"rows.parquet.gz is compressed: unpack it first, and name what was in it"
    ):
        load(tmp_path, reading=ReadOptions(text_column="text"))


def test_a_text_that_is_only_read_is_not_cut_within_a_token(saved: Path) -> None:
    encoding = load_tokenizer(str(saved))
    cut = 0
    for size in range(60, 80):
        text = TEXT[:size]
        split, whole = (Corpus.from_bytes("x", text.encode(), None, encoding, whole=w) for w in (False, True))
        assert torch.equal(whole.tokens(None).long(), encoding.encode(text))
        assert len(whole.valid) == len(whole.test) == 0
        assert whole.tokens_per_byte(None) == len(whole.train) / len(text.encode())
        cut += len(split.tokens(None)) > len(whole.tokens(None))
    assert cut > 0


def test_a_space_in_front_is_noticed_wherever_a_document_begins() -> None:
    tokenizer = byte_pairs()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    encoding = Subwords(tokenizer)
    for text in (" the phase", "the phase"):
        assert encoding.count_bytes(encoding.encode(text), "x") == 0


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.jsonl.zst", "a.parquet.gz", "ids.bin.xz", "a.7z"])
def test_other_archives_are_not_learned_byte_by_byte(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(range(256)) * 40)
    for reading in (None, ReadOptions(text_column="text")):
        with pytest.raises(UserError, match=f"{name} is compressed: unpack it first"):
            load(tmp_path / name, reading=reading)


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        ("a.json", '[{"text": "a"}]', r"it is not an object: give JSONL.*\(jq -c"),
        ("a.json", '[\n{"text": "a"}\n]', r"line 1 of .*a\.json is not JSON: give JSONL.*\(jq -c"),
        ("a.csv", "text,n\na,1\n", r"line 1 of .*a\.csv is not JSON: give JSONL.*or Parquet, not \.csv"),
    ],
)
def test_other_tables_say_what_would_do(tmp_path: Path, name: str, raw: str, sentence: str) -> None:
    (tmp_path / name).write_text(raw)
    with pytest.raises(UserError, match=sentence):
        load(tmp_path / name, reading=ReadOptions(text_column="text"))


def test_wide_tokens_read_as_narrow_ones_are_refused(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(1, 500, 2000).astype(np.uint32)
    numbers.tofile(tmp_path / "x.bin")
    assert (
        len(load(tmp_path / "x.bin", reading=ReadOptions(token_dtype="uint32", vocab_size=500)).train) == 1800
    )
    with pytest.raises(UserError, match="every second token is 0"):
        load(tmp_path / "x.bin", reading=ReadOptions(token_dtype="uint16", vocab_size=500))


def test_the_model_names_what_it_cannot_read() -> None:
    corpus = Corpus.from_bytes("mine", b"abc" * 50 + b"zz\xff")
    said = r"2 of the 5 symbols of the corpus mine .* 3 of its 153 bytes: b'z' \(2×\), b'\\xff' \(1×\)"
    with pytest.raises(UserError, match=said):
        corpus.within(Alphabet(b"abc"))
    with pytest.raises(
        UserError, match="mine holds text, and the model reads tokens without a tokenizer: give it"
    ):
        corpus.within(TokenIds(9))
