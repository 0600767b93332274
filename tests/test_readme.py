"""The README is true: commands and code run, links lead somewhere, numbers are the models' own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fsn
from benchmarks.recall.__main__ import main as recall
from benchmarks.recall.__main__ import parse as parse_recall
from fsn.cli import COMMANDS, main
from fsn.pretrained import shipped

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")])
HUB = ROOT / "docs" / "hub.md"
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text("utf-8")) if language in languages]


def commands(page: Path) -> list[str]:
    """Every shell command of a page, continuations joined; of console blocks what follows a ``$``."""
    lines = "\n".join(blocks(page, "bash", "sh")).replace("\\\n", " ").splitlines()
    typed = "\n".join(blocks(page, "console")).replace("\\\n", " ").splitlines()
    lines += [line.removeprefix("$ ") for line in typed if line.startswith("$ ")]
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def check_without_running(command: str) -> bool:
    """What must not run inside the tests (``make test`` would start itself again) is checked instead."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        assert set(words[1:]) <= make_targets(), f"{command!r} names a target the Makefile does not have"
        return True
    if words[:2] == ["fsn", "explore"]:  # it serves until it is stopped: tests/explore
        return True
    if words[:2] == ["pip", "install"]:
        named = {extra for group in re.findall(r"\[([\w,-]+)\]", command) for extra in group.split(",")}
        assert named <= set(project()["optional-dependencies"]), f"{command!r} names an unknown extra"
        return True
    return False


def test_readme_commands_and_code_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the commands, then the code, which may use what the commands have made."""
    monkeypatch.chdir(tmp_path)
    run_commands(tmp_path)
    check_readme(run_code(README))


def run_commands(folder: Path) -> None:
    """The first as it is typed, in a shell; the others through the function that the installed script calls."""
    found = commands(README)
    assert "make demo" in found and "make test" in found
    (folder / "results").symlink_to(ROOT / "results")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    first, *others = [command for command in found if not check_without_running(command)]
    done = subprocess.run(
        ["bash", "-c", first], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{first!r} failed:\n{done.stdout}\n{done.stderr}"
    for command in others:
        name, *words = shlex.split(command)
        assert name == "fsn", f"how is {command!r} to be run?"
        main(words)


def run_code(page: Path) -> dict[str, object]:
    """What the page's code leaves behind."""
    found = blocks(page, "python")
    assert found
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, code in enumerate(found, start=1):
        exec(compile(code, f"{page.name}, python block {number}", "exec"), namespace)
    return namespace


def check_readme(namespace: dict[str, object]) -> None:
    # The shapes that the comments promise.
    logits, points, text = namespace["logits"], namespace["points"], namespace["text"]
    assert isinstance(logits, torch.Tensor) and logits.shape == (1, 31, 205)
    assert isinstance(points, dict) and points["layers.3.attention"].shape == (1, 31, 31)
    assert isinstance(text, str) and text.startswith("The Roman ") and len(text) == 210


def test_readme_is_short() -> None:
    """A thousand words at most, and no paragraph of more than sixty."""
    text = FENCE.sub("", README.read_text("utf-8"))
    words = len(text.split())
    assert words <= 1000
    prose = [p for p in text.split("\n\n") if not p.lstrip().startswith(("|", "#", "!", "<", "-", "$"))]
    long = [p[:60] for p in prose if len(p.split()) > 60]
    assert not long, f"split these paragraphs: {long}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in (README, HUB) and blocks(p, "python")], ids=lambda p: p.name
)
def test_code_in_other_pages_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    left = run_code(page)
    if page.name == "tour.md":
        check_tour(left, page.read_text("utf-8"))


TASK = """
task: my_task
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/lines.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{start}}"
doc_to_choice: ends
doc_to_target: 1
target_delimiter: ""
metric_list: [{metric: acc}]
"""


@pytest.mark.slow
def test_the_page_about_transformers_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Export, generation, fine-tuning, and lm-eval as a program of its own, with the model's code from the folder."""
    monkeypatch.chdir(tmp_path)
    Path("my-text.txt").write_text("The city of Rome was founded long ago. " * 100)
    Path("my_tasks").mkdir()
    Path("lines.jsonl").write_text('{"start": "The Roman Em", "ends": ["xxxx", "pire"]}\n')
    Path("my_tasks/my_task.yaml").write_text(TASK.replace("FOLDER", str(tmp_path)))
    namespace: dict[str, object] = {"__name__": HUB.stem}
    for language, body in FENCE.findall(HUB.read_text("utf-8")):
        if language == "python":
            exec(compile(body, HUB.name, "exec"), namespace)
            continue
        for line in body.splitlines() if language == "bash" else []:
            name, *words = shlex.split(line)
            if name == "fsn":
                main(words)
            elif name == "lm_eval":
                command = [sys.executable, "-m", "lm_eval", *words]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=OFFLINE)
                assert done.returncode == 0, done.stderr[-3000:]
                assert re.search(r"\|acc\|.*\| *1\|", done.stdout), done.stdout
    assert "The city of" in capfd.readouterr().out


def test_commands_of_the_questions_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    for command in commands(ROOT / "docs" / "faq.md") + commands(ROOT / "docs" / "explore.md"):
        if not check_without_running(command):
            main(shlex.split(command)[1:])


RUN_ELSEWHERE = {"README.md", "tour.md", "faq.md", "explore.md", "data.md"}
"""Pages whose commands a test runs: those above, and tests/examples."""


def test_all_other_commands_of_the_pages_could_be_run(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Their files, modules and options exist; what costs seconds is run, into a copy."""
    shell = re.compile(r"(?:python|pytest|make|fsn|pip|torchrun) .*", re.MULTILINE)
    checked = set()
    for page in (page for page in PAGES if page.name not in RUN_ELSEWHERE):
        typed = commands(page) if page != HUB else []  # its own test runs them
        for command in typed + [line for body in blocks(page, "text", "") for line in shell.findall(body)]:
            check_by_parsing(command, pytestconfig)
            checked.add(command.split("  ")[0])
    quick = "python -m benchmarks.recall --quick --report-only"
    assert quick in checked and len(checked) >= 10
    kept, copy = ROOT / "benchmarks" / "results" / "recall" / "quick", tmp_path / "quick"
    shutil.copytree(kept / "cells", copy / "cells")
    assert recall([*shlex.split(quick)[3:], "--out", str(copy)]) == 0
    assert (copy / "table.md").read_text("utf-8") == (kept / "table.md").read_text("utf-8")


def check_by_parsing(command: str, config: pytest.Config) -> None:
    if check_without_running(command):
        return
    program, *words = shlex.split(command, comments=True)
    if words[:2] == ["-m", "pytest"]:
        program, words = "pytest", words[2:]
    if program == "pytest":
        asked = config._parser.parse(words)
        markers = {line.partition(":")[0] for line in config.getini("markers")}
        assert set(re.findall(r"\w+", asked.markexpr)) - {"not", "and", "or"} <= markers, command
        assert all((ROOT / path).exists() for path in asked.file_or_dir), command
    elif words[:2] == ["-m", "benchmarks.recall"]:
        parse_recall(words[2:])
    elif words[0] == "docs/site/ship.py":
        assert (ROOT / words[0]).is_file() and (ROOT / words[1]).is_dir() and words[2] in shipped(), command
    elif Path(program).name == "pre-commit":
        assert words == ["install"] and (ROOT / ".pre-commit-config.yaml").is_file()
    else:
        pytest.fail(f"how is {command!r} to be checked?")


def test_diffs_of_the_contributing_page_fit_the_files() -> None:
    """What a diff takes away stands there, and so does the name that it says where to look for."""
    files = []
    for diff in blocks(ROOT / "CONTRIBUTING.md", "diff"):
        for line in diff.splitlines():
            if header := re.match(r" # (\S+?\.py)(?:,|:|$)(?: (\w+(?:\.\w+)?)$)?", line):
                path, place = ROOT / header[1], header[2]
                files.append(path.name)
                assert path.parent.is_dir(), line
                for name in place.split(".") if place else []:
                    assert name in path.read_text("utf-8"), f"{path.name} has no {name}"
            elif line.startswith("-"):
                assert line[1:] in path.read_text("utf-8").splitlines(), (
                    f"{path.name} has no such line: {line}"
                )
    assert len(files) > 10


def check_tour(namespace: dict[str, Any], text: str) -> None:
    """The bits that its comments promise, and commands that the README's test has run."""
    measured = (namespace["first"], namespace["second"]), namespace["other"], namespace["without"]
    promised = re.findall(r"# (\d\.\d)[a-z ]*, then (\d\.\d)", text)
    assert promised == [(f"{first:.1f}", f"{second:.1f}") for first, second in measured]
    assert namespace["attention"].shape == (1, 128, 128)
    assert set(commands(ROOT / "docs" / "tour.md")) <= set(commands(README))


def test_commands_named_in_pages_and_makefile_exist() -> None:
    """`fsn eval`, set inline in a page, and ``python -m fsn demo``, in the Makefile, are commands fsn has."""
    named = {command for page in PAGES for command in re.findall(r"`fsn ([a-z]+)", page.read_text("utf-8"))}
    named |= set(re.findall(r"-m fsn ([a-z]+)", (ROOT / "Makefile").read_text("utf-8")))
    assert named <= set(COMMANDS), f"fsn has no command {', '.join(sorted(named - set(COMMANDS)))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_named_in_pages_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    code = [body for _, body in FENCE.findall(text)] + re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    named = {target for piece in code for target in re.findall(r"(?m)^make ([a-z][a-z-]*)", piece)}
    assert named <= make_targets()


def anchors(page: Path) -> set[str]:
    """The anchors that headings get when the page is rendered."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"src=\"([^\"]+)\"", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}, but there is no such heading"


TOTALS = re.compile(r"<!-- totals:begin.*?-->\n(.*?)<!-- totals:end -->", re.DOTALL)


def totals_rows(page: Path) -> list[list[str]]:
    found = TOTALS.search(page.read_text("utf-8"))
    assert found, f"{page.name} has no totals table"
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    return rows[2:]


def realised(name: str, vocab_size: int) -> int:
    with torch.device("meta"):
        model = fsn.build(name, vocab_size=vocab_size)
    return sum(p.numel() for p in model.parameters())


def test_totals_are_the_models_own() -> None:
    rows = totals_rows(ROOT / "docs" / "findings.md")
    assert len(rows) == 6
    for name, symbols, width, total in rows:
        config = fsn.preset(name, int(symbols))
        assert int(width) == getattr(config, "k", None) or int(width) == getattr(config, "width", None)
        assert realised(name, int(symbols)) == int(total.replace(",", ""))


def test_model_page_lists_every_preset_with_its_total() -> None:
    rows = totals_rows(ROOT / "docs" / "model.md")
    assert [row[0] for row in rows] == [
        name.removesuffix("-1m") for name in fsn.presets() if name.endswith("-1m")
    ]
    for row in rows:
        assert realised(f"{row[0]}-1m", 205) == int(row[4].replace(",", "")), row[0]


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert project()["version"] == fsn.__version__ == str(citation["version"])


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text("utf-8")
