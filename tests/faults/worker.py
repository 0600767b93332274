"""A process that trains tiny runs with a fault in each, on request.

It imports everything once and then forks: the child counts the calls by which it touches the run folder, and at one of
them it is killed, or the call fails. Requests and answers are lines of JSON.

    {"words": [...], "folder": "...", "at": 17, "error": 5} -> {"code": 2, "said": "...", "calls": 16}

``at`` -1 is no fault; ``error`` 0 kills, otherwise it is the number of the I/O error. ``code`` is None where the child
had to be stopped because it hung.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

EVENTS = {
    "open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.listdir", "os.scandir"
}  # fmt: skip


class Fault:
    """Counts the calls that touch ``folder``, and acts at one of them."""

    def __init__(self, folder: str, at: int, error: int) -> None:
        self.folder, self.at, self.error, self.calls = folder, at, error, 0
        self.lock = threading.RLock()  # TensorBoard writes in a thread of its own

    def here(self, path: Any) -> bool:
        if isinstance(path, bytes | os.PathLike):
            path = os.fsdecode(path)
        return isinstance(path, str) and os.path.abspath(path).startswith(self.folder)

    def call(self, what: str) -> None:
        with self.lock:
            self.calls += 1
            if self.calls - 1 == self.at:
                if self.error == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(self.error, os.strerror(self.error), what)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and arguments and self.here(arguments[0]):
            self.call(event)

    def arm(self) -> None:
        """Opening, renaming, removing and listing by an audit hook; writing and flushing by a file that counts."""
        sys.addaudithook(self.audit)
        fault, plain_open, plain_fsync = self, io.open, os.fsync

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                with fault.lock:
                    if fault.calls == fault.at:  # half of it arrives
                        super().write(bytes(data)[: len(data) // 2])
                    fault.call("write")
                return super().write(data)

        def counting_open(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            ours = isinstance(file, int) or fault.here(file)
            if not ours or "+" in mode or "r" in mode:
                return plain_open(file, mode, *rest, **named)
            buffer = io.BufferedWriter(Raw(file, mode.replace("b", "").replace("t", "")))
            if "b" in mode:
                return buffer
            return io.TextIOWrapper(buffer, named.get("encoding"), named.get("errors"))

        def fsync(handle: int) -> None:
            fault.call("fsync")
            plain_fsync(handle)

        builtins.open = io.open = counting_open
        os.fsync = fsync


def child(request: dict[str, Any], answers: Path) -> None:
    """Never returns."""
    from fsn.cli import main

    code = 0
    with open(answers / "said", "w", encoding="utf-8") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    fault = Fault(request["folder"], request["at"], request["error"])
    fault.arm()
    try:
        main(request["words"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    fault.at = -1
    (answers / "calls").write_text(str(fault.calls))
    os._exit(code)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        answers = Path(scratch)
        process = os.fork()
        if process == 0:
            child(request, answers)
        code, deadline = None, time.monotonic() + request.get("seconds", 120)
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                break
            time.sleep(0.005)
        calls = answers / "calls"
        return {
            "code": code,
            "said": (answers / "said").read_text(encoding="utf-8", errors="replace"),
            "calls": int(calls.read_text()) if calls.exists() else None,
        }


if __name__ == "__main__":
    import torch
    import torch._dynamo  # which counting parameters imports, and which takes three quarters of a tiny run
    import torch.utils.tensorboard

    import fsn.train.commands
    import fsn.train.loop
    import fsn.train.sweep  # noqa: F401

    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
