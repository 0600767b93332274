"""What a step costs: time, speed, memory and share of the floor, for the FSN family beside the transformer.

    python -m benchmarks.step                 # everything: five models, two sizes, three lengths (minutes)
    python -m benchmarks.step --quick         # 1m and T = 256 only
    python -m benchmarks.step --models fsn transformer --sizes 8m --lengths 512
    python -m benchmarks.step --seconds 200   # the most telling rows first; what does not fit is named

Everything is measured in one process, after other processes have filled the compile caches (``warm.py``). Each
path is checked against the reference (``gate.py``): one that fails gets no time, and the command ends with an
error. Then the trainer's own step (gather, forward, backward, clip, AdamW) and an evaluation step are timed
with the device's clock over replays of a CUDA graph; the transformer's graph is of compiled kernels. Tokens
per step are the same at every length. ``floor.py`` says what the floor is.

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

from benchmarks.floor import Ceilings, Work, measure_ceilings
from benchmarks.gate import limit
from benchmarks.measure import PARTS, SYMBOLS, Case, measure
from benchmarks.warm import default_workers, plan_jobs, share_caches, warm
from fsn.errors import UserError
from fsn.io import write_text_atomic
from fsn.models import preset
from fsn.train.world import World, choose_device, describe_device, environment

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
    f"{'model':<18}{'T':>5}{'batch':>6} │{'train ms':>9}{'±':>6}{'Mtok/s':>8}{'GB':>7}{'floor':>7}"
    f" │{'eval ms':>9}{'±':>6}{'Mtok/s':>8}{'GB':>7}{'floor':>7} │{'1st step':>9}  check"
)
SECONDS = 0.4
"""Of timed work in each part of a row, on a GPU."""


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.redraw:
        return redraw(options.redraw)
    try:
        device = choose_device("auto")
        path = options.json or (default_path(device) if device.type == "cuda" and whole(options) else None)
        results = run(options, device, path)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if path is not None:
        print(f"raw numbers: {path}")
        figure(results, path)
    wrong = [
        f"{r['model']}-{r['size']} at T = {r['length']}" for r in results["rows"] if r["check"]["failed"]
    ]
    if wrong:
        print(f"failed the check, and so got no time: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong or results["failed"] else 0


def whole(options: argparse.Namespace) -> bool:
    """Whether everything was asked for: such a run replaces the numbers in the repository."""
    restricted = options.quick or options.sizes or options.lengths or options.seconds is not None
    return not restricted and list(options.models) == list(MODELS)


def default_path(device: torch.device) -> Path:
    """One file for each kind of device."""
    return RESULTS / f"step-{describe_device(device).lower().replace(' ', '-')}.json"


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
        help="write raw numbers here after every row, a figure beside them (a whole run on a GPU: benchmarks/results)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=None,
        help="skip rows that no longer fit, long windows of large models first, and say so",
    )
    parser.add_argument(
        "--warm-jobs",
        type=int,
        default=None,
        help="processes that fill the compile caches first; 0 for none (default: all cores but two, at most 14)",
    )
    parser.add_argument("--redraw", type=Path, default=None, help="only draw the figure of a JSON file again")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, device: torch.device, path: Path | None = None) -> dict[str, Any]:
    """Measure what was asked for, line by line; what was found as a plain dict, in ``path`` after every line."""
    started = time.perf_counter()
    gpu = device.type == "cuda"
    if not gpu:
        print(
            "There is no CUDA GPU here: this is a tiny run on the CPU, which shows that the benchmark works."
        )
    plan = combinations(options, gpu)
    about = environment(World(device=device))
    print(f"{about['device']}, torch {torch.__version__}, triton {about['packages']['triton']}", flush=True)
    warmth = fill_caches(options, plan, device)
    cold = warmth["cold"] if warmth else []
    ceilings = measure_ceilings(device)
    print(
        f"ceilings: {ceilings.flops / 1e12:.3g} TFLOP/s ({ceilings.product}), "
        f"{ceilings.bandwidth / 1e12:.3g} TB/s (copy, read and write)"
    )
    print(HEADER, flush=True)
    results: dict[str, Any] = {"environment": about, "ceilings": vars_of(ceilings), "warm_up": warmth}
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    failed: list[str] = []

    def store(left: list[Case]) -> None:
        results.update(
            rows=rows,
            ratios=ratios(rows),
            skipped=skipped,
            failed=failed,
            left=[str(case) for case in left],
            seconds=time.perf_counter() - started,
        )
        if path is not None:
            write_text_atomic(path, json.dumps(results, indent=1) + "\n")

    last: dict[tuple[bool, bool], float] = {}  # how long the last row of a kind took
    store(plan)
    for i, case in enumerate(plan):
        kind = (case.model.startswith("transformer"), str(case) in cold)
        if options.seconds is not None:
            remaining = options.seconds - (time.perf_counter() - started)
            if remaining < last.get(kind, 0.0):
                skipped.append(str(case))
                continue
        try:
            row = measure(case, device, ceilings, SECONDS if gpu else SECONDS / 2)
            rows.append(row)
            last[kind] = row["seconds"]
            print(line(row), flush=True)
        except torch.OutOfMemoryError:
            skipped.append(f"{case} (out of memory)")
        except UserError:
            raise
        except Exception as error:
            failed.append(f"{case}: {type(error).__name__}: {error}")
            print(f"failed: {failed[-1]}", file=sys.stderr, flush=True)
        store(plan[i + 1 :])
    results["ceilings"] = vars_of(check_ceilings(rows, ceilings, measure_ceilings(device)))
    store([])
    print_ratios(results["ratios"])
    if skipped:
        print(f"skipped: {', '.join(skipped)}")
    graphs = [row[part]["graphs"] for row in rows if not row["check"]["failed"] for part in PARTS]
    if found := sum(g["found"] for g in graphs):
        compiled = sum(g["compiled"] for g in graphs)
        print(f"torch.compile: {found} graphs found in the cache, {compiled} compiled")
    for words in cut_up(rows):
        print(words)
    print(f"{results['seconds']:.0f} s in all")
    return results


def cut_up(rows: list[dict[str, Any]]) -> list[str]:
    """Which steps torch.compile did not take in one piece: they pay for what it could not trace."""
    found = []
    for row in rows:
        for part in PARTS if not row["check"]["failed"] else ():
            pieces = sum(row[part]["graphs"].values())
            if pieces > 1:
                found.append(
                    f"{row['model']}-{row['size']}, {part}: torch.compile made {pieces} pieces of it, not one"
                )
    return found


def fill_caches(options: argparse.Namespace, plan: list[Case], device: torch.device) -> dict[str, Any] | None:
    """The warm-up, unless it is switched off. It takes half of ``--seconds`` at most."""
    workers = default_workers(device) if options.warm_jobs is None else options.warm_jobs
    if workers < 0:
        raise UserError(f"--warm-jobs must be 0 or more, not {workers}")
    if workers == 0:
        return None
    folder = share_caches()
    jobs = plan_jobs(plan, device)
    workers = min(workers, len(jobs))
    print(f"warming the compile caches ({folder}): {len(jobs)} jobs in {workers} processes", flush=True)
    limit = None if options.seconds is None else options.seconds / 2
    found = warm(jobs, workers, device, limit, lambda words: print(words, flush=True))
    words = f"caches are warm after {found['seconds']:.0f} s"
    if found["missed"]:
        words += f", but for {len(found['missed'])} jobs: {'; '.join(f'{n} ({w})' for n, w in found['missed'].items())}"
    print(words, flush=True)
    return found


def combinations(options: argparse.Namespace, gpu: bool) -> list[Case]:
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
                tiny: dict[str, Any] = (
                    {} if gpu else TINY["transformer" if model.startswith("transformer") else "fsn"]
                )
                config = preset(f"{model}-{size}", SYMBOLS, **tiny)
                plan.append(Case(model, size, length, tokens // length, config))
    return plan


def line(row: dict[str, Any]) -> str:
    head = f"{row['model'] + '-' + row['size']:<18}{row['length']:>5}{row['batch']:>6} │"
    check = row["check"]
    if check["failed"]:
        return f"{head} no time: {check['failed']}"
    parts = []
    for part in (row[name] for name in PARTS):
        spread = (part["high"] - part["low"]) / 2 / part["ms"]
        parts.append(
            f"{part['ms']:>9.3f}{spread:>6.1%}{part['mtok_per_s']:>8.2f}{part['memory_gb']:>7.2f}"
            f"{part['share_of_floor']:>6.0%} "
        )
    shares = [e[0] / limit(p, *e[1:]) for p, errors in check["errors"].items() for e in errors.values()]
    verdict = f"{check['path']}, errors at most {max(shares):.0%} of their limit" if shares else check["path"]
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
            | {f"{part}_time": row[part]["ms"] / other[part]["ms"] for part in PARTS}
            | {f"{part}_memory": row[part]["memory_gb"] / other[part]["memory_gb"] for part in PARTS}
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


def check_ceilings(rows: list[dict[str, Any]], before: Ceilings, after: Ceilings) -> Ceilings:
    """The higher of the ceilings measured before and after all rows, and every row's floor by them.

    They are measured in a tenth of a second each. Another program that was busy just then would lower them, and make
    every row look better than it is.
    """
    best = before.or_higher(after)
    for row in rows:
        for part in (row[name] for name in PARTS if name in row):
            work = Work(1e9 * part["gflop"], 1e9 * part["gbyte"])
            part.update(work.against(part["ms"], best))
    if best.flops > 1.1 * before.flops or best.bandwidth > 1.1 * before.bandwidth:
        print(
            f"ceilings, measured again: {best.flops / 1e12:.3g} TFLOP/s, {best.bandwidth / 1e12:.3g} TB/s. Something "
            "else was using the device at the start: shares of the floor above are too high, the JSON's are right"
        )
    return best


def vars_of(ceilings: Ceilings) -> dict[str, Any]:
    return {"flop_per_s": ceilings.flops, "byte_per_s": ceilings.bandwidth, "product": ceilings.product}


def figure(results: dict[str, Any], beside: Path) -> None:
    """Draw the figure beside the JSON file, or say why not."""
    from benchmarks.plot import draw

    if not any("training" in row for row in results["rows"]):
        print("no figure: nothing was timed")
        return
    try:
        print(f"figure: {draw(results, beside)}")
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
