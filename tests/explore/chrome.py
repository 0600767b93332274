"""A headless Chromium that is typed into, clicked and photographed, by its own protocol over a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.demo.browser import FLAGS, find_browser


class Chrome:
    """One browser with one page: ``with Chrome(folder) as page: page.open(address)``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._number = 0
        self._rest = b""
        self._session: str | None = None

    def __enter__(self) -> Chrome:
        browser = find_browser()
        assert browser is not None
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()

        def wire() -> None:  # Chromium reads from descriptor 3 and writes to 4
            first, second = os.dup(read_end), os.dup(write_end)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [browser, *FLAGS, f"--user-data-dir={self.folder / 'profile'}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._read)
        os.close(self._write)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                found: dict[str, Any] = message["result"]
                return found
            self._note(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has gone"
            self._rest += piece
        line, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        """Keep what a page should not do: exceptions, errors in the console, refused requests."""
        told = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(told["entry"]["text"])

    def open(self, address: str, width: int = 1100, height: int = 900, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        """What an expression is worth on the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 20.0) -> None:
        """Until an expression holds."""
        end = time.monotonic() + seconds
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < end, f"never came true: {script}; {self.problems}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of the element."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        left, top, width, height = self.value(
            f"(({{left, top, width, height}}) => [left, top, width, height])({element}.getBoundingClientRect())"
        )
        place = left + width / 2, top + height / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def click_until(self, selector: str, script: str) -> None:
        """Press an element of a page that may still be moving: an answer redraws it, and the press falls beside."""
        end = time.monotonic() + 20.0
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < end, f"pressed, and never came true: {script}; {self.problems}"
            self.click(selector)
            time.sleep(0.2)

    def type(self, selector: str, text: str) -> None:
        """Take the place of what is in a field, as typing does."""
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.send("Input.insertText", text=text)

    def photograph(self, file: Path, whole: bool = True) -> None:
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))
