"""What holds of the package as a whole: its names, the direction of its imports, its files."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import eyeline

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "eyeline"

# A module imports only modules that stand before it. `integrations` is how `seen`, `acting` and
# `models` reach into other libraries; nobody else may.
ORDER = [
    "errors",
    "visibility",
    "masks",
    "biases",
    "problem",
    "backends",
    "lazy",
    "api",
    "functional",
    "spans",
    "readings",
    "tokens",
    "calls",
    "integrations",
    "seen",
    "recording",
    "acting",
    "heads",
    "positions",
    "kv_cache",
    "layers",
    "models",
    "glossary",
    "looking",
    "lesson",
    "views",
    "cli",
    "__main__",
]

# What `import eyeline` must not load: these take seconds, or are not needed to compute.
HEAVY = ("transformers", "rich", "typer", "matplotlib", "tokenizers", "gguf", "onnx", "IPython")

# Where public names stand that are not at the top.
SUBMODULES = (
    "masks",
    "biases",
    "readings",
    "functional",
    "layers",
    "positions",
    "kv_cache",
    "models",
    "errors",
    "spans",
    "recording",
    "heads",
    "acting",
)

MODULES = sorted(PACKAGE.rglob("*.py"))
PUBLIC_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".json", ".svg", ".css", ".html", ".js"}
MOST_LINES = 500
# Written by `make docs` from docs/chapter, which has a file for each section.
MADE = {"attention.md", "attention.zh.md", "attention-answers.md", "attention-answers.zh.md"}
MOST_NAMES = 16


def public_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def public_names(module: str) -> list[str]:
    """What a submodule offers: its `__all__`, or what is defined in it without an underscore."""
    found = importlib.import_module(f"eyeline.{module}")
    defined = [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == found.__name__
    ]
    return list(getattr(found, "__all__", defined))


def unit(path: Path) -> str:
    """The name in ORDER that a file belongs to: a module or a folder of the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def place(name: str) -> int:
    return ORDER.index(name)


def imported(path: Path) -> Iterator[str]:
    """Every unit of eyeline that a file imports, anywhere in it."""
    package = ("eyeline", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            # `from eyeline import masks` names a module, `from eyeline.masks import causal` none
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "eyeline" and len(parts) > 1:
                yield parts[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    own = unit(path)
    if own == "__init__":  # the door itself
        return
    for name in imported(path):
        if name == "integrations":
            assert own in {"seen", "acting", "models", "integrations"}, (
                f"{path.name} imports {name}"
            )
        assert place(name) <= place(own), f"{path.name} imports {name}, which stands after it"


def test_import_is_light():
    code = (
        "import sys, eyeline; eyeline.__all__; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_few_names():
    assert len(set(eyeline.__all__)) == len(eyeline.__all__) <= MOST_NAMES
    assert all(hasattr(eyeline, name) for name in eyeline.__all__)


@pytest.mark.parametrize("name", eyeline.__all__)
def test_every_name_has_an_example_that_shows_a_number(name):
    named = getattr(eyeline, name)
    text = named.__doc__ or ""
    examples = doctest.DocTestParser().get_examples(text)
    assert examples, f"eyeline.{name} has no example"
    assert any(re.search(r"\d", example.want) for example in examples), f"{name} shows no number"
    assert "+SKIP" not in text
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    given = dict(vars(sys.modules[getattr(named, "__module__", "eyeline")]))
    test = doctest.DocTestParser().get_doctest(text, given, name, None, None)
    failed, attempted = doctest.DocTestRunner(optionflags=flags).run(test)
    assert attempted
    assert not failed


def test_modules_are_not_named_like_functions():
    modules = {path.stem for path in MODULES} - {"__init__"}
    public = set(eyeline.__all__)
    for name in SUBMODULES:
        public |= set(public_names(name))
    assert not modules & public


def test_every_module_says_what_it_is():
    silent = [str(p) for p in MODULES if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert not silent


def test_files_stay_short():
    long = {
        str(path.relative_to(ROOT)): count
        for path in public_files()
        if path.suffix in {".py", ".md", ".css", ".js"}
        and path.name not in MADE
        and (count := len(path.read_text("utf-8").splitlines())) > MOST_LINES
    }
    assert not long, "split by concept"


def test_public_files_name_no_machine_and_no_registry():
    # Spelled in pieces so that this file does not hold what it forbids.
    words = ["/wo" + "rk/", "/tmp/e" + "xp", "/opt/wh" + "eels", "/ro" + "ot/"]
    words += ["pypi" + ".org", "python" + "hosted", "npmjs" + ".", "download.py" + "torch"]
    words += ["TO" + "DO", "FIX" + "ME"]
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in public_files()
        if path.suffix in PUBLIC_SUFFIXES or path.name in {"Makefile", "run"}
        for word in words
        if word in path.read_text("utf-8")
    ]
    assert not found


def test_no_catch_all_modules():
    assert not {path.stem for path in MODULES} & {"utils", "util", "helpers", "common", "misc"}


def test_version_is_stated_once_and_is_the_installed_one():
    stated = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert stated is not None
    assert f"## {stated[1]}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
