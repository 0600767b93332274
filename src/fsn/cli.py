"""The command line.

A command is a function with types and a docstring, from which tyro makes its options and its help. To add one, write
the function and enter it in :data:`COMMANDS`. The module of a command is imported only when it is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_origin, get_type_hints

from .errors import UserError, did_you_mean
from .text import printable

COMMANDS = {
    "demo": ("demo.command", "demo", "three small models in three minutes, and a page about them"),
    "models": ("cli", "models", "the model family, with parameter counts"),
    "corpora": ("cli", "corpora", "the texts that can be trained on by name"),
    "train": ("train.commands", "train", "train a model, or resume a run"),
    "eval": ("train.commands", "evaluate", "validation or test loss of a run"),
    "generate": ("train.commands", "generate", "let a trained model continue a text"),
    "inspect": ("report.inspection", "inspect", "look inside a run: coupling, copies, fields, states"),
    "compare": ("report.comparison", "compare", "models over seeds, and their differences"),
    "explore": ("explore.command", "explore", "a page: type, and watch two models read it"),
    "sweep": ("train.commands", "sweep", "carry out a list of runs"),
    "reproduce": ("paper.command", "reproduce", "the paper's tables, figures and claims beside ours"),
    "archive": ("paper.command", "archive", "keep a run in results/"),
    "export": ("hub.export", "export", "a run as a model for Hugging Face tools"),
}
"""name -> (module, function, line in `fsn --help`)"""

DESCRIPTION = """\
fsn: attention as frustrated synchronization

examples:
  fsn models                                           what there is to train
  fsn train fsn-1m --corpus python-stdlib --out runs/first --max-steps 300
                                                       a first run, a few minutes on a laptop
  fsn eval runs/first                                  its loss, in bits per symbol
  fsn generate runs/first --prompt "def "              what it writes
  fsn inspect runs/first                               what it learned, in figures
  fsn train fsn-1m --out runs/fsn-seed0 --epochs 2     the paper's recipe on enwik8

`fsn COMMAND --help` explains a command and its options.\
"""


CALLED_ELSEWHERE = {
    "--learning-rate": "--lr",
    "--steps": "--max-steps",
    "--context-length": "--length",
    "--block-size": "--length",
    "--gradient-accumulation-steps": "--accumulate",
}
"""Options by the names that other programs give them."""
NOT_AN_INT = "invalid literal for int() with base 10:"
"""Python's message for a number that is not whole."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``fsn``. A user's mistake prints one line and exits with code 2."""
    open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        run(words)
    except UserError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of the pipe has exited, e.g. `fsn models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:  # a disk that is full or failing, a limit on open files
        fail(
            f"{error.filename or 'a file'} cannot be used ({error.strerror or error}); fix that and try again"
        )


def fail(sentence: str) -> None:
    rank = os.environ.get("RANK", "")
    if not rank.isdigit() or int(rank) == 0:  # under torchrun only the main process prints
        print(f"fsn: {printable(sentence)}", file=sys.stderr)
    raise SystemExit(2) from None


def open_streams() -> None:
    """Make every print succeed: closed streams (``2>&-``) go to os.devnull, and characters that the terminal's encoding
    lacks are escaped.

    A file opened later would otherwise get the descriptor of the closed stream and all that is printed there.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the process)
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(words: list[str]) -> None:
    """Call the command that ``words`` name."""
    if words[:1] == ["--version"]:
        from . import __version__

        print(f"fsn {__version__}")
        return
    chosen = words[0] if words else "--help"
    if chosen not in ("-h", "--help", *COMMANDS):
        hint = did_you_mean(chosen, COMMANDS)
        raise UserError(f"there is no command {chosen!r}; {hint}`fsn --help` lists them")
    import tyro

    app = tyro.extras.SubcommandApp()
    for name, (module, function, about) in COMMANDS.items():
        if name == chosen:
            called = getattr(importlib.import_module(f"fsn.{module}"), function)
            app.command(name=name)(bound(called))
        else:  # the help needs a name and a line only; the module would import PyTorch
            app.command(name=name, help=about)(lambda: None)
    if chosen not in COMMANDS:
        with contextlib.suppress(SystemExit):
            app.cli(prog="fsn", description=DESCRIPTION, args=["--help"])
        return
    with one_sentence(f"fsn {chosen}", [*options_of(called)]):
        call = app.cli(prog="fsn", args=gathered(words, called))
    call()


def bound(function: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """``function``, to be called after the parser has ended: tyro reports a ValueError within as a wrong option."""

    @functools.wraps(function)
    def bind(*positional: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(function, *positional, **named)

    return bind


def gathered(words: Sequence[str], function: Callable[..., None]) -> list[str]:
    """``words`` with the values of a repeated option gathered in one place: ``--sizes 1m --sizes 2m`` means
    ``--sizes 1m 2m``.

    tyro's UseAppendAction takes the first form but not the second, and adds the values to the default.
    """
    lists = {option for option, kind in options_of(function).items() if get_origin(kind) is tuple}
    others: list[str] = []
    values: dict[str, list[str]] = {}
    target = others
    for word in words:
        name, equals, value = word.partition("=")
        option = name.replace("_", "-")
        if option in lists:
            target = values.setdefault(option, [])
            target += [value] if equals else []
            continue
        if word.startswith("--"):
            target = others
        target.append(word)
    return others + [word for option, given in values.items() for word in (option, *given)]


def options_of(function: Callable[..., None]) -> dict[str, Any]:
    """The options of a command, and their types."""
    kinds = get_type_hints(function)
    for kind in list(kinds.values()):
        kinds |= get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    return {f"--{name}".replace("_", "-"): kind for name, kind in kinds.items()}


@contextlib.contextmanager
def one_sentence(command: str, options: Sequence[str] = ()) -> Iterator[None]:
    """Report a mistake in the options in one sentence.

    tyro prints a box of several lines. Its hook for parse errors is private; a tyro without it still prints the box and
    exits with code 2, as for errors that :func:`sentence_of` does not know.
    """
    import tyro

    def report(event: Any) -> None:
        sentence = sentence_of(event)
        if sentence:
            unknown = event.tokens[0] if type(event).__name__ == "UnrecognizedArgs" else ""
            unknown = unknown.partition("=")[0].replace("_", "-")
            meant = CALLED_ELSEWHERE.get(unknown)
            hint = did_you_mean(unknown, options) if meant not in options else f"did you mean {meant}? "
            raise UserError(f"{sentence}; {hint}`{command} --help` explains the options")

    errors = getattr(tyro, "_errors", None)
    hook = getattr(errors, "on_parse_error", None)
    with hook(report) if hook is not None else contextlib.nullcontext():
        yield


def sentence_of(event: Any) -> str:
    """tyro's error in one sentence; empty for a kind that is unknown here."""
    try:
        match type(event).__name__:
            case "MissingArgs":
                names = ", ".join(missing.arg.display_name() for missing in event.missing_arguments)
                return f"{names} is missing"
            case "UnrecognizedArgs":
                return f"{event.tokens[0]!r} is not an option or value that this command knows"
            case "InvalidChoice":
                choices = ", ".join(event.choices)
                return f"{event.argument.display_name()} is {event.value!r}; choose one of {choices}"
            case "BadValue":
                return f"{event.argument.display_name()} needs a value"
            case "InstantiationFailure":
                option = "" if event.argument is None else f"{event.argument.display_name()}: "
                return option + event.message.replace(NOT_AN_INT, "a whole number is needed, not")
    except (AttributeError, IndexError, TypeError):
        pass
    return ""


def models(
    vocab_size: int = 205,
    sizes: tuple[str, ...] = ("1m",),
    match: Literal["paper", "total", "body"] = "paper",
) -> None:
    """List the model family with the parameter counts it has here, and the paper's where it gives one.

    For example:
      fsn models --sizes 1m 2m 4m 8m
      fsn models --vocab-size 97
      fsn models --vocab-size 32000 --match body      (then fsn train ... --model match=body)

    Args:
        vocab_size: How many symbols: 205 for enwik8, 97 for the code corpora, more for subwords.
        sizes: Which sizes: 1m (the default), 2m, 4m, 8m.
        match: What is alike in models of one size: paper (the FSN's width is pinned, the transformer has its total),
            total (all parameters of both), body (the layers, without embedding and readout).
    """
    from rich.console import Console
    from rich.table import Table

    from .models import FAMILIES, TARGETS, body_parameters, count_parameters, preset
    from .paper.rows import parameter_totals

    for size in sizes or [""]:
        if size not in TARGETS:
            raise UserError(f"there is no size {size!r}; the sizes are {', '.join(TARGETS)}")
    matched = {"paper": "widths as in the paper", "total": "total matched", "body": "layers matched"}[match]
    table = Table(title=f"The family at {vocab_size} symbols, {matched}")
    stated = {f"{family}-{size}": n for (family, size, v), n in parameter_totals().items() if v == vocab_size}
    last = "paper" if stated else "in layers"
    for heading in ("preset", "width", "parameters", last):
        table.add_column(heading, justify="left" if heading == "preset" else "right", no_wrap=True)
    table.add_column("what it is")
    for name, about in (
        (f"{family}-{size}", about) for family, (_, about) in FAMILIES.items() for size in sizes
    ):
        config = preset(name, vocab_size, match=match)
        width = getattr(config, "k", None) or getattr(config, "width", None)
        shown = stated.get(name, "") if stated else body_parameters(config)
        numbers = (width, count_parameters(config), shown)
        table.add_row(name, *(f"{n:,}" if isinstance(n, int) else "" for n in numbers), about)
    Console().print(table)


def corpora() -> None:
    """List the named corpora. Any file or folder works too: --corpus PATH."""
    from .data import available
    from .progress import print_table

    print_table(("corpus", "what it is"), available())
    print(
        "Any file or folder works too: --corpus PATH. Subwords, JSONL, Parquet and token files: fsn train --help"
    )
