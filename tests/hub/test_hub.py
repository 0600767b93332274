"""Runs as models of transformers: loaded, generating, learning, refusing what they cannot do."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fsn
from fsn.cli import main
from fsn.data import Alphabet
from fsn.errors import UserError
from fsn.models import config_to_dict
from fsn.pretrained import SHIPPED
from fsn.train import Run, load_run, train
from tests.small import small
from tests.train import tiny

transformers = pytest.importorskip("transformers")
from fsn.hub import FSNForCausalLM, HubCache, HubConfig, export_run, make_tokenizer  # noqa: E402
from fsn.hub.export import PROMPT, card, prompt_for  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ["fsn", "fsn-mf", "kuramoto", "transformer"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A short run of each family."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for family in FAMILIES:
        own = {"width": 16, "dropout": 0.1} if family == "transformer" else {"k": 16}
        overrides: dict[str, Any] = {"layers": 2} | own
        train(
            f"{family}-1m",
            tiny.corpus(),
            folder / family,
            tiny.recipe(epochs=1),
            overrides=overrides,
            quiet=True,
        )
        found[family] = load_run(folder / family)
    return found


@pytest.fixture(scope="module")
def exported(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hub")
    return {family: export_run(run.folder, folder / family) for family, run in runs.items()}


def load(folder: Path) -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_auto_classes_give_the_run_back(
    runs: dict[str, Run], exported: dict[str, Path], family: str
) -> None:
    model, tokenizer = load(exported[family])
    assert isinstance(model, FSNForCausalLM) and not model.training
    text = "the phase of the kernel"
    tokens = tokenizer(text, return_tensors="pt")["input_ids"]
    assert torch.equal(tokens[0], runs[family].encoding.encode(text).long())
    assert tokenizer.decode(tokens[0], skip_special_tokens=True) == text
    assert torch.equal(model(tokens).logits, runs[family].load_model()(tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_with_and_without_memory(
    runs: dict[str, Run], exported: dict[str, Path], family: str
) -> None:
    model, tokenizer = load(exported[family])
    inputs = tokenizer("the lag", return_tensors="pt")
    greedy = {"max_new_tokens": 20, "do_sample": False}
    text = tokenizer.decode(model.generate(**inputs, **greedy)[0])
    assert text == tokenizer.decode(model.generate(**inputs, **greedy, use_cache=False)[0])
    assert text == runs[family].load_model().generate("the lag", 20, temperature=0.0)
    beams = greedy | {"num_beams": 3}
    assert torch.equal(model.generate(**inputs, **beams), model.generate(**inputs, **beams, use_cache=False))


def test_usual_options_of_a_config_are_taken(exported: dict[str, Path]) -> None:
    folder = exported["fsn"]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, use_cache=False, tie_word_embeddings=False
    )
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    cache = model(tokens, use_cache=True).past_key_values
    assert cache.length == 4
    assert model(tokens[:, :1], past_key_values=cache).past_key_values is None
    model.config.use_cache = True
    assert model(tokens[:, :1], past_key_values=cache).past_key_values is cache


def test_the_cards_example_is_one_the_model_reads(exported: dict[str, Path]) -> None:
    for folder in exported.values():
        prompt = json.loads(re.findall(r"write\((\".*?\"), max_new", (folder / "README.md").read_text())[0])
        assert prompt != PROMPT and len(prompt) > 4, "the corpus has no capitals"
        write = transformers.pipeline("text-generation", str(folder))
        assert write(prompt, max_new_tokens=4)[0]["generated_text"].startswith(prompt)
    assert prompt_for(Alphabet.of(PROMPT.encode())) == PROMPT


@pytest.mark.parametrize("family", FAMILIES)
def test_points_are_recorded_and_replaced_while_it_generates(exported: dict[str, Path], family: str) -> None:
    model, tokenizer = load(exported[family])
    inputs = tokenizer("the lag", return_tensors="pt")
    greedy = {"max_new_tokens": 20, "do_sample": False}
    plain = model.generate(**inputs, **greedy)
    for target in (model, model.model):
        with fsn.replace(target, {"layers.*.update.raw": lambda x: -x}), fsn.record(model) as points:
            cached = model.generate(**inputs, **greedy)
            anew = model.generate(**inputs, **greedy, use_cache=False)
        assert torch.equal(cached, anew) and not torch.equal(cached, plain)
        assert points["layers.1.state"].shape == (1, 26, 16)
    assert torch.equal(model.generate(**inputs, **greedy), plain)


def test_a_padded_batch_and_a_pipeline(exported: dict[str, Path]) -> None:
    model, tokenizer = load(exported["fsn"])
    prompts = ["the phase of", "a"]
    greedy = {"max_new_tokens": 12, "do_sample": False}
    together = model.generate(**tokenizer(prompts, return_tensors="pt", padding=True), **greedy)
    alone = [model.generate(**tokenizer(p, return_tensors="pt"), **greedy)[0] for p in prompts]
    assert tokenizer.batch_decode(together, skip_special_tokens=True) == [tokenizer.decode(x) for x in alone]
    write = transformers.pipeline("text-generation", str(exported["fsn"]))
    text = write("the ", max_new_tokens=9)[0]["generated_text"]
    assert text.startswith("the ") and len(text) == 13


def test_assisted_decoding_forgets_what_was_refused(exported: dict[str, Path]) -> None:
    model, tokenizer = load(exported["fsn"])
    helper, _ = load(exported["kuramoto"])
    inputs = tokenizer("the kernel", return_tensors="pt")
    greedy = {"max_new_tokens": 15, "do_sample": False}
    assert torch.equal(
        model.generate(**inputs, **greedy), model.generate(**inputs, **greedy, assistant_model=helper)
    )


def test_a_cache_forgets_as_generate_counts() -> None:
    cache = HubCache(2)
    cache.grow(torch.zeros(1, 5), None)
    for removed, left in ((-2, 3), (0, 3), (-7, 0)):
        cache.crop(removed)
        assert cache.length == cache.get_seq_length() == left
    with pytest.raises(UserError, match="minus the number"):
        cache.crop(1)


def test_sequences_that_end_early_are_padded_and_stay_ended(exported: dict[str, Path]) -> None:
    model, tokenizer = load(exported["fsn"])
    prompts = ["the phase of", "a"]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    for end in range(model.config.vocab_size):
        how = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": end}
        together = tokenizer.batch_decode(model.generate(**inputs, **how), skip_special_tokens=True)
        alone = [
            tokenizer.decode(model.generate(**tokenizer(p, return_tensors="pt"), **how)[0]) for p in prompts
        ]
        assert together == alone


def test_padding_behind_a_sequence_trains_with_dropout(exported: dict[str, Path], tmp_path: Path) -> None:
    model, tokenizer = load(exported["transformer"])
    assert model.model.uses_dropout
    tokens = tokenizer("the winding of a field", return_tensors="pt")["input_ids"]
    padded = torch.nn.functional.pad(tokens, (0, 4), value=tokenizer.pad_token_id)
    mask = (padded != tokenizer.pad_token_id).long()
    with torch.no_grad():
        torch.testing.assert_close(model(padded, attention_mask=mask).logits[:, :-4], model(tokens).logits)
    model.train()
    first, second = (model(padded, attention_mask=mask).logits for _ in range(2))
    assert not torch.equal(first, second)
    first, second = (model(padded.flip(1), attention_mask=mask.flip(1)).logits for _ in range(2))
    assert not torch.equal(first, second)  # in front as well
    with pytest.raises(UserError, match="no dropout"):
        model(tokens, use_cache=True)
    model.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "again", trust_remote_code=True, dtype=torch.bfloat16
    )
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)


def test_a_file_without_a_weight_is_refused(exported: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, _ = load(exported["fsn"])
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.tau"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks model\.tau"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_labels_give_the_loss_and_gradients(exported: dict[str, Path]) -> None:
    model, tokenizer = load(exported["fsn"])
    tokens = tokenizer("the winding of a field", return_tensors="pt")["input_ids"]
    found = model.train()(tokens, labels=tokens)
    with torch.no_grad():
        expected = model.model.eval().loss(tokens[:, :-1], tokens[:, 1:]).mean()
    torch.testing.assert_close(found.loss.detach(), expected)
    found.loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    left = torch.cat((torch.full((1, 3), tokenizer.pad_token_id), tokens), dim=1)
    mask = (left != tokenizer.pad_token_id).long()
    labels = left.masked_fill(mask == 0, -100)
    padded = model(left, attention_mask=mask, labels=labels)
    torch.testing.assert_close(padded.loss, found.loss)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_no_prediction_is_made_from_padding(exported: dict[str, Path], side: str) -> None:
    """Texts of 120, 70 and 5 symbols in one batch have the loss of all their predictions one by one."""
    model, tokenizer = load(exported["fsn"])
    text = "the phase of the kernel the lag of a field " * 3
    texts = [text[:length] for length in (120, 70, 5)]
    tokenizer.padding_side = side
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    alone = [tokenizer(t, return_tensors="pt")["input_ids"] for t in texts]
    losses = torch.cat([model.model.loss(t[:, :-1], t[:, 1:])[0] for t in alone])
    assert len(losses) == 119 + 69 + 4
    for labels in (inputs["input_ids"], inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)):
        torch.testing.assert_close(model(**inputs, labels=labels).loss, losses.mean())


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_what_is_inside_comes_out_under_the_usual_names(exported: dict[str, Path], family: str) -> None:
    model, tokenizer = load(exported[family])
    inputs = tokenizer(["the lag", "a"], return_tensors="pt", padding=True)
    seen = model(**inputs, output_hidden_states=True, output_attentions=True)
    plain = model(**inputs)
    assert plain.hidden_states is None and plain.attentions is None
    torch.testing.assert_close(seen.logits, plain.logits)
    assert [tuple(x.shape) for x in seen.hidden_states] == [(2, 7, 16)] * 3
    assert [tuple(x.shape) for x in seen.attentions] == [(2, 1, 7, 7)] * 2
    assert not seen.attentions[0][1, :, 6:, :6].any()  # nobody looks at padding
    first = model.get_input_embeddings()(inputs["input_ids"][:1])
    torch.testing.assert_close(seen.hidden_states[0][:1], first)
    how = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    written = model.generate(**inputs, **how, output_hidden_states=True, output_attentions=True)
    assert [x[-1].shape[1] for x in written.hidden_states] == [7, 1, 1, 1, 1, 1]
    assert written.attentions[-1][0].shape == (2, 1, 1, 12)
    model.config.output_hidden_states = True
    assert len(model(**inputs).hidden_states) == 3


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_phases_in_place_of_symbols(exported: dict[str, Path], family: str) -> None:
    model, tokenizer = load(exported[family])
    inputs = tokenizer("the lag", return_tensors="pt")
    phases = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    found = model(inputs_embeds=phases, labels=inputs["input_ids"])
    expected = model(**inputs, labels=inputs["input_ids"])
    torch.testing.assert_close(found.logits, expected.logits)
    found.loss.backward()
    assert phases.grad is not None and bool(phases.grad.abs().sum(-1).gt(0)[0, :-1].all())
    greedy = {"max_new_tokens": 9, "do_sample": False}
    written = model.generate(**inputs, **greedy)[:, 7:]
    assert torch.equal(model.generate(inputs_embeds=phases.detach(), **greedy), written)


@pytest.mark.parametrize("family", ["fsn", "transformer"])
@torch.no_grad()
def test_the_embedding_takes_the_tokens_of_the_tokenizer(exported: dict[str, Path], family: str) -> None:
    """The tokenizer has three more than the model: padding, unknown bytes, the end of a text."""
    model, tokenizer = load(exported[family])
    inputs = tokenizer(["the lag", "a"], return_tensors="pt", padding=True)
    for own in (model, copy.deepcopy(model)):
        phases = own.get_input_embeddings()(inputs["input_ids"])
        found = own(inputs_embeds=phases, attention_mask=inputs["attention_mask"])
        torch.testing.assert_close(found.logits, model(**inputs).logits)
    rows = model.get_input_embeddings()(torch.tensor([tokenizer.eos_token_id, model.config.line_break]))
    assert torch.equal(rows[0], rows[1])
    with pytest.raises(UserError, match="is not among"):
        model.get_input_embeddings()(torch.tensor([tokenizer.unk_token_id]))


def test_the_end_of_a_text_is_read_as_a_line_break(tmp_path: Path) -> None:
    """And stays out of decoded text, in which line breaks stay."""
    model, tokenizer = load(export_run(SHIPPED / "fsn-1m", tmp_path / "model"))
    end, line_break = tokenizer.eos_token_id, tokenizer("\n")["input_ids"][0]
    assert end == tokenizer.bos_token_id == model.config.vocab_size + 2 and line_break < end
    tokens = torch.tensor([[line_break, 3, 4, line_break]])
    marked = tokens.masked_fill(tokens == line_break, end)
    found, expected = model(marked, labels=marked), model(tokens, labels=tokens)
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.loss, expected.loss)
    assert tokenizer.decode([end, line_break, 3, end], skip_special_tokens=True).startswith("\n")
    assert model.generate(max_new_tokens=3).shape == (1, 4)  # from nothing


def test_all_symbols_can_be_drawn(exported: dict[str, Path]) -> None:
    """transformers would draw from the fifty likeliest if the export did not say otherwise."""
    model, _ = load(exported["fsn"])
    assert model.generation_config.top_k == 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # every symbol is as likely as any other
    drawn = model.generate(torch.zeros(200, 1, dtype=torch.int64), max_new_tokens=4)[:, 1:]
    assert len(drawn.unique()) == model.config.vocab_size


def test_weights_that_are_not_numbers_are_not_exported(runs: dict[str, Run], tmp_path: Path) -> None:
    import safetensors.torch

    folder = shutil.copytree(runs["fsn"].folder, tmp_path / "run")
    weights, _ = load_run(folder).best_weights()
    weights["tau"].fill_(float("nan"))
    with safetensors.safe_open(folder / "best.safetensors", "pt") as file:
        about = file.metadata()
    (folder / "best.safetensors").write_bytes(safetensors.torch.save(weights, about))
    (folder / "hashes.json").unlink(missing_ok=True)  # as if the run itself had written them
    with pytest.raises(UserError, match=r"NaN or Inf .*tau"):
        export_run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_fsn_the_file_says_what_to_install(exported: dict[str, Path]) -> None:
    script = (
        "import sys, transformers as t\n"
        "sys.modules['fsn'] = None\n"
        "try:\n"
        "    t.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    said = " ".join(elsewhere(exported["fsn"], script))
    assert said.startswith("this model needs the package fsn") and "clone its repository" in said


def test_the_librarys_own_trainer(exported: dict[str, Path], tmp_path: Path) -> None:
    """Fine-tuning as everybody does it: the loss falls, and a checkpoint goes on to where an uninterrupted run ends."""
    pytest.importorskip("accelerate")
    _, tokenizer = load(exported["fsn"])
    text = "the phase of the kernel the lag of a field " * 40
    tokens = tokenizer(text)["input_ids"]
    pieces = [{"input_ids": tokens[i : i + 32]} for i in range(0, len(tokens) - 32, 32)]

    def trainer(folder: Path) -> Any:
        options = transformers.TrainingArguments(
            str(folder), max_steps=6, save_steps=3, learning_rate=2e-2, gradient_accumulation_steps=2,
            per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        return transformers.Trainer(
            load(exported["fsn"])[0],
            options,
            train_dataset=pieces,
            eval_dataset=pieces[:8],
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )

    whole = trainer(tmp_path)
    before = whole.evaluate()["eval_loss"]
    whole.train()
    assert whole.evaluate()["eval_loss"] < before - 0.1
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    ended, expected = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ended[name], value) for name, value in expected.items())
    again, _ = load(tmp_path / "checkpoint-6")
    assert all(torch.equal(again.state_dict()[name], value) for name, value in expected.items())


def elsewhere(exported: Path, script: str, *words: str) -> list[str]:
    """The words that ``script`` prints in a process that has not imported anything of ours."""
    environment = {**os.environ, "HF_HOME": str(exported.parent / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(exported), *words], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def test_without_importing_anything_of_ours(exported: dict[str, Path]) -> None:
    """``trust_remote_code`` finds the model through the file that the export wrote."""
    script = (
        "import sys, transformers as t\n"
        "m = t.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "print(type(m).__name__, sum(p.numel() for p in m.parameters()))\n"
    )
    count = sum(p.numel() for p in load(exported["fsn"])[0].parameters())
    assert elsewhere(exported["fsn"], script) == ["FSNForCausalLM", str(count)]


def test_what_was_loaded_without_importing_anything_of_ours_can_be_saved(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    """As the Trainer does at every checkpoint; what is saved can be loaded in the same way."""
    script = (
        "import sys, torch, transformers as t\n"
        "def load(folder):\n"
        "    how = {'trust_remote_code': True}\n"
        "    m = t.AutoModelForCausalLM.from_pretrained(folder, **how)\n"
        "    return m, t.AutoTokenizer.from_pretrained(folder, **how)\n"
        "m, tokenizer = load(sys.argv[1])\n"
        "m.save_pretrained(sys.argv[2])\n"
        "tokenizer.save_pretrained(sys.argv[2])\n"
        "alone = sys.argv[2] + '-config'\n"
        "t.AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True).save_pretrained(alone)\n"
        "config = t.AutoConfig.from_pretrained(alone, trust_remote_code=True)\n"
        "print(config.to_dict() == m.config.to_dict() | {'_name_or_path': config._name_or_path})\n"
        "again, same = load(sys.argv[2])\n"
        "tokens = tokenizer('the phase of the kernel', return_tensors='pt')['input_ids']\n"
        "print(torch.equal(same('the phase of the kernel', return_tensors='pt')['input_ids'], tokens))\n"
        "print(torch.equal(again(tokens).logits, m(tokens).logits))\n"
    )
    assert elsewhere(exported["fsn"], script, str(tmp_path / "again")) == ["True"] * 3
    assert {f.name for f in (tmp_path / "again").iterdir()} == {
        f.name for f in exported["fsn"].iterdir() if f.name != "README.md"
    }


def test_what_cannot_be_done_is_said(exported: dict[str, Path]) -> None:
    model, tokenizer = load(exported["fsn"])
    with pytest.raises(UserError, match="its corpus lacks"):
        model(**tokenizer("the % sign", return_tensors="pt"))
    for wrong in ({}, {"input_ids": torch.tensor([[0]]), "inputs_embeds": torch.zeros(1, 1, 16)}):
        with pytest.raises(UserError, match="either input_ids or inputs_embeds"):
            model(**wrong)
    with pytest.raises(UserError, match=r"inputs_embeds have shape \(1, 2, 3\)"):
        model(inputs_embeds=torch.zeros(1, 2, 3))
    one = torch.tensor([[0, 1]])
    with pytest.raises(UserError, match="HubCache"):
        model(one, past_key_values=transformers.DynamicCache())
    with pytest.raises(UserError, match="cache_implementation"):
        model.generate(one, max_new_tokens=2, cache_implementation="static")
    for mask in (torch.ones(1, 1), torch.ones(2, 2), torch.ones(1, 1, 2, 2)):
        with pytest.raises(UserError, match="attention_mask"):
            model(one, attention_mask=mask)
    with pytest.raises(UserError, match="two axes"):
        model(one[0])
    logits, *_ = model(one, return_dict=False)
    assert torch.equal(logits, model(one).logits)
    with pytest.raises(UserError, match="symbols of this model"):
        model.resize_token_embeddings(300)
    with pytest.raises(UserError, match="no gradient checkpointing"):
        model.gradient_checkpointing_enable()
    for label in (model.config.vocab_size, 300, -1):  # the first is padding, which nobody has marked
        with pytest.raises(UserError, match=rf"labels hold {label}, but .* symbols 0 to \d+; give -100"):
            model(one, labels=torch.tensor([[0, label]]))
    assert model(one, labels=torch.tensor([[0, -7]]), ignore_index=-7).loss.isnan()  # nothing counts
    padded, labels = torch.tensor([[model.config.vocab_size, 1, 2]]), torch.tensor([[0, 1, 2]])
    assert model(padded, labels=labels, ignore_index=-7).loss == model(padded, labels=labels).loss
    with pytest.raises(UserError, match=r"labels have shape \(1, 1\)"):
        model(one, labels=one[:, :1])
    with pytest.raises(UserError, match="architecture"):
        FSNForCausalLM(HubConfig())


@pytest.mark.parametrize("family", ["fsn", "transformer"])
def test_the_config_answers_what_tools_ask(exported: dict[str, Path], family: str) -> None:
    model, tokenizer = load(exported[family])
    config, line_break = model.config, model.config.line_break
    assert (config.num_attention_heads, config.hidden_size, config.num_hidden_layers) == (1, 16, 2)
    assert config.max_position_embeddings == tokenizer.model_max_length == 31
    assert config.bos_token_id == line_break and config.eos_token_id is config.pad_token_id is None
    with torch.no_grad():  # only line breaks, and it goes on after each
        model.model.compute_logits = lambda tokens, _: one_hot_logits(tokens, line_break, config.vocab_size)
        assert model.generate(max_new_tokens=40, do_sample=False).tolist() == [41 * [line_break]]


def one_hot_logits(tokens: torch.Tensor, symbol: int, symbols: int) -> torch.Tensor:
    row = torch.nn.functional.one_hot(torch.tensor(symbol), symbols).float()
    return row.expand(*tokens.shape, symbols)


def test_a_fresh_model_keeps_its_own_initial_values() -> None:
    plain = small("fsn")
    torch.manual_seed(3)
    model = FSNForCausalLM(HubConfig(architecture=config_to_dict(plain.config)))
    torch.manual_seed(3)
    again = type(plain)(plain.config)  # type: ignore[arg-type]
    for name, value in again.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], value), name


def test_the_command_writes_a_folder_once(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "model"
    main(["export", str(runs["fsn"].folder), str(out)])
    assert "model.safetensors" in capsys.readouterr().out
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "fsn" and config["architecture"]["k"] == 16
    card = (out / "README.md").read_text()
    assert "bits per symbol, epoch 1" in card and "| window | 32 |" in card
    assert not list(out.parent.glob(".export-*"))
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in out.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["export", str(runs["fsn"].folder), str(out)])
    assert ended.value.code == 2 and "is not an empty folder" in capsys.readouterr().err
    for impossible in (".", str(out / "README.md" / "x")):
        with pytest.raises(SystemExit):
            main(["export", str(runs["fsn"].folder), impossible])
        assert capsys.readouterr().err.startswith("fsn: ")


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        (SHIPPED / "fsn-1m", "1.5977 bits per symbol, epoch 29 "),
        (SHIPPED / "transformer-1m", "1.6244 bits per symbol, epoch 30 "),
        (ROOT / "results" / "fsn-1m-seed0", "1.5977 bits per symbol, epoch 29 "),
    ],
)
def test_the_card_has_the_readmes_number(name: Path, bits: str, tmp_path: Path) -> None:
    """That in float32: the FSN was validated in bfloat16 while it trained."""
    run = load_run(name)
    assert f"| validation | {bits}|" in card(run, "best", 0)
    shutil.copytree(name, alone := tmp_path / run.name)
    (tmp_path / "evaluations.jsonl").write_text(
        json.dumps(
            {
                "run": run.name, "which": "best", "split": "valid", "precision": "fp32", "length": 256,
                "stride": 128, "bits": 1.0, "weights_sha256": "others",
            }
        )
    )  # fmt: skip
    rounded = "fsn" in run.name
    assert (
        "1.6010 bits per symbol (validated in bf16), epoch 29" in card(load_run(alone), "best", 0)
    ) == rounded


def test_a_tokenizer_speaks_bytes() -> None:
    corpus = tiny.corpus()
    tokenizer = make_tokenizer(corpus.alphabet)
    assert tokenizer.vocab_size == len(corpus.alphabet) + 3
    assert tokenizer("é").input_ids == [tokenizer.unk_token_id] * 2
    everything = make_tokenizer(Alphabet(bytes(range(256))))
    text = "<pad> <unk> <|endoftext|> naïve \t\r\n ünïcödé 文字 "
    tokens = everything(text).input_ids
    assert tokens == list(text.encode()) and everything.decode(tokens, skip_special_tokens=True) == text
    assert tokenizer.model_max_length == 255 and tokenizer.padding_side == "left"
