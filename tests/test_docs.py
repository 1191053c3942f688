"""Everything in the documents that can go wrong is run, followed or compared here.

* a ```python block runs; blocks of one page share their names. Where the next block is
  ```text, it is what the code prints.
* between `<!-- help:COMMAND -->` and `<!-- /help -->` stands the command line's own help.
* between `<!-- figure:NAME -->` and `<!-- /figure -->` stands a table made of
  benchmarks/results/costs.json; the picture beside it likewise.
* links to files and headings lead somewhere; every public name is in docs/api.md.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eyeline
from benchmarks import costs, costs_shown
from tests.test_package import SUBMODULES, public_names

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
PAGES = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*PAGES, *(ROOT / name for name in ("DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONG = {"own_reading", "gpt", "bert", "translation"}  # 16 384 tokens; trainings

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
HELP = re.compile(r"<!-- help:(\S*) -->\n```text\n(.*?)```\n<!-- /help -->", re.DOTALL)
FIGURE = re.compile(r"<!-- figure:(\w+) -->\n(.*?)\n<!-- /figure -->", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block of a page."""
    return [(m[1], m[2]) for m in BLOCK.finditer(path.read_text("utf-8"))]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_snippets_run_and_print_what_the_page_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = blocks(path)
    names: dict[str, object] = {"__name__": "__page__"}
    for (language, code), following in zip(page, [*page, ("", "")][1:], strict=True):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name_of(path), "exec"), names)
        if following[0] == "text":
            assert printed.getvalue().rstrip() == following[1].rstrip(), code


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] if p.stem in LONG else []) for p in EXAMPLES],
    ids=name_of,
)
def test_examples_run(path, tmp_path):
    done = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # as pytest's own `pythonpath` does
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout), "an example shows a number"


def anchor(heading: str) -> str:
    """The anchor of a heading, as the usual hosts make it."""
    plain = re.sub(r"[`*]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path):
    text = BLOCK.sub("", path.read_text("utf-8"))
    for found in LINK.finditer(text):
        target = found[1] or found[2]
        if re.match(r"[a-z]+:", target):  # another site: not asked here, no network
            continue
        file, _, mark = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{name_of(path)} links to {target}"
        if mark:
            marks = {anchor(heading) for heading in HEADING.findall(there.read_text("utf-8"))}
            assert mark in marks, f"{name_of(path)} links to {target}"


def helped(command: str) -> str:
    """What `eyeline COMMAND --help` prints, plain, 80 columns wide."""
    start = "import sys; sys.argv[0] = 'eyeline'; from eyeline.cli import main; main()"
    arguments = [sys.executable, "-c", start, *command.split(), "--help"]
    plain = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
    done = subprocess.run(
        arguments,
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def test_help_in_the_documents_is_the_real_help():
    shown = {m[1]: m[2] for path in PAGES for m in HELP.finditer(path.read_text("utf-8"))}
    assert {"look", "info"} <= set(shown)
    for command, text in shown.items():
        assert text.strip("\n") == helped(command), f"docs: eyeline {command} --help"


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_figures_come_from_the_stored_measurement(path):
    results = json.loads(costs.RESULTS.read_text("utf-8"))
    found = dict(FIGURE.findall(path.read_text("utf-8")))
    assert set(found) == set(costs_shown.FIGURES)
    lang = "zh" if ".zh." in path.name else "en"
    for figure, text in found.items():
        assert text == costs_shown.table(results, figure, lang)


def test_pictures_of_costs_come_from_the_stored_measurement():
    results = json.loads(costs.RESULTS.read_text("utf-8"))
    for path, drawn in costs_shown.pictures(results).items():
        assert path.read_text("utf-8") == drawn, f"{name_of(path)}: make bench"


def test_both_readmes_say_the_same():
    english, chinese = (blocks(path) for path in READMES)

    def bare(code: str) -> str:  # comments are in the reader's language
        return re.sub(r"\s*#.*", "", code)

    assert [(lang, bare(code)) for lang, code in english] == [
        (lang, bare(code)) for lang, code in chinese
    ]
    headings = [len(HEADING.findall(BLOCK.sub("", p.read_text("utf-8")))) for p in READMES]
    assert headings[0] == headings[1]


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_readme_names_real_commands(path):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"`?\bmake ([a-z-]+)", path.read_text("utf-8")))
    assert {"look", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_the_list_of_names_is_the_public_names():
    """Each public name once: at the top, else under its module; and no name that is not there."""
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = re.findall(r"^\| `eyeline\.([\w.]+)", text, re.MULTILINE)
    expected = set(eyeline.__all__)
    for module in SUBMODULES:
        found = importlib.import_module(f"eyeline.{module}")
        expected |= {
            f"{module}.{name}"
            for name in public_names(module)
            if name not in eyeline.__all__ or getattr(found, name) is not getattr(eyeline, name)
        }
    assert len(set(listed)) == len(listed)
    assert set(listed) == expected
