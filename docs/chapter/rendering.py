"""Templates become pages: names are filled in, code is run, sections and exercises are numbered.

A template is Markdown with a few lines of its own:

* `{name}` stands for a number, word or table of `docs.chapter.numbers`, in code as well;
* `{prints}` after a python block stands for what the block prints;
* `{figure:name|text}` is a figure of `docs.chapter.figures` with the text that describes it;
* `## Title` is a numbered section, `##! Title` one without a number;
* `{exercise}`, the question and its command, `{answer}`, the answer: the chapter gets the question
  and the command, the page of answers the command, what it prints, and the answer.

There is a file for each section, in a folder for each language.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from docs.chapter.numbers import Named, drawn, fixed

HERE = Path(__file__).resolve().parent
LANGUAGES = ("en", "zh")
# In the order of the chapter; the last one is the head of the page of answers.
SECTIONS = (
    "opening",
    "lookup",
    "words",
    "score",
    "scale",
    "normalise",
    "sum",
    "masks",
    "cross",
    "heads",
    "tiles",
    "decoding",
    "model",
    "closing",
)
ANSWERS = "answers"
NOTE = "<!-- Made by `make docs` from docs/chapter: change it there. -->"
NAME = re.compile(r"\{([A-Za-z_][\w.]*)\}")
FIGURE = re.compile(r"^\{figure:([\w-]+)\|(.*)\}$")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
LABEL = {"en": "**Exercise {0}.** ", "zh": "**练习 {0}** "}


@dataclass(frozen=True)
class Exercise:
    """One exercise, filled in: its number, question, command and answer."""

    label: str
    question: str
    language: str
    command: str
    answer: str


@dataclass(frozen=True)
class Pages:
    """The chapter and its answers, as they stand in docs/, and the exercises by themselves."""

    chapter: str
    answers: str
    exercises: tuple[Exercise, ...]


def template(lang: str, section: str) -> str:
    """The template of one section in one language."""
    return (HERE / lang / f"{section}.md").read_text("utf-8")


def suffix(lang: str) -> str:
    """What a file's name carries for its language."""
    return ".md" if lang == "en" else f".{lang}.md"


def render(lang: str, seed: int = 0) -> Pages:
    """Both pages of one language with the numbers of a seed."""
    return Renderer(lang, seed, drawn(seed, lang) | fixed(lang)).pages()


class Renderer:
    """One pass over a template."""

    def __init__(self, lang: str, seed: int, names: Named) -> None:
        self.lang, self.seed, self.names = lang, seed, names
        self.section = 0
        self.exercises: list[Exercise] = []
        self.answers: list[str] = []

    def pages(self) -> Pages:
        """The chapter first: its headings number the answers."""
        body = "\n".join(template(self.lang, section) for section in SECTIONS)
        head = template(self.lang, ANSWERS)
        chapter = run("\n\n".join(self._body(body)))
        answers = "\n\n".join([self._filled(head).strip(), *self.answers])
        made = [f"{NOTE}\n\n{page}\n" for page in (chapter, run(answers))]
        return Pages(made[0], made[1], tuple(self.exercises))

    def _filled(self, text: str) -> str:
        def named(found: re.Match[str]) -> str:
            name = found[1]
            return found[0] if name in DIRECTIVES else self.names[name]

        return NAME.sub(named, text)

    def _body(self, text: str) -> Iterator[str]:
        """The chapter's parts in order; exercises are taken out as they come."""
        for part in re.split(r"^(?=##!? |\{exercise\}$)", text, flags=re.MULTILINE):
            if part.startswith("{exercise}"):
                yield self._exercise(part.removeprefix("{exercise}\n"))
                continue
            yield self._headed(part).strip()

    def _headed(self, part: str) -> str:
        if part.startswith("##! "):
            part = f"## {part.removeprefix('##! ')}"
        elif part.startswith("## "):
            self.section += 1
            title = part.removeprefix("## ").split("\n", 1)[0]
            part = f"## {self.section}. {part.removeprefix('## ')}"
            self.answers.append(f"## {self.section}. {self._filled(title)}")
        lines = [self._figure(line) for line in self._filled(part).splitlines()]
        return "\n".join(lines)

    def _figure(self, line: str) -> str:
        found = FIGURE.match(line)
        if not found:
            return line
        ending = ".svg" if self.lang == "en" else f".{self.lang}.svg"
        return f"![{found[2]}](assets/attention-{found[1]}{ending})"

    def _exercise(self, part: str) -> str:
        asked, answer = (piece.strip() for piece in self._filled(part).split("\n{answer}\n"))
        before = [e for e in self.exercises if e.label.startswith(f"{self.section}.")]
        label = f"{self.section}.{len(before) + 1}"
        found = FENCE.search(asked + "\n")
        assert found is not None, f"exercise {label} has no command"
        question = asked[: found.start()].strip()
        one = Exercise(label, question, found[1], found[2].strip(), answer)
        self.exercises.append(one)
        block = f"```{one.language}\n{one.command}\n```"
        prints = "\n{prints}" if one.language == "python" else ""
        self.answers.append(f"### {label}\n\n{block}{prints}\n\n{answer}")
        return LABEL[self.lang].format(label) + f"{question}\n\n{block}"


DIRECTIVES = ("prints", "exercise", "answer")


def run(page: str) -> str:
    """The page with each `{prints}` replaced by what the block before it prints.

    >>> print(run("```python\\nprint(6 * 7)\\n```\\n{prints}"))
    ```python
    print(6 * 7)
    ```
    <BLANKLINE>
    ```text
    42
    ```
    """
    space: dict[str, Any] = {"__name__": "__page__"}
    parts, at = [], 0
    with torch.random.fork_rng(devices=[]):
        for found in FENCE.finditer(page):
            parts.append(page[at : found.end()])
            at = found.end()
            if found[1] != "python":
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(found[2], "<chapter>", "exec"), space)
            if page.startswith("{prints}", at):
                parts.append(f"\n```text\n{printed.getvalue().rstrip()}\n```")
                at += len("{prints}")
    return "".join([*parts, page[at:]])
