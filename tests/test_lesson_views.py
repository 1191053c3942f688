"""`eyeline explain` as it is shown: on a terminal, as JSON, as a page."""

from __future__ import annotations

import html.parser
import io
import json
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from eyeline.cli import printing
from eyeline.lesson import Settings, lesson
from eyeline.views.lesson_page import page
from eyeline.views.lesson_terminal import screen, show
from tests.test_cli import process, run  # noqa: F401, the fixture

VOID = {"meta", "path", "rect", "br"}


class Tags(html.parser.HTMLParser):
    """Whether every tag is closed, and which attributes there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_lesson_by_default(run):  # noqa: F811
    done = run("explain", "--lang", "en")
    assert done.code == 0
    assert done.out == run("explain", "I love NLP", "--lang", "en").out
    assert "\x1b" not in done.out
    titles = re.findall(r"^── (\d+) · ", done.out, re.MULTILINE)
    assert titles == [str(i) for i in range(12)]
    assert re.search(r"love +0\.0205 · +0\.7694 ▓ +0\.2101", done.out)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_lines_fit_80_columns(lang):
    code = set(lesson(lang=lang).code().splitlines())
    for line in screen(lesson(Settings("我爱 attention and NLP"), lang=lang), 80).splitlines():
        assert cell_len(line) <= 80 or line.strip() in code or line.startswith("    "), line


def test_one_step(run):  # noqa: F811
    done = run("explain", "--step", "7", "--lang", "zh")
    assert re.findall(r"^── (\d+)", done.out, re.MULTILINE) == ["7"]
    assert "归一化" in done.out
    assert "0.0900 0.2447 0.6652" in done.out
    assert "they are 0 to 11" in run("explain", "--step", "12").err


def test_json_and_options(run):  # noqa: F811
    told = json.loads(
        run("explain", "a b", "--d", "6", "--heads", "2", "--head", "1", "--json").out
    )
    assert told["settings"]["heads"] == 2
    assert len(told["numbers"]["weights"]) == 2
    assert len(told["screens"]) == 12
    told = json.loads(run("explain", "--causal", "--no-scale", "--seed", "5", "--json").out)
    assert told["settings"]["scale"] == 1.0
    assert told["numbers"]["weights"][0] == [1.0, 0.0, 0.0]
    assert told["numbers"]["scaled"][0][1] is None
    told = json.loads(run("explain", "--scale", "2", "--json").out)
    row = told["numbers"]["scores"][0]
    assert told["numbers"]["scaled"][0] == pytest.approx([2 * x for x in row])
    told = json.loads(run("explain", "--model", "minilm", "--layer", "2", "--json").out)
    assert told["words"][0] == "[CLS]"
    assert len(told["words"]) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scale", "2", "--no-scale"], "--scale and --no-scale were given"),
        (["--causal", "--no-mask"], "give one of them"),
        (["--layer", "1"], "without --model"),
        (["--model", "minilm", "--seed", "1"], "--model and --seed"),
        ([""], "empty"),
        (["--token", "you"], "no word “you”"),
        (["--heads", "3"], "--heads"),
        (["--html", "no/folder/a.html"], "cannot be written"),
        (["--lang", "fr"], "fr"),
    ],
)
def test_errors_are_one_message(run, arguments, said):  # noqa: F811
    done = run("explain", *arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_page_for_a_class(run, tmp_path, lang):  # noqa: F811
    done = run("explain", "--html", "a.html", "--lang", lang, "--step", "0")
    assert "a.html" in done.out
    text = (tmp_path / "a.html").read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not tags.attributes & {"src", "onclick", "onload"}
    assert not re.search(r"https?://|@import|url\(|<script", text)
    assert text.count("<section") == 13
    assert text.count("<svg") == 4  # the projections, the fan, a block, the whole flow
    assert "0.7254" in text
    assert "causal_weights = torch.softmax" in text
    assert len(text) < 300_000


def test_a_page_escapes_its_text():
    text = page(lesson(Settings("<script> &amp \x1b"), lang="en"))
    assert "<script" not in text
    assert "\x1b" not in text


def test_long_texts_stay_small():
    found = lesson(Settings("x y " * 32, d=512), lang="en")
    assert len(page(found)) < 300_000
    assert all(cell_len(line) <= 80 for line in screen(found, step=7).splitlines())


def test_a_terminal_without_chinese():
    done = process("explain", "词 love", "--lang", "zh", "--step", "11", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"In short" in done.stdout


def test_colours_carry_nothing_alone():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system="truecolor")
    found = lesson(lang="en")
    show(found.screens[7], console, encoding="utf-8")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert plain.strip("\n") == screen(found, step=7)


def test_a_reader_can_stop(monkeypatch):
    def ended(_):
        raise EOFError

    answers = {"": True, "q": False, " Q ": False}
    for answer, goes_on in answers.items():
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert printing.goes_on("next?") is goes_on
    monkeypatch.setattr("builtins.input", ended)
    assert printing.goes_on("next?") is False
