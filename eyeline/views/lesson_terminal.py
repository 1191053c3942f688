"""A lesson on the terminal: 80 columns and wider, plain when piped, ASCII where it must be."""

from __future__ import annotations

import io
import math
import re

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from eyeline.lesson.data import Block, Box, Code, Fan, Flow, Lesson, Matrix, Screen, Table, Words
from eyeline.views.labels import printable, shorten

# Mid tones, readable on dark and on light ground; words and marks, not colours, carry the meaning.
_HUE, _WARM, _SOFT = "rgb(64,128,240)", "rgb(208,120,20)", "dim"
_NARROWEST = 60
_LABEL = 12  # cells for a word
_ROWS = 8  # rows of a matrix that are written
_CELL = 9  # cells for a number
_NARROW = 10  # the least width of a table's last column
_RAMP = " ·░▒▓█"
_BAR = 24
# What is not broken: a wide character with the marks that close after it, or a word.
_WIDE = r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff]"
_CLOSING = r"[，。；：、！？）”]"
_PARTS = re.compile(rf"{_WIDE}{_CLOSING}*\s*|(?:(?!{_WIDE})\S)+{_CLOSING}*\s*")
_ASCII = str.maketrans(
    {
        "→": "->", "…": "...", "·": ".", "×": "x", "“": '"', "”": '"', "█": "#", "▓": "@",
        "▒": "+", "░": ":", "─": "-", "│": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+",
        "├": "+", "┬": "+", "√": "sqrt ", "ᵀ": "^T", "Σ": "sum ", "÷": "/", "²": "^2", "≈": "~",
        "∞": "inf", "↓": "v", "–": "-", "−": "-",
    }
)  # fmt: skip


def screen(lesson: Lesson, width: int = 80, step: int | None = None) -> str:
    """The lesson, or one step of it, as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    for place in range(len(lesson.screens)) if step is None else [step]:
        show(lesson.screens[place], console, encoding="utf-8")
    return file.getvalue().strip("\n")


def show(one: Screen, console: Console, encoding: str | None = None) -> None:
    """Print one screen on a console whose output has this encoding (the console's unless given)."""
    printer = _Printer(console, encoding or console.encoding)
    printer.title(one.title)
    for block in one.blocks:
        printer.block(block)
    console.print()


def shown(count: int, most: int) -> list[int | None]:
    """Which of `count` places are written where `most` fit: the first ones, None, the last one.

    >>> shown(3, 8), shown(10, 4)
    ([0, 1, 2], [0, 1, None, 9])
    """
    if count <= most:
        return list(range(count))
    return [*range(max(1, most - 2)), None, count - 1]


def wrapped(text: str, width: int) -> list[str]:
    """A paragraph in lines of at most so many cells; Chinese breaks between any two characters,
    but not before a closing mark.

    >>> wrapped("one two three", 9), wrapped("注意力，就是软检索。", 8)
    (['one two', 'three'], ['注意力，', '就是软检', '索。'])
    """
    lines, line = [], ""
    for part in _PARTS.findall(text):
        if line and cell_len((line + part).rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += part
    return [*lines, line.rstrip()]


def number(value: float | None) -> str:
    """A number in at most eight characters; None is -inf.

    >>> number(-1.64789), number(12345.678), number(None)
    ('-1.6479', '1.23e+04', '-inf')
    """
    if value is None:
        return "-inf"
    if abs(value) < 100:
        return f"{value:.4f}"
    return f"{value:.2f}" if abs(value) < 1e4 else f"{value:.2e}"


class _Printer:
    """The blocks of a lesson on one console."""

    def __init__(self, console: Console, encoding: str) -> None:
        self.console = console
        self.encoding = encoding
        self.unicode = encoding.lower().startswith("utf")
        self.width = max(console.width, _NARROWEST)

    def block(self, block: Block) -> None:
        if isinstance(block, Words):
            self.words(block)
        elif isinstance(block, Matrix):
            self.matrix(block)
        elif isinstance(block, Table):
            self.table(block)
        elif isinstance(block, Code):
            self.code(block)
        elif isinstance(block, Fan):
            self.fan(block)
        else:
            self.flow(block)

    def title(self, text: str) -> None:
        line = f"── {text} "
        self.console.print()
        self.line(Text(self.plain(line + "─" * (self.width - cell_len(line))), style="bold"))

    def words(self, block: Words) -> None:
        mark, style = {"plain": ("", ""), "change": ("→ ", _HUE), "slip": ("! ", _WARM)}[block.role]
        self.console.print()
        for line in wrapped(self.plain(mark + block.text), self.width):
            self.line(Text(line, style=style))

    def code(self, block: Code) -> None:
        self.console.print()
        for line in block.code:
            self.line(Text(self.carried(f"    {line}"), style="green"))

    def matrix(self, block: Matrix) -> None:
        label = min(_LABEL, max(cell_len(self.plain(word)) for word in block.rows))
        cell = 6 if block.shade == "mask" else _CELL + (2 if block.shade == "weight" else 0)
        columns = shown(len(block.values[0]), max(3, (self.width - label - 4) // cell))
        rows = shown(len(block.values), _ROWS)
        size = f"[{len(block.values)}, {len(block.values[0])}]"
        self.console.print()
        self.line(Text.assemble("  ", (self.plain(block.name), "bold"), (f" {size}", _SOFT)))
        if block.columns:
            heads = [self.cell("…" if j is None else block.columns[j], cell) for j in columns]
            self.line(Text("  " + " " * label + "".join(heads), style=_SOFT))
        for i in rows:
            if i is None:
                self.line(Text("  " + self.plain("…"), style=_SOFT))
                continue
            line = Text.assemble("  ", (_fit(shorten(self.plain(block.rows[i]), label), label), ""))
            for j in columns:
                line.append(*self.entry(block, i, j, cell))
            self.line(line)

    def entry(self, block: Matrix, i: int, j: int | None, cell: int) -> tuple[str, str]:
        """A number of a matrix in its width, and its style."""
        if j is None:
            return self.cell("…", cell), _SOFT
        value = block.values[i][j]
        if block.shade == "mask":
            return self.cell(f"{value:g}", cell), _HUE if value else _SOFT
        text = number(value)
        if block.shade == "weight":
            text += " " + self.mark(value or 0.0)
        return self.cell(text, cell), _HUE if value is not None and value > 0 else _SOFT

    def table(self, block: Table) -> None:
        grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=_SOFT)
        columns = zip(*(block.head, *block.rows))
        *firsts, last = (max(cell_len(self.plain(cell)) for cell in column) for column in columns)
        room = self.width - sum(firsts) - 2 * len(firsts)
        # the last column, words as a rule, gives way so that numbers are not broken
        narrow = min(room, last) if room >= _NARROW else None
        for order, head in enumerate(block.head):
            width = narrow if order == len(firsts) else None
            grid.add_column(Text(self.plain(head)), overflow="fold", width=width)
        for row in block.rows:
            grid.add_row(*(Text(self.plain(cell)) for cell in row))
        self.console.print()
        self.console.print(grid, width=self.width)

    def fan(self, block: Fan) -> None:
        label = min(_LABEL, max(cell_len(self.plain(key)) for key in block.keys))
        query = shorten(self.plain(block.query), _LABEL)
        places = shown(len(block.keys), _ROWS)
        self.console.print()
        for order, j in enumerate(places):
            first, last = order == 0, order == len(places) - 1
            corner = "─" if first and last else "┬" if first else "└" if last else "├"
            start = f"  {query} ─" if first else " " * (cell_len(query) + 4)
            if j is None:
                self.line(Text(self.plain(f"{start}{corner}─ …"), style=_SOFT))
                continue
            weight = block.weights[j]
            word = _fit(shorten(self.plain(block.keys[j]), label), label)
            # at least a sliver, so that no arc of the fan is empty
            bar = self.plain("█") * max(1 if weight else 0, round(weight * _BAR))
            score = f"{number(block.scores[j]):>9}"
            parts = (self.plain(f"{start}{corner}─ "), word, score, self.plain(" → "))
            self.line(Text.assemble(*parts, f"{weight:.4f} ", (bar, _HUE)))
        self.line(Text(self.plain(f"  {block.result}")))

    def flow(self, block: Flow) -> None:
        self.console.print()
        widest = max(len(row) for row in block.rows)
        inner = min(34, (self.width - 2) // widest - 4)
        whole = widest * (inner + 4)
        for order, row in enumerate(block.rows):
            if order:
                self.line(Text(self.plain(" " + "↓".center(whole)), style=_SOFT))
            texts = [
                [_fit(shorten(self.plain(line), inner), inner) for line in (box.name, _size(box))]
                for box in row
            ]
            edge = self.plain("─") * inner
            rows = [f"{self.plain('┌─')}{edge}{self.plain('─┐')}"] * len(row)
            bottom = [f"{self.plain('└─')}{edge}{self.plain('─┘')}"] * len(row)
            bar = self.plain("│")
            lines = [rows, *zip(*([f"{bar} {t} {bar}" for t in box] for box in texts)), bottom]
            for parts in lines:
                text = "".join(parts)
                room = (whole - cell_len(text)) // 2
                self.line(Text(" " + " " * room + text))

    def cell(self, text: str, width: int) -> str:
        text = shorten(self.plain(text), width - 1)
        return " " * (width - cell_len(text)) + text

    def mark(self, share: float) -> str:
        return self.plain(_RAMP[round(math.sqrt(min(max(share, 0.0), 1.0)) * (len(_RAMP) - 1))])

    def plain(self, text: str) -> str:
        """The text as the output can carry it."""
        text = printable(text)
        return text if self.unicode else self.carried(text.translate(_ASCII))

    def carried(self, text: str) -> str:
        if self.unicode:
            return text
        return text.encode(self.encoding, "replace").decode(self.encoding)

    def line(self, text: Text, wrap: bool = False) -> None:
        text.rstrip()
        self.console.print(text, soft_wrap=not wrap, highlight=False, markup=False, emoji=False)


def _size(box: Box) -> str:
    return f"{box.shape} {box.range}".rstrip()


def _fit(text: str, width: int) -> str:
    return set_cell_size(text, width)
