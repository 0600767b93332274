"""What mkdocs needs beside the pages in docs/: pages that stand elsewhere, the command line, formulas, three numbers.

mkdocs calls the functions whose names begin with ``on_``. Nothing here asks the network, and nothing is typed twice:

- README, CONTRIBUTING, CHANGELOG and examples/ become pages; so does every source file that a page links to.
- ``<!-- command line -->`` becomes the help of every command, ``<!-- three numbers -->`` the README's first table.
- Formulas ($…$, $$…$$ and blocks of the language ``math``, as GitHub reads them) become MathML, which browsers show by
  themselves: no script, no font, and a screen reader can say them.
"""

from __future__ import annotations

import contextlib
import html
import importlib.util
import io
import json
import os
import posixpath
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples/index.md",
}
"""Where pages from outside docs/ stand on the site."""
RECORDS = {"lab-notes.md", "changelog.md", "reproduction.md"}
"""Long pages that mention everything: the search lists them last."""
FENCE = re.compile(r"^(```+)([^\n]*)\n(.*?)^\1 *$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
AS_IT_IS = {".csv", ".jpg", ".json", ".jsonl", ".log", ".png", ".svg", ".txt"}
"""Files that are linked as they are; of other files a page shows the text."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def slug(heading: str, separator: str) -> str:
    """The anchor that GitHub gives a heading, so that a link leads to it there and here."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


# -- pages that stand elsewhere ----------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and whatever any page links to there."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + list(PAGES)
    examples = [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")]
    waiting += [path.relative_to(ROOT).as_posix() for path in sorted(examples)]
    seen = set(waiting)
    while waiting:
        path = waiting.pop(0)
        if not path.startswith("docs/"):
            files.append(added(path, config))
        if path.endswith(".md"):
            found = {target(path, link) for _, link, _ in LINK.findall(without_code(read(path)))}
            new = sorted(t for t in found - seen if not t.startswith("docs/") and (ROOT / t).is_file())
            waiting += new
            seen |= {*new}
    return files


def added(path: str, config: MkDocsConfig) -> File:
    if Path(path).suffix in AS_IT_IS:
        return File.generated(config, place(path), abs_src_path=str(ROOT / path))
    return File.generated(config, place(path), content=page_of(path))


def place(path: str) -> str:
    """Where a file of the repository stands on the site, from its path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return PAGES[path]
    if Path(path).suffix in AS_IT_IS or path.endswith(".md"):
        return f"source/{path}"
    return f"{path}.md" if path.startswith("examples/") else f"source/{path}.md"


SOURCE = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n\n"
"""Pages of source code are not searched, and have the whole width."""


def page_of(path: str) -> str:
    """The Markdown of a page that is made from a file."""
    if path.endswith(".md"):
        return read(path)
    if path.endswith(".ipynb"):
        return notebook(json.loads(read(path)), path)
    text, language = read(path), Path(path).suffix.removeprefix(".") or "text"
    head = "" if path.startswith("examples/") else SOURCE
    return f"{head}# {Path(path).name}\n\nThis is `{path}` of the repository.\n\n{fenced(text, language)}"


def notebook(cells: dict[str, Any], path: str) -> str:
    """A notebook as it was last run: text, code, what the code printed and drew."""
    parts = []
    for cell in cells["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else fenced(source, "python"))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join(data["image/png"]).strip()
                parts.append(f'<img alt="What the code above draws" src="data:image/png;base64,{picture}">')
            else:
                parts.append(fenced("".join(output.get("text", data.get("text/plain", []))), "text"))
    parts.append(f"*This page is the notebook `{path}`, run by the tests.*")
    return "\n\n".join(parts)


def fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````\n"


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def target(path: str, link: str) -> str:
    """The path in the repository that a link in ``path`` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def without_code(text: str) -> str:
    return FENCE.sub("", text)


# -- the text of a page ------------------------------------------------------------------------------------------


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to where things stand on the site; formulas and what is made at build time are put in."""
    places = {place(path): path for path in PAGES}
    here = page.file.src_uri
    path = places.get(here) or here.removeprefix("source/")
    path = path if here in places or here.startswith(("source/", "examples/")) else f"docs/{here}"
    if here in RECORDS:
        page.meta["search"] = {"boost": 0.2}
    if here == "cli.md":
        markdown = markdown.replace("<!-- command line -->", command_line())
    markdown = markdown.replace("<!-- three numbers -->", three_numbers(read("README.md")))

    def moved(match: re.Match[str]) -> str:
        there = place(target(path, match[2]))
        known = files.get_file_from_path(there) is not None
        return match[1] + (relative(there, here) if known else match[2]) + match[3]

    def text(part: str) -> str:
        part = NESTED.sub("    ", part)
        part = TWO_SPACES.sub(anchored, part)
        return outside_spans(LINK.sub(moved, part))

    return "".join(text(part) if fence is None else fence for part, fence in pieces(markdown))


def relative(there: str, here: str) -> str:
    return posixpath.relpath(there, posixpath.dirname(here) or ".")


NESTED = re.compile(r"^  (?=[-*] )", re.MULTILINE)
"""A list in a list, which Python-Markdown sees only where it is set in by four."""
TWO_SPACES = re.compile(r"^#+ (.*\S  \S.*)$", re.MULTILINE)


def anchored(match: re.Match[str]) -> str:
    """A heading with two spaces, which Python-Markdown would count as one: its anchor is GitHub's all the same."""
    return f"{match[0]} {{: #{slug(match[1], '-')} }}"


def pieces(markdown: str) -> Iterator[tuple[str, str | None]]:
    """Text and fenced blocks in turn; a block of the language ``math`` becomes a formula."""
    end = 0
    for match in FENCE.finditer(markdown):
        yield markdown[end : match.start()], None
        block = formula(match[3], "block") + "\n" if match[2].strip() == "math" else match[0]
        yield "", block
        end = match.end()
    yield markdown[end:], None


SPANS = re.compile(
    r"(`+)(?!`)(.*?)(?<!`)\1(?!`)|\$\$(.+?)\$\$|(?<![\\\w$])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])", re.DOTALL
)


def outside_spans(text: str) -> str:
    """Formulas between dollars become MathML; what stands in backticks stays."""

    def shown(match: re.Match[str]) -> str:
        if match[1]:
            return match[0]
        return formula(match[3], "block") if match[3] else formula(match[4], "inline")

    return SPANS.sub(shown, text)


FORMULAS: list[str] = []


def formula(latex: str, display: str) -> str:
    """A word that stands for the formula until Markdown has done its work, which would read signs in it as its own."""
    FORMULAS.append(convert(" ".join(latex.split()), display=display))
    word = f"formula{len(FORMULAS) - 1}end"
    return f"\n\n{word}\n\n" if display == "block" else word


def with_formulas(html: str) -> str:
    html = re.sub(r"<p>(formula\d+end)</p>", r'<div class="formula">\1</div>', html)
    return re.sub(r"formula(\d+)end", lambda match: FORMULAS[int(match[1])], html)


def three_numbers(readme: str) -> str:
    """The rows of the README's first table as cards, with the conditions that stand below it."""
    table = re.search(
        r"^\| \| FSN \| transformer \| with KV shift \| conditions \|\n\|[-|]+\|\n((?:\|.*\n)+)\n(.+)\n",
        readme,
        re.MULTILINE,
    )
    assert table, "the README's first table has gone: docs/site/hooks.py reads the three numbers from it"
    cards = []
    for row in table[1].splitlines():
        what, ours, theirs, shifted, conditions = (
            html.escape(cell.strip()) for cell in row.strip("| ").split("|")
        )
        cards.append(
            f'<div class="number"><div class="what">{what}</div><div class="ours">{ours}</div>'
            f'<div class="theirs">transformer {theirs}, with KV shift {shifted}</div>'
            f'<div class="conditions">{conditions}</div></div>'
        )
    return f'<div class="numbers">{"".join(cards)}</div>\n\n{table[2]}'


ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(<code>)~?")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas take the places of their words; docstrings name things as Sphinx does, which Markdown does not know."""
    return with_formulas(ROLE.sub(r"\1", html))


# -- the command line --------------------------------------------------------------------------------------------


def command_line() -> str:
    """The help of every command, as fsn itself gives it."""
    from fsn.cli import COMMANDS

    return "\n\n".join(command_page(name, help_of(name)) for name in COMMANDS)


def help_of(name: str) -> str:
    """What ``fsn NAME --help`` prints on a screen so wide that no line is broken."""
    from fsn.cli import run

    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # tyro draws its boxes where they can be shown
    wide = mock.patch.dict(os.environ, {"COLUMNS": "2000", "NO_COLOR": "1"})
    with wide, without_transformers(), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        run([name, "--help"])
    said.seek(0)
    return said.read()


@contextlib.contextmanager
def without_transformers() -> Iterator[None]:
    """``fsn.hub`` imports transformers, seconds that no help needs: let its folder stand for it."""
    found = importlib.util.find_spec("fsn.hub")
    if "fsn.hub" in sys.modules or found is None:
        yield
        return
    sys.modules["fsn.hub"] = folder = types.ModuleType("fsn.hub")
    folder.__path__ = list(found.submodule_search_locations or [])
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == "fsn.hub" or name.startswith("fsn.hub.")]:
            del sys.modules[name]


BOX = re.compile(r"^╭─ (.+?) ─*╮\n(.*?)^╰─*╯$", re.MULTILINE | re.DOTALL)


def command_page(name: str, text: str) -> str:
    """One command's help as Markdown: its text, its examples, and a definition for each option."""
    first = BOX.search(text)
    assert first, f"`fsn {name} --help` has no box of options: {text[:200]!r}"
    prose = text[: first.start()].strip().partition("\n")[2]
    parts = [f"## fsn {name}", *paragraphs(prose)]
    for title, body in BOX.findall(text):
        parts += box(title, [line.strip("│").rstrip() for line in body.splitlines()])
    return "\n\n".join(parts)


def paragraphs(prose: str) -> Iterator[str]:
    """Text as it stands; lines that are set in, the examples, as code."""
    for block in re.split(r"\n\s*\n", prose.strip()):
        head = [line for line in block.splitlines() if not line.startswith("  ")]
        examples = [line.strip() for line in block.splitlines() if line.startswith("  ")]
        if head:
            yield escaped(" ".join(head))
        if examples:
            yield fenced("\n".join(examples), "sh")


def box(title: str, lines: list[str]) -> Iterator[str]:
    entries: list[list[str]] = []
    for line in lines:
        words = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        if re.match(r" (-|[A-Z][A-Z-]*( |$)|\[)", line):
            entries.append(words)
        elif entries:
            entries[-1].append(line.strip())
    entries = [entry for entry in entries if "--help" not in entry[0]]
    if entries and title not in ("options", "positional arguments"):
        yield f"**{title.capitalize()}**"
    for option, *about in entries:
        yield f"`{option}`\n:   {escaped(' '.join(about)) or 'No more is said of it.'}"


def escaped(text: str) -> str:
    """Text of a help as Markdown that shows it: options stay whole, signs are signs."""
    kept = re.split(r"(`[^`]+`)", text)
    shown = [p if p.startswith("`") else re.sub(r"([\\*_<>\[\]|$])", r"\\\1", p) for p in kept]
    return re.sub(r"(?<![\w`-])(--[a-z][\w-]*)(?![`\w])", r"`\1`", "".join(shown))
