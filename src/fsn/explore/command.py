"""``fsn explore``."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import webbrowser
from typing import Annotated

import tyro

from ..errors import UserError, needs
from ..io import user_path

HOST = "127.0.0.1"
OTHER = "transformer-1m"


def explore(
    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = "fsn-1m",
    /,
    *,
    against: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None,
    port: int = 0,
    browser: bool = True,
) -> None:
    """Open a page on which two models read what you type, and look inside while they do.

    For example:
      fsn explore
      fsn explore runs/fsn-seed0 --against runs/transformer-seed0

    The page is served to this computer only. Ctrl+C ends it.

    Args:
        run: What fsn.load takes: a model that comes with the package, a run folder, an exported folder.
        against: Another one, of the same corpus, to compare it with; by default the transformer that comes with the
            package, where it reads the same symbols.
        port: Where the page is served; 0 takes a free port.
        browser: Open the page in your browser.
    """
    missing = "this needs FastAPI and uvicorn: pip install fastapi uvicorn"
    needs("fastapi", missing)
    uvicorn = needs("uvicorn", missing)
    from ..pretrained import load
    from .explorer import Explorer, meaning
    from .server import make_app

    listening = listen(port)
    try:
        if against == run:
            raise UserError(f"--against {against} is the run itself; name another")
        first, second = names(run, against or OTHER)
        models = {first: load(run)}
        other = load(against or OTHER)
        if against is not None or (run != OTHER and meaning(other) == meaning(models[first])):
            models[second] = other
        app = make_app(Explorer(models))
        address = f"http://{HOST}:{listening.getsockname()[1]}/"
        print(f"{' against '.join(models)}: {address}  (Ctrl+C ends it)", flush=True)
        if browser:
            threading.Timer(0.8, webbrowser.open, [address]).start()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", limit_concurrency=64))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    finally:
        listening.close()


def names(*runs: str) -> list[str]:
    """What the page calls them: the last parts of their paths, or all of each where these are equal."""
    short = [user_path(run).name or run for run in runs]
    return short if len(set(short)) == len(runs) else list(runs)


def listen(port: int) -> socket.socket:
    """A socket on this computer's own address."""
    if not 0 <= port < 65536:
        raise UserError(f"--port must lie between 0 and 65535, not {port}")
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise UserError(f"port {port} cannot be opened ({reason}); choose another --port, or none") from None
