"""Small tables of numbers as text, with labels at their true width."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SHOWN = 16  # rows and columns of a table before its middle is left out
LABEL = 12  # cells that a label may take
LINE = 72  # cells that all columns together should fit in


def ends(size: int) -> list[int]:
    """The indices to show: all of them, or the first and the last with room for a gap.

    >>> ends(3), ends(100)[6:10]
    ([0, 1, 2], [6, 7, 92, 93])
    """
    if size <= SHOWN:
        return list(range(size))
    half = SHOWN // 2
    return [*range(half), *range(size - half, size)]


def width(text: str) -> int:
    """Cells that a terminal gives the text: two for CJK and emoji, none for what combines.

    >>> width("ab"), width("好"), width("e\\u0301")
    (2, 2, 1)
    """
    cells = 0
    for char in text:
        if unicodedata.category(char) not in ("Mn", "Me", "Cf", "Cc"):
            cells += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return cells


def shortened(text: str, cells: int) -> str:
    """The text in at most so many cells, with … where it was cut.

    >>> shortened("attention", 5), shortened("注意力机制", 5)
    ('atte…', '注意…')
    """
    text = "".join(char for char in text if unicodedata.category(char) != "Cc")
    if width(text) <= cells:
        return text
    while width(text) > cells - 1:
        text = text[:-1]
    return text + "…"


def table(
    cells: Sequence[Sequence[object]],
    rows: Sequence[int],
    cols: Sequence[int],
    row_labels: Sequence[str] | None = None,
    col_labels: Sequence[str] | None = None,
) -> str:
    """Cells at the indices `rows` x `cols`, a … where indices are left out.

    Labels are those of the indices shown, one each.

    >>> print(table([[1, 0], [1, 1]], [0, 9], [0, 1], ["我", "you"], ["我", "you"]))
        我 you
     我  1   0
      …  …   …
    you  1   1
    """
    head = [] if col_labels is None else [_gapped(col_labels, cols, "…")]
    body = [_gapped([str(cell) for cell in line], cols, "…") for line in cells]
    room = max(2, LINE // max(1, len(cols)) - 1)
    lines = [[shortened(cell, min(room, LABEL)) for cell in line] for line in head + body]
    blank = ["…"] * len(lines[0]) if lines else []
    lines = lines[: len(head)] + _gapped(lines[len(head) :], rows, blank)
    if row_labels is not None:
        names = _gapped([shortened(label, LABEL) for label in row_labels], rows, "…")
        lines = [[name, *line] for name, line in zip([""] * len(head) + names, lines, strict=True)]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(" ".join(map(_right, line, widths)) for line in lines)


def _gapped(items: Sequence[T], indices: Sequence[int], gap: T) -> list[T]:
    """The items with `gap` between two whose indices are not neighbours."""
    out: list[T] = []
    for number, (item, index) in enumerate(zip(items, indices, strict=True)):
        if number and index != indices[number - 1] + 1:
            out.append(gap)
        out.append(item)
    return out


def _right(text: str, cells: int) -> str:
    return " " * (cells - width(text)) + text
