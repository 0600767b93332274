"""The documentation as a site: it builds strictly, its links lead somewhere, it asks nobody else for anything.

And what pages say of commands and files is true: every option they name exists, and every file.
"""

from __future__ import annotations

import contextlib
import functools
import html
import http.server
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from fsn.cli import COMMANDS
from tests.demo.browser import find_browser
from tests.explore.chrome import Chrome
from tests.test_readme import FENCE, PAGES, blocks

pytest.importorskip("mkdocs")

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ELSEWHERE = {"modeling_fsn.py", "src/dataloaders/dfa.py", "train2.py"}
"""Files that pages name and that are not the project's: `fsn export` writes one, seq_icl has one, and one is lost."""
RECORDS = {ROOT / "CHANGELOG.md", DOCS / "lab-notes.md", DOCS / "reproduction.md"}
"""Pages that speak of what was, or that a command writes."""
CURRENT = [page for page in PAGES if page not in RECORDS]
TO_LEARN = [page for page in CURRENT if "results" not in page.parts]


def script(name: str) -> types.ModuleType:
    """A file of docs/site as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", DOCS / "site" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the site ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    """One test, because the site is built once: about seven seconds, and three for the browser."""
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    assert len(pages) > 40
    check_links(pages, site)
    check_nothing_is_fetched(pages, site)
    check_what_is_made(site)
    if find_browser() is not None:
        check_on_screens(site, tmp_path)


def check_links(pages: dict[Path, str], site: Path) -> None:
    """Every link of every page leads to a file of the site, and to a heading that is there."""
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    broken = set()
    for path, text in pages.items():
        if path.name == "404.html":  # its links are of the place where it is served
            continue
        for found in set(re.findall(r'\b(?:href|src)="([^"]*)"', text)):
            link = unquote(html.unescape(found))
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            there = (path.parent / file).resolve() if file else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file() or (anchor and there in anchors and anchor not in anchors[there]):
                broken.add(f"{path.relative_to(site)} -> {found}")
    assert not broken, sorted(broken)[:20]


def check_nothing_is_fetched(pages: dict[Path, str], site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//'
    )
    asking = [str(path.relative_to(site)) for path, text in pages.items() if loads.search(text)]
    styles = [
        p
        for p in site.rglob("*.css")
        if re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", p.read_text("utf-8"))
    ]
    assert not asking and not styles


def check_what_is_made(site: Path) -> None:
    """What stands on the site without being typed in docs/: numbers, commands, docstrings, formulas."""
    home, cli = (site / "index.html").read_text("utf-8"), (site / "cli.html").read_text("utf-8")
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$",
        (ROOT / "README.md").read_text("utf-8").partition("\n## ")[0],
        re.M,
    )
    card = r'<div class="ours">(.*?)</div><div class="theirs">transformer (.*?), with KV shift (.*?)</div>'
    assert len(rows) == 3 and re.findall(card, home) == [tuple(row[1:4]) for row in rows]
    for name in COMMANDS:
        assert f'id="fsn-{name}"' in cli
        missing = {
            option for option in options(name) if f"<code>{option}" not in cli and f", {option}" not in cli
        }
        assert not missing, f"fsn {name}: {missing}"
    assert "A trained model in evaluation mode" in (site / "api" / "models.html").read_text("utf-8")
    theory = (site / "theory.html").read_text("utf-8")
    assert theory.count("<math") > 10 and 'class="formula"' in theory
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", path.read_text("utf-8"), flags=re.DOTALL)
        left = re.findall(
            r"formula\d+end|<!-- (?:command line|three numbers)|^:::|\$\$|:(?:mod|data|class|func):",
            text,
            re.M,
        )
        assert not left, f"{path.name}: {left}"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on this computer: the search reads its index from there, as it cannot from the disk."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def check_on_screens(site: Path, folder: Path) -> None:
    """Nothing is wider than the screen, dark is dark, pictures and formulas show, and the console is quiet."""
    with served(site) as address, Chrome(folder) as page:
        for name in ("index", "theory", "cli", "model", "api/ops"):
            for width, dark in ((1200, False), (400, True)):
                page.open(f"{address}/{name}.html", width=width, dark=dark)
                assert page.value("document.documentElement.scrollWidth") <= width, (name, width)
                colours = re.findall(r"\d+", page.value("getComputedStyle(document.body).backgroundColor"))
                assert (sum(map(int, colours[:3])) < 3 * 100) == dark, (name, colours)
        page.open(f"{address}/reproduction.html", width=400)
        assert page.value("document.body.scrollHeight") < 60_000, "remarks in a narrow column"
        names = """[...document.querySelectorAll('.md-typeset__scrollwrap:has(th:nth-child(4))')].map((box) => {
            box.scrollLeft = box.scrollWidth;
            return box.querySelector('td').getBoundingClientRect().left - box.getBoundingClientRect().left })"""
        assert all(abs(left) < 20 for left in page.value(names)), "a row's name is out of view"
        page.open(f"{address}/theory.html", width=400)
        assert page.value("[...document.images].every(i => i.naturalWidth > 0 && i.width <= 400)")
        heights = page.value(
            "[...document.querySelectorAll('math')].map(m => m.getBoundingClientRect().height)"
        )
        assert len(heights) > 10 and min(heights) > 5
        assert not page.problems, page.problems


def test_the_pictures_are_what_their_script_draws() -> None:
    pictures = script("pictures")
    kept = {path.stem: path.read_text("utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    drawn = {name: draw() for name, draw in pictures.PICTURES.items()}
    assert kept == drawn, "run: python docs/site/pictures.py"


# -- what pages say ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", TO_LEARN, ids=lambda p: str(p.relative_to(ROOT)))
def test_paragraphs_are_short(page: Path) -> None:
    """Sixty words at most, and so an item of a list; the target of a link is no word."""
    text = re.sub(r"\]\([^)]*\)", "]", FENCE.sub("", page.read_text("utf-8")))
    prose = [p for p in re.split(r"\n\n|\n(?=\s*(?:-|\d+\.) )", text) if not re.match(r"\s*([|#!<$]|:::)", p)]
    long = [p[:60] for p in prose if len(p.split()) > 60]
    assert not long, f"split these paragraphs: {long}"


@cache
def options(command: str) -> frozenset[str]:
    """The options that a command's own help names."""
    named = re.findall(
        r"(?<![\w-])--[a-z][\w-]*", "\n".join(line for line in script_help(command) if line.startswith("│ -"))
    )
    return frozenset(named) - {"--help"}


@cache
def script_help(command: str) -> tuple[str, ...]:
    return tuple(script("hooks").help_of(command).splitlines())


def lines_with_commands(page: Path) -> list[str]:
    """Every ``fsn …`` of a page: lines of its blocks, and what it sets in backticks."""
    text = page.read_text("utf-8")
    found = "\n".join(blocks(page, "bash", "sh", "text", "console", "")).replace("\\\n", " ").splitlines()
    found += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return [line.strip().removeprefix("$ ") for line in found if re.match(r"\s*(\$ )?fsn [a-z]", line)]


@pytest.mark.parametrize("page", CURRENT, ids=lambda p: str(p.relative_to(ROOT)))
def test_options_named_in_pages_exist(page: Path) -> None:
    for line in lines_with_commands(page):
        words = line.split("  #")[0].split()
        assert words[1] in COMMANDS, f"{page.name}: {line}"
        named = {word.partition("=")[0].rstrip(",.;:)") for word in words if re.match(r"--[a-z]", word)}
        assert named <= options(words[1]), f"{page.name}: `{line}` has no {named - options(words[1])}"
    alone = re.findall(r"`(--[a-z][^`\n]*)`", FENCE.sub("", page.read_text("utf-8")))
    named = {option for span in alone for option in re.findall(r"--[a-z][\w-]*", span)}
    assert named <= every_option(), f"{page.name}: no command has {named - every_option()}"


@cache
def every_option() -> frozenset[str]:
    """Those of all commands, and of the benchmarks."""
    benchmarks = "".join(path.read_text("utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))
    return frozenset(re.findall(r"\"(--[a-z][\w-]*)\"", benchmarks)).union(
        *(options(name) for name in COMMANDS)
    )


@cache
def files() -> tuple[str, ...]:
    """Every file of the project, with a slash before its path."""
    kept = ("src", "tests", "docs", "benchmarks", "examples", "results", "sweeps")
    found = [path for folder in kept for path in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    return tuple(f"/{path.relative_to(ROOT).as_posix()}" + "/" * path.is_dir() for path in found)


@pytest.mark.parametrize("page", CURRENT, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_named_in_pages_exist(page: Path) -> None:
    """A Python file, or a path below a folder of the project, that a page names in backticks is there."""
    text = "\n".join(
        line
        for line in FENCE.sub("", page.read_text("utf-8")).splitlines()
        if "https://github.com" not in line
    )
    named = set(re.findall(r"`([\w./-]+\.py|(?:src|tests|docs|benchmarks|examples|results)/[\w./-]+)`", text))
    missing = {
        name for name in named if not any(f.rstrip("/").endswith("/" + name.rstrip("/")) for f in files())
    }
    assert missing <= ELSEWHERE, f"{page.name} names {sorted(missing - ELSEWHERE)}"


@pytest.mark.parametrize("page", CURRENT, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_in_files_exist(page: Path) -> None:
    """Where a page names a file and then a function or class, as `train/loop.py` `train`, the file defines it."""
    named = re.findall(
        r"`([\w/]+\.py)`(?:\]\([^)]*\))?((?:,? `[A-Za-z_][\w.]*`)+)", FENCE.sub("", page.read_text("utf-8"))
    )
    for file, names in named:
        found = [ROOT / path[1:] for path in files() if path.endswith("/" + file)]
        for name in (n for n in re.findall(r"`([\w.]+)`", names) if not n.endswith(".py")):
            defined = re.compile(rf"^\s*(?:def|class) {name.split('.')[-1]}\b|^{name}\b.* = ", re.MULTILINE)
            assert any(defined.search(path.read_text("utf-8")) for path in found), (
                f"{file} does not define {name}"
            )


@pytest.mark.parametrize("page", CURRENT, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_names_in_pages_exist(page: Path) -> None:
    """`fsn.ops.fields`, in backticks, is something that Python finds."""
    text = FENCE.sub("", page.read_text("utf-8"))
    for name in sorted(set(re.findall(r"`(fsn(?:\.[A-Za-z_]\w*)+)", text))):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            pytest.fail(f"{page.name} names {name}: {error}")
