"""Items on made-up runs: the right numbers in the right rows, and missing shown as missing."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from fsn.measure import Table
from fsn.paper import needs
from fsn.paper.bench import Bench, Text, store_text
from fsn.paper.rows import (
    COMPUTED,
    FAILS,
    FAILS_SO_FAR,
    HOLDS,
    HOLDS_SO_FAR,
    MEASURED,
    MISSING,
    NOT_RUN,
    PARTIAL,
    Result,
    Row,
    data_table,
    macro,
)
from fsn.paper.sections import ITEMS, beyond, item_named
from fsn.paper.writing import counts, end_markdown, item_markdown, make_report, write_item, write_report
from tests.paper.made_up import bench_of, falling, write_run
from tests.paper.world import BATTERY, SMALL


def row(result: Result, quantity: str, group: str = "") -> Row:
    found = [r for r in result.rows if r.quantity == quantity and group in r.group]
    assert len(found) == 1, (quantity, [r.quantity for r in result.rows])
    return found[0]


def test_with_no_runs_nothing_is_filled_in(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    for item in ITEMS:
        result = item.compute(bench)
        assert result.rows, item.name
        for one in result.rows:
            if one.state != COMPUTED:
                assert one.state == MISSING and one.ours is None and one.difference is None, one
                assert one.cells[2] == "missing" and one.cells[3] == ""
        expected = "computed" if item.name == "parameters" else "missing"
        if item.needs or item.name == "parameters":
            assert result.state == expected, item.name


def test_main_table_rows(tmp_path: Path) -> None:
    for seed in range(5):
        write_run(tmp_path, needs.FSN, falling(1.6 + 0.001 * seed, 0.3, 30), seed=seed)
    write_run(tmp_path, needs.TRANSFORMER, falling(1.62, 0.3, 30))
    write_run(tmp_path, needs.TRANSFORMER, falling(1.62, 0.3, 12), seed=1)
    curves: list[list[float | None]] = [[1.65] * 30, [1.66] * 30, [1.7] * 16 + [None]]
    for seed, losses in enumerate(curves):
        write_run(tmp_path, needs.MEAN_FIELD, losses, seed=seed)
    result = item_named("main").compute(bench_of(tmp_path))
    fsn = row(result, "FSN", "Text, epoch 30")
    assert fsn.ours == pytest.approx(1.602 + 0.01) and fsn.seeds == "5/5" and fsn.state == MEASURED
    assert fsn.difference == pytest.approx(1.612 - 1.6050)
    assert fsn.spread == pytest.approx(0.00158, abs=1e-5)
    transformer = row(result, "Transformer", "Text, epoch 30")
    assert transformer.seeds == "1/3" and transformer.state == PARTIAL
    mean_field = row(result, "FSN-MF", "Text, epoch 30")
    assert mean_field.ours == pytest.approx(1.655) and "diverged in epoch 17" in mean_field.remark
    gap = row(result, "FSN-MF minus transformer")
    assert gap.ours == pytest.approx(1.655 - 1.63) and gap.seeds == "3/3 × 1/3"
    missing = row(result, "FSN, no phases", "Text, epoch 30")
    assert missing.state == MISSING and "fsn-nophase-1m on enwik8, seeds 0, 1, 2, 30 epochs" in missing.remark
    assert result.state == "partly" and result.pictures


def test_ladder_and_ablations(tmp_path: Path) -> None:
    fsn, transformer = needs.RUNGS["8M"]
    write_run(tmp_path, fsn, falling(1.40, 0.2, 14))
    write_run(tmp_path, transformer, falling(1.42, 0.3, 30))
    result = item_named("ladder").compute(bench_of(tmp_path))
    assert row(result, "FSN, epoch 14", "8M").ours == pytest.approx(1.40 + 0.2 / 14)
    assert row(result, "FSN minus transformer", "8M").ours == pytest.approx(-0.02 - 0.1 / 14)
    assert row(result, "transformer, epoch 30", "8M").ours == pytest.approx(1.43)
    write_run(tmp_path, needs.NO_BOUND, [10.3])
    write_run(tmp_path, needs.NO_DELAY, [1.9, 1.77])
    write_run(tmp_path, needs.FSN, [1.8, 1.69])
    result = item_named("ablations").compute(bench_of(tmp_path))
    assert row(result, "no bound, epoch 1").difference == pytest.approx(10.3 - 10.19)
    assert row(result, "no delay minus FSN, epoch 2, seed 0").ours == pytest.approx(0.08)


def test_a_bound_that_was_needed_at_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path, needs.NO_BOUND, [])
    line = '{"kind": "warning", "what": "non-finite", "step": 40, "epoch": 1, "tensor": "x"}\n'
    (folder / "metrics.jsonl").write_text(line)
    found = row(item_named("ablations").compute(bench_of(tmp_path)), "no bound, epoch 1")
    assert found.ours == math.inf and found.cells[2] == "∞" and "not finite in epoch 1" in found.remark
    assert found.difference is None


def two_rungs(root: Path, device: str = "a GPU") -> None:
    fsn, transformer = needs.RUNGS["2M"]
    for seed in (0, 1):
        # The transformer ends at 1.55 after 30 epochs of 100 s; the FSN is there after epoch 10 of 300 s.
        write_run(root, transformer, [1.7] * 24 + [1.556, 1.555, 1.554, 1.553, 1.552, 1.55], seed=seed)
        losses = [1.6] * 9 + [1.55 - 0.001 * i for i in range(21)]
        write_run(root, fsn, losses, seed=seed, epoch_s=300.0, device=device)


def test_the_papers_end_points_stand_beside_our_curves(tmp_path: Path) -> None:
    for need in (needs.FSN, needs.TRANSFORMER, needs.KURAMOTO):
        write_run(tmp_path, need, [1.7, 1.65])
    (picture,) = item_named("main").compute(bench_of(tmp_path)).pictures
    assert "Diamonds" in picture.caption
    (axes,) = picture.draw().axes
    drawn = [bar.lines[0].get_xydata().tolist() for bar in axes.containers]
    assert drawn == [[[30, 1.6258]], [[30, 1.6050]]], "Kuramoto attention has no value after thirty epochs"


def test_wall_clock(tmp_path: Path) -> None:
    two_rungs(tmp_path)
    bench = bench_of(tmp_path)
    result = item_named("wall-clock").compute(bench)
    assert row(result, "per-epoch slowdown", "2M").ours == pytest.approx(3.0)
    found = row(result, "against the mean transformer, median", "2M")
    assert found.ours == pytest.approx(1.0) and found.seeds == "2/2 × 2/2"
    assert found.difference == pytest.approx(1.0 - 1.56)
    crossing = item_named("crossing").compute(bench)
    assert row(crossing, "final loss below the target after the crossing, least").state == MISSING
    assert [title for title, _ in crossing.tables] == ["2M, every seed"]
    figure = item_named("wall-clock-figure").compute(bench)
    assert len(figure.pictures) == 1
    assert not any(r.ours for r in figure.rows if not r.quantity.startswith("2M"))


def test_seconds_of_different_devices_are_not_compared(tmp_path: Path) -> None:
    two_rungs(tmp_path, device="another GPU")
    found = row(
        item_named("wall-clock").compute(bench_of(tmp_path)), "against the mean transformer, median", "2M"
    )
    assert found.state == MISSING and "different settings" in found.remark and "a GPU" in found.remark


def test_one_graph_is_one_setting_whoever_made_the_kernels(tmp_path: Path) -> None:
    """A fused FSN is captured as it is, a transformer compiled before: each takes its fastest step."""
    fsn, transformer = needs.RUNGS["8M"]
    write_run(tmp_path, transformer, [1.6] * 29 + [1.55], epoch_s=100.0, recipe={"engine": "compile-graph"})
    folder = write_run(tmp_path, fsn, [1.6] * 9 + [1.5] * 5, epoch_s=120.0, recipe={"engine": "graph"})
    result = item_named("wall-clock").compute(bench_of(tmp_path))
    assert row(result, "against the mean transformer, median", "8M").ours == pytest.approx(0.4)
    config = folder / "config.yaml"
    config.write_text(config.read_text("utf-8").replace("engine: graph", "engine: eager"), "utf-8")
    found = row(
        item_named("wall-clock").compute(bench_of(tmp_path)), "against the mean transformer, median", "8M"
    )
    assert found.state == MISSING and "one CUDA graph" in found.remark and "eager" in found.remark


def share_first_epoch(folder: Path) -> None:
    """As if something else had used the device during a run's first epoch: 500 seconds more, a sixth of its speed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for line in lines:
        line["cumulative_s"] += 500.0
    lines[0]["tokens_per_s"] /= 6
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def test_epochs_that_shared_the_device_do_not_count_as_slow(tmp_path: Path) -> None:
    share_first_epoch(write_run(tmp_path, needs.FSN, [1.7] * 5, tokens_per_s=250e3))
    write_run(tmp_path, needs.TRANSFORMER, [1.7] * 5, tokens_per_s=1000e3)
    result = item_named("efficiency").compute(bench_of(tmp_path))
    assert row(result, "FSN").ours == pytest.approx(250)
    assert row(result, "FSN: training time over the transformer's").ours == pytest.approx(4.0)
    assert any("epoch 1 took over" in note for note in result.notes)
    ours, theirs = needs.CODE_FSN.seed(0), needs.CODE_TRANSFORMER.seed(0)
    share_first_epoch(write_run(tmp_path, ours, [1.3] * 30))
    write_run(tmp_path, theirs, [1.4] * 29 + [1.3])
    code = item_named("code-wall-clock").compute(bench_of(tmp_path))
    assert row(code, "length 256, seed 0: FSN time over transformer time").ours == pytest.approx(1 / 30)
    assert any("epoch 1 took over" in note for note in code.notes)


def test_epochs_that_shared_the_device_are_said(tmp_path: Path) -> None:
    fsn, transformer = needs.RUNGS["8M"]
    write_run(tmp_path, transformer, [1.6] * 29 + [1.55], epoch_s=100.0)
    share_first_epoch(write_run(tmp_path, fsn, [1.6] * 9 + [1.5] * 5, epoch_s=100.0))
    for name in ("wall-clock", "wall-clock-figure", "crossing"):
        result = item_named(name).compute(bench_of(tmp_path))
        assert any("epoch 1 took over" in note for note in result.notes)
    assert row(
        item_named("wall-clock").compute(bench_of(tmp_path)), "per-epoch slowdown", "8M"
    ).ours == pytest.approx(1)


def test_efficiency(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, needs.FSN, [1.7], seed=seed, tokens_per_s=250e3, eval_tokens_per_s=1.1e6)
        write_run(tmp_path, needs.TRANSFORMER, [1.7], seed=seed, tokens_per_s=1000e3)
    write_run(tmp_path, needs.NO_HARMONICS, [1.7], tokens_per_s=300e3)
    result = item_named("efficiency").compute(bench_of(tmp_path))
    assert row(result, "FSN").ours == pytest.approx(250) and row(result, "FSN").paper is not None
    assert row(result, "FSN: training time over the transformer's").ours == pytest.approx(4.0)
    assert row(result, "kernel's share of the training step, percent").ours == pytest.approx(100 / 6)
    assert row(result, "FSN: evaluation, million tokens/s").ours == pytest.approx(1.1)
    assert row(result, "FSN at 4M").state == MISSING


def test_so_far_shows_the_paper_only_where_comparable(tmp_path: Path) -> None:
    write_run(tmp_path, needs.FSN, [1.73, 1.682, 1.66])
    write_run(tmp_path, needs.FSN, [1.74, 1.686], seed=1)
    write_run(tmp_path, needs.CODE_TRANSFORMER, [1.3] * 30, corpus="pypi-python")
    result = item_named("so-far").compute(bench_of(tmp_path))
    two, three = row(result, "fsn-1m, epoch 2"), row(result, "fsn-1m, epoch 3")
    assert two.ours == pytest.approx(1.684) and two.seeds == "2"
    assert two.paper is not None and two.paper.value == 1.6892
    assert three.paper is None and three.seeds == "1"
    assert row(result, "transformer-1m, epoch 30").paper is None, "the text is not the paper's"


def test_levels_on_another_text_have_no_difference(tmp_path: Path) -> None:
    for need, end in ((needs.CODE_FSN, 1.32), (needs.CODE_TRANSFORMER, 1.345)):
        write_run(tmp_path, need, [end] * 30, corpus="pypi-python")
    bench = bench_of(tmp_path)
    found = row(item_named("main").compute(bench), "FSN, seed 0", "Code (pypi-python in place of codeparrot)")
    assert found.ours == pytest.approx(1.32) and found.paper is not None and found.difference is None
    assert "on pypi-python in place of codeparrot" in found.remark and found.cells[3] == ""
    margin = row(item_named("sequence-512").compute(bench), "final margin, length 256")
    assert margin.difference == pytest.approx(0.0), "comparisons between models remain"


def test_long_runs_of_code_at_both_lengths(tmp_path: Path) -> None:
    for need, end in (
        (needs.CODE_FSN, 1.22),
        (needs.CODE_TRANSFORMER, 1.245),
        (needs.LONG_FSN, 1.08),
        (needs.LONG_TRANSFORMER, 1.09),
    ):
        write_run(tmp_path, need, [end + 0.1] * 29 + [end], epoch_s=100.0)
    result = item_named("sequence-512").compute(bench_of(tmp_path))
    assert row(result, "final margin, length 256").ours == pytest.approx(-0.025)
    assert row(result, "mean margin over the epochs, length 512").ours == pytest.approx(-0.01)
    assert row(result, "FSN: gain from doubling the context").ours == pytest.approx(0.14)
    ratio = row(item_named("code-wall-clock").compute(bench_of(tmp_path)), "length 512: per-epoch slowdown")
    assert ratio.ours == pytest.approx(1.0)


def test_files_of_an_item(tmp_path: Path) -> None:
    for seed in range(5):
        write_run(tmp_path / "runs", needs.FSN, falling(1.6, 0.3, 30), seed=seed)
    item = item_named("main")
    result = item.compute(bench_of(tmp_path / "runs"))
    written = {path.name for path in write_item(item, result, tmp_path / "out")}
    assert {"main.csv", "main-curves.svg"} <= written
    rows = list(csv.DictReader((tmp_path / "out" / "main.csv").open()))
    fsn = next(r for r in rows if r["quantity"] == "FSN")
    assert float(fsn["paper"]) == macro("sfnThirty").value and float(fsn["difference"]) == pytest.approx(
        0.005
    )
    assert fsn["seeds"] == "5/5" and fsn["state"] == "measured"
    missing = next(r for r in rows if r["quantity"] == "Transformer")
    assert missing["ours"] == missing["difference"] == "" and missing["state"] == "missing"
    assert data_table(result.rows).columns[0] == "group"


def test_a_report_without_runs(tmp_path: Path) -> None:
    report = make_report(bench_of(tmp_path / "runs"))
    markdown, page = write_report(report, tmp_path / "docs")
    text = markdown.read_text("utf-8")
    assert "rows wait for runs" in text and "not run yet" in text and "## Missing runs" in text
    assert all(f"## {item.title}\n" in text for item in ITEMS)
    assert "data:image" not in page.read_text("utf-8"), "there is nothing to draw yet"
    counts = Counter(verdict.state for _, verdict in report.judged)
    assert counts["not run yet"] > 90 and counts["fails"] == 0


def test_a_rise_is_that_of_all_targets_of_its_depths() -> None:
    columns = ("field", "layer", "depth", "targets", "rise")
    cells = [
        ("successor", 4, "0–1", 90, 9.0),
        ("successor", 4, "16–23", 30, 1.0),
        ("successor", 4, "24–32", 10, 3.0),
        ("successor", 3, "16–23", 10, 7.0),
        ("present", 4, "16–23", 10, 8.0),
        ("present", 3, "16–23", 0, math.nan),
    ]
    table = Table(columns, [dict(zip(columns, c, strict=True)) for c in cells])
    assert beyond.rise(table, "successor", 4, beyond.DEEP) == pytest.approx((30 * 1.0 + 10 * 3.0) / 40)
    assert beyond.rise(table, "successor", 4, beyond.SHALLOW) == 9.0
    assert math.isnan(beyond.rise(table, "present", 3, beyond.DEEP))


def test_only_what_is_known_is_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    write_run(tmp_path, needs.FSN, falling(1.6, 0.3, 30))
    item = item_named("main")
    result = item.compute(bench_of(tmp_path))
    page = item_markdown(item, result, "pictures")
    assert "**Text, epoch 30**" in page and "| FSN |" in page and "| Transformer |" not in page
    assert (
        "**Code" not in page and f"{len(result.rows) - 1} of {len(result.rows)} rows wait for runs." in page
    )


def test_counts_on_top_tell_measured_from_computed_and_partly_seeded(tmp_path: Path) -> None:
    write_run(tmp_path, needs.FSN, falling(1.6, 0.3, 30))
    report = make_report(bench_of(tmp_path))
    rows = Counter(row.state for _, result in report.results for row in result.rows)
    claims = Counter((verdict.state, bool(claim.needs)) for claim, verdict in report.judged)
    assert rows[PARTIAL] > 0 and rows[COMPUTED] > 20 and rows[MISSING] > 100
    shown = [list(row.values()) for row in counts(report).rows]
    assert [line[1] for line in shown] == [rows[COMPUTED], rows[MEASURED], rows[PARTIAL], rows[MISSING]]
    assert sum(sum(line[2:]) for line in shown) == len(report.judged) == claims.total()
    assert shown[0][2:4] == [claims[HOLDS, False], claims[FAILS, False]] and shown[0][2] > 0
    assert shown[2][2:4] == [claims[HOLDS_SO_FAR, True], claims[FAILS_SO_FAR, True]]
    assert shown[3][4] == sum(claims[NOT_RUN, needs] for needs in (True, False)) > 50
    missing = [line for line in end_markdown(report).splitlines() if line.startswith("- ")]
    assert any("fsn-1m on enwik8, seeds 1, 2, 50 epochs" in words for words in missing)
    assert len(missing) == len(set(missing)), "each run once"


def test_a_stand_in_says_so_in_every_row(tmp_path: Path) -> None:
    for need in (needs.CODE_FSN, needs.CODE_TRANSFORMER, needs.CODE_NO_PHASES):
        for seed in need.seeds:
            write_run(tmp_path, need, falling(1.2, 0.3, 30), seed=seed, corpus="pypi-python")
    bench = bench_of(tmp_path)
    for name in ("main", "sequence-512", "failures", "code-wall-clock", "efficiency"):
        rows = [row for row in item_named(name).compute(bench).rows if row.ours is not None]
        assert rows and all("on pypi-python in place of codeparrot" in row.remark for row in rows), name


def test_what_stands_in_for_code_is_named_and_nothing_stands_in_unnamed(tmp_path: Path) -> None:
    """Without runs on code the paper's own corpus is meant, whatever else is at hand."""
    text = Text("91" * 32, 97, BATTERY, 0.0221, torch.zeros(1, 256, dtype=torch.uint8))
    store_text(tmp_path, "pypi-python", text)

    def targets(prefer: dict[str, str]) -> list[Row]:
        bench = Bench.open([tmp_path], SMALL, prefer, device="cpu", cache=tmp_path / "cache")
        return [row for row in item_named("copy-depth-code").compute(bench).rows if row.group == "Targets"]

    assert all(row.state == MISSING and "codeparrot is not here" in row.remark for row in targets({}))
    named = targets({"code": "pypi-python"})
    assert named[-1].ours == pytest.approx(2.21)
    assert all(row.state == COMPUTED and "in place of codeparrot" in row.remark for row in named)
    assert all(row.difference is None for row in named)


def test_seeds_that_all_diverge_in_the_first_epoch_have_no_loss_there(tmp_path: Path) -> None:
    """A run that stopped with a warning before its first validation has no epoch at all."""
    for seed in needs.CODE_FSN.seeds:
        folder = write_run(tmp_path, needs.CODE_FSN, [], seed=seed)
        warning = {"kind": "warning", "what": "non-finite", "step": 7, "epoch": 1, "tensor": "loss"}
        (folder / "metrics.jsonl").write_text(json.dumps(warning) + "\n", "utf-8")
    result = item_named("failures").compute(bench_of(tmp_path))
    for title in ("lowest seed", "middle seed", "highest seed", "highest minus lowest"):
        found = row(result, f"epoch 1, {title}", "Code, first epoch")
        assert found.seeds == "3/3" and found.ours is not None and math.isnan(found.ours), title


def test_recipes_stand_beside_the_transformer_by_seed(tmp_path: Path) -> None:
    for seed, bits in ((0, 1.70), (1, 1.72)):
        write_run(tmp_path, needs.TRANSFORMER, [1.8, bits], seed=seed)
        write_run(tmp_path, needs.FSN, [1.7, bits - 0.05 - 0.01 * seed], seed=seed, recipe={"lr": 0.004})
    write_run(tmp_path, needs.FSN, [1.7, None], recipe={"lr": 0.1}, name="hot")
    write_run(tmp_path, needs.FSN, [1.0, 1.0], recipe={"eval_stride": 64}, name="other-windows")
    result = item_named("recipes").compute(bench_of(tmp_path))
    rows = {row.quantity: row for row in result.rows if row.group == "epoch 2"}
    assert rows["fsn-1m, lr 0.004"].seeds == "2"
    assert not any(row.ours == 1.0 for row in result.rows), "losses on other windows do not compare"
    half = 12.706 * 0.005  # Student's t for two pairs, times the standard error of −0.05 and −0.06
    assert rows["fsn-1m, lr 0.004"].remark == f"−0.0550 ± {half:.4f} over 2 pairs"
    assert rows["fsn-1m, lr 0.1"].ours == math.inf and "not finite: seed 0" in rows["fsn-1m, lr 0.1"].remark
    (missing,) = (row for row in result.rows if row.group == "epoch 30")
    assert missing.state == "missing" and [picture.name for picture in result.pictures] == ["recipes-early"]
