"""What a step costs: time, speed, memory and share of the floor, for the FSN family beside the transformer.

    python -m benchmarks.step                 # everything: five models, two sizes, three lengths (minutes)
    python -m benchmarks.step --quick         # 1m and T = 256 only
    python -m benchmarks.step --models fsn transformer --sizes 8m --lengths 512

Everything is measured in one process. First each path is checked against the reference (``gate.py``): one
that fails gets no time, and the command ends with an error. Then the trainer's own step (gather, forward,
backward, clip, AdamW) and an evaluation step are timed with the device's clock over replays of a CUDA
graph; the transformer's graph is of compiled kernels. Tokens per step are the same at every length.
``floor.py`` says what the floor is.

Without a GPU a tiny version runs on the CPU, with the same columns: it shows that things work, not how fast.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.floor import Ceilings, measure_ceilings
from benchmarks.measure import SYMBOLS, measure
from fsn.errors import UserError
from fsn.io import write_text_atomic
from fsn.models import Config, preset
from fsn.train.environment import environment
from fsn.train.world import World, choose_device

MODELS = ("fsn", "transformer", "fsn-nophase", "fsn-mf", "kuramoto")
SIZES = ("1m", "8m")
LENGTHS = (256, 512, 2048)
TOKENS = 64 * 256
TINY_LENGTHS = (32, 64)
TINY_TOKENS = 256
TINY = {"fsn": {"k": 24, "layers": 2}, "transformer": {"width": 24, "layers": 2}}
"""What the run on a CPU takes instead."""
RESULTS = Path(__file__).parent / "results"
HEADER = (
    f"{'model':<18}{'T':>5}{'batch':>6} │{'train ms':>9}{'Mtok/s':>8}{'GB':>7}{'floor':>7}"
    f" │{'eval ms':>9}{'Mtok/s':>8}{'GB':>7}{'floor':>7} │{'1st step':>9}  check"
)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.redraw:
        return redraw(options.redraw)
    try:
        device = choose_device("auto")
        results = run(options, device)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    path = options.json or (default_path(results) if device.type == "cuda" and whole(options) else None)
    if path is not None:
        write_text_atomic(path, json.dumps(results, indent=1) + "\n")
        print(f"raw numbers: {path}")
        figure(results, path)
    failed = [
        f"{r['model']}-{r['size']} at T = {r['length']}" for r in results["rows"] if r["check"]["failed"]
    ]
    if failed:
        print(f"failed the check, and so got no time: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def whole(options: argparse.Namespace) -> bool:
    """Whether everything was asked for: such a run replaces the numbers in the repository."""
    restricted = options.quick or options.sizes or options.lengths or options.budget_seconds
    return not restricted and list(options.models) == list(MODELS)


def default_path(results: dict[str, Any]) -> Path:
    """One file for each kind of device."""
    return RESULTS / f"step-{results['environment']['device'].lower().replace(' ', '-')}.json"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="1m and T = 256 only")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="families, e.g. fsn transformer")
    parser.add_argument("--sizes", nargs="+", default=None, help="of 1m 2m 4m 8m")
    parser.add_argument("--lengths", nargs="+", type=int, default=None, help="window lengths T")
    parser.add_argument(
        "--json",
        type=Path,
        default=None,
        help="write raw numbers here, a figure beside them (a whole run on a GPU: benchmarks/results)",
    )
    parser.add_argument(
        "--budget-seconds", type=float, default=None, help="skip what no longer fits, and say so"
    )
    parser.add_argument("--redraw", type=Path, default=None, help="only draw the figure of a JSON file again")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measure what was asked for, line by line; what was found as a plain dict."""
    started = time.perf_counter()
    gpu = device.type == "cuda"
    if not gpu:
        print(
            "There is no CUDA GPU here: this is a tiny run on the CPU, which shows that the benchmark works."
        )
    plan = combinations(options, gpu)
    about = environment(World(device=device))
    ceilings = measure_ceilings(device)
    print(f"{about['device']}, torch {torch.__version__}, triton {about['packages']['triton']}")
    print(
        f"ceilings: {ceilings.flops / 1e12:.3g} TFLOP/s ({ceilings.product}), "
        f"{ceilings.bandwidth / 1e12:.3g} TB/s (copy, read and write)"
    )
    print(HEADER, flush=True)
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    longest: dict[str, float] = {}
    for model, size, length, batch, config in plan:
        name = f"{model}-{size}"
        left = (
            None
            if options.budget_seconds is None
            else options.budget_seconds - (time.perf_counter() - started)
        )
        kind = "transformer" if model == "transformer" else "fsn"
        if left is not None and left < longest.get(kind, 0.0):
            skipped.append(f"{name} at T = {length}")
            continue
        try:
            row = measure(config, length, batch, device, ceilings, seconds=0.5 if gpu else 0.2)
        except torch.OutOfMemoryError:
            skipped.append(f"{name} at T = {length} (out of memory)")
            continue
        longest[kind] = row["seconds"]
        rows.append({"model": model, "size": size} | row)
        print(line(rows[-1]), flush=True)
    quotients = ratios(rows)
    print_ratios(quotients)
    if skipped:
        print(f"skipped: {', '.join(skipped)}")
    spent = time.perf_counter() - started
    print(f"{spent:.0f} s in all")
    return {
        "environment": about,
        "ceilings": vars_of(ceilings),
        "rows": rows,
        "ratios": quotients,
        "skipped": skipped,
        "seconds": spent,
    }


def combinations(options: argparse.Namespace, gpu: bool) -> list[tuple[str, str, int, int, Config]]:
    """What to measure, most telling first: all sizes at the shortest length, then longer ones."""
    sizes = options.sizes or (("1m",) if options.quick or not gpu else SIZES)
    lengths = options.lengths or ((256,) if options.quick and gpu else LENGTHS if gpu else TINY_LENGTHS)
    tokens = TOKENS if gpu else TINY_TOKENS
    plan = []
    for length in lengths:
        if not 2 <= length <= tokens:
            raise UserError(f"a window of {length} does not fit {tokens} tokens a step; take 2 to {tokens}")
        for size in sizes:
            for model in options.models:
                tiny: dict[str, Any] = {} if gpu else TINY["transformer" if model == "transformer" else "fsn"]
                config = preset(f"{model}-{size}", SYMBOLS, **tiny)
                plan.append((model, size, length, tokens // length, config))
    return plan


def line(row: dict[str, Any]) -> str:
    head = f"{row['model'] + '-' + row['size']:<18}{row['length']:>5}{row['batch']:>6} │"
    check = row["check"]
    if check["failed"]:
        return f"{head} no time: {check['failed']}"
    parts = []
    for part in (row["training"], row["evaluation"]):
        parts.append(
            f"{part['ms']:>9.3f}{part['mtok_per_s']:>8.2f}{part['memory_gb']:>7.2f}{part['share_of_floor']:>6.0%} "
        )
    worst = max((e[0] for errors in check["errors"].values() for e in errors.values()), default=None)
    verdict = check["path"] if worst is None else f"{check['path']}, off by {worst:.0e} at most"
    return f"{head}{parts[0]} │{parts[1]} │{row['training']['first_step_s']:>8.1f}s  {verdict}"


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each model over the transformer of the same size at the same length: time and memory."""
    timed = [row for row in rows if "training" in row]
    others = {(r["size"], r["length"]): r for r in timed if r["model"] == "transformer"}
    found = []
    for row in timed:
        other = others.get((row["size"], row["length"]))
        if other is None or row is other:
            continue
        found.append(
            {"model": row["model"], "size": row["size"], "length": row["length"]}
            | {f"{part}_time": row[part]["ms"] / other[part]["ms"] for part in ("training", "evaluation")}
            | {
                f"{part}_memory": row[part]["memory_gb"] / other[part]["memory_gb"]
                for part in ("training", "evaluation")
            }
        )
    return found


def print_ratios(quotients: list[dict[str, Any]]) -> None:
    if not quotients:
        return
    print(f"\n{'÷ transformer':<18}{'T':>5} │{'train time':>11}{'memory':>8} │{'eval time':>11}{'memory':>8}")
    for q in quotients:
        print(
            f"{q['model'] + '-' + q['size']:<18}{q['length']:>5}"
            f" │{q['training_time']:>11.2f}{q['training_memory']:>8.2f}"
            f" │{q['evaluation_time']:>11.2f}{q['evaluation_memory']:>8.2f}"
        )
    print()


def vars_of(ceilings: Ceilings) -> dict[str, Any]:
    return {"flop_per_s": ceilings.flops, "byte_per_s": ceilings.bandwidth, "product": ceilings.product}


def figure(results: dict[str, Any], beside: Path) -> None:
    """Draw the figure beside the JSON file, or say why not."""
    from benchmarks.plot import draw

    if not any("training" in row for row in results["rows"]):
        print("no figure: nothing was timed")
        return
    try:
        print(f"figure: {', '.join(str(path) for path in draw(results, beside))}")
    except (ImportError, UserError) as error:
        print(f"no figure ({error}); draw it elsewhere with --redraw {beside}")


def redraw(path: Path) -> int:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{path} cannot be read ({error}); give a file that --json wrote", file=sys.stderr)
        return 2
    figure(results, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
