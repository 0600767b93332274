"""Starting a run, or taking one up again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal as signals
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import fsn

from .. import data
from ..errors import UserError
from ..models import Config, build_from_config, config_to_dict, preset_with
from .begin import Beginning, find_beginning
from .checkpoint import Checkpoint, Checkpoints
from .environment import describe_device, environment, write_environment
from .folder import FORMAT, RunFolder, check_out, disk_errors
from .loggers import Loggers, check_loggers
from .loop import Training
from .recipe import Recipe
from .run import Run, load_run, put_weights
from .settle import Opened, Resume, how_to_go_on, settle
from .signals import StopRequest
from .state import State, Stopped
from .step import Stepper
from .world import World, numerics, open_world

if TYPE_CHECKING:
    from ..data import Corpus

ENGINES = {
    "eager": "eager",
    "compile": "compile: forward and backward through torch.compile",
    "graph": "graph: the whole step replays as one CUDA graph",
    "compile-graph": "compile-graph: torch.compile, and the whole step replays as one CUDA graph",
}
PRECISIONS = {
    "fp32": "fp32: float32 throughout",
    "tf32": "tf32: float32 storage, TensorFloat-32 products",
    "bf16": "bf16: autocast, weights and phases in float32",
}


def train(
    model: str | Config,
    corpus: str | Corpus,
    out: str | os.PathLike[str],
    recipe: Recipe | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    begin_with: str | os.PathLike[str] | None = None,
    resume: Resume = "auto",
    extend: bool = False,
    device: str = "auto",
    budget_minutes: float | None = None,
    log: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Train a model and return its run.

        run = fsn.train.train("fsn-1m", "enwik8", "runs/fsn-seed0", Recipe(epochs=2))
        run.epochs[-1]["valid_bits"]

    ``model`` is a preset's name (``overrides`` replace fields of its config) or a config. ``begin_with`` is a
    run folder whose best weights to begin with; the text is then read in that run's symbols. If ``out`` holds an
    unfinished run of the same config it goes on from its last checkpoint (``resume="auto"``). ``extend`` lets
    a run go on with more epochs or steps than it was started with. After ``budget_minutes`` it stops with a
    checkpoint; ``run.finished`` is then false. On Ctrl-C it writes a checkpoint and raises
    ``KeyboardInterrupt``; on SIGTERM, ``SystemExit(143)``. Under ``torchrun`` every process
    calls this.
    """
    recipe = recipe or Recipe()
    recipe.check_trainable()
    if resume not in ("auto", "never", "must"):
        raise UserError(f"resume must be auto, never or must, not {resume!r}")
    if budget_minutes is not None and budget_minutes <= 0:
        raise UserError("the time budget must be positive")
    check_loggers(log)
    if isinstance(model, str):
        preset_with(model, 256, overrides or {})  # a mistake here should not wait for the corpus
    check_out(out, corpus if isinstance(corpus, str | os.PathLike) else None)
    beginning = None if begin_with is None else find_beginning(Path(begin_with), Path(out))
    deadline = None if budget_minutes is None else time.monotonic() + 60 * budget_minutes
    with open_world(device) as world, _own_generator(world.device):
        text = _load_corpus(corpus, world)
        if beginning is not None:
            text = text.within(beginning.alphabet)
        config = _model_config(model, text.vocab_size, dict(overrides or {}))
        if beginning is not None:
            beginning.check(config)
        windows = (
            data.Windows(text.train, recipe.length, recipe.train_stride),
            data.Windows(text.valid, recipe.length, recipe.eval_stride),
        )
        whole = _whole_config(config, model if isinstance(model, str) else None, recipe, text, beginning)
        folder = RunFolder(out, quiet or not world.first)
        checkpoints = Checkpoints(folder.path / "last")

        def open_folder() -> Opened:
            with disk_errors(folder.path):
                folder.open()
                return settle(folder, checkpoints, whole, len(windows[0]), world, resume, extend)

        try:
            with disk_errors(folder.path), StopRequest() as stop:
                opened = world.first_does(open_folder)
                if opened.done:
                    _say_done(folder, checkpoints)
                else:
                    if text.left_out:
                        folder.say(f"warning: {text.name}: {text.left_out}")
                    recipe = Recipe.from_dict(opened.config["recipe"])
                    with numerics(recipe, world.device):
                        training = _set_up(
                            world, folder, checkpoints, config, beginning, opened, recipe, windows, stop
                        )
                        training.deadline = deadline
                        _run(training, beginning, opened.state is not None, log)
        finally:
            folder.close()
        world.wait()  # all files are there before any process reads them
        run = load_run(out)
        world.wait()  # and none changes them before all have read
    return run


def _run(training: Training, beginning: Beginning | None, resumed: bool, log: Sequence[str]) -> None:
    world, folder = training.world, training.folder
    if world.first:
        write_environment(folder.path / "environment.json", environment(world))
        training.loggers = Loggers(folder.path, log, training.config, training.state.step, folder.say)
        _introduce(training, beginning, resumed)
    try:
        training.run()
    except Stopped as stopped:
        s = training.state
        why = {0: "the time budget is spent", signals.SIGINT: "Ctrl-C", signals.SIGTERM: "SIGTERM"}.get(
            stopped.signal, f"signal {stopped.signal}"
        )
        folder.say(
            f"stopped   {why}, at step {s.step:,} of {training.total:,} (epoch {s.epoch}); "
            "a checkpoint is written: run the same command again to go on"
        )
        if stopped.signal == signals.SIGINT:
            raise KeyboardInterrupt from None
        if stopped.signal:
            raise SystemExit(128 + stopped.signal) from None
    except UserError as error:
        with contextlib.suppress(OSError):
            folder.quiet = True  # the caller shows the sentence; the log keeps it
            folder.say(f"error     {error}")
        raise
    finally:
        if training.loggers is not None:
            training.loggers.close()


# -- what is to be trained ---------------------------------------------------------------------------------


def _load_corpus(corpus: str | Corpus, world: World) -> Corpus:
    """The first process fetches; the others then find it in the cache."""
    if not isinstance(corpus, str | os.PathLike):
        return corpus
    mine: list[Corpus] = []
    world.first_does(lambda: mine.append(data.load(corpus)))
    return mine[0] if mine else data.load(corpus)


def _model_config(model: str | Config, vocab_size: int, overrides: dict[str, Any]) -> Config:
    if isinstance(model, str):
        return preset_with(model, vocab_size, overrides)
    config = dataclasses.replace(model, **overrides) if overrides else model
    if config.vocab_size != vocab_size:
        raise UserError(
            f"the model has {config.vocab_size} symbols, the corpus {vocab_size}; make them equal"
        )
    return config


def _whole_config(
    config: Config, name: str | None, recipe: Recipe, corpus: Corpus, beginning: Beginning | None
) -> dict[str, Any]:
    return {
        "preset": name,
        "model": config_to_dict(config),
        "recipe": recipe.to_dict(),
        "corpus": {"name": corpus.name, "sha256": corpus.sha256, "symbols": bytes(corpus.symbols).hex()},
        **({} if beginning is None else {"begin_with": beginning.record}),
        "fsn_version": fsn.__version__,
        "format": FORMAT,
    }


# -- the objects -------------------------------------------------------------------------------------------


def _set_up(
    world: World,
    folder: RunFolder,
    checkpoints: Checkpoints,
    config: Config,
    beginning: Beginning | None,
    opened: Opened,
    recipe: Recipe,
    windows: tuple[data.Windows, data.Windows],
    stop: StopRequest,
) -> Training:
    """Model, step and state on the device, as at the start or as in the checkpoint."""
    train_windows, valid_windows = (w.to(world.device) for w in windows)
    torch.manual_seed(recipe.seed)
    model = build_from_config(config)
    if beginning is not None and opened.state is None:
        beginning.give(model)
    model = model.to(world.device)

    def fallback(reason: str) -> None:
        folder.say(f"engine    {recipe.engine} does not work here ({reason}); using eager")

    stepper = Stepper(model, train_windows, recipe, world, fallback)
    state = State()
    if opened.state is not None:
        names = {f.name for f in dataclasses.fields(State)}
        state = State(**{n: v for n, v in opened.state.items() if n in names})
        if checkpoints.loaded is not None:  # in the first process, which then shares it
            _put_back(checkpoints.loaded, stepper, folder.path)
            checkpoints.loaded = None
    for tensor in stepper.optimizer.tensors():
        world.share(tensor)
    if not stepper.flat.still_flat():
        raise RuntimeError("a parameter was replaced while the model was being set up")
    return Training(
        folder, checkpoints, opened.config, recipe, world, model, stepper, valid_windows, state, None, stop
    )


def _put_back(checkpoint: Checkpoint, stepper: Stepper, folder: Path) -> None:
    """Weights, moments and generator as in the checkpoint."""
    tensors = dict(checkpoint.tensors["optimizer"])
    torch.set_rng_state(tensors.pop("rng.cpu"))
    on_gpu = tensors.pop("rng.cuda", None)
    if on_gpu is not None and stepper.device.type == "cuda":
        torch.cuda.set_rng_state(on_gpu, stepper.device)
    put_weights(stepper.model, checkpoint.tensors["weights"], f"the last weights in {folder}")
    stepper.optimizer.load_state_dict(tensors)


def _introduce(training: Training, beginning: Beginning | None, resumed: bool) -> None:
    say, r, world, stepper = training.folder.say, training.recipe, training.world, training.stepper
    s = training.state
    begun = f"goes on at step {s.step:,} of {training.total:,}" if resumed else "new"
    n = sum(p.numel() for p in training.model.parameters())
    name = training.config["preset"] or training.config["model"]["kind"]
    say(f"run       {training.folder.path}: {begun}")
    say(f"model     {name}, {n:,} parameters, seed {r.seed}")
    if beginning is not None:
        say(f"{'began ' if resumed else 'begins'}    with {beginning.said()}")
    say(
        f"text      {training.config['corpus']['name']}: {stepper.n_windows:,} windows, "
        f"{stepper.steps_per_epoch:,} steps an epoch, {training.total:,} in all; "
        f"{len(training.valid):,} validation windows"
    )
    processes = f", {world.size} processes" if world.size > 1 else ""
    say(f"device    {describe_device(world.device)}{processes}{', deterministic' if r.deterministic else ''}")
    say(f"precision {PRECISIONS[r.precision]}")
    say(f"engine    {ENGINES[r.engine]}")
    say(
        f"optimizer fused AdamW, all parameters in one vector; lr {r.lr:g}, weight decay {r.weight_decay:g}, "
        f"clip {r.clip:g}"
    )


@contextlib.contextmanager
def _own_generator(device: torch.device) -> Iterator[None]:
    """Leave the caller's random generator as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _say_done(folder: RunFolder, checkpoints: Checkpoints) -> None:
    if not folder.quiet:
        run = load_run(folder.path)
        best = f": best {run.best['valid_bits']:.4f} bits at epoch {run.best['epoch']}" if run.best else ""
        folder.say(f"{folder.path} is finished{best}; {how_to_go_on(folder, checkpoints)}")
