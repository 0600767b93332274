"""House rules that a reader relies on: short files, imports that point one way, nothing that unpickles."""

from __future__ import annotations

import ast
from pathlib import Path

import fsn

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "fsn"

LONGEST = 700
LONG_FILES: dict[str, str] = {}
"""Files allowed to be longer than LONGEST lines, each with its reason."""

FOLDERS = [
    "ops",
    "nn",
    "models",
    "data",
    "train",
    "pretrained",
    "measure",
    "report",
    "paper",
    "hub",
    "demo",
    "explore",
]
"""A folder, or a file in its place, imports only from itself and from those before it."""
SHARED = {"checks", "errors", "io", "progress", "text", "versions", ""}
"""What every folder may use from the top level."""

HOMES = {name: getattr(getattr(fsn, name), "__module__", "fsn.").split(".")[1] for name in fsn.__all__}
"""Where the names of the public API live: ``fsn.record`` is in nn."""

UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "joblib"}
UNSAFE_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load"}


def sources() -> dict[str, ast.Module]:
    files = {p.relative_to(PACKAGE).as_posix(): p for p in sorted(PACKAGE.rglob("*.py"))}
    assert files
    return {name: ast.parse(path.read_text("utf-8")) for name, path in files.items()}


def test_files_fit_on_a_few_screens() -> None:
    lengths = {name: len((PACKAGE / name).read_text("utf-8").splitlines()) for name in sources()}
    long = {name: n for name, n in lengths.items() if n > LONGEST and not LONG_FILES.get(name)}
    assert not long, f"split these files, or list the reason in LONG_FILES: {long}"


def imports(name: str, tree: ast.Module) -> set[str]:
    """The modules of this package that a file imports, as dotted names below ``fsn``."""
    here = ["fsn", *Path(name).with_suffix("").parts]
    found, attributes = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "fsn":
            attributes |= set() if node.attr.startswith("__") else {f"fsn.{node.attr}"}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: -node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found |= {f"fsn.{alias.name}" for alias in node.names} if module == "fsn" else {module}
    if "fsn" in found:  # `import fsn`, then what is used of it; elsewhere `fsn` is just a variable's name
        found = found - {"fsn"} | attributes
    inside = {module.removeprefix("fsn.") for module in found if module.split(".")[0] == "fsn"}
    return {HOMES.get(module, module) for module in inside}


def test_imports_point_one_way() -> None:
    wrong = []
    for name, tree in sources().items():
        folder = name.split("/")[0].removesuffix(".py")
        if folder in FOLDERS:
            allowed = {*FOLDERS[: FOLDERS.index(folder) + 1], *SHARED}
            wrong += [f"{name} imports {m}" for m in imports(name, tree) if m.split(".")[0] not in allowed]
    assert not wrong, f"a folder imports only from those before it in {FOLDERS}: {wrong}"


def test_imports_of_the_package_are_relative() -> None:
    wrong = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                named = [node.module or ""]
            else:
                continue
            wrong += [f"{name}, line {node.lineno}" for one in named if one.split(".")[0] == "fsn"]
    assert not wrong, f"inside the package write `from ..data import Corpus`: {wrong}"


def test_every_file_says_what_it_is_for() -> None:
    bare = [name for name, tree in sources().items() if not ast.get_docstring(tree)]
    assert not bare, f"begin these files with a docstring: {bare}"


def test_sentences_for_users_have_no_full_stop() -> None:
    """The command line prints them after its name and a colon."""
    wrong = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("UserError", "check") and node.args:
                said = node.args[-1]
                end = said.values[-1] if isinstance(said, ast.JoinedStr) else said
                if isinstance(end, ast.Constant) and str(end.value).endswith("."):
                    wrong.append(f"{name}, line {node.lineno}")
    assert not wrong, wrong


def test_nothing_unpickles() -> None:
    """Files from elsewhere are read as safetensors, JSON or safe YAML: loading never runs code."""
    wrong = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            used: set[str] = set()
            if isinstance(node, ast.Import):
                used = {alias.name for alias in node.names} & UNSAFE_MODULES
            elif isinstance(node, ast.ImportFrom):
                used = {node.module or ""} & UNSAFE_MODULES
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                used = {ast.unparse(node.func)} & UNSAFE_CALLS
            wrong += [f"{name} uses {item}" for item in used]
    assert not wrong, wrong
