"""One command line over all of it.

A command is a function with types and a docstring, from which its options and its help are made. To add one,
write the function and enter it in :data:`COMMANDS`. Modules are imported only when their command is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_origin, get_type_hints

from .errors import UserError


class Command(NamedTuple):
    """Where a command's function lives, and what `fsn --help` says of it."""

    module: str
    function: str
    about: str


COMMANDS: dict[str, Command] = {
    "demo": Command("fsn.demo.command", "demo", "three small models in three minutes, and a page about them"),
    "models": Command("fsn.cli", "models", "the model family, with parameter counts"),
    "corpora": Command("fsn.cli", "corpora", "the texts that can be trained on by name"),
    "train": Command("fsn.train.commands", "train", "train a model, or go on with a run"),
    "eval": Command("fsn.train.commands", "evaluate", "validation or test loss of a run"),
    "generate": Command("fsn.train.commands", "generate", "let a trained model continue a text"),
    "inspect": Command(
        "fsn.measure.command", "inspect", "look inside a run: coupling, copies, fields, states"
    ),
    "sweep": Command("fsn.train.commands", "sweep", "carry out a list of runs"),
    "reproduce": Command(
        "fsn.paper.command", "reproduce", "the paper's tables, figures and claims beside ours"
    ),
    "archive": Command("fsn.paper.command", "archive", "keep a run in results/"),
    "export": Command("fsn.hub.command", "export", "a run as a model for Hugging Face tools"),
}

EXAMPLES = """\
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``fsn``. Mistakes a user can mend end with one line and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        run(words)
    except UserError as error:
        if int(os.environ.get("RANK", "0")) == 0:  # under torchrun one process speaks for all
            print(f"fsn: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output has gone, e.g. `fsn models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None


def run(words: list[str]) -> None:
    """Call the command that ``words`` name."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return
    if words[0] == "--version":
        from . import __version__

        print(f"fsn {__version__}")
        return
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(f"there is no command {name!r}; {hint}`fsn --help` lists them")
    command = COMMANDS[name]
    parse(getattr(importlib.import_module(command.module), command.function), name, rest)()


def parse(function: Callable[..., None], name: str, words: list[str]) -> Callable[[], None]:
    """``function`` with the arguments that ``words`` give it, ready to be called.

    Types, defaults and help come from its signature and docstring. A mistake in ``words`` is told in one line
    like any other, not in the box that the parser draws.
    """
    import tyro

    @functools.wraps(function)
    def bind(*positional: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(function, *positional, **named)

    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            return tyro.cli(bind, prog=f"fsn {name}", args=joined(words, lists_of(function)))
    except SystemExit as ended:
        if ended.code in (0, None):
            raise
        raise UserError(f"{one_line(shown.getvalue())}; `fsn {name} --help` explains the options") from None


def lists_of(function: Callable[..., None]) -> set[str]:
    """The options of ``function``, and of configs among them, that take any number of values."""
    kinds = get_type_hints(function)
    for kind in [kind for kind in kinds.values() if dataclasses.is_dataclass(kind)]:
        kinds |= get_type_hints(kind)
    return {f"--{name.replace('_', '-')}" for name, kind in kinds.items() if get_origin(kind) is tuple}


def joined(words: Sequence[str], lists: set[str]) -> list[str]:
    """``words`` with all values of an option among ``lists`` behind its first mention.

    Of several mentions the parser would take the last and forget the values of the others without a word.
    """
    groups: dict[str, list[str]] = {}
    current = groups.setdefault("", [])
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        name = option.replace("_", "-")
        if name in lists:
            current = groups.setdefault(name, [name])
            current += [value] if equals else []
        elif word.startswith("--"):
            current = groups.setdefault(str(place), [word])
        else:
            current.append(word)
    return [word for group in groups.values() for word in group]


def one_line(box: str) -> str:
    """The words in a drawn box, without its frame, colours, title and pointer to the help."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]|-{4,}", " ", box)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    text = " ".join(lines[1:] or lines)
    for ending in ("For full helptext", "Argument helptext"):
        text = text.split(ending)[0]
    return text.replace("Error parsing recipe: ", "").strip().rstrip(".") or "these options make no sense"


def help_text() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{command.about}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "fsn: attention as frustrated synchronization",
            "",
            "usage: fsn COMMAND [options]",
            "",
            "commands:",
            *lines,
            "",
            EXAMPLES,
        ]
    )


def models(vocab_size: int = 205, sizes: tuple[str, ...] = ("1m",)) -> None:
    """List the model family with the parameter counts it has here, and the paper's where it gives one.

    For example:
      fsn models --sizes 1m 2m 4m 8m
      fsn models --vocab-size 97

    Args:
        vocab_size: How many symbols: 205 for enwik8, 97 for the code corpora.
        sizes: Which sizes: 1m, 2m, 4m, 8m.
    """
    from rich.console import Console
    from rich.table import Table

    from .models import TARGETS, family_table
    from .paper.values import parameter_totals

    for size in sizes:
        if size not in TARGETS:
            raise UserError(f"there is no size {size!r}; the sizes are {', '.join(TARGETS)}")
    table = Table(title=f"The family at {vocab_size} symbols")
    for heading in ("preset", "width", "parameters", "paper"):
        table.add_column(heading, justify="left" if heading == "preset" else "right", no_wrap=True)
    table.add_column("what it is")
    stated = {f"{family}-{size}": n for (family, size, v), n in parameter_totals().items() if v == vocab_size}
    for row in family_table(vocab_size, sizes):
        paper = f"{stated[row.name]:,}" if row.name in stated else ""
        table.add_row(row.name, str(row.width), f"{row.parameters:,}", paper, row.about)
    Console().print(table)


def corpora() -> None:
    """List the corpora that have a name. Any file or folder works too: --corpus PATH."""
    from rich.console import Console
    from rich.table import Table

    from .data import available

    table = Table("corpus", "what it is")
    for name, about in available():
        table.add_row(name, about)
    Console().print(table)
    print("Any file or folder works too: --corpus PATH")
