"""The chapter in docs/: its numbers are those of running code, its exercises have their answers.

The pages are rendered again and compared with the files; another seed must change the numbers and
nothing else; every command of an exercise is run and must print what its answer says.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from docs.chapter.__main__ import files
from docs.chapter.numbers import drawn
from docs.chapter.rendering import (
    ANSWERS,
    FENCE,
    LANGUAGES,
    NAME,
    SECTIONS,
    Pages,
    render,
    template,
)
from eyeline import cli

DOCS = Path(__file__).resolve().parent.parent / "docs"
NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
UNNUMBERED = {"opening", "closing", ANSWERS}
# Drawn, and the same at any seed: what a row of one word is, what a first tile sums to.
SAME = {"masked.0", "tile.0.l", "tile.1.l", "tile.2.l", "kept.0.l", "word.0", "word.1", "word.2"}
SAME |= {"sat.keys", "sat.d", "sat.limit", "dot.d", "dot.count", "lm.knowable"}
# Rounded so far, or so near a bound, that two seeds may agree.
MAY_AGREE = {"sat.sure.scaled", "dot.scaled", "dot.spread", "dot.own", "best.0", "best.2"}
MAY_AGREE |= {"factor.1.old", "factor.1.new", "factor.2.old", "factor.2.new"}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return files()


@pytest.fixture(scope="module", params=LANGUAGES)
def lang(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def pages(lang) -> Pages:
    return render(lang)


def value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def close(one: str, other: str) -> bool:
    """Equal but for what another machine rounds otherwise in its last digits."""
    a, b = value(one), value(other)
    digits = len(one.partition(".")[2].partition("e")[0])
    last = 10.0**-digits * (10.0 ** int(one.partition("e")[2]) if "e" in one else 1.0)
    return abs(a - b) <= 2.5 * last + 0.03 * max(abs(a), abs(b))


def test_the_files_are_what_the_build_makes(made):
    for name, text in made.items():
        there = (DOCS / name).read_text("utf-8")
        assert NUMBER.sub("#", there) == NUMBER.sub("#", text), f"make docs writes {name} anew"
        pairs = zip(NUMBER.findall(there), NUMBER.findall(text), strict=True)
        far = [pair for pair in pairs if not close(*pair)]
        assert not far, f"{name}: {far[:5]}"


def test_no_file_is_left_over(made):
    there = [*DOCS.glob("attention*.md"), *DOCS.glob("assets/attention-*")]
    names = {str(path.relative_to(DOCS)) for path in there} - {"attention-weights.md"}
    assert names == set(made)


def test_figures_need_nothing_else(made):
    for name, text in made.items():
        if name.endswith(".svg"):
            assert text.startswith("<svg xmlns=")
            assert "<title>" in text
            assert not re.search(r"<script|href=|var\(|currentColor|nan", text), name


def test_no_number_is_typed_by_hand(lang):
    for section in (*SECTIONS, ANSWERS):
        text = template(lang, section)
        text = re.sub(r"`[^`\n]+`", "", NAME.sub("", FENCE.sub("", text)))
        assert not re.search(r"\d", text), f"{lang}/{section}: {re.findall('.*[0-9].*', text)}"


def unnumbered(text: str) -> list[str]:
    """The prose with numbers and the example's words replaced by marks, spaces aside."""
    text = re.sub(r"#\.", "#", NUMBER.sub("#", text))  # torch writes a round number as "1."
    text = re.sub(r"\b(I|love|NLP)\b", "W", text)
    return [re.sub(r"\s+", "", line) for line in text.splitlines()]


def test_another_seed_changes_numbers_and_nothing_else(lang, pages):
    other = render(lang, 1)
    assert other.chapter != pages.chapter
    assert unnumbered(other.chapter) == unnumbered(pages.chapter)
    assert unnumbered(other.answers) == unnumbered(pages.answers)


def test_another_seed_changes_every_drawn_number():
    one, other = drawn(0, "en"), drawn(1, "en")
    used = {name for part in (*SECTIONS, ANSWERS) for name in NAME.findall(template("en", part))}
    same = {name for name in used & set(one) if one[name] == other[name]}
    assert same <= SAME | MAY_AGREE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_what_the_prose_says_holds_at_other_seeds(seed):
    assert drawn(seed, "en")["seed"] == str(seed)


def test_two_exercises_a_section(lang, pages):
    sections = len(SECTIONS) - len(UNNUMBERED & set(SECTIONS))
    expected = [f"{i}.{j}" for i in range(1, sections + 1) for j in (1, 2)]
    assert [one.label for one in pages.exercises] == expected
    assert 10 <= sections <= 12


def test_both_languages_ask_the_same(pages):
    english = render("en").exercises
    for one, other in zip(pages.exercises, english, strict=True):
        assert one.command.replace(" --lang zh", "") == other.command


def printed(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints, in this process: what is measured once need not be again."""
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    monkeypatch.setenv("LC_ALL", "en")
    monkeypatch.setenv("COLUMNS", "100")
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, command
    return out.getvalue()


def bare(text: str) -> str:
    """Without spaces, which lines are broken at, and the shades beside weights."""
    return re.sub(r"[\s·░▒▓█]", "", text)


def test_each_command_prints_what_its_answer_says(pages, monkeypatch):
    """What an answer has in code marks, with a digit in it, stands in the output."""
    checked = 0
    for one in pages.exercises:
        if one.language == "sh":
            output = printed(one.command, monkeypatch)
        else:
            part = pages.answers.split(f"### {one.label}\n")[1].split("\n### ")[0]
            output = next(m[2] for m in FENCE.finditer(part) if m[1] == "text")
        told = [span for span in re.findall(r"`([^`]+)`", one.answer) if re.search(r"\d", span)]
        for span in told:
            assert bare(span) in bare(output), f"{one.label}: {span} in {output}"
        checked += bool(told)
    assert checked >= 16


def test_what_must_be_in_the_chapter_by_hand_is_in_it(pages):
    """A reader has only the chapter: each number that an exercise takes from it stands in it."""
    from docs.chapter.numbers import ledger

    book = ledger(0)
    for name in ("X", "W_Q", "Q", "K", "V", "scores", "scaled", "weights", "output"):
        for entry in book[name].flatten().tolist():
            assert f"{entry:.4f}" in pages.chapter, (name, entry)
