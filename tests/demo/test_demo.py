"""The demo from end to end, small: its runs, recall, the tables, the page, and the page in a browser."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fsn.cli import main
from fsn.data import load
from fsn.demo import recall
from fsn.demo.findings import PROMPT, SENTENCE, full_size, prompt_for
from fsn.demo.page import build_page
from fsn.demo.plan import make_plan, standing, steps_for, train_all
from fsn.errors import UserError
from fsn.models import TransformerConfig, count_parameters
from fsn.pretrained import SHIPPED
from fsn.train import load_run
from tests.demo.browser import find_browser, visit
from tests.once import made_once

STEPS = 6
SECTIONS = ("idea", "recall", "results", "depth", "kernel", "full-size", "samples", "on")
ROOT = Path(__file__).resolve().parents[2]
MODELS = ("fsn", "kuramoto", "transformer")
needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine")


@dataclasses.dataclass(frozen=True)
class Demo:
    page: Path
    runs: Path
    printed: str = ""

    @property
    def html(self) -> str:
        return self.page.read_text("utf-8")

    @property
    def data(self) -> dict[str, Any]:
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.html, re.DOTALL)
        assert found
        return json.loads(found[1])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of Python source small enough to validate in no time."""
    source = Path(json.__file__).parent.joinpath("decoder.py").read_text("utf-8")

    def make(folder: Path) -> None:
        (folder / "code.py").write_text(source * 8, encoding="utf-8")

    return made_once(tmp_path_factory, "demo-text", make) / "code.py"


def run_demo(text: Path, page: Path, runs: Path) -> Demo:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(
            [
                *(
                    "demo",
                    "--steps",
                    str(STEPS),
                    "--corpus",
                    str(text),
                    "--report",
                    str(page),
                    "--out",
                    str(runs),
                ),
                *("--results", str(ROOT / "results")),
            ]
        )
    return Demo(page, runs, printed.getvalue())


@pytest.fixture(scope="module")
def demo(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """``fsn demo`` with a few steps, run once for all tests of this file, in whichever process they run."""

    def make(folder: Path) -> None:
        made = run_demo(text, folder / "report.html", folder / "runs")
        (folder / "printed.txt").write_text(made.printed, encoding="utf-8")

    folder = made_once(tmp_path_factory, "demo", make)
    return Demo(folder / "report.html", folder / "runs", (folder / "printed.txt").read_text("utf-8"))


# -- the runs ----------------------------------------------------------------------------------------------


def test_three_runs_of_the_same_steps(demo: Demo) -> None:
    (folder,) = demo.runs.iterdir()
    runs = {path.name: load_run(path) for path in folder.iterdir() if path.is_dir()}
    assert sorted(runs) == sorted(MODELS)
    assert all(run.finished and run.step == STEPS for run in runs.values())
    assert len({json.dumps(run.config["recipe"]) for run in runs.values()}) == 1, "all are trained alike"


def test_a_second_call_keeps_the_runs(demo: Demo, text: Path, tmp_path: Path) -> None:
    (folder,) = demo.runs.iterdir()
    files = [*folder.rglob("*.safetensors"), *folder.glob("recall-*.json")]
    before = {path: path.stat().st_mtime_ns for path in files}
    again = run_demo(text, tmp_path / "again.html", demo.runs)
    assert len(files) > 6 and {path: path.stat().st_mtime_ns for path in files} == before
    assert again.data["models"] == demo.data["models"], "the same runs give the same numbers and samples"
    assert again.data["recall"] == demo.data["recall"]


def test_sizes_are_matched(text: Path, tmp_path: Path) -> None:
    plan = make_plan(load(text), str(text), tmp_path, 100)
    sizes = plan.parameters
    assert sizes["transformer"] == pytest.approx(sizes["fsn"], rel=0.06), "as near as even widths get"
    assert sizes["kuramoto"] == pytest.approx(sizes["fsn"], rel=0.03)
    totals = {
        w: count_parameters(TransformerConfig(plan.corpus.vocab_size, w, layers=3)) for w in range(2, 80, 2)
    }
    gaps = {w: abs(total - sizes["fsn"]) for w, total in totals.items()}
    assert gaps[plan.jobs[2].model["width"]] == min(gaps.values())


def test_other_options_are_other_folders(text: Path, tmp_path: Path) -> None:
    corpus = load(text)
    plans = [
        make_plan(corpus, str(text), tmp_path, steps, seed) for steps, seed in ((100, 0), (110, 0), (100, 1))
    ]
    assert len({plan.folder for plan in plans}) == 3
    assert make_plan(corpus, str(text), tmp_path, 100).folder == plans[0].folder


def test_minutes_set_the_steps() -> None:
    assert steps_for(0.01) >= 10
    assert steps_for(3) < steps_for(6) < steps_for(20)
    assert all(steps_for(minutes) % 10 == 0 for minutes in (1, 2.5, 7))
    with pytest.raises(UserError, match="positive"):
        steps_for(0)


def test_mistakes_are_sentences(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short\n" * 20, encoding="utf-8")
    for words, sentence in (
        (["--steps", "0"], "at least 1"),
        (["--report", str(tmp_path)], "is a folder"),
        (
            ["--report", str(short / "page.html")],
            "cannot be written (Not a directory); choose another --report",
        ),
        (["--out", str(short)], "cannot be written (Not a directory); choose another --out"),
        (["--corpus", "no-such-text"], "no corpus or file"),
        (["--corpus", str(short)], "fewer than one window"),
        (["--corpus", str(tmp_path)], "choose an --out outside of it"),
        (
            ["--corpus", str(tmp_path), "--report", str(tmp_path / "r.html")],
            "choose a --report outside of it",
        ),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["demo", "--corpus", str(text), "--out", str(tmp_path / "runs"), *words])
        assert stop.value.code == 2
        assert sentence in capsys.readouterr().err


def test_what_stops_a_run_is_told_here(demo: Demo, text: Path, tmp_path: Path) -> None:
    """A run is a process of its own; its last sentence arrives."""
    plan = make_plan(load(text), str(text), tmp_path, STEPS)
    shutil.copytree(next(demo.runs.iterdir()), plan.folder)
    broken = plan.jobs[1].out
    (broken / "DONE").unlink()
    (broken / "config.yaml").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"training kuramoto failed: .*config\.yaml"):
        train_all(plan)


def test_standing_of_a_run(demo: Demo, text: Path, tmp_path: Path) -> None:
    fresh = make_plan(load(text), str(text), tmp_path, STEPS).jobs[0]
    assert standing(fresh) == (0, None)
    done = make_plan(load(text), str(text), demo.runs, STEPS).jobs[0]
    step, bits = standing(done)
    assert (
        step == STEPS and bits == load_run(done.out).metrics[-1].get("loss_bits", bits) and bits is not None
    )


# -- recall -----------------------------------------------------------------------------------------------


def test_a_single_layer_has_no_feed_forward_block() -> None:
    sizes = {name: recall.one_layer(name).parameter_count() for name in recall.MODELS}
    assert sizes["transformer-kvshift"] == sizes["transformer"] + 4
    assert sizes["fsn"] == pytest.approx(sizes["transformer"], rel=0.2)
    assert not any("feedforward" in name for name, _ in recall.one_layer("transformer").named_parameters())


@pytest.mark.slow
def test_one_layer_recalls_by_successors_and_not_by_attention(tmp_path: Path) -> None:
    found = {}
    for name in ("fsn", "transformer"):
        recall.learn(name, 210, 0, tmp_path / f"{name}.json")
        found[name] = json.loads((tmp_path / f"{name}.json").read_text())["accuracy"]
    assert found["fsn"] > 0.9
    assert found["transformer"] < 1.5 / recall.PAIRS, "no better than one of the values"


# -- the page ----------------------------------------------------------------------------------------------


def test_the_tables_and_samples_are_printed(demo: Demo) -> None:
    for word in ("FSN", "Kuramoto", "transformer", "parameters", "validation bits", "tokens/s", "writes"):
        assert word in demo.printed
    for model in demo.data["models"]:
        assert f"{model['parameters']:,}" in demo.printed and f"{model['copied_bits']:.3f}" in demo.printed
    for model in demo.data["recall"]["models"]:
        assert (
            f"{model['parameters']:,}" in demo.printed and f"{100 * model['accuracy']:.1f} %" in demo.printed
        )


def test_the_page_has_its_sections_and_says_what_was_measured(demo: Demo) -> None:
    html = demo.html
    assert all(f'<section id="{name}">' in html for name in SECTIONS)
    assert "$" not in re.sub(
        r"<script.*?</script>|<style.*?</style>|<pre.*?</pre>", "", html, flags=re.DOTALL
    )
    for model in demo.data["models"]:
        assert f"{model['valid_bits']:.3f}" in html
        assert f"{model['parameters']:,}" in html
        assert len(model["train"]) >= 2 and model["valid"][-1][0] == STEPS
    for model in demo.data["recall"]["models"]:
        assert f"{model['name']} {100 * model['accuracy']:.1f} %" in html


def test_the_page_needs_nothing_else(demo: Demo) -> None:
    html = demo.html
    assert "default-src 'none'" in html, "the browser is told to load nothing"
    assert not re.search(r"<(link|img|iframe|object|embed|source|video|audio)\b", html)
    assert not re.search(r"<script[^>]*\bsrc\s*=", html)
    assert not re.search(r"@import|url\((?!#)", html)
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", html))
    links = set(re.findall(r'<a href="(https?://[^"]+)"', html))
    assert addresses == links, "an address is only ever a link to click"
    assert len(html) < 1_000_000


def test_depth_and_attention_add_up(demo: Demo) -> None:
    data = demo.data
    depth = data["depth"]
    assert len(depth["bins"]) == len(depth["tokens"]) == 6
    for model in data["models"]:
        assert all(
            (bits is None) == (n == 0) for bits, n in zip(model["depth"], depth["tokens"], strict=True)
        )
    snippet = data["full_size"]["snippet"]
    length = len(snippet["text"])
    assert snippet["text"][: snippet["period"]] * 2 == snippet["text"]
    for shown in snippet["models"].values():
        assert len(shown["bits"]) == length - 1
        assert len(shown["maps"]) == len(shown["looks"])
        for bytes_ in shown["maps"]:
            weights = [(byte / 255) ** 2 for byte in base64.b64decode(bytes_)]
            assert len(weights) == length**2
            for t in (0, length // 2, length - 1):
                row = weights[t * length : (t + 1) * length]
                assert sum(row) == pytest.approx(1, abs=0.06), "each character's attention adds up to one"
                assert not any(row[t + 1 :]), "and none of it lies in the future"


def test_a_text_without_these_letters_begins_with_nothing(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n} {n * n}\n" for n in range(900)), encoding="utf-8")
    assert prompt_for(load(path)) == "" and prompt_for(load("python-stdlib")) == PROMPT


def test_what_a_model_writes_cannot_break_the_page(demo: Demo) -> None:
    data = demo.data
    data["models"][0]["sample"] = "</script><script>alert(1)</script>"
    assert "<script>alert" not in build_page(data)


ARCHIVED = {
    "fsn": "fsn-1m-seed0",
    "transformer": "transformer-1m-nodrop-seed0",
    "kuramoto": "kuramoto-1m-seed0",
    "transformer-kvshift": "transformer-kvshift-1m-nodrop-seed0",
}


def test_full_size_models_are_the_repositorys_own(demo: Demo) -> None:
    found = demo.data["full_size"]
    models = {model["key"]: model for model in found["models"]}
    assert models.keys() == ARCHIVED.keys()
    assert (models["fsn"]["validated_in"], models["transformer"]["validated_in"]) == ("bfloat16", "float32")
    for model in found["models"]:
        run = load_run(ROOT / "results" / ARCHIVED[model["key"]])
        assert model["bits"] == run.epochs[29]["valid_bits"]
        assert [loss for _, loss in model["curve"]] == [round(row["valid_bits"], 4) for row in run.epochs]
    ours, theirs = models["fsn"]["curve"], models["transformer"]["curve"]
    epoch, share = models["fsn"]["epoch"], models["fsn"]["share"]
    assert ours[epoch - 1][1] <= theirs[-1][1] < ours[epoch - 2][1]
    assert models["kuramoto"]["epoch"] is None and models["transformer"]["epoch"] == 30
    assert share == pytest.approx(ours[epoch - 1][0] / theirs[-1][0], abs=1e-3)
    shown = found["snippet"]["models"]
    assert shown["fsn"]["second"] < 0.5 * shown["fsn"]["first"], "it copies"
    assert shown["cut"]["second"] > 0.8 * shown["cut"]["first"], "and with that field gone it does not"
    assert shown["cut"]["first"] < 1.2 * shown["fsn"]["first"], "though it still knows its language"
    best = {key: max(enumerate(shown[key]["looks"], 1), key=lambda one: max(one[1])) for key in MODELS}
    at = {key: dict(zip(shown[key]["offsets"], weights, strict=True)) for key, (_, weights) in best.items()}
    assert at["fsn"][0] > 0.1 > 0.01 > at["fsn"][1], "the FSN looks at the place"
    assert at["transformer"][1] > 0.2 > 0.05 > at["transformer"][0], "the transformer looks past it"
    assert {key: layer for key, (layer, _) in best.items()} == {"fsn": 4, "kuramoto": 4, "transformer": 3}
    assert shown["kuramoto"]["second"] > 1.3 * shown["fsn"]["second"], "Kuramoto attention copies worse"
    kvshift = shown["transformer-kvshift"]
    assert kvshift["second"] < 0.5 * kvshift["first"], "the shift alone copies too"
    rows = re.findall(r"<tr>.*?</tr>", demo.html[demo.html.index('id="full-curves"') :])
    for model, row in zip(found["models"], rows[1:], strict=False):
        for cell in (model["name"], f"{model['bits']:.4f}", model["validated_in"]):
            assert f"{cell}<" in row
    assert f"epoch {epoch}, {100 * share:.0f} % of its time" in demo.html
    assert "FSN at full size" in demo.printed


def test_an_empty_folder_has_the_shipped_models(tmp_path: Path) -> None:
    found = full_size(SHIPPED)
    assert found is not None and [model["key"] for model in found["models"]] == ["fsn", "transformer"]
    shown = found["snippet"]["models"]
    assert shown["fsn"]["second"] < 0.5 * shown["fsn"]["first"] < 0.5 * shown["cut"]["second"]


def test_without_finished_runs_the_page_leaves_them_out(demo: Demo, tmp_path: Path) -> None:
    assert full_size(tmp_path / "nowhere") is None
    shutil.copytree(ROOT / "results" / "fsn-1m-seed0", tmp_path / "fsn")
    shutil.copytree(ROOT / "results" / "fsn-1m-dropout-seed0", tmp_path / "another")
    assert full_size(tmp_path) is None, "an FSN alone has nothing to stand beside"
    shutil.copytree(ROOT / "results" / "transformer-1m-nodrop-seed0", tmp_path / "transformer")
    two = full_size(tmp_path)
    assert two is not None and [model["key"] for model in two["models"]] == ["fsn", "transformer"]
    rows = [
        page.count('<span class="sub">') for page in (demo.html, build_page(demo.data | {"full_size": two}))
    ]
    assert rows == [3 + 4, 3 + 2]
    html = build_page(demo.data | {"full_size": None})
    assert 'id="full-size"' not in html and all(
        f'<section id="{name}">' in html for name in SECTIONS if name != "full-size"
    )


# -- the page in a browser ---------------------------------------------------------------------------------

PROBE = """
const set = (id, value) => {
  const e = document.getElementById(id);
  e.value = value;
  e.dispatchEvent(new Event("input"));
};
const press = (id, value) => document.querySelector(`#${id} [data-value="${value}"]`).click();
const seen = {};
const boxes = () => [...document.querySelectorAll("#kernel-harmonics input")];
seen.start = boxes().map((box) => box.checked);
const curve = () => document.querySelector('#kernel-successor path[data-series="this layer"]').getAttribute("d");
seen.curves = [curve()];
boxes()[1].click(); seen.curves.push(curve());
set("kernel-layer", 2); seen.curves.push(curve());
set("kernel-angle", 4); seen.curves.push(curve());
const attended = () => document.getElementById("attention-text").innerHTML;
const says = () => document.getElementById("attention-says").textContent;
const look = () => [attended(), says()].join();
seen.looks = [look()];
set("attention-at", 3); seen.looks.push(look());
press("attention-model", "transformer"); seen.looks.push(look());
set("attention-layer", 1); set("attention-at", 50); seen.looks.push(look());
seen.says = says();
const plot = (id) => document.querySelector(`#${id} svg.plot`).innerHTML;
const steps = plot("curves");
press("curve-axis", "seconds");
seen.axisMoved = steps !== plot("curves");
const bars = () => document.querySelectorAll("#depths rect[data-series]").length;
seen.bars = [bars()];
press("depth-view", "margin"); seen.bars.push(bars());
seen.tape = [...document.querySelectorAll(".tape")].map((e) => e.textContent);
seen.back = document.querySelectorAll("#full-looks rect[data-series]").length;
seen.twice = document.querySelectorAll("#full-strips .chars i").length;
seen.wide = document.documentElement.scrollWidth > innerWidth + 1;
const clipped = (e) => e.scrollWidth > e.clientWidth + 1;
const all = (selector) => [...document.querySelectorAll(selector)];
seen.clipped = all(".formula, pre, .stacked, .scroll").filter(clipped).map((e) => e.outerHTML.slice(0, 60));
seen.copies = [all("pre > code").length, all("pre > .copy").length];
seen.unnamed = all("svg:not([aria-label]):not([aria-hidden])").length;
const boxes_of = all("#full-looks text").map((e) => e.getBoundingClientRect());
const apart = (a, b) => a.left > b.right - 1 || b.left > a.right - 1 || a.top > b.bottom - 1 || b.top > a.bottom - 1;
seen.overlaps = boxes_of.flatMap((a, i) => boxes_of.slice(i + 1).filter((b) => !apart(a, b))).length;
seen.sizes = [...document.querySelectorAll(".chart svg.plot")].map((e) => e.getBoundingClientRect().width);
return seen;
"""


@needs_browser
@pytest.mark.parametrize("width", [1100, 400])
def test_the_page_works(demo: Demo, tmp_path: Path, width: int) -> None:
    seen = visit(demo.page, PROBE, tmp_path, width)
    assert not seen.console, "nothing is logged, least of all an error"
    value = seen.value
    assert value["start"] == [True] * 3, "all harmonics are shown at first"
    assert len(set(value["curves"])) == 4, "the sliders and boxes move the curve"
    assert len(set(value["looks"])) == 4, "another character, model or layer: another row of attention"
    assert "bits" in value["says"] and value["axisMoved"]
    assert value["bars"][0] > value["bars"][1] > 0, "the reference has no bar against itself"
    assert all(tape.startswith("the cat sat. the c") for tape in value["tape"])
    assert not value["wide"], "no sideways scrolling"
    assert not value["clipped"], "the formula, code and tables fit"
    assert value["copies"][0] == value["copies"][1] > 0, "every box of code can be copied"
    assert value["unnamed"] == 0, "every picture has a text for those who do not see it"
    assert value["overlaps"] == 0, "names under the bars keep their room"
    assert value["twice"] == 5 * 2 * len(SENTENCE)
    assert value["back"] == 4 * 7, "four models, seven places"
    assert len(value["sizes"]) == 7 and all(size > 200 for size in value["sizes"])


TOY = """
const ring = (law) => document.querySelector(`#toy figure[data-law="${law}"] .tape`).textContent;
return [ring("kuramoto"), ring("fsn")];
"""

STEPPED = """
if (before === null) {
  before = 0;
  for (let i = 0; i < 500; i++) for (const r of rings) if (r.text.length < r.given + 5) r.move(0.02);
}
"""


@needs_browser
def test_the_toy_continues_the_text(demo: Demo, tmp_path: Path) -> None:
    """Consensus repeats the symbol it has; frustration goes on with what came next."""
    later = demo.html.replace("requestAnimationFrame(frame);", STEPPED)
    page = tmp_path / "stepped.html"
    page.write_text(later, encoding="utf-8")
    consensus, frustrated = visit(page, TOY, tmp_path).value
    assert consensus == "the cat sat. the c" + "c" * 5
    assert frustrated == "the cat sat. the c" + "at sa"
