"""EleutherAI's lm-evaluation-harness reads an exported model: multiple choice, rolling perplexity, generation."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

import fsn
from fsn.pretrained import SHIPPED

pytest.importorskip("transformers")
lm_eval = pytest.importorskip("lm_eval")
from lm_eval.tasks import TaskManager  # noqa: E402

from fsn.hub import export_run  # noqa: E402

pytestmark = pytest.mark.slow

TEXT = "The [[Roman Empire]] was a city of the Roman Empire.\nIt was founded in the year 1066.\n"

TASKS = {
    "bits": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{text}}"
        metric_list: [{metric: bits_per_byte}]
    """,
    "choice": """
        output_type: multiple_choice
        doc_to_text: "{{context}}"
        doc_to_target: right
        doc_to_choice: choices
        target_delimiter: ""
        metric_list: [{metric: acc}]
    """,
    "write": """
        output_type: generate_until
        doc_to_text: "{{start}}"
        doc_to_target: "{{text}}"
        generation_kwargs: {max_gen_toks: 12, do_sample: false}
        metric_list: [{metric: exact_match}]
    """,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lm-eval")
    model = export_run(SHIPPED / "fsn-1m", folder / "model")
    lines = [
        {
            "text": TEXT,
            "start": "The ",
            "context": "",
            "choices": ["The city of", "zqxj vwkq pf"],
            "right": 0,
        },
        {"text": TEXT, "start": "It\n", "context": "The Roman Em", "choices": ["xxxx", "pire"], "right": 1},
    ]
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for name, task in TASKS.items():
        head = [f"task: {name}", "dataset_path: json", "test_split: test"]
        head += [f"dataset_kwargs: {{data_files: {{test: {folder / 'lines.jsonl'}}}}}"]
        body = [line.strip() for line in task.strip().splitlines()]
        (folder / f"{name}.yaml").write_text("\n".join([*head, *body]))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(model), "device": "cpu", "dtype": "float32"},
        tasks=list(TASKS),
        task_manager=manager,
        batch_size=2,
        bootstrap_iters=0,
        log_samples=True,
    )


def test_multiple_choice_and_bits_are_those_of_the_model_itself(results: dict[str, Any]) -> None:
    assert results["results"]["choice"]["acc,none"] == 1.0
    model = fsn.load("fsn-1m")
    tokens = model.encode("\n" + TEXT)  # the beginning of a text is read as a line break
    with torch.no_grad():
        bits = model.loss(tokens[:, :-1], tokens[:, 1:]).mean() / math.log(2)
    assert results["results"]["bits"]["bits_per_byte,none"] == pytest.approx(float(bits), abs=1e-5)


def test_generation_is_the_models_own(results: dict[str, Any]) -> None:
    said = {doc["doc"]["start"]: doc["resps"][0][0] for doc in results["samples"]["write"]}
    model = fsn.load("fsn-1m")
    for start, answer in said.items():
        assert start + answer == model.generate(start, 12, temperature=0.0)
