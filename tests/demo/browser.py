"""A headless browser for pages: what it logs, and what a page is after some script has touched it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("/usr/bin/chromium", "/usr/bin/google-chrome", "/opt/google/chrome/chrome", "/snap/bin/chromium"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
"""On the path, and where systems put it."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


@dataclass(frozen=True)
class Visit:
    """What a page logged, and the value its probe left behind."""

    console: list[str]
    value: Any


NARROWEST = 500
"""A window of Chromium is never narrower; a narrower page is shown in a frame."""


def visit(page: Path, probe: str, folder: Path, width: int = 1100, height: int = 900) -> Visit:
    """Open a copy of ``page`` from the disk; return what ``probe``, the body of a function, returns there."""
    browser = find_browser()
    assert browser is not None
    script = (
        "<script>addEventListener('load', () => {"
        "const out = top.document.createElement('pre'); out.id = 'probe';"
        f"out.textContent = JSON.stringify((() => {{ {probe} }})()); top.document.body.append(out); }});</script>"
    )
    shown = page.read_text("utf-8").replace("</body>", script + "</body>")
    if width < NARROWEST:
        size = f"border:0;width:{width}px;height:{height}px"
        shown = f'<body><iframe style="{size}" srcdoc="{escape(shown)}"></iframe></body>'
    copy = folder / "visited.html"
    copy.write_text(shown, encoding="utf-8")
    command = [
        browser,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},{height}",
        "--virtual-time-budget=2500",
        "--enable-logging=stderr",
        "--dump-dom",
        copy.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page did not get as far as the probe: {console or done.stderr[-800:]}"
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return Visit(console, json.loads(text))
