"""The machinery from end to end: every run of the paper in miniature, every table, figure and claim from them."""

from __future__ import annotations

import csv
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fsn.paper.needs import FSN
from fsn.paper.rows import FAILS, HOLDS, NO_CASE, NOT_RUN, OPEN, data_table
from fsn.paper.sections import CLAIMS, ITEMS, item_named, needs_of
from fsn.train import load_run
from tests.demo.browser import find_browser, visit
from tests.explore.chrome import Chrome
from tests.paper.tiny import tiny_bench

pytestmark = pytest.mark.slow
needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine")
FIGURES = (
    "main-curves",
    "copy-depth-so-far",
    "copy-depth-bars",
    "copy-depth-curve",
    "depth-distance",
    "coupling",
    "coupling-history",
    "dropout",
    "dropout-kuramoto",
    "lesions",
    "looks",
    "recipes-early",
    "recipes",
    "wall-clock",
    "synchronization",
)


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / "reproduction" / f"{name}.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_no_row_is_missing(tiny: Path) -> None:
    for item in ITEMS:
        rows = rows_of(tiny, item.name)
        assert rows, item.name
        for row in rows:
            assert row["state"] in ("measured", "computed"), (item.name, row)
            assert row["ours"], (item.name, row)
            if row["state"] == "measured" and item.name != "recipes" and not item.name.endswith("so-far"):
                assert re.fullmatch(r"(\d+)/\1( × (\d)/\3| runs)?", row["seeds"]), (item.name, row)


def test_saying_it_again_is_the_second_minus_the_first(tiny: Path) -> None:
    rows = [row for row in rows_of(tiny, "looks") if row["quantity"].endswith("second saying minus first")]
    assert len(rows) == 4
    for row in rows:
        first, second = (float(x) for x in re.findall(r"\d+\.\d+", row["remark"]))
        assert float(row["ours"]) == pytest.approx(second - first, abs=2e-3)


def test_every_claim_is_judged_and_labelled(tiny: Path) -> None:
    rows = rows_of(tiny, "claims")
    assert [row["claim"] for row in rows] == [claim.name for claim in CLAIMS]
    for row in rows:
        assert row["evidence"] and row["scale"] == "tiny"
        if row["verdict"] == NOT_RUN:
            assert row["evidence"].startswith("needs "), row
    states = {row["verdict"] for row in rows}
    assert {HOLDS, FAILS} <= states <= {HOLDS, FAILS, NO_CASE, NOT_RUN, OPEN}, "three epochs stand for thirty"
    undecided = ("single runs closer than", "the two measures disagree", "needs the memory of training alone")
    for row in rows:  # every run is there, so what is open is too close to call, or not logged on a CPU
        assert row["verdict"] != OPEN or row["evidence"].startswith(undecided), row


def test_no_run_is_missing(tiny: Path) -> None:
    bench = tiny_bench(tiny / "runs")
    assert bench.standing(needs_of()).complete
    assert not bench.refused and not bench.notes
    names = {run.folder.name for run in bench.found}
    assert {"fsn-1m-python-stdlib-text-seed0", "transformer-8m-python-stdlib-text-seed0"} <= names
    assert {
        "fsn-1m-python-stdlib-code-length512-seed0",
        "fsn-lean-1m-python-stdlib-text-seed0",
    } <= names


def test_numbers_come_from_the_runs(tiny: Path) -> None:
    """One row followed by hand from the folder to the table."""
    bench = tiny_bench(tiny / "runs")
    losses = [
        load_run(tiny / "runs" / f"fsn-1m-python-stdlib-text-seed{seed}").epochs[2]["valid_bits"]
        for seed in FSN.seeds
    ]
    row = next(r for r in rows_of(tiny, "main") if r["quantity"] == "FSN")
    assert float(row["ours"]) == pytest.approx(sum(losses) / 5, abs=1e-11)
    assert float(row["difference"]) == pytest.approx(sum(losses) / 5 - 1.6050, abs=1e-11)
    assert bench.epoch(30) == 3 and FSN.epochs == 30


def test_figures_are_pictures(tiny: Path) -> None:
    for name in FIGURES:
        svg = tiny / "reproduction" / f"{name}.svg"
        root = ElementTree.parse(svg).getroot()
        assert root.tag.endswith("svg") and svg.stat().st_size > 5000


def test_markdown_holds_everything_and_its_links_work(tiny: Path) -> None:
    text = (tiny / "reproduction.md").read_text("utf-8")
    assert "A test of the machinery" in text
    assert all(f"## {item.title}\n" in text for item in ITEMS)
    assert "| missing |" not in text
    for link in re.findall(r"\]\(([^)#\s]+)\)", text):
        assert (tiny / link).exists(), link
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_the_page_needs_nothing_else(tiny: Path) -> None:
    html = (tiny / "reproduction.html").read_text("utf-8")
    assert "default-src 'none'" in html and "A test of the machinery" in html
    assert not re.search(r"<(link|iframe|object|embed|source|video|audio)\b", html)
    assert not re.search(r'src="(?!data:)', html) and not re.search(r"@import|url\((?!#)", html)
    assert html.count("data:image/svg+xml;base64,") == len(FIGURES)
    assert all(f'id="{item.name}"' in html for item in ITEMS)


def test_a_second_time_is_the_same(tiny: Path) -> None:
    """Nothing is trained twice, and measuring again gives the same numbers."""
    result = item_named("copy-depth").compute(tiny_bench(tiny / "runs", tiny / "cache"))
    again = data_table(result.rows).to_csv()
    assert again == (tiny / "reproduction" / "copy-depth.csv").read_text("utf-8")


PROBE = """
const get = (id) => document.getElementById(id);
const set = (id, value) => { get(id).value = value; get(id).dispatchEvent(new Event("input")); };
const curve = (id) => document.querySelector(`#${id} path[data-series="this layer"]`).getAttribute("d");
const both = () => [curve("kernel-present"), curve("kernel-successor")];
const seen = { start: both(), rows: document.querySelectorAll("table.claims tbody tr").length };
set("kernel-layer", 2); seen.layer = both();
set("kernel-training", 0); seen.training = both();
set("kernel-angle", 5); seen.angle = both();
const boxes = [...document.querySelectorAll("#kernel-harmonics input")];
seen.boxes = boxes.length;
for (const box of boxes.slice(1)) { box.checked = false; box.dispatchEvent(new Event("input")); }
seen.harmonics = both();
for (const box of boxes) { box.checked = false; box.dispatchEvent(new Event("input")); }
seen.nothing = both();
seen.words = ["layer", "training", "angle"].map((name) => get(`kernel-${name}-value`).textContent);
const claims = [...document.querySelectorAll("table.claims tbody tr")];
seen.judged = claims.filter((row) => !row.hidden).map((row) => row.dataset.verdict);
document.querySelector('#claims-filter [data-value="holds"]').click();
const left = [...document.querySelectorAll("table.claims tbody tr")].filter((row) => !row.hidden);
seen.shown = left.map((row) => row.dataset.verdict);
seen.count = get("claims-count").textContent;
seen.pictures = [...document.images].map((image) => image.naturalWidth);
seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
return seen;
"""


@needs_browser
@pytest.mark.parametrize("width", [1100, 480])
def test_the_page_works(tiny: Path, tmp_path: Path, width: int) -> None:
    found = visit(tiny / "reproduction.html", PROBE, tmp_path, width)
    assert found.console == []
    seen = found.value
    positions = [seen[name] for name in ("start", "layer", "training", "angle", "harmonics", "nothing")]
    for field in (0, 1):
        paths = [position[field] for position in positions]
        assert all(path.startswith("M") for path in paths)
        assert len(set(paths)) == len(paths), "every control moves the curves"
    heights = {point.split(" ")[1] for point in re.findall(r"[\d.]+ [\d.]+", seen["nothing"][0])}
    assert len(heights) == 1, "with no harmonic left the curve is flat"
    assert seen["boxes"] == 3 and seen["words"] == ["2 of 2", "start", "5.0"]
    assert seen["rows"] == len(CLAIMS) and set(seen["shown"]) == {"holds"}
    assert seen["judged"] and "not-run-yet" not in seen["judged"], "what has a verdict is what one sees first"
    assert seen["count"] == f"{len(seen['shown'])} of {len(CLAIMS)}"
    assert len(seen["pictures"]) == len(FIGURES) and all(width > 100 for width in seen["pictures"])
    assert seen["wide"] <= 0, "nothing hangs over the side"


IN_VIEW = """[...document.querySelectorAll("section > .card > .rows")].flatMap((box) => [0, 9999].map((x) => {
  box.scrollLeft = x;
  const frame = box.getBoundingClientRect();
  const [name, , ours] = [...box.querySelector("tbody tr").cells].map((cell) => cell.getBoundingClientRect());
  return [frame.left, name.left, name.right, ours.left, ours.right, frame.right];
}))"""


@needs_browser
def test_the_row_and_ours_stay_in_view(tiny: Path, tmp_path: Path) -> None:
    """On a narrow screen, wherever a table is scrolled to."""
    with Chrome(tmp_path) as page:
        page.open((tiny / "reproduction.html").as_uri(), width=400)
        edges = page.value(IN_VIEW)
    assert len(edges) > 10
    for across in edges:
        assert all(right - left > -1 for left, right in itertools.pairwise(across)), across


def test_the_page_carries_the_kernel(tiny: Path) -> None:
    html = (tiny / "reproduction.html").read_text("utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    kernel = json.loads(found[1])["live"]["kernel"]
    assert kernel["layers"] == 2 and kernel["harmonics"] == 3 and kernel["frame"] == "co-rotating"
    assert kernel["steps"][0]["weights"][0][0][0][0] == pytest.approx(0.182426, abs=1e-5)
    labels = [step["label"] for step in kernel["steps"]]
    assert labels[0] == "start" and labels[-1] == "best" and "epoch 1" in labels
    assert all(a["weights"] != b["weights"] for a, b in itertools.pairwise(kernel["steps"][:-1]))
