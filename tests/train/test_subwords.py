"""Subwords from end to end: a tokenizer made from the text, a run that stops and goes on, its loss, its words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from fsn.cli import main
from fsn.data import Alphabet, ReadOptions, Subwords
from fsn.errors import UserError
from fsn.train import Recipe, load_run, train
from fsn.train.sweep import read_sweep
from tests.data.subwords import byte_pairs, documents

SMALL = {"k": 16, "layers": 2, "dropout": 0.1}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in documents(120)))
    return path


def recipe(**changes: object) -> Recipe:
    fields = {
        "length": 32,
        "train_stride": 16,
        "eval_stride": 16,
        "batch_size": 16,
        "epochs": 2,
        "log_steps": 5,
    }
    return Recipe(**{**fields, **changes})  # type: ignore[arg-type]


def reading(rows: Path) -> ReadOptions:
    return ReadOptions(tokenizer=str(rows.parent / "tokenizer.json"), text_column="body")


def test_a_run_on_subwords(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = reading(rows)
    go = {"overrides": SMALL, "reading": how, "device": "cpu", "quiet": True}
    whole = train("fsn-1m", str(rows), tmp_path / "whole", recipe(separate_documents=True), **go)  # type: ignore[arg-type]
    half = recipe(separate_documents=True, max_steps=7)
    train("fsn-1m", str(rows), tmp_path / "parts", half, **go)  # type: ignore[arg-type]
    parts = train("fsn-1m", str(rows), tmp_path / "parts", recipe(separate_documents=True), extend=True, **go)  # type: ignore[arg-type]
    a, b = whole.load_model("last"), parts.load_model("last")
    for (name, one), other in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert whole.epochs[-1]["valid_bits"] == parts.epochs[-1]["valid_bits"]

    text = whole.load_corpus()
    share = text.tokens_per_byte("valid")
    assert share is not None and share < 0.5
    line = whole.epochs[-1]
    assert line["valid_bits_per_byte"] == line["valid_bits"] * share < line["valid_bits"] / 2
    for name in (
        "tokenizer.json",
        "rows.jsonl",
    ):  # the run needs the text for its loss, but no tokenizer from outside
        (rows.parent / name).rename(tmp_path / f"moved-{name}")
    main(
        [
            "eval",
            str(whole.folder),
            "--corpus",
            str(tmp_path / "moved-rows.jsonl"),
            "--device",
            "cpu",
            "--as-json",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    best = whole.best
    assert best is not None and found["bits"] == best["valid_bits"]
    assert found["bits_per_byte"] == best["valid_bits_per_byte"]
    main(["eval", str(whole.folder), "--corpus", str(tmp_path / "moved-rows.jsonl"), "--device", "cpu"])
    assert f"{best['valid_bits_per_byte']:.4f} bits per byte" in capsys.readouterr().out
    main(["generate", str(whole.folder), "--prompt", "the größe", "--symbols", "12", "--device", "cpu"])
    assert capsys.readouterr().out.startswith("the größe")
    main(["generate", str(whole.folder), "--symbols", "5", "--device", "cpu"])
    assert capsys.readouterr().out
    with pytest.raises(UserError, match="made of subwords"):
        _ = whole.load_corpus(str(tmp_path / "moved-rows.jsonl")).alphabet
    (whole.folder / "tokenizer.json").write_text(byte_pairs(end=None).to_str())
    with pytest.raises(UserError, match="is not the tokenizer this run was trained with"):
        _ = load_run(whole.folder).encoding


def test_fine_tuning_keeps_the_tokenizer(rows: Path, tmp_path: Path) -> None:
    short = recipe(max_steps=2, epochs=1)
    first = train(
        "fsn-1m",
        str(rows),
        tmp_path / "first",
        short,
        overrides=SMALL,
        reading=reading(rows),
        device="cpu",
        quiet=True,
    )
    (tmp_path / "more.txt").write_text("\n".join(documents(200, seed=7)), encoding="utf-8")
    second = train(
        "fsn-1m",
        str(tmp_path / "more.txt"),
        tmp_path / "second",
        short,
        overrides=SMALL,
        begin_with=first.folder,
        device="cpu",
        quiet=True,
    )
    assert isinstance(second.encoding, Subwords) and second.encoding == first.encoding
    byte_pairs(300).save(str(tmp_path / "other.json"))
    go = {"overrides": SMALL, "device": "cpu", "quiet": True}
    for named, said in (("other.json", "is not the tokenizer of the model"), ("no.json", "no.json")):
        how = ReadOptions(tokenizer=str(tmp_path / named))
        with pytest.raises(UserError, match=said):
            train(
                "fsn-1m",
                str(tmp_path / "more.txt"),
                tmp_path / "x",
                short,
                begin_with=first.folder,
                reading=how,
                **go,
            )  # type: ignore[arg-type]
    same = ReadOptions(tokenizer=str(rows.parent / "tokenizer.json"))
    train(
        "fsn-1m",
        str(tmp_path / "more.txt"),
        tmp_path / "y",
        short,
        begin_with=first.folder,
        reading=same,
        **go,
    )  # type: ignore[arg-type]
    plain = train("fsn-1m", str(tmp_path / "more.txt"), tmp_path / "bytes", short, **go)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the model reads bytes; leave it out"):
        train(
            "fsn-1m",
            str(tmp_path / "more.txt"),
            tmp_path / "z",
            short,
            begin_with=plain.folder,
            reading=same,
            **go,
        )  # type: ignore[arg-type]


def test_documents_of_bytes(rows: Path, tmp_path: Path) -> None:
    run = train(
        "transformer-1m",
        str(rows),
        tmp_path / "run",
        recipe(max_steps=3, epochs=1, separate_documents=True),
        overrides={"width": 16, "layers": 1},
        reading=ReadOptions(text_column="body"),
        device="cpu",
        quiet=True,
    )
    assert isinstance(run.encoding, Alphabet) and run.encoding.symbols[0] == 0
    share = run.load_corpus().tokens_per_byte("valid")  # the ends of documents are tokens and not bytes
    assert share is not None and 1 < share < 1.02
    assert run.epochs[-1]["valid_bits_per_byte"] == run.epochs[-1]["valid_bits"] * share


def test_token_files(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set").mkdir()
    numbers = np.random.default_rng(0).integers(0, 500, 4000).astype(np.uint16)
    numbers.tofile(tmp_path / "set" / "train.bin")
    numbers[:600].tofile(tmp_path / "set" / "val.bin")
    out = tmp_path / "run"
    words = ["train", "fsn-1m", "--corpus", str(tmp_path / "set"), "--out", str(out), "--device", "cpu"]
    words += ["--model", "k=8", "layers=1", "--length", "32", "--max-steps", "2", "--batch-size", "16"]
    main([*words, "--token-dtype", "uint16", "--vocab-size", "500"])
    capsys.readouterr()
    main(["eval", str(out), "--device", "cpu"])
    assert "bits per byte are not known" in capsys.readouterr().out
    main(["generate", str(out), "--symbols", "4", "--device", "cpu"])
    assert len(capsys.readouterr().out.split()) == 4
    with pytest.raises(SystemExit):
        main(["generate", str(out), "--prompt", "x", "--device", "cpu"])
    assert "have no tokenizer" in capsys.readouterr().err


def test_mistakes_are_told_before_work_begins(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "train",
                    "fsn-1m",
                    "--out",
                    str(tmp_path / "run"),
                    "--length",
                    "32",
                    "--device",
                    "cpu",
                    *words,
                ]
            )
        assert ended.value.code == 2 and not (tmp_path / "run").exists()
        said = capsys.readouterr().err.splitlines()
        return said[-1]

    corpus = ["--corpus", str(rows)]
    assert "has no column 'text'; it has body" in fails(*corpus, "--text-column", "text")
    assert "is not a tokenizer" in fails(*corpus, "--tokenizer", str(rows))
    (tmp_path / "text.txt").write_text(documents(1)[0])
    assert "is one text: separate documents" in fails(
        "--corpus", str(tmp_path / "text.txt"), "--separate-documents"
    )
    other = Subwords(byte_pairs(vocab_size=290)).encode(documents(1)[0]) + 400
    other.repeat(200).numpy().astype(np.uint16).tofile(tmp_path / "ids.bin")
    tokens = ["--corpus", str(tmp_path / "ids.bin"), "--token-dtype", "uint16"]
    assert "but there are only" in fails(*tokens, "--tokenizer", str(tmp_path / "tokenizer.json"))


def test_a_sweep_over_tokenizers(rows: Path, tmp_path: Path) -> None:
    byte_pairs(vocab_size=290).save(str(tmp_path / "small.json"))
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"out: {tmp_path / 'runs'}\n"
        f"defaults: {{preset: fsn-1m, corpus: '{rows}', text_column: body, length: 32, max_steps: 1, epochs: 1,"
        " batch_size: 32, model: {k: 8, layers: 1}}\n"
        f"grid: {{tokenizer: ['{tmp_path / 'tokenizer.json'}', '{tmp_path / 'small.json'}']}}\n"
        "runs: [{name: bytes}]\n"
    )
    jobs = read_sweep(file)
    assert [job.name for job in jobs] == ["tokenizertokenizer.json", "tokenizersmall.json", "bytes"]
    for job in jobs:
        main(["train", *job.arguments(), "--device", "cpu"])
        assert job.state() == "finished"
    other = dataclasses.replace(jobs[0], reading=jobs[1].reading)
    assert other.state() == dataclasses.replace(jobs[0], reading=jobs[2].reading).state() == "other settings"


@pytest.mark.parametrize("lengths", [[1100] * 10, [9000, 40, 1000], [30, 9000]])
def test_few_documents_are_enough(
    lengths: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are cut where the validation and test parts begin, in training as in evaluation afterwards."""
    path, out = tmp_path / "rows.jsonl", str(tmp_path / "run")
    text = "".join(documents(400))
    path.write_text("".join(json.dumps({"body": text[:length]}) + "\n" for length in lengths))
    words = [
        "train",
        "fsn-1m",
        "--corpus",
        str(path),
        "--text-column",
        "body",
        "--out",
        out,
        "--device",
        "cpu",
    ]
    words += ["--model", "k=8", "layers=1", "--length", "64", "--max-steps", "2", "--batch-size", "8"]
    main(words)
    said = capsys.readouterr().err
    assert "windows run over the ends of documents (--separate-documents keeps them apart)" in said
    run = load_run(out)
    assert run.config["corpus"]["cut_documents"] is True and run.best is not None
    main(["eval", out, "--device", "cpu", "--as-json"])
    assert json.loads(capsys.readouterr().out)["bits"] == run.best["valid_bits"]
    main(words)
    assert "is finished" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words[:-6], "--out", str(tmp_path / "x"), "--length", "2000"])
    assert f"the validation part of {path} holds" in capsys.readouterr().err


def test_documents_that_are_many_stay_whole(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"reading": reading(rows), "device": "cpu", "overrides": {"k": 8, "layers": 1}}
    run = train("fsn-1m", str(rows), tmp_path / "run", recipe(max_steps=1, separate_documents=True), **how)  # type: ignore[arg-type]
    assert "cut_documents" not in run.config["corpus"]
    assert ", documents kept apart" in capsys.readouterr().err
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(9, seed=3)))
    words = ["eval", str(run.folder), "--device", "cpu", "--text"]
    main([*words, str(other), "--text-column", "text", "--as-json"])
    found = json.loads(capsys.readouterr().out)
    share = found["symbols"] / sum(len(text.encode()) for text in documents(9, seed=3))
    assert found["bits_per_byte"] == pytest.approx(found["bits"] * share)
    (tmp_path / "plain.txt").write_text("".join(documents(9, seed=3)), encoding="utf-8")
    main([*words, str(tmp_path / "plain.txt")])
    assert "bits per byte" in capsys.readouterr().out


def test_the_rule_behind_the_width_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.random.default_rng(0).integers(0, 1500, 4000).astype(np.uint16).tofile(tmp_path / "ids.bin")
    words = ["train", "transformer-1m", "--corpus", str(tmp_path / "ids.bin"), "--token-dtype", "uint16"]
    words += [
        "--vocab-size",
        "1500",
        "--length",
        "32",
        "--max-steps",
        "1",
        "--batch-size",
        "2",
        "--device",
        "cpu",
    ]
    for number, (field, said) in enumerate(
        [
            ("layers=1", ", width 104 (match=paper), "),
            ("match=body", ", width 120 (match=body), "),
            ("width=8", ", width 8, "),
        ]
    ):
        main([*words, "--out", str(tmp_path / str(number)), "--model", *dict.fromkeys((field, "layers=1"))])
        shown = capsys.readouterr().err
        assert said in shown
        assert ("here are 1,500: --model match=body" in shown) == (field == "layers=1")
