"""The commands ``fsn train``, ``fsn eval``, ``fsn generate`` and ``fsn sweep``."""

from __future__ import annotations

import dataclasses
import json
import os
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from .. import train as training
from ..checks import check
from ..data import ReadOptions
from ..io import check_writable
from ..models.generate import check_drawing, draw
from ..progress import print_table, say
from ..text import printable
from .evaluate import EvaluateOptions, append_evaluation, evaluate_run, read_evaluations
from .recipe import Recipe, parse_fields
from .run import check_out, find_run, load_run
from .sweep import COLUMNS, exit_if_stopped, read_sweep, run_here, submit, table
from .world import World, choose_device

Preset = Annotated[str | None, tyro.conf.arg(metavar="PRESET")]
RunPath = Annotated[Path, tyro.conf.arg(metavar="RUN")]
File = Annotated[Path, tyro.conf.arg(metavar="FILE")]


def train(
    preset: Preset = None,
    /,
    *,
    out: Annotated[str, tyro.conf.arg(metavar="PATH")],
    corpus: str = "enwik8",
    model: tuple[str, ...] = (),
    begin_with: Path | None = None,
    resume: Literal["auto", "never", "must"] = "auto",
    extend: bool = False,
    device: str = "auto",
    budget_minutes: float | None = None,
    log: tuple[Literal["wandb", "trackio"], ...] = (),
    reading: tyro.conf.OmitArgPrefixes[ReadOptions] = ReadOptions(),  # noqa: B008 (frozen)
    recipe: tyro.conf.OmitArgPrefixes[Recipe],
) -> None:
    """Train a model. With no options this is the paper's recipe.

    For example:
      fsn train fsn-1m --out runs/fsn-seed0 --seed 0
      fsn train transformer-1m --corpus python-stdlib --out runs/small --max-steps 500
      fsn train fsn-1m --out runs/narrow --model k=96 layers=2
      fsn train fsn-1m --out runs/mine --begin-with results/fsn-1m-seed0 --corpus my-notes/ --lr 3e-4
      fsn train transformer-1m --out runs/gpt2 --corpus notes.txt --tokenizer gpt2 --model match=body
      fsn train fsn-1m --out runs/words --corpus articles.jsonl --text-column text --tokenizer gpt2
      fsn train fsn-1m --out runs/wsd --epochs 4 --schedule wsd --cooldown-epochs 1 --warmup-steps 500
      fsn train fsn-1m --out runs/large --batch-size 512 --accumulate 8
      fsn train fsn-1m --out runs/owt --corpus openwebtext/ --token-dtype uint16 --vocab-size 50257
      torchrun --nproc-per-node 4 -m fsn train fsn-8m --out runs/big

    A run can be interrupted at any time; the same command resumes it.

    Args:
        preset: Which model; `fsn models` lists them. With --begin-with it may be left out.
        out: The run folder: config, curves, weights, checkpoints.
        corpus: Which text: a name from `fsn corpora`, or the path of a file or folder; text and JSONL may be
            compressed (.gz, .bz2, .xz).
        model: Fields of the model's config to replace, e.g. k=96 layers=2 dropout=0.1. match=body or match=total
            instead of a width says what models of one size share when there are many symbols: see `fsn models`.
        begin_with: A run whose best weights to begin with, to fine-tune them or to train on with another recipe. The
            text is read in its symbols. Without a preset, or with the run's own and no --model, the model is the run's.
        resume: Resume the run in the folder if there is one (auto), always (must), or never.
        extend: Let a run train for more epochs or steps than it was started with, or end in another schedule: a
            constant run of 30 epochs ends in a cool-down with --extend --epochs 33 --schedule wsd --cooldown-epochs 3.
            Steps that are done keep their learning rate. Copy the folder first to keep the run as it is.
        device: auto, cpu, cuda or cuda:1.
        budget_minutes: Stop with a checkpoint after so many minutes.
        log: Other places for the curves, besides metrics.jsonl and TensorBoard.
        reading: How the corpus becomes tokens; by default every byte is a symbol.
        recipe: How it is trained.
    """
    training.train(
        preset,
        corpus,
        out,
        recipe,
        overrides=parse_fields(model),
        begin_with=begin_with,
        resume=resume,
        extend=extend,
        device=device,
        budget_minutes=budget_minutes,
        log=log,
        reading=reading,
    )


def evaluate(
    run: RunPath,
    /,
    *,
    evaluation: tyro.conf.OmitArgPrefixes[EvaluateOptions] = EvaluateOptions(),  # noqa: B008 (frozen)
    device: str = "auto",
    as_json: bool = False,
    append: Path | None = None,
) -> None:
    """Evaluate a run on every validation or test window, or on another text.

    For example:
      fsn eval runs/fsn-seed0
      fsn eval runs/fsn-seed0 --split test --as-json
      fsn eval fsn-1m --windows 512                       (minutes instead of half an hour on a CPU)
      fsn eval fsn-1m --text notes.txt
      fsn eval runs/fsn-seed0 --length 1024 --as-json     (four times the window of training, by position)

    Args:
        run: The run folder, or fsn-1m or transformer-1m, which come with fsn.
        evaluation: What is evaluated, and how.
        device: auto, cpu, cuda or cuda:1.
        as_json: Print one line of JSON, with the loss at each position of the window.
        append: Also append that line to this file; results/evaluations.jsonl has one for each archived run.
    """
    if append is not None:
        check(evaluation.windows is None, "--append saves losses of a whole split: leave out --windows")
        check(evaluation.which == "best", "--append saves losses of best weights: leave out --which last")
        check(evaluation.text is None, "--append saves losses of the run's own text: leave out --text")
        read_evaluations(append)  # nothing is measured that could not be saved
        check_writable(append.parent, "choose another --append")
    trained, where = load_run(find_run(run)), choose_device(device)
    result, line = evaluate_run(trained, where, evaluation)
    if line.get("warning"):
        say(f"warning: {printable(evaluation.text)}: {line['warning']}")
    if as_json:
        print(json.dumps({**line, "run": str(run)}))
    else:
        per_byte, size = line["bits_per_byte"], f"{result.windows:,} windows"
        text = evaluation.text and f"{printable(evaluation.text)} ({line['symbols']:,} symbols)"
        print(
            f"{run}, {evaluation.which} weights, {text or f'{evaluation.split} split'}, {line['precision']}"
        )
        print(f"{result.bits:.4f} bits per symbol, {result.predictions:,} predictions in {size}")
        print(f"{result.bits_second_half:.4f} bits over the second half of each window")
        if per_byte != result.bits or text is not None:
            why = "there is no tokenizer, or it does not give its text back"
            why = why if evaluation.windows is None else "they are counted on a whole text"
            print(
                f"bits per byte are not known: {why}" if per_byte is None else f"{per_byte:.4f} bits per byte"
            )
    if append is not None:
        append_evaluation(append, trained.folder.resolve().name, trained, World(device=where), line)


def generate(
    run: RunPath,
    /,
    *,
    prompt: str = "",
    symbols: int = 400,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    which: Literal["best", "last"] = "best",
    device: str = "auto",
) -> None:
    """Let a trained model continue a text.

    For example:
      fsn generate runs/fsn-seed0 --prompt "The city of"

    Args:
        run: The run folder, or fsn-1m or transformer-1m, which come with fsn.
        prompt: The text to continue.
        symbols: How many symbols to add.
        temperature: Divides the logits before a symbol is sampled; 0 takes the most likely symbol.
        top_k: Sample from so many most likely symbols only.
        seed: The same seed gives the same text.
        which: The weights of the best epoch, or the last ones saved.
        device: auto, cpu, cuda or cuda:1.
    """
    check_drawing(symbols, temperature, top_k, seed)
    trained = load_run(find_run(run))
    where = choose_device(device)
    model = trained.load_model(which, where)
    drawn = draw(
        model,
        model.begin(prompt),
        symbols=symbols,
        temperature=temperature,
        top_k=top_k,
        context=model.window - 1,
        seed=seed,
    )
    text = trained.encoding.streamed()  # a character may take several symbols
    for token in chain(trained.encoding.encode(prompt).tolist() if prompt else (), drawn):
        print(printable(text(token), "lines"), end="", flush=True)
    print(printable(text(None), "lines"))


def sweep(
    file: File,
    /,
    *,
    out: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None,
    executor: Literal["local", "slurm", "local-submitit"] = "local",
    jobs: int | None = None,
    slurm: tuple[str, ...] = (),
    wait: bool = True,
    extend: bool = False,
    dry_run: bool = False,
) -> None:
    """Train a list of runs: finished ones are skipped, interrupted ones resumed.

    For example:
      fsn sweep seeds.yaml
      fsn sweep seeds.yaml --executor slurm --slurm slurm_partition=gpu timeout_min=240 gpus_per_node=1

    where seeds.yaml holds:
      out: runs/seeds                       # each run gets a folder in here
      defaults: {corpus: enwik8, epochs: 2}
      grid: {preset: [fsn-1m, transformer-1m], seed: [0, 1, 2]}
      runs: [{name: narrow, preset: fsn-1m, model: {k: 96}}]

    Args:
        file: The YAML file.
        out: The folder for the runs, instead of the file's own.
        executor: This machine (one run per GPU, or one at a time), SLURM, or submitit's local executor.
        jobs: How many runs at once on this machine; by default one per GPU, one on a CPU.
        slurm: Parameters for submitit, e.g. slurm_partition=gpu timeout_min=240.
        wait: Wait for submitted jobs to end.
        extend: Extend finished runs where the file now asks for more epochs or steps.
        dry_run: Only print the runs and their states.
    """
    plan = [dataclasses.replace(job, extend=extend) for job in read_sweep(file, out)]
    if dry_run:
        print_table(COLUMNS, table(plan))
        return
    for job in plan:
        if not (job.out / "DONE").exists():
            check_out(job.out, job.corpus)

    if executor == "local":
        notes, stopped = run_here(plan, slots(jobs), say)
    else:
        cluster = "slurm" if executor == "slurm" else "local"
        folder, stopped = plan[0].out.parent / "submitit", 0
        notes = submit(plan, cluster, folder, parse_fields(slurm), wait, say)
    print_table(COLUMNS, table(plan, notes))
    exit_if_stopped(stopped)
    if "failed" in notes.values():
        raise SystemExit(1)


def slots(jobs: int | None) -> list[str | None]:
    """One slot per visible GPU, or ``jobs`` slots that take GPUs in turn; without GPUs one on the CPU, or ``jobs``."""
    check(jobs is None or jobs >= 1, f"--jobs must be at least 1, not {jobs}")
    gpus = [str(i) for i in range(torch.cuda.device_count())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible and len(visible.split(",")) == len(gpus):
        gpus = visible.split(",")
    if not gpus:
        return [None] * (jobs or 1)
    return [gpus[i % len(gpus)] for i in range(jobs or len(gpus))]
