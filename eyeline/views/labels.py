"""Words and numbers as they can be shown: no control characters, nothing endless, in few cells."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

# Marks that would turn the direction of the rest of the line.
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """The text with what would steer a terminal or break XML replaced by �.

    >>> printable("a\\x1b[31mb")
    'a�[31mb'
    """
    return "".join(
        "�" if char in _TURNS or unicodedata.category(char) in ("Cc", "Cs", "Cn") else char
        for char in text
    )


def shorten(text: str, width: int) -> str:
    """At most `width` terminal cells of the text, the last one "…" where it was cut.

    >>> shorten("inconsequential", 8), shorten("注意力机制", 7)
    ('inconse…', '注意力…')
    """
    text = printable(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def repeated(words: Sequence[str]) -> frozenset[int]:
    """The places of words that stand in a text more than once, which need their numbers.

    >>> sorted(repeated(("the", "key", "the")))
    [0, 2]
    """
    counts = Counter(words)
    return frozenset(place for place, word in enumerate(words) if counts[word] > 1)


def cells(words: Sequence[str], edges: Sequence[int], limit: int) -> list[str]:
    """A name for each cell of a map: its word, or the first of its words and "…".

    >>> cells(("the", "old", "cabinet"), (0, 1, 3), 8)
    ['the', 'old…']
    """
    return [
        shorten(words[first], limit)
        if last - first == 1
        else shorten(words[first], limit - 1).rstrip("…") + "…"
        for first, last in zip(edges, edges[1:], strict=False)
    ]


def size(count: float) -> str:
    """Bytes for people.

    >>> size(139_392), size(69_120_000_000)
    ('139 kB', '69 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def seconds(count: float) -> str:
    """Seconds for people.

    >>> seconds(0.0312), seconds(83.4)
    ('0.03', '83')
    """
    return f"{count:.2f}" if count < 10 else f"{count:.0f}"


def number(value: float, share: bool) -> str:
    """A head's reading in two or three characters: a share in percent, else the number itself.

    >>> number(0.483, True), number(2.345, False), number(512.3, False)
    ('48', '2.3', '512')
    """
    if share:
        return f"{100 * value:.0f}"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
