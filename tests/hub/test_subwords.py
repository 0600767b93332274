"""A run on subwords, stopped, resumed and exported: transformers, ``fsn.load`` and lm-eval read the same model."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fsn
from fsn.data import ReadOptions, Subwords
from fsn.data.encoding import TokenIds
from fsn.errors import UserError
from fsn.explore.explorer import Explorer
from fsn.train import Recipe, Run, train
from tests.data.subwords import byte_pairs, documents

transformers = pytest.importorskip("transformers")
from fsn.hub import export_run  # noqa: E402

TEXT = "the winding of a größe field <pad>"


@pytest.fixture(scope="module", params=["<|endoftext|>", None])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("subwords")
    byte_pairs(end=request.param).save(str(folder / "tokenizer.json"))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in documents(80)))

    def go(name: str, budget_minutes: float | None = None) -> Run:
        return train(
            "fsn-1m",
            str(folder / "rows.jsonl"),
            folder / name,
            Recipe(length=32, batch_size=16, max_steps=4, epochs=1),
            overrides={"k": 8, "layers": 1},
            reading=ReadOptions(tokenizer=str(folder / "tokenizer.json"), text_column="text"),
            device="cpu",
            quiet=True,
            budget_minutes=budget_minutes,
        )

    stopped = go("run", budget_minutes=1e-6)
    assert not stopped.finished and stopped.step < 4
    whole, resumed = go("whole"), go("run")
    pairs = zip(whole.load_model().parameters(), resumed.load_model().parameters(), strict=True)
    assert resumed.step == 4 and all(torch.equal(one, other) for one, other in pairs)
    return resumed


@pytest.fixture(scope="module")
def exported(run: Run) -> Path:
    return export_run(run.folder, run.folder.parent / "exported")


def test_transformers_and_fsn_read_the_same_model(run: Run, exported: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    ids = tokenizer(TEXT, add_special_tokens=False, return_tensors="pt").input_ids
    assert ids[0].tolist() == run.encoding.encode(TEXT).tolist() and tokenizer.decode(ids[0]) == TEXT
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == run.encoding.end
    assert model.config.eos_token_id == model.config.bos_token_id == run.encoding.end
    assert tokenizer.pad_token_id == len(run.encoding) == model.config.vocab_size
    native, again = run.load_model(), fsn.load(exported)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, native(ids)) and torch.equal(again(ids), native(ids))
    batch = tokenizer(["the", TEXT], padding=True, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        padded = model(**batch).logits
    assert (padded[1] - native(ids)[0]).abs().max() < 1e-4
    written = fsn.load(run.folder).generate("the ", 6, temperature=0.0)
    assert written == again.generate("the ", 6, temperature=0.0) and written.startswith("the ")
    assert isinstance(again.tokenizer, Subwords) and again.generate(symbols=3)
    assert (
        "subwords" in (exported / "README.md").read_text()
        and "bits per byte" in (exported / "README.md").read_text()
    )


def test_a_run_and_its_export_are_compared(run: Run, exported: Path) -> None:
    """The export's tokenizer has one token more, for padding."""
    both = Explorer({"run": run.load_model(), "export": fsn.load(exported)})
    said = both.read("the winding of")
    assert "".join(said["labels"]) == "the winding of"
    numbers = fsn.build("fsn-1m", vocab_size=9, k=8, layers=1)
    numbers.tokenizer = TokenIds(9)
    with pytest.raises(UserError, match="does not know what its tokens mean"):
        Explorer({"numbers": numbers})


def test_the_card_counts_the_steps_of_the_weights(run: Run, tmp_path: Path) -> None:
    """The checkpoint may be later than the last line of the metrics."""
    again = tmp_path / "run"
    shutil.copytree(run.folder, again)
    newest = max((again / "last").glob("step-*"))
    state = json.loads((newest / "state.json").read_text()) | {"step": 29}
    document = json.dumps(state).encode()
    (newest / "state.json").write_bytes(document)
    (newest / "state.sha256").write_bytes(f"{hashlib.sha256(document).hexdigest()}  state.json\n".encode())
    newest.rename(again / "last" / "step-00000029")
    made = export_run(again, tmp_path / "out", "last")
    assert "29" in (made / "README.md").read_text()


def test_tokens_without_a_tokenizer_cannot_be_exported(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 99, 3000))
    how = {"overrides": {"k": 8, "layers": 1}, "device": "cpu", "quiet": True}
    short = Recipe(length=32, batch_size=16, max_steps=1, epochs=1)
    done = train(
        "fsn-1m", str(tmp_path / "x.npy"), tmp_path / "run", short, reading=ReadOptions(vocab_size=99), **how
    )  # type: ignore[arg-type]
    with pytest.raises(UserError, match="trained on tokens without a tokenizer"):
        export_run(done.folder, tmp_path / "out")


@pytest.mark.slow
def test_lm_eval_reads_it(run: Run, exported: Path, tmp_path: Path) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    (tmp_path / "lines.jsonl").write_text(json.dumps({"text": TEXT}))
    (tmp_path / "bits.yaml").write_text(
        "task: bits\ndataset_path: json\ntest_split: test\noutput_type: loglikelihood_rolling\ndoc_to_text: ''\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'lines.jsonl'}}}}}\n"
        "doc_to_target: '{{text}}'\nmetric_list: [{metric: bits_per_byte}]\n"
    )
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(exported), "device": "cpu", "dtype": "float32"},
        tasks=["bits"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    tokens = torch.cat([torch.tensor([run.encoding.end]), run.encoding.encode(TEXT)])[None]
    with torch.no_grad():
        nats = run.load_model().loss(tokens[:, :-1], tokens[:, 1:]).sum()
    bits = float(nats) / math.log(2) / len(TEXT.encode())
    assert found["results"]["bits"]["bits_per_byte,none"] == pytest.approx(bits, abs=1e-4)
